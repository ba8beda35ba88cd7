"""FLOPs of a step: equal to what is computed by hand, for every kind of layer."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.forecast.networks import mlp, synthetic_cnn, traced_cnn
from vramcast.forecast.catalog import builtin_catalog
from vramcast.forecast.description import CountedWork, Description, parse_profile
from vramcast.forecast.work import attention_macs, passes, step_flops, work_of
from vramcast.task.task import Task
from vramcast.task.vocabulary import Kind, Level

PLAIN = Task(Level.NAME, batch_size=8)


def network(*layers: list[Any], shape: tuple[int, ...] = (3, 8, 8)) -> Description:
    parameters = sum(layer[2] for layer in layers)
    return parse_profile({
        "id": "made", "family": "cnn", "input_shape": list(shape), "parameters": parameters, "layers": list(layers),
        "saved_bytes_per_sample": 1,
    })  # fmt: skip


def total(described: Description) -> float:
    work = work_of(described)
    assert work is not None
    return work.total_macs


def linear(tokens: int, inputs: int, outputs: int, name: str = "Linear") -> list[Any]:
    weights = inputs * outputs + outputs
    return [name, tokens * outputs, weights, None, None, False, tokens * inputs, [tokens, outputs], None]


@pytest.mark.parametrize(
    ("layer", "macs"),
    [
        # type, outputs, parameters, kernel, groups, in place, inputs, output shape, stride
        (["Conv2d", 16 * 64, 3 * 16 * 9, [3, 3], 1, False, 3 * 64, [16, 8, 8], [1, 1]], 3 * 16 * 9 * 64),
        (["Conv2d", 16 * 64, 3 * 16 * 9 + 16, [3, 3], 1, False, 3 * 64, [16, 8, 8], [1, 1]], 3 * 16 * 9 * 64),
        (["Conv2d", 16 * 64, 32 * 16 + 16, [1, 1], 1, False, 32 * 64, [16, 8, 8], [1, 1]], 32 * 16 * 64),
        (["Conv2d", 32 * 64, 8 * 32 * 9, [3, 3], 4, False, 32 * 64, [32, 8, 8], [1, 1]], 8 * 32 * 9 * 64),
        (["Conv2d", 32 * 64, 32 * 7 + 32, [1, 7], 32, False, 32 * 64, [32, 8, 8], [1, 1]], 32 * 7 * 64),
        (["Conv2d", 32 * 16, 16 * 32 * 9, [3, 3], 1, False, 16 * 64, [32, 4, 4], [2, 2]], 16 * 32 * 9 * 16),
        (["Conv1d", 24 * 50, 8 * 24 * 3, [3], 1, False, 8 * 50, [24, 50], [1]], 8 * 24 * 3 * 50),
        (["Conv3d", 4 * 125, 2 * 4 * 27, [3, 3, 3], 1, False, 2 * 125, [4, 5, 5, 5], [1, 1, 1]], 2 * 4 * 27 * 125),
        (["ConvTranspose2d", 8 * 64, 16 * 8 * 4, [2, 2], 1, False, 16 * 16, [8, 8, 8], [2, 2]], 16 * 16 * 8 * 4),
        (["Linear", 10, 16 * 10 + 10, None, None, False, 16, [10], None], 160),
        (linear(50, 16, 24), 50 * 16 * 24),
        (linear(50, 16, 24, "Conv1D"), 50 * 16 * 24),
        (["BatchNorm2d", 16 * 64, 32, None, None, False, 16 * 64, [16, 8, 8], None], 0),
    ],
)
def test_a_layer_multiplies_as_often_as_by_hand(layer: list[Any], macs: int) -> None:
    assert total(network(layer)) == macs


def test_attention_is_told_by_its_projections() -> None:
    fused = network(linear(50, 16, 48), linear(50, 16, 16), shape=(50, 16))
    assert attention_macs(fused.ops) == 2 * 50 * 50 * 16
    grouped = network(linear(50, 16, 16), linear(50, 16, 8), linear(50, 16, 8), linear(50, 16, 16), shape=(50, 16))
    assert attention_macs(grouped.ops) == 2 * 50 * 50 * 16


def test_a_layer_with_a_gate_is_no_attention() -> None:
    act = ["SiLU", 50 * 48, 0, None, None, False, 50 * 48, [50, 48], None]
    gated = network(linear(50, 16, 48), linear(50, 16, 48), act, linear(50, 48, 16), shape=(50, 16))
    assert attention_macs(gated.ops) == 0


def test_a_trace_that_counted_is_believed_before_the_layers() -> None:
    described = parse_profile(traced_cnn())
    counted = replace(described, work=CountedWork(5e9, 1e6, 100, 1e9, 2e6, 20))
    assert total(counted) == 5e9
    assert total(described) < 5e9


def test_layers_without_shapes_tell_no_work() -> None:
    described = parse_profile(synthetic_cnn())
    assert work_of(described) is None
    assert step_flops(described, PLAIN) is None


def test_training_is_three_passes_and_settings_add_to_it() -> None:
    described = parse_profile(mlp(width=64, depth=1, classes=10))
    macs = 64 * 64 + 64 * 10
    assert step_flops(described, PLAIN) == 2 * macs * 8 * 3
    assert step_flops(described, replace(PLAIN, kind=Kind.INFERENCE)) == 2 * macs * 8
    assert step_flops(described, replace(PLAIN, gradient_accumulation=4)) == 2 * macs * 8 * 3 * 4
    assert passes(replace(PLAIN, gradient_checkpointing=True)) == 4
    assert passes(replace(PLAIN, lora_rank=8)) == 2


@pytest.mark.parametrize(
    ("name", "gmacs"),
    # By torch's own counter, which counts convolutions and matrix products.
    [("timm/resnet50", 4.089), ("timm/vit_base_patch16_224", 17.564), ("timm/swin_tiny_patch4_window7_224", 4.491)],
)
def test_networks_of_the_catalog_have_the_known_work(name: str, gmacs: float) -> None:
    described = builtin_catalog().describe(name, None, None).network
    assert total(described) / 1e9 == pytest.approx(gmacs, rel=1e-3)
