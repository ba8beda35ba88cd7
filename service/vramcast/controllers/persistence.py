"""What a restart must not forget, kept in one ConfigMap: sections that are read once and written when they changed.

Only the leader writes, and each write names the version that it replaces. One that is refused because somebody else
wrote meanwhile (an administrator who reset it, a leader that was) is not repeated: what is there now is taken instead.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol, runtime_checkable

import structlog

from vramcast.cluster.objects import Conflict, StoredConfigMap
from vramcast.errors import WorldUnavailable

FORMAT = "1"
_FORMAT_KEY = "version"
# The API server takes a MiB, names and all.
_LARGEST_BYTES = 900 << 10
_TICK_SECONDS = 0.5

log = structlog.get_logger("vramcast")


class Section(Protocol):
    """`revision` changes with everything that `snapshot` shows. `restore` may raise on what is damaged."""

    @property
    def revision(self) -> int: ...

    def snapshot(self) -> Any:
        """As JSON takes it."""
        ...

    def restore(self, document: Any) -> None:
        """None: nothing was kept, or it was reset."""
        ...


@runtime_checkable
class ConfigMapApi(Protocol):
    """What keeping needs of the cluster. The calls block and raise WorldUnavailable."""

    def read_config_map(self, namespace: str, name: str) -> StoredConfigMap | None: ...

    def write_config_map(self, namespace: str, name: str, data: Mapping[str, str], version: str) -> str:
        """The new version; `version` empty: there is none yet. Raises Conflict."""
        ...


class Save(StrEnum):
    """What became of a write; a metric label, so the set is closed."""

    SAVED = "saved"
    CONFLICT = "conflict"
    FAILED = "failed"


@dataclass(slots=True)
class Memory:
    """Lives on the event loop. Without a shelf it keeps nothing, and is always loaded."""

    offload: Callable[..., Awaitable[Any]]
    clock: Callable[[], float]
    config_maps: ConfigMapApi | None = None
    place: str = "/"  # namespace/name
    save_seconds: float = 5.0
    leading: Callable[[], bool] = lambda: True
    sections: dict[str, Section] = field(default_factory=dict)
    loaded: bool = False
    saves: dict[Save, int] = field(default_factory=lambda: dict.fromkeys(Save, 0))
    _version: str = ""
    _saved: tuple[int, ...] = ()
    _dirty_since: float | None = None
    _tried_at: float = float("-inf")
    _foreign: bool = False

    @property
    def unsaved_seconds(self) -> float:
        """Since the oldest change that would be lost now."""
        self._notice()
        return 0.0 if self._dirty_since is None else self.clock() - self._dirty_since

    async def load(self) -> None:
        """Never raises; where the API server does not answer, `keep` tries again."""
        self.loaded = False
        if self.config_maps is None:
            self._restore({})
            return
        try:
            kept: StoredConfigMap | None = await self.offload(self.config_maps.read_config_map, *self.place.split("/"))
        except WorldUnavailable as error:
            log.warning("cannot read what was learned, trying again", config_map=self.place, error=str(error))
            return
        self._version = kept.version if kept else ""
        self._restore(kept.data if kept else {})

    async def keep(self) -> None:
        """Until cancelled."""
        while True:
            await asyncio.sleep(_TICK_SECONDS)
            try:
                await self.tick()
            except Exception:
                log.exception("keeping what was learned failed, trying again")

    async def tick(self) -> None:
        if self.clock() - self._tried_at < self.save_seconds:
            return
        self._notice()
        if not self.loaded:
            self._tried_at = self.clock()
            await self.load()
        elif self._dirty_since is not None:
            await self.save()

    async def save(self) -> None:
        """Never raises. Nothing is written by a replica that stands by, or over what a newer version wrote."""
        self._notice()
        if (
            self.config_maps is None
            or not self.loaded
            or self._foreign
            or self._dirty_since is None
            or not self.leading()
        ):
            return
        self._tried_at = self.clock()
        revisions, data = self._revisions(), self._data()
        size = sum(map(len, data.values()))
        if size > _LARGEST_BYTES:
            self.saves[Save.FAILED] += 1
            log.error("what was learned is too large to keep", bytes=size, most=_LARGEST_BYTES)
            return
        try:
            written = await self.offload(self.config_maps.write_config_map, *self.place.split("/"), data, self._version)
        except Conflict:
            self.saves[Save.CONFLICT] += 1
            log.warning("somebody else wrote what was learned, taking that", config_map=self.place)
            await self.load()
            return
        except WorldUnavailable as error:
            self.saves[Save.FAILED] += 1
            log.warning("cannot keep what was learned, trying again", config_map=self.place, error=str(error))
            return
        self._version = written
        self.saves[Save.SAVED] += 1
        self._saved = revisions
        self._dirty_since = None
        self._notice()

    def _notice(self) -> None:
        if self._dirty_since is None and self.loaded and self._revisions() != self._saved:
            self._dirty_since = self.clock()

    def _revisions(self) -> tuple[int, ...]:
        return tuple(section.revision for section in self.sections.values())

    def _data(self) -> dict[str, str]:
        return {
            _FORMAT_KEY: FORMAT,
            **{f"{name}.json": readable(section.snapshot()) for name, section in self.sections.items()},
        }

    def _restore(self, data: Mapping[str, str]) -> None:
        found = data.get(_FORMAT_KEY, FORMAT)
        self._foreign = found != FORMAT
        if self._foreign:
            log.error("what was learned has another format: it is left alone, and nothing is kept",
                      config_map=self.place, format=found, expected=FORMAT)  # fmt: skip
        for name, section in self.sections.items():
            self._restore_section(name, section, None if self._foreign else data.get(f"{name}.json"))
        self.loaded = True
        self._saved = self._revisions()
        self._dirty_since = None

    def _restore_section(self, name: str, section: Section, text: str | None) -> None:
        try:
            section.restore(None if text is None else json.loads(text))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            log.error("what was learned is damaged, starting afresh", config_map=self.place, key=f"{name}.json",
                      error=repr(error))  # fmt: skip
            section.restore(None)


def readable(document: Any) -> str:
    """Compact, but a line for each entry of a list, so that `kubectl` shows something that can be read."""
    if not isinstance(document, Mapping):
        return json.dumps(document, separators=(",", ":"))
    return "{\n" + ",\n".join(f"{json.dumps(key)}: {_lines(value)}" for key, value in document.items()) + "\n}\n"


def _lines(value: Any) -> str:
    if isinstance(value, list) and value and isinstance(value[0], list | dict):
        return "[\n" + ",\n".join(json.dumps(entry, separators=(", ", ":")) for entry in value) + "\n]"
    return json.dumps(value, separators=(", ", ":"))
