"""A new artifact goes on trial before it forecasts for anybody.

Its directory is watched. The candidate forecasts every live outcome too, on a worker, out of the scheduler's way. If it
was no worse than the active model for long enough, it may replace it, with everything it learned on trial. A candidate
that cannot be loaded, or that fails, costs a log entry and a metric; the active model stays.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import Counter, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import structlog

from vramcast.errors import InvalidTask
from vramcast.forecast.forecast import Adjustment, Forecast
from vramcast.forecast.forecaster import CachingForecaster, CalibratedForecaster, adjust
from vramcast.forecast.model import MANIFEST, ModelForecaster, load_artifact
from vramcast.observe.comparison import CandidateView
from vramcast.outcomes.calibration import Calibrator, cell_json, read_cell
from vramcast.outcomes.comparison import Comparison, Standing, comparison_json, read_comparison, restate, summarize
from vramcast.outcomes.outcome import Outcome
from vramcast.settings import CalibrationMode, Promotion, Settings
from vramcast.task.task import Task
from vramcast.workers import Offload

_TICK_SECONDS = 1.0
# More outcomes than one tick brings. Further ones are not compared.
_MAX_WAITING = 2000

log = structlog.get_logger("vramcast")


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
    """An outcome, with the active model's adjustment from before it learned from it."""

    outcome: Outcome
    task: Task
    adjustment: Adjustment


