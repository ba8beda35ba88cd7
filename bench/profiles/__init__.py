"""Checks recordings: how long `vramcast profile` takes, and whether a recording is right where nobody recorded."""
