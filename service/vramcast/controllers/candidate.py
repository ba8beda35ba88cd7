"""A new artifact is tried in the shadow before it forecasts for anybody.

Its directory is watched. Every live outcome is forecast by it too, beside the active model, on a worker and never in
the scheduler's way. Once it was no worse for long enough it may take over, with all that it learned meanwhile. One that
cannot be loaded, or fails, is a message and a metric; the active model goes on.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import structlog

from vramcast.errors import InvalidTask
from vramcast.forecast.forecaster import CalibratedForecaster, adjust
from vramcast.forecast.forecast import Adjustment
from vramcast.forecast.forecast import Forecast
from vramcast.forecast.forecaster import CachingForecaster
from vramcast.forecast.model import MANIFEST, ModelForecaster, load_artifact
from vramcast.outcomes.calibration import Calibrator
from vramcast.outcomes.comparison import Comparison, Standing, comparison_json, read_comparison, retell
from vramcast.outcomes.learned import cell_json, read_cell
from vramcast.outcomes.outcome import Outcome
from vramcast.settings import CalibrationMode, Promotion, Settings
from vramcast.task.task import Task

_TICK_SECONDS = 1.0
# More than end between two ticks; what is beyond is not compared.
_MOST_WAITING = 2000

log = structlog.get_logger("vramcast")
Offload = Callable[..., Awaitable[Any]]


@dataclass(slots=True)
class Candidate:
    base: CachingForecaster
    calibrator: Calibrator
    comparison: Comparison = field(default_factory=Comparison)

    @property
    def version(self) -> str:
        return self.base.version


@dataclass(frozen=True, slots=True)
class _Waiting:
    """An outcome, and what the active model's calibrator said before it had learned from it."""

    outcome: Outcome
    task: Task
    adjustment: Adjustment


