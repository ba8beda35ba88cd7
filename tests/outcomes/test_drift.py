"""Alerts on drift: large and certain drift fires, chance does not. Runs follow known laws."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.outcomes.laws import LAWS, MODEL, Law, finish, runs

from vramcast.forecast.forecast import UNADJUSTED
from vramcast.outcomes.calibration import Calibrator, CellState
from vramcast.outcomes.drift import LEAST_RUNS, Drift, measure_drift
from vramcast.task.run_status import Ending

BY_NAME = {law.name: law for law in LAWS}
ALERT_DEVIATIONS = 4.0  # as in the alert VramcastDrift


def cell_after(law: Law, seed: int, count: int, calibrator: Calibrator | None = None) -> CellState:
    calibrator = calibrator or Calibrator(MODEL)
    for run in runs(law, seed, count):
        calibrator.record(finish(run, law, calibrator.adjustment("NVIDIA-A100-SXM4-40GB", "cnn", 0.05)))
    (cell,) = calibrator.cells()
    return cell


def alerts(drift: Drift) -> bool:
    return drift.deviations > ALERT_DEVIATIONS and (abs(drift.ratio - 1) > 0.1 or drift.coverage < 0.85)


@pytest.mark.parametrize("name", ["20 % more", "50 % more", "25 % less"])
def test_drift_alerts_within_forty_runs_even_though_calibration_follows_it(name: str) -> None:
    for seed in range(20):
        assert alerts(measure_drift(cell_after(BY_NAME[name], seed, 40)))


def test_an_accurate_model_never_alerts() -> None:
    law = BY_NAME["the model is right"]
    for seed in range(20):
        calibrator = Calibrator(MODEL)
        for run in runs(law, seed, 200):
            calibrator.record(finish(run, law, UNADJUSTED))
            if run.number % 10 == 0:
                (cell,) = calibrator.cells()
                assert not alerts(measure_drift(cell))


def test_calibration_does_not_change_the_measured_ratio() -> None:
    assert measure_drift(cell_after(BY_NAME["20 % more"], 1, 150)).ratio == pytest.approx(1.2, abs=0.03)
    assert measure_drift(cell_after(BY_NAME["25 % less"], 1, 150)).ratio == pytest.approx(0.75, abs=0.03)


def test_noise_wider_than_the_model_expects_is_drift_in_coverage() -> None:
    drift = measure_drift(cell_after(BY_NAME["twice as wide"], 3, 200))
    assert drift.coverage == pytest.approx(0.8, abs=0.06)
    assert alerts(drift)


def test_a_few_runs_are_no_evidence_of_drift() -> None:
    assert measure_drift(CellState("p", "cnn")).deviations == 0.0
    assert measure_drift(cell_after(BY_NAME["50 % more"], 1, LEAST_RUNS - 1)).deviations == 0.0


def test_runs_that_were_stopped_early_are_not_drift() -> None:
    """Half of the runs are stopped at a third of their peak. Such a peak is only a floor."""
    law = BY_NAME["the model is right"]
    calibrator = Calibrator(MODEL)
    for run in runs(law, 4, 200):
        outcome = finish(run, law, UNADJUSTED)
        if run.number % 2:
            outcome = replace(outcome, peak_bytes=outcome.peak_bytes // 3, ending=Ending.STOPPED)
        calibrator.record(outcome)
    (cell,) = calibrator.cells()
    assert not alerts(measure_drift(cell))
