"""Forecasts calibrated by this cluster's runs, and how the explanation shows it."""

from __future__ import annotations

from dataclasses import replace

from tests.outcomes.laws import LAWS, finish, runs
from vramcast.forecast import physics
from vramcast.forecast.forecast import Forecast
from vramcast.forecast.forecaster import CALIBRATION_PART, CalibratedForecaster, PhysicsForecaster
from vramcast.names import Product
from vramcast.outcomes.calibration import Calibrator
from vramcast.outcomes.outcome import Outcome
from vramcast.task.task import Task
from vramcast.task.vocabulary import Architecture, Level

A100 = Product("NVIDIA-A100-SXM4-40GB")
TASK = Task(Level.SUMMARY, parameters=10**8, activations=10**7, batch_size=8, architecture=Architecture.CNN)


def trained(factor: float, count: int = 64) -> Calibrator:
    """A calibrator with runs that each took `factor` times the physics forecast."""
    calibrator = Calibrator(physics.VERSION)
    forecast = PhysicsForecaster(0.05).forecast(TASK, A100)
    for run in runs(LAWS[0], 1, count):
        calibrator.record(_outcome(forecast, run.number, factor))
    return calibrator


def _outcome(forecast: Forecast, number: int, factor: float) -> Outcome:
    outcome = finish(next(runs(LAWS[0], number, 1)), LAWS[0], forecast.adjustment)
    peak = round(forecast.median_bytes * factor)
    return replace(outcome, median_bytes=forecast.median_bytes, bound_bytes=forecast.bound_bytes, peak_bytes=peak,
                   model_version=physics.VERSION)  # fmt: skip


def test_a_forecast_explains_its_calibration() -> None:
    base = PhysicsForecaster(0.05)
    forecast = CalibratedForecaster(base, trained(1.18)).forecast(TASK, A100)
    assert forecast.parts[-1].name == CALIBRATION_PART
    assert "this cluster's runs took 18% more than forecast" in forecast.parts[-1].because
    assert "64 outcomes" in forecast.parts[-1].because
    assert forecast.adjustment.outcomes == 64
    assert sum(part.size_bytes for part in forecast.parts) == forecast.median_bytes


def test_cached_forecasts_are_recalibrated() -> None:
    calibrator = trained(1.0, 5)
    forecaster = CalibratedForecaster(PhysicsForecaster(0.05), calibrator)
    before = forecaster.forecast(TASK, A100)
    base = PhysicsForecaster(0.05).forecast(TASK, A100)
    for number in range(30):
        calibrator.record(_outcome(base, number, 2.0))
    assert forecaster.forecast(TASK, A100).bound_bytes > 1.2 * before.bound_bytes


def test_runs_that_need_less_tighten_wide_bounds_but_never_below_the_median() -> None:
    base = PhysicsForecaster(0.05).forecast(TASK, A100)
    forecast = CalibratedForecaster(PhysicsForecaster(0.05), trained(1.0)).forecast(TASK, A100)
    assert forecast.median_bytes <= forecast.bound_bytes < 0.85 * base.bound_bytes
    assert round(forecast.bound_bytes / forecast.adjustment.bound / base.bound_bytes, 3) == 1.0


def test_the_users_own_number_is_never_calibrated() -> None:
    given = Task(Level.GIVEN, gpu_memory_mib=12_345, architecture=Architecture.CNN)
    assert CalibratedForecaster(PhysicsForecaster(0.05), trained(1.5)).forecast(given, A100).need_mib == 12_345


def test_without_a_calibrator_the_artifacts_bounds_are_used() -> None:
    base = PhysicsForecaster(0.05)
    assert CalibratedForecaster(base, None).forecast(TASK, A100) is base.forecast(TASK, A100)


def test_less_risk_still_never_means_less_memory() -> None:
    forecaster = CalibratedForecaster(PhysicsForecaster(0.05), trained(1.3))
    bounds = [
        forecaster.forecast(replace(TASK, max_oom_risk=risk), A100).bound_bytes for risk in (0.2, 0.1, 0.05, 0.01)
    ]
    assert bounds == sorted(bounds)
