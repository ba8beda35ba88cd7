"""Every error that vramcast raises on purpose, by whose fault it is.

    VramcastError
    ├── InvalidInput            the caller's: a request, an annotation, a file, a setting
    │   ├── InvalidTask         a pod's annotations; has one FieldError per mistake
    │   ├── InvalidRequest      an HTTP body
    │   └── InvalidClusterFile  a static cluster file
    └── WorldUnavailable        something outside: the API server, telemetry, an artifact
        ├── ArtifactUnusable    a trained model is missing, damaged or of another version
        ├── NotSynced           the cluster's state is unknown or stale
        └── NotLeading          another replica decides

A pod that does not fit is not an error: see `placement/reasons.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

# A message lists at most this many mistakes and counts the rest.
MAX_SHOWN = 10


class VramcastError(Exception):
    """Base of all errors raised on purpose."""


class InvalidInput(VramcastError):
    """Input from outside is invalid."""


class InvalidRequest(InvalidInput):
    """An HTTP body is invalid."""


class InvalidClusterFile(InvalidInput):
    """A static cluster file is invalid."""


@dataclass(frozen=True, slots=True)
class FieldError:
    """One mistake: the field, its value, and what was expected."""

    field: str
    value: str
    expected: str

    def __str__(self) -> str:
        shown = self.value if len(self.value) <= 60 else f"{self.value[:57]}..."
        return f"{self.field}: {shown!r} is not valid: {self.expected}"


class InvalidTask(InvalidInput):
    """A pod's annotations are invalid. Has all mistakes."""

    def __init__(self, errors: Sequence[FieldError]) -> None:
        self.errors = tuple(errors)
        shown = [str(error) for error in self.errors[:MAX_SHOWN]]
        more = len(self.errors) - len(shown)
        super().__init__("; ".join([*shown, f"and {more} more"] if more else shown))


class WorldUnavailable(VramcastError):
    """Something outside did not answer; a retry may help."""


class ArtifactUnusable(WorldUnavailable):
    """A trained artifact is missing, damaged, or made for another feature layout."""


class NotSynced(WorldUnavailable):
    """The cluster's state is unknown or stale, so no promise can be made."""


class NotLeading(WorldUnavailable):
    """Another replica leads, or this one has not taken over yet."""
