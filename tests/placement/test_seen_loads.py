"""What telemetry saw of tasks alone on a GPU, for the next pod with the same task."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vramcast.placement.interference import Load
from vramcast.placement.seen_loads import Seen, SeenLoads
from vramcast.task.task import Task
from vramcast.task.vocabulary import Level

TASK = Task(Level.SUMMARY, parameters=1_000_000, activations=1_000, batch_size=8, namespace="ml")
FORECAST = Load(0.6, 0.4, 1.5)
QUIET, MIDDLE, BUSY = Seen(0.5, 0.02), Seen(0.9, 0.4), Seen(1.0, 0.81)


def seen_by(*sightings: tuple[str, Seen]) -> SeenLoads:
    loads = SeenLoads()
    for namespace, seen in sightings:
        loads.note(replace(TASK, namespace=namespace), seen)
    return loads


def test_a_task_that_nobody_saw_presses_as_forecast() -> None:
    assert SeenLoads().correct(FORECAST, TASK) == FORECAST
    other = replace(TASK, batch_size=16)
    assert seen_by(("ml", QUIET)).correct(FORECAST, other) == FORECAST


def test_what_a_namespace_saw_itself_outranks_what_others_saw() -> None:
    loads = seen_by(("ml", QUIET), ("a", BUSY), ("b", BUSY))
    assert loads.correct(FORECAST, TASK) == Load(0.5, pytest.approx(QUIET.pressure), 1.5)


def test_the_latest_sighting_counts() -> None:
    assert seen_by(("ml", BUSY), ("ml", QUIET)).correct(FORECAST, TASK).busy == 0.5


def test_of_what_others_saw_the_middle_one_counts() -> None:
    loads = seen_by(("a", QUIET), ("b", MIDDLE), ("c", BUSY))
    assert loads.correct(FORECAST, TASK) == Load(0.9, pytest.approx(MIDDLE.pressure), 1.5)


def test_one_namespace_alone_can_only_raise_the_pressure_for_others() -> None:
    """Its description may not be true."""
    assert seen_by(("a", QUIET)).correct(FORECAST, TASK) == FORECAST
    assert seen_by(("a", BUSY)).correct(FORECAST, TASK).pressure == pytest.approx(BUSY.pressure)
    assert seen_by(("a", QUIET), ("b", QUIET)).correct(FORECAST, TASK).pressure == pytest.approx(QUIET.pressure)


def test_pods_that_only_ask_for_as_much_memory_say_nothing_of_those_of_others() -> None:
    given_memory = Task(Level.GIVEN, gpu_memory_mib=8_192, namespace="a")
    loads = SeenLoads()
    loads.note(given_memory, BUSY)
    assert loads.correct(FORECAST, replace(given_memory, namespace="ml")) == FORECAST
    assert loads.correct(FORECAST, given_memory).busy == 1.0


def test_the_same_task_on_another_number_of_gpus_is_another() -> None:
    loads = seen_by(("a", BUSY), ("b", BUSY))
    assert loads.correct(FORECAST, replace(TASK, gpus=4)) == FORECAST
    assert loads.correct(FORECAST, replace(TASK, gpus=1)).busy == 1.0


@given(st.lists(st.tuples(st.sampled_from("abc"), st.floats(0, 1), st.none() | st.floats(0, 1)), max_size=6))
def test_a_pressure_stays_a_share_and_a_limit_stays(sightings: list[tuple[str, float, float | None]]) -> None:
    loads = seen_by(*((namespace, Seen(busy, memory)) for namespace, busy, memory in sightings))
    corrected = loads.correct(FORECAST, TASK)
    assert 0 <= corrected.pressure <= 1
    assert corrected.most_slowdown == FORECAST.most_slowdown
