"""Fails on import, as a user's module may."""

raise RuntimeError("the data folder is not mounted")
