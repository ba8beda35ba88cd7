"""Where finished runs teach: the calibrator, the runs that died and may come back, and the artifact in the shadow.

Lives on the event loop, as everything under api/. What it knows is one section of what is stored (memory.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import structlog

from vramcast.controllers.candidate import CandidateTrial
from vramcast.outcomes.calibration import Calibrator
from vramcast.outcomes.learned import cell_json, oom_json, read_cell, read_oom
from vramcast.outcomes.oom_history import OomHistory
from vramcast.outcomes.outcome import Outcome
from vramcast.settings import CalibrationMode
from vramcast.task.fingerprint import task_fingerprint
from vramcast.task.pod import PodRecord
from vramcast.task.quantity import ceil_mib, human_mib
from vramcast.task.run_status import Ending
from vramcast.task.task import Task
from vramcast.task.vocabulary import Level

log = structlog.get_logger("vramcast")


class Learner:
    """A section of the memory. `calibrator` is that of the active artifact."""

    def __init__(self, model_version: str, mode: CalibrationMode) -> None:
        self.calibrator = Calibrator(model_version)
        self.oom_history = OomHistory()
        self.mode = mode
        self.trial: CandidateTrial | None = None
        self._former_revisions = 0  # of calibrators that are active no more

    @property
    def applied(self) -> Calibrator | None:
        """For the forecaster: None where bounds are to stay as the artifact has them."""
        return None if self.mode is CalibrationMode.OFF else self.calibrator

    def models(self) -> Iterator[tuple[str, str]]:
        """(role, version) of what forecasts here."""
        if self.calibrator.model_version:
            yield "active", self.calibrator.model_version
        if self.trial is not None and self.trial.candidate is not None:
            yield "candidate", self.trial.candidate.version

    @property
    def revision(self) -> int:
        trial = self.trial.revision if self.trial is not None else 0
        return self.calibrator.revision + self._former_revisions + self.oom_history.revision + trial

    def teach(self, outcome: Outcome) -> None:
        """By a run that was forecast by a former model, retold as the active one would have promised."""
        self.calibrator.record(outcome)

    def promote(self) -> None:
        """The candidate takes over."""
        if self.trial is not None:
            self._install(self.trial.promote())

    def _install(self, calibrator: Calibrator) -> None:
        self._former_revisions += self.calibrator.revision + 1
        self.calibrator = calibrator

    def record(self, outcome: Outcome, task: Task) -> None:
        """Once for each measured run. One that died is remembered even where calibration is frozen."""
        if self.trial is not None:
            before = self.calibrator.adjustment(outcome.product, outcome.family, outcome.risk)
            self.trial.note(outcome, task, before)
        if self.mode is CalibrationMode.OFF:
            return
        if outcome.ending is Ending.OOM:
            self.oom_history.record(outcome)
            log.warning("a run died of OOM, its return gets more", pod=outcome.pod, owner=outcome.owner,
                        had=human_mib(ceil_mib(outcome.bound_bytes)))  # fmt: skip
        if self.mode is CalibrationMode.LEARN:
            self.calibrator.record(outcome)

    def floor_mib(self, pod: PodRecord) -> int:
        """What a pod that died before must get at least. The user's own number stands, whatever came of it."""
        if self.mode is CalibrationMode.OFF or not len(self.oom_history) or pod.task is None:
            return 0
        if pod.task.level is Level.GIVEN:
            return 0
        return ceil_mib(self.oom_history.floor_bytes(pod.namespace, pod.name, pod.owner, task_fingerprint(pod.task)))

    # ------------------------------------------------------------------ a section of the memory

    def snapshot(self) -> dict[str, Any]:
        return {
            "model": self.calibrator.model_version,
            "cells": [cell_json(cell) for cell in self.calibrator.cells()],
            "died": [oom_json(record) for record in self.oom_history.records()],
            "candidate": self.trial.snapshot() if self.trial is not None else None,
        }

    def restore(self, document: Any) -> None:
        """As stored; None forgets. Cells of another model stay out: their scores say nothing of this one."""
        stored: Mapping[str, Any] = document if isinstance(document, Mapping) else {}
        candidate: Mapping[str, Any] = stored.get("candidate") or {}
        if self.trial is not None:
            self._install(self.trial.recall(stored.get("model")))
        self.calibrator.put([read_cell(cell) for cell in self._cells(stored, candidate)])
        self.oom_history.put([read_oom(values) for values in stored.get("died", [])])
        if self.trial is not None:
            self._restore_candidate(self.trial, candidate)

    def _cells(self, *sections: Mapping[str, Any]) -> list[Any]:
        """Those of the active model; who put a candidate there by hand finds what it was taught in the shadow."""
        for section in sections:
            if section.get("model") == self.calibrator.model_version:
                return list(section["cells"])
        if sections[0]:
            log.warning("what was learned belongs to another model, starting afresh", stored=sections[0].get("model"),
                        model=self.calibrator.model_version)  # fmt: skip
        return []

    @staticmethod
    def _restore_candidate(trial: CandidateTrial, stored: Mapping[str, Any]) -> None:
        try:
            trial.restore(stored)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            log.error("what the candidate was taught is damaged, starting afresh", error=repr(error))
            trial.restore({})
