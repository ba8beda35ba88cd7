"""Learned state survives JSON: the same adjustments after a restart, and the same ones from then on."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from tests.outcomes.laws import LAWS, MODEL, RISK, finish, runs

from vramcast.forecast.forecast import UNADJUSTED
from vramcast.names import Product
from vramcast.outcomes.calibration import MAX_CELLS, Calibrator, cell_json, read_cell
from vramcast.outcomes.oom_history import MAX_OOM_RECORDS, OomHistory, oom_json, read_oom
from vramcast.outcomes.outcome import Outcome
from vramcast.task.quantity import MIB
from vramcast.task.run_status import Ending
from vramcast.task.task import task_key

A100 = "NVIDIA-A100-SXM4-40GB"
LAW = LAWS[-2]  # every miss is an OOM


def test_restarts_do_not_change_the_calibration() -> None:
    uninterrupted, restarted = Calibrator(MODEL), Calibrator(MODEL)
    for run in runs(LAW, 3, 150):
        if run.number % 40 == 39:
            stored = json.dumps([cell_json(cell) for cell in restarted.cells()])
            restarted = Calibrator(MODEL)
            restarted.put([read_cell(cell) for cell in json.loads(stored)])
        adjustment = uninterrupted.adjustment(A100, "cnn", RISK)
        assert restarted.adjustment(A100, "cnn", RISK) == adjustment
        for calibrator in (uninterrupted, restarted):
            calibrator.record(finish(run, LAW, adjustment))
    assert list(restarted.cells()) == list(uninterrupted.cells())


def test_the_largest_number_of_full_cells_fits_into_a_config_map() -> None:
    calibrator = Calibrator(MODEL)
    for run in runs(LAW, 3, 250):
        calibrator.record(finish(run, LAW, UNADJUSTED))
    (full,) = calibrator.cells()
    assert MAX_CELLS * len(json.dumps(cell_json(full))) < 300_000


@pytest.mark.parametrize("changes", [{"corrections": [1]}, {"level": "nan"}, {"scores": "x"}, {"outcomes": None}])
def test_a_damaged_cell_is_refused(changes: dict[str, object]) -> None:
    calibrator = Calibrator(MODEL)
    calibrator.record(finish(next(runs(LAW, 3, 1)), LAW, UNADJUSTED))
    (cell,) = calibrator.cells()
    with pytest.raises((ValueError, TypeError)):
        read_cell(cell_json(cell) | changes)


def oom(pod: str = "team/train-7-x", owner: str = "Job/train-7", fingerprint: str = "f1", **more: int) -> Outcome:
    outcome = finish(next(runs(LAW, 3, 1)), LAW, UNADJUSTED)
    values = {"bound_bytes": 10_000 * MIB, "peak_bytes": 9_000 * MIB} | more
    return replace(outcome, pod=pod, owner=owner, fingerprint=fingerprint, ending=Ending.OOM, **values)


def test_after_an_oom_the_task_gets_a_floor_above_what_it_had() -> None:
    oom_history = OomHistory()
    oom_history.record(oom())
    assert floor_mib(oom_history, "team", "train-7-y", "Job/train-7", "f1") == 12_000
    oom_history.record(oom(bound_bytes=12_000 * MIB, peak_bytes=13_000 * MIB))
    assert floor_mib(oom_history, "team", "train-7-z", "Job/train-7", "f1") == 15_600


def floor_mib(oom_history: OomHistory, namespace: str, name: str, owner: str, fingerprint: str) -> int:
    return oom_history.floors_mib.get(task_key(namespace, name, owner, fingerprint), 0)


@pytest.mark.parametrize(
    "other",
    [("other", "a", "Job/train-7", "f1"), ("team", "a", "Job/train-8", "f1"), ("team", "a", "Job/train-7", "f2")],
)
def test_another_namespace_owner_or_task_has_no_floor(other: tuple[str, str, str, str]) -> None:
    oom_history = OomHistory()
    oom_history.record(oom())
    assert floor_mib(oom_history, *other) == 0


def test_a_pod_without_an_owner_is_identified_by_its_name() -> None:
    oom_history = OomHistory()
    oom_history.record(oom(pod="team/mine", owner=""))
    assert floor_mib(oom_history, "team", "mine", "", "f1") > 0
    assert floor_mib(oom_history, "team", "yours", "", "f1") == 0


def test_only_ooms_are_recorded_and_the_oldest_is_dropped_first() -> None:
    oom_history = OomHistory()
    oom_history.record(replace(oom(), ending=Ending.FAILED))
    assert len(oom_history) == 0
    for number in range(MAX_OOM_RECORDS + 1):
        oom_history.record(oom(owner=f"Job/{number}"))
    assert len(oom_history) == MAX_OOM_RECORDS
    assert floor_mib(oom_history, "team", "a", "Job/0", "f1") == 0


def test_the_oom_history_survives_json() -> None:
    oom_history, restored = OomHistory(), OomHistory()
    oom_history.record(oom())
    oom_history.record(replace(oom(owner="Job/8"), product=Product("T4"), ended_at=5.0))
    restored.put(
        [read_oom(values) for values in json.loads(json.dumps([oom_json(record) for record in oom_history.records()]))]
    )
    assert list(restored.records()) == list(oom_history.records())
