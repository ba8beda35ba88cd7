"""Every error that vramcast raises on purpose, by whose fault it is.

    VramcastError
    ├── InvalidInput            the caller's: a body, an annotation, a file, a setting
    │   ├── InvalidTask         a pod's annotations; carries one FieldError per mistake
    │   ├── InvalidRequest      an HTTP body that is not the wire's
    │   └── InvalidClusterFile  a static cluster file
    └── WorldUnavailable        nobody's here: the API server, telemetry, an artifact
        ├── NotSynced           the cluster's state is not known (yet, or any more)
        └── NotLeading          another replica decides

What does not fit on a GPU is not an error: it is data (see `reasons`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

# A message is for a person: past this many mistakes it counts them instead.
MAX_SHOWN = 10


class VramcastError(Exception):
    """Base of all errors raised on purpose."""


class InvalidInput(VramcastError):
    """What came in from outside cannot be used."""


class InvalidRequest(InvalidInput):
    """A body that is not what the wire says."""


class InvalidClusterFile(InvalidInput):
    """A static cluster file that cannot be read as one."""


@dataclass(frozen=True, slots=True)
class FieldError:
    """One mistake: where it is, what stood there, and what would have been right."""

    field: str
    value: str
    expected: str

    def __str__(self) -> str:
        shown = self.value if len(self.value) <= 60 else f"{self.value[:57]}..."
        return f"{self.field}: {shown!r} is not valid: {self.expected}"


class InvalidTask(InvalidInput):
    """A pod whose annotations cannot be understood; all mistakes at once."""

    def __init__(self, errors: Sequence[FieldError]) -> None:
        self.errors = tuple(errors)
        shown = [str(error) for error in self.errors[:MAX_SHOWN]]
        more = len(self.errors) - len(shown)
        super().__init__("; ".join([*shown, f"and {more} more"] if more else shown))


class WorldUnavailable(VramcastError):
    """Something outside did not answer; trying again later may help."""


class NotSynced(WorldUnavailable):
    """The state of the cluster is not known, so no promise can be made."""


class NotLeading(WorldUnavailable):
    """Another replica decides, or this one has not taken over yet."""
