"""Keeps what a restart must not forget in one ConfigMap: sections that are read once and written when they change.

Only the leader writes, and each write names the version that it replaces. If somebody else wrote in between (an
administrator who reset it, a former leader), the write is not repeated: what is there now is loaded instead.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Any, Protocol, runtime_checkable

import structlog

from vramcast.cluster.objects import Conflict, StoredConfigMap
from vramcast.errors import WorldUnavailable
from vramcast.workers import Offload

FORMAT = "1"
_FORMAT_KEY = "version"
# The API server accepts 1 MiB, names included.
_MAX_BYTES = 900 << 10
_TICK_SECONDS = 0.5

log = structlog.get_logger("vramcast")


class Section(Protocol):
    """`revision` changes whenever `snapshot` would. `restore` may raise on damaged data."""

    @property
    def revision(self) -> int: ...

    def snapshot(self) -> Any:
        """JSON, or a function that makes it, which runs on a worker."""
        ...

    def restore(self, document: Any) -> None:
        """None: nothing was stored, or it was reset."""
        ...


@runtime_checkable
class ConfigMapApi(Protocol):
    """The calls of the cluster that persistence needs. They block and raise WorldUnavailable."""

    def read_config_map(self, namespace: str, name: str) -> StoredConfigMap | None: ...

    def write_config_map(self, namespace: str, name: str, data: Mapping[str, str], version: str) -> str:
        """Returns the new version. `version` empty: it does not exist yet. Raises Conflict."""
        ...


class Save(StrEnum):
    """Result of a write; a metric label, so the set is closed."""

    SAVED = "saved"
    CONFLICT = "conflict"
    FAILED = "failed"


class LearnedState:
    """Lives on the event loop. Without `config_maps` it stores nothing and always counts as loaded."""

    def __init__(
        self, sections: Mapping[str, Section], offload: Offload, clock: Callable[[], float], *,
        config_maps: ConfigMapApi | None = None, place: str = "/", save_seconds: float = 5.0,
        leading: Callable[[], bool] = lambda: True,
    ) -> None:  # fmt: skip
        """`place`: namespace/name of the ConfigMap."""
        self.loaded = False
        self.saves: dict[Save, int] = dict.fromkeys(Save, 0)
        self._sections = sections
        self._offload = offload
        self._clock = clock
        self._config_maps = config_maps
        self._place = place
        self._save_seconds = save_seconds
        self._leading = leading
        self._version = ""
        self._saved: tuple[int, ...] = ()
        self._dirty_since: float | None = None
        self._tried_at = float("-inf")
        self._foreign = False

    @property
    def unsaved_seconds(self) -> float | None:
        """Since the oldest change that a restart would lose; None where nothing is ever stored."""
        if self._config_maps is None:
            return None
        self._notice_changes()
        return 0.0 if self._dirty_since is None else self._clock() - self._dirty_since

    async def load(self) -> None:
        """Never raises. If the API server does not answer, `keep` retries."""
        self.loaded = False
        if self._config_maps is None:
            self._restore({})
            return
        try:
            stored: StoredConfigMap | None = await self._offload(
                self._config_maps.read_config_map, *self._place.split("/")
            )
        except WorldUnavailable as error:
            log.warning("cannot read the learned state, retrying", config_map=self._place, error=str(error))
            return
        self._version = stored.version if stored else ""
        self._restore(stored.data if stored else {})

    async def keep(self) -> None:
        """Until cancelled."""
        while True:
            await asyncio.sleep(_TICK_SECONDS)
            try:
                await self.tick()
            except Exception:
                log.exception("defect: cannot keep the learned state, retrying")

    async def tick(self) -> None:
        if self._clock() - self._tried_at < self._save_seconds:
            return
        self._notice_changes()
        if not self.loaded:
            self._tried_at = self._clock()
            await self.load()
        elif self._dirty_since is not None:
            await self.save()

    async def save(self) -> None:
        """Never raises. A standby writes nothing, and nobody overwrites what a newer release wrote."""
        self._notice_changes()
        if self._config_maps is None or not self.loaded or self._foreign:
            return
        if self._dirty_since is None or not self._leading():
            return
        self._tried_at = self._clock()
        revisions = self._revisions()
        snapshots = {name: section.snapshot() for name, section in self._sections.items()}
        data: dict[str, str] = await self._offload(as_data, snapshots)
        size = sum(map(len, data.values()))
        if size > _MAX_BYTES:
            self.saves[Save.FAILED] += 1
            log.error("the learned state is too large to store", bytes=size, limit=_MAX_BYTES)
            return
        try:
            write = self._config_maps.write_config_map
            self._version = await self._offload(write, *self._place.split("/"), data, self._version)
        except Conflict:
            self.saves[Save.CONFLICT] += 1
            log.warning("another writer changed the learned state, loading it", config_map=self._place)
            await self.load()
            return
        except WorldUnavailable as error:
            self.saves[Save.FAILED] += 1
            log.warning("cannot store the learned state, retrying", config_map=self._place, error=str(error))
            return
        self.saves[Save.SAVED] += 1
        self._saved = revisions
        self._dirty_since = None
        self._notice_changes()

    def _notice_changes(self) -> None:
        if self._dirty_since is None and self.loaded and self._revisions() != self._saved:
            self._dirty_since = self._clock()

    def _revisions(self) -> tuple[int, ...]:
        return tuple(section.revision for section in self._sections.values())

    def _restore(self, data: Mapping[str, str]) -> None:
        found = data.get(_FORMAT_KEY, FORMAT)
        self._foreign = found != FORMAT
        if self._foreign:
            log.error("the learned state has another format; it is left alone and nothing is stored",
                      config_map=self._place, format=found, expected=FORMAT)  # fmt: skip
        for name, section in self._sections.items():
            self._restore_section(name, section, None if self._foreign else data.get(f"{name}.json"))
        self.loaded = True
        self._saved = self._revisions()
        self._dirty_since = None

    def _restore_section(self, name: str, section: Section, text: str | None) -> None:
        try:
            section.restore(None if text is None else json.loads(text))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            log.error("the learned state is damaged, starting over", config_map=self._place, key=f"{name}.json",
                      error=repr(error))  # fmt: skip
            section.restore(None)


def as_data(snapshots: Mapping[str, Any]) -> dict[str, str]:
    """The ConfigMap's content."""
    documents = {name: made() if callable(made) else made for name, made in snapshots.items()}
    return {_FORMAT_KEY: FORMAT, **{f"{name}.json": readable(document) for name, document in documents.items()}}


def readable(document: Any) -> str:
    """Compact JSON with one line per list entry, so that `kubectl get -o yaml` stays readable."""
    if not isinstance(document, Mapping):
        return json.dumps(document, separators=(",", ":"))
    return "{\n" + ",\n".join(f"{json.dumps(key)}: {_lines(value)}" for key, value in document.items()) + "\n}\n"


def _lines(value: Any) -> str:
    if isinstance(value, list) and value and isinstance(value[0], list | dict):
        return "[\n" + ",\n".join(json.dumps(entry, separators=(", ", ":")) for entry in value) + "\n]"
    return json.dumps(value, separators=(", ", ":"))
