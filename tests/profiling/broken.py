"""Fails when it is imported, as a user's module may."""

raise RuntimeError("the data folder is not mounted")
