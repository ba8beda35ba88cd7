from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vramcast.hardware.utilization import Utilization
from vramcast.placement.interference import IDLE, Load, load_of, pressure, slowdown, tolerated

_SHARES = st.integers(0, 100).map(lambda percent: percent / 100)


@given(_SHARES, st.lists(_SHARES, max_size=6), _SHARES)
def test_a_neighbour_more_never_makes_a_task_faster(own: float, others: list[float], more: float) -> None:
    assert 1.0 <= slowdown(own, sum(others)) <= slowdown(own, sum(others) + more)


def test_a_pressure_is_a_share_whatever_telemetry_says() -> None:
    assert pressure(3.0, 2.0) == 1.0
    assert pressure(-1.0, 0.5) == 0.0


def test_a_pressure_is_the_mean_of_what_a_task_suffers_and_what_it_does_to_others() -> None:
    busy, work = 0.6, 0.2
    assert pressure(busy, work) == pytest.approx(math.sqrt(busy * math.sqrt(busy * work)))


def test_a_task_of_unknown_utilization_counts_as_assumed() -> None:
    assert load_of(Utilization(), 0.5, None) == Load(0.5, pytest.approx(0.5))


def test_the_busier_of_cores_and_memory_is_the_work() -> None:
    load = load_of(Utilization(gpu_util=1.0, sm_active=0.25, dram_active=0.64), 0.5, 1.3)
    assert load == Load(1.0, pytest.approx(0.64**0.25), 1.3)


def test_what_was_measured_keeps_the_intensity_of_the_forecast() -> None:
    forecast = Load(0.8, 0.4, 1.2)
    assert forecast.measured(0.4) == Load(0.4, pytest.approx(0.2), 1.2)
    assert IDLE.measured(0.5) == Load(0.5, 0.5)


def test_where_memory_is_measured_too_the_forecast_has_no_say() -> None:
    assert Load(0.8, 0.4, 1.2).measured(1.0, 0.25) == Load(1.0, pytest.approx(0.25**0.25), 1.2)


@given(st.lists(st.tuples(_SHARES, st.floats(1.0, 3.0)), min_size=1, max_size=5), _SHARES)
def test_a_newcomer_within_tolerance_slows_nobody_beyond_its_limit(
    tenants: list[tuple[float, float]], newcomer: float
) -> None:
    loads = [Load(share, share, limit) for share, limit in tenants]
    total = sum(load.pressure for load in loads) + newcomer
    kept = all(slowdown(load.pressure, total - load.pressure) <= load.most_slowdown + 1e-6 for load in loads)
    if newcomer <= tolerated(loads):
        assert kept
    elif newcomer > tolerated(loads) + 1e-3:
        assert not all(slowdown(load.pressure, total - load.pressure) <= load.most_slowdown for load in loads)


def test_tenants_without_a_limit_tolerate_everything() -> None:
    assert tolerated([Load(1.0, 1.0), IDLE]) == math.inf
