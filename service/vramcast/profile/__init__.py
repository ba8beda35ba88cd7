"""Turns a PyTorch module into a description that a pod can carry, without weights and without a GPU."""
