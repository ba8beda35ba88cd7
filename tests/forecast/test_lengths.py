"""Where samples differ in length, the largest batch decides."""

from __future__ import annotations

from dataclasses import replace

import pytest

from vramcast.forecast.forecaster import PhysicsForecaster
from vramcast.forecast.lengths import at_longest
from vramcast.names import Product
from vramcast.task.task import Task
from vramcast.task.vocabulary import Length, Level, Precision

A100 = Product("NVIDIA-A100-SXM4-80GB")
TASK = Task(
    Level.NAME, model="hf/Llama-3.1-8B", batch_size=4, sequence_length=300, precision=Precision.BF16, lora_rank=8
)


@pytest.mark.parametrize("length", [Length.FIXED, Length.LONGEST])
def test_a_length_that_none_exceeds_stays(length: Length) -> None:
    assert at_longest(replace(TASK, length=length)).sequence_length == 300


def test_a_padded_batch_is_as_long_as_its_longest_sample() -> None:
    assert at_longest(replace(TASK, length=Length.PADDED)).sequence_length == 1500


@pytest.mark.parametrize(("batch", "tokens"), [(1, 2700), (4, 900), (64, 338)])
def test_a_packed_batch_has_one_long_sample_beside_mean_ones(batch: int, tokens: int) -> None:
    assert at_longest(replace(TASK, length=Length.PACKED, batch_size=batch)).sequence_length == tokens


def test_a_task_without_a_length_is_left_to_its_model() -> None:
    assert at_longest(replace(TASK, sequence_length=None, length=Length.PADDED)).sequence_length is None


def test_the_forecast_tells_which_length_it_took() -> None:
    """Told once, also where neighbours of the batch are asked on the way."""
    forecast = PhysicsForecaster(0.05).forecast(replace(TASK, batch_size=5, length=Length.PADDED), A100)
    assert sum("1500, of the largest batch" in note for note in forecast.assumptions) == 1
