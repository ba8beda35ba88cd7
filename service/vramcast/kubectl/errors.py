"""Trouble: everything that a user of the plugin may meet, with what to do next."""

from __future__ import annotations


class Trouble(Exception):
    """Printed as it is, without a traceback."""


class NotKnown(Trouble):
    """vramcast does not know the pod."""


class Outdated(Trouble):
    """The service has no such request, or an answer of another shape."""
