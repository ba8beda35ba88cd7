"""Where samples differ in length, the largest batch decides."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vramcast.forecast.forecaster import PhysicsForecaster
from vramcast.forecast.lengths import at_longest, drawn
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


@pytest.mark.parametrize(("batch", "mean"), [(1, 277), (2, 361), (4, 438), (8, 523)])
def test_a_padded_batch_is_as_long_as_its_longest_sample(batch: int, mean: int) -> None:
    """The means of one data set in larger and larger batches: fms's runs, and between them the same longest sample."""
    padded = replace(TASK, length=Length.PADDED, batch_size=batch, sequence_length=mean)
    assert at_longest(padded).sequence_length == pytest.approx(2222, rel=0.01)


@pytest.mark.parametrize(("batch", "tokens"), [(1, 2400), (4, 825), (64, 333)])
def test_a_packed_batch_has_one_long_sample_beside_mean_ones(batch: int, tokens: int) -> None:
    assert at_longest(replace(TASK, length=Length.PACKED, batch_size=batch)).sequence_length == tokens


def test_a_task_without_a_length_is_left_to_its_model() -> None:
    assert at_longest(replace(TASK, sequence_length=None, length=Length.PADDED)).sequence_length is None


def test_the_forecast_tells_which_length_it_took() -> None:
    """Told once, also where neighbours of the batch are asked on the way."""
    forecast = PhysicsForecaster(0.05).forecast(replace(TASK, batch_size=5, length=Length.PADDED), A100)
    assert sum("1434, of the largest batch" in note for note in forecast.assumptions) == 1


@pytest.mark.parametrize("task", [
    TASK, replace(TASK, gradient_accumulation=4), replace(TASK, framework="transformers==4.40"),
    replace(TASK, zero_stage=3, data_parallel_size=2, master_weights=False, lora_rank=None),
])  # fmt: skip
def test_samples_of_many_lengths_leave_gaps_in_the_cache(task: Task) -> None:
    """As many tensors as with samples of the longest length alone, and more reserved for them."""
    equal, mixed = (
        PhysicsForecaster(0.05).forecast(replace(task, sequence_length=2048, length=length, share=True), A100)
        for length in (Length.FIXED, Length.LONGEST)
    )
    assert mixed.allocated.median_bytes == pytest.approx(equal.allocated.median_bytes, rel=0.02)
    assert mixed.median_bytes > 1.03 * equal.median_bytes
    assert any("many lengths up to 2048 tokens" in note for note in mixed.assumptions)


@given(st.integers(1, 1 << 20))
def test_the_longest_batch_is_among_those_that_are_drawn(longest: int) -> None:
    lengths = drawn(longest)
    assert max(lengths) == longest
    assert min(lengths) >= 1