class CandidateTrial:
    """Lives on the event loop, but for `load`, which runs on a worker, as forecasts do."""

    def __init__(self, settings: Settings, adapted: CalibratedForecaster, home: CachingForecaster) -> None:
        self.settings = settings
        self.adapted = adapted
        self.home = self.active = home  # home: the artifact of the settings
        self.candidate: Candidate | None = None
        self.loads: Counter[str] = Counter({"ok": 0, "failed": 0})
        self.promotions = 0
        self.revision = 0
        self.unusable = ""  # why
        self._seen = ""  # the manifest that was looked at last
        self._waiting: deque[_Waiting] = deque(maxlen=_MOST_WAITING)

    @property
    def learns(self) -> bool:
        return self.settings.calibration is CalibrationMode.LEARN

    @property
    def _calibrates(self) -> bool:
        return self.settings.calibration is not CalibrationMode.OFF

    def standing(self) -> Standing:
        if self.candidate is None:
            return Standing.UNUSABLE if self.unusable else Standing.NONE
        return self.candidate.comparison.standing(self.settings.candidate_outcomes)

    def note(self, outcome: Outcome, task: Task, adjustment: Adjustment) -> None:
        """Of every measured run; compared at the next tick. A run that another model had forecast is retold."""
        if self.candidate is not None or outcome.model_version != self.active.version:
            self._waiting.append(_Waiting(outcome, task, adjustment))

    # ------------------------------------------------------------------ the directory

    def poll(self) -> None:
        """Blocks, and never raises: for the start, when nobody waits."""
        self._take(*self.load())

    async def watch(self, offload: Offload) -> None:
        self._take(*await offload(self.load))

    def load(self) -> tuple[str, Candidate | None, str]:
        """What the directory holds now: the manifest's digest, a candidate if that is a new one, and what is wrong."""
        directory = self.settings.candidate_artifact
        manifest = Path(directory) / MANIFEST if directory else None
        if manifest is None or not manifest.exists():
            return "", None, ""
        try:
            digest = hashlib.sha256(manifest.read_bytes()).hexdigest()
            if digest == self._seen:
                return digest, None, ""
            base = ModelForecaster(load_artifact(manifest.parent), self.settings.default_oom_risk)
        except Exception as error:  # whatever is in there, the active model goes on
            return "", None, str(error) or repr(error)
        return digest, Candidate(base, Calibrator(base.version)), ""

    def _take(self, digest: str, found: Candidate | None, wrong: str) -> None:
        if wrong:
            self._reject(wrong)
        elif not digest:
            self._drop("")
        elif found is not None:
            self.unusable, self._seen = "", digest
            self.loads["ok"] += 1
            self._seat_candidate(found)

    def _seat_candidate(self, found: Candidate) -> None:
        if found.version == self.active.version:
            self.candidate = None
            return
        if self.candidate is not None and self.candidate.version == found.version:
            return
        self.candidate = found
        self.revision += 1
        log.info("a candidate is in the shadow", candidate=found.version, active=self.active.version)

    def _reject(self, wrong: str) -> None:
        """Once for each thing that is wrong: a directory that is being written is looked at again."""
        if wrong != self.unusable:
            self.loads["failed"] += 1
            log.error("the candidate cannot be used, the active model goes on", error=wrong,
                      directory=self.settings.candidate_artifact, active=self.active.version)  # fmt: skip
        self._drop(wrong)

    def _drop(self, wrong: str) -> None:
        if self.candidate is not None:
            self.revision += 1
        self.candidate, self.unusable, self._seen = None, wrong, ""
        self._waiting.clear()

    # ------------------------------------------------------------------ outcomes

    async def compare_waiting(self, offload: Offload, teach: Callable[[Outcome], None]) -> bool:
        """True: the candidate is to take over. `teach`: the active model, by a run that another one had forecast."""
        while self._waiting:
            waiting = self._waiting.popleft()
            product = waiting.outcome.product
            try:
                active: Forecast = await offload(self.active.forecast, waiting.task, product)
            except InvalidTask:
                continue
            if self._calibrates:
                active = adjust(active, waiting.adjustment)
            if self.learns and waiting.outcome.model_version != active.model_version:
                teach(retell(waiting.outcome, active))
            if self.candidate is not None:
                await self._try_candidate(self.candidate, waiting, active, offload)
        ready = self.standing() is Standing.READY
        return ready and self.settings.candidate_promotion is Promotion.AUTO

    async def _try_candidate(self, candidate: Candidate, waiting: _Waiting, active: Forecast, offload: Offload) -> None:
        try:
            theirs = await offload(candidate.base.forecast, waiting.task, waiting.outcome.product)
        except Exception as error:  # a model that loads may still fail on some input
            seen = self._seen
            self._reject(f"{candidate.version} does not forecast: {error!r}")
            self._seen = seen  # loading it again would help nobody
            return
        if candidate is self.candidate:
            self._compare(candidate, waiting, active, theirs)

    def _compare(self, candidate: Candidate, waiting: _Waiting, active: Forecast, theirs: Forecast) -> None:
        outcome = waiting.outcome
        if self._calibrates:
            learned = candidate.calibrator.adjustment(outcome.product, theirs.family, theirs.risk)
            theirs = adjust(theirs, learned)
        retold = retell(outcome, theirs)
        candidate.comparison.add(retell(outcome, active), retold)
        if self.learns:
            candidate.calibrator.record(retold)
        self.revision += 1

    # ------------------------------------------------------------------ who is active

    def promote(self) -> Calibrator:
        """The candidate takes over, with the calibrator that it was taught in the shadow."""
        candidate = self.candidate
        if candidate is None:
            raise ValueError("there is no candidate")
        log.warning("the candidate takes over", model=candidate.version, before=self.active.version)
        self.promotions += 1
        self.candidate = None
        self._waiting.clear()
        return self._seat(candidate.base, candidate.calibrator)

    def _seat(self, base: CachingForecaster, calibrator: Calibrator) -> Calibrator:
        self.active = base
        self.revision += 1
        self.adapted.adopt(base, calibrator if self._calibrates else None)
        return calibrator

    def recall(self, version: str | None) -> Calibrator:
        """Who was active when it was stored is again, if it is here: else the artifact of the settings."""
        candidate = self.candidate
        if candidate is not None and candidate.version == version:
            self.candidate = None
            log.info("the promoted model is active again", model=version)
            return self._seat(candidate.base, Calibrator(candidate.version))
        if self.active.version == version:
            return self._seat(self.active, Calibrator(self.active.version))
        if self.active is not self.home:
            self._seen = ""  # what had been promoted is a candidate again
        return self._seat(self.home, Calibrator(self.home.version))

    def snapshot(self) -> dict[str, Any] | None:
        if self.candidate is None:
            return None
        return {
            "model": self.candidate.version,
            "cells": [cell_json(cell) for cell in self.candidate.calibrator.cells()],
            **comparison_json(self.candidate.comparison),
        }

    def restore(self, stored: Mapping[str, Any]) -> None:
        """Raises on what is damaged."""
        candidate = self.candidate
        if candidate is None:
            return
        same = stored.get("model") == candidate.version
        candidate.comparison = read_comparison(stored) if same else Comparison()
        candidate.calibrator = Calibrator(candidate.version)
        if same:
            candidate.calibrator.put([read_cell(cell) for cell in stored["cells"]])
        self.revision += 1


async def keep_trying(
    trial: CandidateTrial, teach: Callable[[Outcome], None], promote: Callable[[], None], offload: Offload
) -> None:
    """Until cancelled."""
    ticks = 0.0
    while True:
        await asyncio.sleep(_TICK_SECONDS)
        try:
            ticks += _TICK_SECONDS
            if ticks >= trial.settings.candidate_check_seconds:
                ticks = 0.0
                await trial.watch(offload)
            if await trial.compare_waiting(offload, teach):
                promote()
        except Exception:
            log.exception("the shadow failed, trying again")
