from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vramcast.forecast.forecast import Source
from vramcast.forecast.forecaster import forecast_summary
from vramcast.forecast.physics import VERSION, bound_factor
from vramcast.names import Product
from vramcast.task.quantity import GIB, MIB
from vramcast.task.task import Task
from vramcast.task.vocabulary import Kind, Level, Optimizer, Precision, Quantization

A100 = Product("NVIDIA-A100-SXM4-40GB")
RESNET = Task(Level.SUMMARY, parameters=25_600_000, activations=11_100_000, batch_size=32)
LLM = Task(Level.SUMMARY, parameters=7_000_000_000, activations=500_000_000, batch_size=32, precision=Precision.BF16)

_COUNTS = st.integers(1, 10**11)
_TASKS = st.builds(
    Task,
    st.just(Level.SUMMARY),
    parameters=_COUNTS,
    activations=_COUNTS,
    batch_size=st.integers(1, 10**5),
    kind=st.sampled_from(Kind),
    precision=st.sampled_from(Precision),
    optimizer=st.sampled_from(Optimizer),
    gradient_checkpointing=st.booleans(),
    lora_rank=st.none() | st.integers(1, 512),
    quantization=st.sampled_from(Quantization),
    zero_stage=st.integers(0, 3),
    data_parallel_size=st.integers(1, 64),
)


def median(task: Task, product: Product = A100) -> int:
    return forecast_summary(task, product, 0.05).median_bytes


def test_a_well_known_network_is_forecast_in_gibibytes() -> None:
    """ResNet-50, batch 32, fp32: checks the units, not the accuracy."""
    assert 1.5 * GIB < median(RESNET) < 6 * GIB


def test_seven_billion_parameters_with_adam_take_their_textbook_memory() -> None:
    """Without activations, per parameter: 4 + 4 + 8 bytes in mixed precision, 2 + 2 + 4 for a model cast to bf16."""
    mixed = replace(LLM, precision=Precision.AMP_BF16, activations=1)
    assert 16 * 7_000_000_000 < median(mixed) < 16.5 * 7_000_000_000
    cast = replace(LLM, activations=1)
    parts = {part.name: part.size_bytes for part in forecast_summary(cast, A100, 0.05).parts}
    assert [parts[name] / 7e9 for name in ("weights", "gradients", "adamw states")] == [2, 2, 4]
    assert parts["update"] == pytest.approx(2 * 7e9, rel=0.01)


def test_deepspeed_updates_a_full_copy_of_a_cast_model() -> None:
    """2 + 2 + 12 bytes per parameter, sharded over the GPUs, as the ZeRO paper counts."""
    parts = forecast_summary(replace(LLM, zero_stage=3, data_parallel_size=8, activations=1), A100, 0.05).parts
    held = sum(part.size_bytes for part in parts if part.name not in ("CUDA context", "activations"))
    assert held == pytest.approx(16 * 7e9 / 8, rel=0.001)


@given(_TASKS, st.integers(1, 1000))
def test_a_larger_batch_never_needs_less(task: Task, more: int) -> None:
    assert median(replace(task, batch_size=task.batch_size + more)) >= median(task)


@given(_TASKS, st.integers(1, 10**9))
def test_more_parameters_or_activations_never_need_less(task: Task, more: int) -> None:
    assert median(replace(task, parameters=(task.parameters or 0) + more)) >= median(task)
    assert median(replace(task, activations=(task.activations or 0) + more)) >= median(task)


@given(_TASKS)
def test_checkpointing_lora_sharding_and_inference_never_need_more(task: Task) -> None:
    assert median(replace(task, gradient_checkpointing=True)) <= median(replace(task, gradient_checkpointing=False))
    assert median(replace(task, lora_rank=8)) <= median(replace(task, lora_rank=None))
    assert median(replace(task, kind=Kind.INFERENCE)) <= median(task)
    stages = [median(replace(task, zero_stage=stage)) for stage in range(4)]
    assert stages[1:] == sorted(stages[1:], reverse=True)
    if task.precision not in (Precision.FP16, Precision.BF16):  # there sharding adds an fp32 copy
        assert stages[0] >= stages[1]
    if task.zero_stage or task.data_parallel_size > 1:  # the second GPU of plain data parallelism adds buckets
        assert median(replace(task, data_parallel_size=task.data_parallel_size + 1)) <= median(task)


@given(_TASKS)
def test_plain_data_parallelism_holds_a_second_copy_of_the_gradients(task: Task) -> None:
    """DistributedDataParallel copies gradients into buckets, unless they are views of these."""
    alone, together = (
        {part.name: part.size_bytes for part in forecast_summary(replace(task, zero_stage=0, data_parallel_size=size),
                                                                 A100, 0.05).parts}
        for size in (1, 4)
    )  # fmt: skip
    assert "gradient buckets" not in alone
    assert together.pop("gradient buckets", 0) == alone.get("gradients", 0)
    assert together == alone


@pytest.mark.parametrize(
    ("lighter", "change"),
    [
        ("checkpointing", {"gradient_checkpointing": True}),
        ("LoRA", {"lora_rank": 16}),
        ("a quantized base", {"lora_rank": 16, "quantization": Quantization.NF4}),
        ("ZeRO 1", {"zero_stage": 1, "data_parallel_size": 8}),
        ("plain SGD", {"optimizer": Optimizer.SGD}),
        ("8-bit Adam", {"optimizer": Optimizer.ADAM8BIT}),
        ("inference", {"kind": Kind.INFERENCE}),
    ],
)
def test_common_ways_to_save_memory_save_memory(lighter: str, change: dict[str, object]) -> None:
    assert median(replace(LLM, **change)) < 0.95 * median(LLM)  # type: ignore[arg-type]


@given(_TASKS)
def test_the_parts_add_up_to_the_forecast(task: Task) -> None:
    forecast = forecast_summary(task, A100, 0.5)
    assert sum(part.size_bytes for part in forecast.parts) == forecast.median_bytes == forecast.bound_bytes
    assert all(part.size_bytes > 0 and part.because for part in forecast.parts)
    assert forecast.need_mib * MIB >= forecast.bound_bytes


@given(st.floats(0.0001, 0.5), st.floats(0.0001, 0.5))
def test_less_risk_never_gets_a_lower_bound(one: float, other: float) -> None:
    low, high = sorted((one, other))
    assert bound_factor(low) >= bound_factor(high) >= 1


@pytest.mark.parametrize(("risk", "factor"), [(0.5, 1.0), (0.1, 1.3), (0.05, 1.45), (0.01, 1.9), (0.0001, 3.0)])
def test_risks_in_the_table_get_its_factors(risk: float, factor: float) -> None:
    assert bound_factor(risk) == pytest.approx(factor)


@pytest.mark.parametrize(("risk", "factor"), [(0.9, 1.0), (1e-9, 3.0)])
def test_risks_outside_the_table_get_its_ends(risk: float, factor: float) -> None:
    assert bound_factor(risk) == pytest.approx(factor)


def test_the_forecast_carries_source_version_risk_and_assumptions() -> None:
    forecast = forecast_summary(replace(RESNET, assumptions=("precision fp32",)), A100, 0.05)
    assert (forecast.source, forecast.model_version, forecast.risk) == (Source.PHYSICS, VERSION, 0.05)
    assert forecast.assumptions == ("precision fp32",)


def test_an_unknown_product_is_never_forecast_below_a_known_one() -> None:
    assert median(RESNET, Product("NVIDIA-Z999")) >= median(RESNET)
