"""What finished runs teach: the calibrator, the OOM history, and the candidate on trial.

Lives on the event loop. It is one section of the learned state (persistence.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import structlog

from vramcast.controllers.candidate import CandidateTrial
from vramcast.controllers.persistence import LearnedState
from vramcast.forecast import physics
from vramcast.forecast.forecast import Basis, Source
from vramcast.observe.calibration import LearnedView, ModelView
from vramcast.observe.comparison import CandidateView
from vramcast.outcomes.calibration import Calibrator, cell_json, read_cell
from vramcast.outcomes.oom_history import OomHistory, oom_json, read_oom
from vramcast.outcomes.outcome import Outcome
from vramcast.outcomes.run_memory import RunMemory
from vramcast.outcomes.run_memory_text import memory_text, read_memory
from vramcast.outcomes.run_scores import margin_of_outcome
from vramcast.settings import CalibrationMode
from vramcast.task.quantity import ceil_mib, human_mib
from vramcast.task.run_status import Ending
from vramcast.task.task import Task

log = structlog.get_logger("vramcast")


class Learner:
    """`calibrator` belongs to the active model, and is replaced together with it."""

    def __init__(
        self, calibrator: Calibrator, mode: CalibrationMode, trial: CandidateTrial | None = None,
        run_memory: RunMemory | None = None,
    ) -> None:  # fmt: skip
        self.calibrator = calibrator
        self.mode = mode
        self.trial = trial
        self.oom_history = OomHistory()
        self.run_memory = run_memory
        self._former_revisions = 0  # of calibrators that were replaced

    def models(self) -> Iterator[tuple[str, str]]:
        """(role, version) of each model that forecasts here."""
        if self.calibrator.model_version:
            yield "active", self.calibrator.model_version
        if self.trial is not None and self.trial.candidate is not None:
            yield "candidate", self.trial.candidate.version

    @property
    def revision(self) -> int:
        trial = self.trial.revision if self.trial is not None else 0
        return self.calibrator.revision + self._former_revisions + self.oom_history.revision + trial

    def teach(self, outcome: Outcome) -> None:
        """With a run that a former model forecast, restated as the active model would have promised."""
        self.calibrator.record(outcome)

    def promote(self) -> None:
        """The candidate becomes the active model."""
        if self.trial is not None:
            self._use(self.trial.promote())

    def _use(self, calibrator: Calibrator) -> None:
        self._former_revisions += self.calibrator.revision + 1
        self.calibrator = calibrator

    def record(self, outcome: Outcome, task: Task) -> None:
        """Once per measured run. OOMs are recorded even while calibration is frozen."""
        if self.trial is not None:
            before = self.calibrator.adjustment(
                outcome.product, outcome.family, outcome.risk, outcome.regime, margin_of_outcome(outcome)
            )
            self.trial.note(outcome, task, before)
        if self.mode is CalibrationMode.OFF:
            return
        if outcome.ending is Ending.OOM:
            self.oom_history.record(outcome)
            log.warning("a run died of OOM; its next run gets more", pod=outcome.pod, owner=outcome.owner,
                        promised=human_mib(ceil_mib(outcome.bound_bytes)))  # fmt: skip
        if self.mode is CalibrationMode.LEARN:
            # Calibration is for tasks that run memory does not know. Repeats would make it the bound of a few jobs.
            if outcome.adjustment.basis is Basis.CLUSTER:
                self.calibrator.record(outcome)
            if self.run_memory is not None:
                self.run_memory.record(outcome, task)

    # ------------------------------------------------------------------ metrics

    def view(self, learned_state: LearnedState, *, counting: bool) -> LearnedView:
        """A standby shows no cells: its own are as old as its start."""
        return LearnedView(
            mode=self.mode,
            modes=tuple(CalibrationMode),
            cells=tuple(self.calibrator.cells()) if counting else (),
            ooms=tuple(self.oom_history.records()),
            remembered_tasks=len(self.run_memory) if self.run_memory is not None and counting else 0,
            saves={save.value: count for save, count in learned_state.saves.items()},
            unsaved_seconds=learned_state.unsaved_seconds,
            models=tuple(ModelView(version, _source(version), role) for role, version in self.models()),
        )

    def trial_view(self) -> CandidateView:
        return self.trial.view() if self.trial is not None else CandidateView()

    # ------------------------------------------------------------------ a section of the learned state

    def snapshot(self) -> dict[str, Any]:
        return {
            "model": self.calibrator.model_version,
            "cells": [cell_json(cell) for cell in self.calibrator.cells()],
            "ooms": [oom_json(record) for record in self.oom_history.records()],
            "candidate": self.trial.snapshot() if self.trial is not None else None,
        }

    def restore(self, document: Any) -> None:
        """None: start over. Cells of another model are dropped: their scores do not apply to this one."""
        stored: Mapping[str, Any] = document if isinstance(document, Mapping) else {}
        candidate: Mapping[str, Any] = stored.get("candidate") or {}
        if self.trial is not None:
            self._use(self.trial.recall(stored.get("model")))
        self.calibrator.put([read_cell(cell) for cell in self._cells(stored, candidate)])
        self.oom_history.put([read_oom(values) for values in stored.get("ooms", [])])
        if self.trial is not None:
            self._restore_candidate(self.trial, candidate)

    def _cells(self, *sections: Mapping[str, Any]) -> list[Any]:
        """Of the active model. If somebody installed the candidate as the artifact, its trial's cells are used."""
        for section in sections:
            if section.get("model") == self.calibrator.model_version:
                return list(section["cells"])
        if sections[0]:
            log.warning("the learned state belongs to another model, starting over", stored=sections[0].get("model"),
                        model=self.calibrator.model_version)  # fmt: skip
        return []

    @staticmethod
    def _restore_candidate(trial: CandidateTrial, stored: Mapping[str, Any]) -> None:
        try:
            trial.restore(stored)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            log.error("the candidate's learned state is damaged, starting over", error=repr(error))
            trial.restore({})


class RememberedRuns:
    """Run memory as a section of its own: it outlives the artifact that calibration belongs to."""

    def __init__(self, memory: RunMemory) -> None:
        self._memory = memory

    @property
    def revision(self) -> int:
        return self._memory.revision

    def snapshot(self) -> Callable[[], dict[str, Any]]:
        """Packing takes too long for the event loop, and its tasks never change."""
        tasks = list(self._memory.tasks())
        return lambda: {"tasks": len(tasks), "packed": memory_text(tasks)}

    def restore(self, document: Any) -> None:
        self._memory.put([] if document is None else read_memory(str(document["packed"])))


def _source(version: str) -> str:
    return Source.PHYSICS if version == physics.VERSION else Source.MODEL