class CandidateTrial:
    """Lives on the event loop, except for `load` and forecasts, which run on a worker."""

    def __init__(self, settings: Settings, forecaster: CalibratedForecaster, configured: CachingForecaster) -> None:
        self.settings = settings
        self.forecaster = forecaster
        self.configured = configured  # the artifact of the settings
        self.active = configured
        self.candidate: Candidate | None = None
        self.loads: Counter[str] = Counter({"ok": 0, "failed": 0})
        self.promotions = 0
        self.revision = 0
        self.unusable = ""  # why
        self._digest = ""  # of the last manifest that was read
        self._waiting: deque[_Waiting] = deque(maxlen=_MAX_WAITING)

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

    def view(self) -> CandidateView:
        compared = self.candidate.comparison if self.candidate is not None else None
        figures = {"active": summarize(compared.active), "candidate": summarize(compared.candidate)} if compared else {}
        return CandidateView(self.standing(), self.loads, self.promotions, figures)

    def note(self, outcome: Outcome, task: Task, adjustment: Adjustment) -> None:
        """Compare a measured run at the next tick. A run that another model forecast is restated for the active one."""
        if self.candidate is not None or outcome.model_version != self.active.version:
            self._waiting.append(_Waiting(outcome, task, adjustment))

    # ------------------------------------------------------------------ the directory

    def load_now(self) -> None:
        """Blocks and never raises: for startup."""
        self._take(*self.load())

    async def watch(self, offload: Offload) -> None:
        self._take(*await offload(self.load))

    def load(self) -> tuple[str, Candidate | None, str]:
        """The manifest's digest, a candidate if the manifest is new, and the error if it cannot be used."""
        directory = self.settings.candidate_artifact
        manifest = Path(directory) / MANIFEST if directory else None
        if manifest is None or not manifest.exists():
            return "", None, ""
        try:
            digest = hashlib.sha256(manifest.read_bytes()).hexdigest()
            if digest == self._digest:
                return digest, None, ""
            base = ModelForecaster(load_artifact(manifest.parent), self.settings.default_oom_risk)
        except Exception as error:  # whatever the directory holds, the active model stays
            return "", None, str(error) or repr(error)
        return digest, Candidate(base, Calibrator(base.version)), ""

    def _take(self, digest: str, found: Candidate | None, wrong: str) -> None:
        if wrong:
            self._reject(wrong)
        elif not digest:
            self._drop("")
        elif found is not None:
            self.unusable, self._digest = "", digest
            self.loads["ok"] += 1
            self._put_on_trial(found)

    def _put_on_trial(self, found: Candidate) -> None:
        if found.version == self.active.version:
            self.candidate = None
            return
        if self.candidate is not None and self.candidate.version == found.version:
            return
        self.candidate = found
        self.revision += 1
        log.info("a candidate is on trial", candidate=found.version, active=self.active.version)

    def _reject(self, wrong: str) -> None:
        """Log each error once: a directory that is still being written is read again at the next check."""
        if wrong != self.unusable:
            self.loads["failed"] += 1
            log.error("the candidate cannot be used, the active model stays", error=wrong,
                      directory=self.settings.candidate_artifact, active=self.active.version)  # fmt: skip
        self._drop(wrong)

    def _drop(self, wrong: str) -> None:
        if self.candidate is not None:
            self.revision += 1
        self.candidate, self.unusable, self._digest = None, wrong, ""
        self._waiting.clear()

    # ------------------------------------------------------------------ outcomes

    async def compare_waiting(self, offload: Offload, teach: Callable[[Outcome], None]) -> bool:
        """True: promote the candidate. `teach` trains the active model with a run that another model forecast."""
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
                teach(restate(waiting.outcome, active))
            if self.candidate is not None:
                await self._try_candidate(self.candidate, waiting, active, offload)
        ready = self.standing() is Standing.READY
        return ready and self.settings.candidate_promotion is Promotion.AUTO

    async def _try_candidate(self, candidate: Candidate, waiting: _Waiting, active: Forecast, offload: Offload) -> None:
        try:
            theirs = await offload(candidate.base.forecast, waiting.task, waiting.outcome.product)
        except Exception as error:  # a model that loads may still fail on an input
            digest = self._digest
            self._reject(f"{candidate.version} does not forecast: {error!r}")
            self._digest = digest  # loading it again would not help
            return
        if candidate is self.candidate:
            self._compare(candidate, waiting, active, theirs)

    def _compare(self, candidate: Candidate, waiting: _Waiting, active: Forecast, theirs: Forecast) -> None:
        outcome = waiting.outcome
        if self._calibrates:
            learned = candidate.calibrator.adjustment_of(theirs, outcome.regime)
            theirs = adjust(theirs, learned)
        restated = restate(outcome, theirs)
        candidate.comparison.add(restate(outcome, active), restated)
        if self.learns:
            candidate.calibrator.record(restated)
        self.revision += 1

    # ------------------------------------------------------------------ promotion

    def promote(self) -> Calibrator:
        """Make the candidate the active model, with the calibrator that learned on trial."""
        candidate = self.candidate
        if candidate is None:
            raise ValueError("there is no candidate")
        log.warning("the candidate becomes the active model", model=candidate.version, before=self.active.version)
        self.promotions += 1
        self.candidate = None
        self._waiting.clear()
        return self._activate(candidate.base, candidate.calibrator)

    def _activate(self, base: CachingForecaster, calibrator: Calibrator) -> Calibrator:
        self.active = base
        self.revision += 1
        self.forecaster.use(base, calibrator if self._calibrates else None)
        return calibrator

    def recall(self, version: str | None) -> Calibrator:
        """Restore the model that was active when the state was stored, if it is here; else the configured artifact."""
        candidate = self.candidate
        if candidate is not None and candidate.version == version:
            self.candidate = None
            log.info("the promoted model is active again", model=version)
            return self._activate(candidate.base, Calibrator(candidate.version))
        if self.active.version == version:
            return self._activate(self.active, Calibrator(self.active.version))
        if self.active is not self.configured:
            self._digest = ""  # the promoted model becomes a candidate again
        return self._activate(self.configured, Calibrator(self.configured.version))

    def snapshot(self) -> dict[str, Any] | None:
        if self.candidate is None:
            return None
        return {
            "model": self.candidate.version,
            "cells": [cell_json(cell) for cell in self.candidate.calibrator.cells()],
            **comparison_json(self.candidate.comparison),
        }

    def restore(self, stored: Mapping[str, Any]) -> None:
        """Raises if the data is damaged."""
        candidate = self.candidate
        if candidate is None:
            return
        same = stored.get("model") == candidate.version
        candidate.comparison = read_comparison(stored) if same else Comparison()
        candidate.calibrator = Calibrator(candidate.version)
        if same:
            candidate.calibrator.put([read_cell(cell) for cell in stored["cells"]])
        self.revision += 1


async def run_trial(
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
            log.exception("defect: the trial of the candidate failed, retrying")
