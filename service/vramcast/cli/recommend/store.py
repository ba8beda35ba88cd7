"""Windows that were read already, one file each, so that an interrupted run goes on where it stopped.

Files are written atomically and belong to one question (server, matchers, step). A damaged file, or one of another
version, is read again. Windows lie on a fixed grid, so tomorrow's run reads only what is new.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from pathlib import Path
from typing import Final

import msgspec

from vramcast.cli.recommend.reading import Scope
from vramcast.errors import InvalidInput
from vramcast.recommend.window import Window

VERSION: Final = 1
# Whatever is older than this before the first window that is asked for is deleted.
_KEPT_SECONDS: Final = 90 * 86_400.0


def cache_root() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "vramcast" / "recommend"


class WindowStore:
    """Of one question. Names of pods are not everybody's business: only this user may read it."""

    def __init__(self, root: Path, url: str, scope: Scope) -> None:
        question = msgspec.json.encode([VERSION, url, scope.selector, sorted(scope.namespaces), scope.step_seconds])
        self.directory = root / hashlib.sha256(question).hexdigest()[:16]
        try:
            self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise InvalidInput(
                f"{self.directory}: cannot be made: {error}; set XDG_CACHE_HOME to a writable directory"
            ) from None

    def load(self, start: float, end: float) -> Window | None:
        try:
            window = msgspec.json.decode(self._path(start, end).read_bytes(), type=Window)
        except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
            return None
        return window if (window.start, window.end) == (start, end) else None

    def save(self, window: Window) -> None:
        path = self._path(window.start, window.end)
        try:
            descriptor, name = tempfile.mkstemp(dir=self.directory, prefix=".")
            temporary = Path(name)
            try:
                with os.fdopen(descriptor, "wb") as file:
                    file.write(msgspec.json.encode(window))
                temporary.replace(path)
            finally:
                temporary.unlink(missing_ok=True)
        except OSError as error:
            raise InvalidInput(f"{path}: cannot be written: {error}; set XDG_CACHE_HOME to a disk with room") from None

    def clear(self) -> None:
        for path in self.directory.glob("*.json"):
            path.unlink(missing_ok=True)

    def forget_before(self, start: float) -> None:
        for path in self.directory.glob("*.json"):
            begins = path.stem.partition("-")[0]
            if begins.isdecimal() and int(begins) < start - _KEPT_SECONDS:
                path.unlink(missing_ok=True)

    def _path(self, start: float, end: float) -> Path:
        return self.directory / f"{start:.0f}-{end:.0f}.json"
