"""The largest batch that fits a GPU: searched for, not read off the swept values."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vramcast.errors import InvalidInput, InvalidTask
from vramcast.forecast.forecast import Forecast, Source
from vramcast.forecast.forecaster import PhysicsForecaster
from vramcast.forecast.report import usable_mib
from vramcast.forecast.sweep import SweepRange, curve, find_largest, parse_sweep, swept
from vramcast.names import Product
from vramcast.task.quantity import MIB
from vramcast.task.task import Task
from vramcast.task.vocabulary import Level

T4 = Product("Tesla-T4")
RESNET = Task(Level.SUMMARY, parameters=25_600_000, activations=11_100_000, batch_size=64)
BATCHES = SweepRange("batch-size", (8, 256))


class Straight:
    """Linear in the batch size, with bumps at some sizes."""

    def __init__(self, sample_mib: int, bumps: dict[int, int] | None = None) -> None:
        self.sample_mib = sample_mib
        self.bumps = bumps or {}

    def forecast(self, task: Task, product: Product) -> Forecast:
        size_mib = self.sample_mib * task.batch_size + self.bumps.get(task.batch_size, 0)
        return Forecast(product, size_mib * MIB, size_mib * MIB, 0.05, Source.PHYSICS, "test")


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("batch-size=8..256", (8, 16, 32, 64, 128, 256)),
        ("batch-size=8..100", (8, 16, 32, 64, 100)),
        ("batch_size=8..32:8", (8, 16, 24, 32)),
        ("vramcast.dev/batch-size=1..6:4", (1, 5, 6)),
        ("sequence-length=512,128", (128, 512)),
    ],
)
def test_a_sweep_is_a_range_that_doubles_or_steps_or_a_list(text: str, values: tuple[int, ...]) -> None:
    assert parse_sweep(text).values == values


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("batch-size", "8..256"), ("batch-size=", "8..256"), ("batch-size=8", "8..256"), ("batch-size=8-256", "8..256"),
        ("batch-size=256..8", "LOW < HIGH"), ("batch-size=0..8", "0 < LOW"), ("batch-size=1..9:0", "LOW..HIGH:STEP"),
        ("batch-size=1..1000000:1", "at most 200"), ("batch-size=1..99999999", "<= 10000000"),
        ("layers=1..8", "batch-size or sequence-length"), ("batch-size=4,4", "2 to 200 values"),
        ("batch-size=0,4", "from 1"),
    ],
)  # fmt: skip
def test_a_malformed_sweep_is_refused_with_an_example(text: str, expected: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        parse_sweep(text)
    assert expected in str(caught.value)
    assert repr(text) in str(caught.value)


@settings(max_examples=30)
@given(st.integers(1, 20_000))
def test_the_largest_batch_fits_and_one_more_does_not(sample_mib: int) -> None:
    usable = usable_mib(T4)
    assert usable is not None
    found = find_largest(Straight(sample_mib), RESNET, T4, BATCHES)
    assert found is not None
    assert found.value == (usable // sample_mib or None)
    assert found.next_forecast is not None
    assert found.next_forecast.need_mib == sample_mib * (usable // sample_mib + 1)


def test_physics_finds_the_same_as_trying_every_batch() -> None:
    physics, usable = PhysicsForecaster(0.05), usable_mib(T4)
    assert usable is not None
    fitting = [
        batch
        for batch in range(1, 400)
        if physics.forecast(replace(RESNET, batch_size=batch), T4).need_mib <= usable
    ]  # fmt: skip
    found = find_largest(physics, RESNET, T4, BATCHES)
    assert found is not None
    assert found.value == fitting[-1]


def test_a_bump_below_the_crossing_counts() -> None:
    # 149 would fit but 147 does not, and users expect every smaller batch to fit.
    found = find_largest(Straight(100, {147: 5000}), RESNET, T4, BATCHES)
    assert found is not None
    assert found.value == 146


def test_a_task_that_does_not_fit_at_all_has_no_largest_value() -> None:
    found = find_largest(Straight(20_000), RESNET, T4, BATCHES)
    assert found is not None
    assert (found.value, found.forecast) == (None, None)


def test_the_search_ends_at_the_vocabularys_limit() -> None:
    found = find_largest(Straight(0), RESNET, T4, BATCHES)
    assert found is not None
    assert (found.value, found.next_forecast) == (10**7, None)


def test_a_product_with_unknown_memory_has_no_largest_value() -> None:
    assert find_largest(Straight(1), RESNET, Product("NVIDIA-Z9"), BATCHES) is None


def test_a_curve_has_a_forecast_at_every_value() -> None:
    points = curve(PhysicsForecaster(0.05), RESNET, T4, SweepRange("batch-size", (1, 2, 4)))
    grown = [later.median_bytes - earlier.median_bytes for earlier, later in pairwise(points)]
    assert grown[1] == 2 * grown[0] > 0


def test_a_summarys_activations_grow_with_the_sequence_as_an_assumption() -> None:
    at = swept(replace(RESNET, sequence_length=512), "sequence-length")
    assert (at(1024).activations, at(1024).sequence_length) == (2 * 11_100_000, 1024)
    assert at(1024).assumptions == ("activations grow in proportion to sequence-length",)


def test_a_summary_without_a_sequence_length_cannot_be_swept_over_it() -> None:
    with pytest.raises(InvalidTask, match=r"the sequence length at which .*activations was counted"):
        swept(RESNET, "sequence-length")


def test_a_given_number_cannot_be_swept() -> None:
    with pytest.raises(InvalidTask, match="describe the task instead"):
        swept(Task(Level.GIVEN, gpu_memory_mib=1024), "batch-size")
