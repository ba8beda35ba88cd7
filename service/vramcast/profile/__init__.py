"""From a module of PyTorch to a description that a pod can carry: traced without weights and without a GPU."""
