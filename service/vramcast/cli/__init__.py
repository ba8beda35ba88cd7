"""The commands of `vramcast`."""
