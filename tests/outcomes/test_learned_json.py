"""What is stored is what was known: the same adjustments, and the same from there on."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from tests.outcomes.laws import LAWS, MODEL, RISK, finish, runs

from vramcast.forecast.forecast import UNADJUSTED
from vramcast.names import Product
from vramcast.outcomes.calibration import MAX_CELLS, Calibrator, cell_json, read_cell
from vramcast.outcomes.oom_history import ABOVE, MAX_OOM_RECORDS, OomHistory, oom_json, read_oom
from vramcast.outcomes.outcome import Outcome
from vramcast.task.run_status import Ending

A100 = "NVIDIA-A100-SXM4-40GB"
LAW = LAWS[-2]  # with deaths


def test_a_restart_in_the_middle_changes_nothing() -> None:
    straight, stopped = Calibrator(MODEL), Calibrator(MODEL)
    for run in runs(LAW, 3, 150):
        if run.number % 40 == 39:
            stored = json.dumps([cell_json(cell) for cell in stopped.cells()])
            stopped = Calibrator(MODEL)
            stopped.put([read_cell(cell) for cell in json.loads(stored)])
        adjustment = straight.adjustment(A100, "cnn", RISK)
        assert stopped.adjustment(A100, "cnn", RISK) == adjustment
        for calibrator in (straight, stopped):
            calibrator.record(finish(run, LAW, adjustment))
    assert list(stopped.cells()) == list(straight.cells())


def test_as_many_cells_as_there_may_be_take_less_than_a_config_map_holds() -> None:
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


def record(pod: str = "team/train-7-x", owner: str = "Job/train-7", fingerprint: str = "f1", **more: int) -> Outcome:
    outcome = finish(next(runs(LAW, 3, 1)), LAW, UNADJUSTED)
    values = {"bound_bytes": 10_000, "peak_bytes": 9_000} | more
    return replace(outcome, pod=pod, owner=owner, fingerprint=fingerprint, ending=Ending.OOM, **values)


def test_who_died_comes_back_to_more_than_what_killed_it() -> None:
    oom_history = OomHistory()
    oom_history.record(record())
    assert oom_history.floor_bytes("team", "train-7-y", "Job/train-7", "f1") == round(10_000 * ABOVE)
    oom_history.record(record(bound_bytes=12_000, peak_bytes=13_000))
    assert oom_history.floor_bytes("team", "train-7-z", "Job/train-7", "f1") == round(13_000 * ABOVE)


@pytest.mark.parametrize(
    "other",
    [("other", "a", "Job/train-7", "f1"), ("team", "a", "Job/train-8", "f1"), ("team", "a", "Job/train-7", "f2")],
)
def test_another_namespace_owner_or_task_is_somebody_else(other: tuple[str, str, str, str]) -> None:
    oom_history = OomHistory()
    oom_history.record(record())
    assert oom_history.floor_bytes(*other) == 0


def test_a_pod_that_nothing_owns_is_known_by_its_name() -> None:
    oom_history = OomHistory()
    oom_history.record(record(pod="team/mine", owner=""))
    assert oom_history.floor_bytes("team", "mine", "", "f1") > 0
    assert oom_history.floor_bytes("team", "yours", "", "f1") == 0


def test_only_ooms_are_remembered_and_the_oldest_goes_first() -> None:
    oom_history = OomHistory()
    oom_history.record(replace(record(), ending=Ending.FAILED))
    assert len(oom_history) == 0
    for number in range(MAX_OOM_RECORDS + 1):
        oom_history.record(record(owner=f"Job/{number}"))
    assert len(oom_history) == MAX_OOM_RECORDS
    assert oom_history.floor_bytes("team", "a", "Job/0", "f1") == 0


def test_oom_history_survive_the_way_over_json() -> None:
    oom_history, restored = OomHistory(), OomHistory()
    oom_history.record(record())
    oom_history.record(replace(record(owner="Job/8"), product=Product("T4"), ended_at=5.0))
    restored.put([read_oom(values) for values in json.loads(json.dumps([oom_json(d) for d in oom_history.records()]))])
    assert list(restored.records()) == list(oom_history.records())
