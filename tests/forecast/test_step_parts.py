"""The parts of a step: rise with the batch, know norms that no layer shows, and leave out what runs once."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from vramcast.forecast.description import CountedWork, Description, Op, OpKind
from vramcast.forecast.roofline import busy_share, dense_rate
from vramcast.forecast.step_parts import CELLS, PARTS, cell_of, part_shares, step_parts, weighted_seconds
from vramcast.forecast.work import channels_in, passes, work_of
from vramcast.hardware.peaks import PEAKS
from vramcast.task.task import Task
from vramcast.task.vocabulary import Kind, Level, Precision

RTX_3090 = PEAKS["NVIDIA-GeForce-RTX-3090"]
HALF = Task(Level.NAME, model="timm/resnet50", batch_size=8, precision=Precision.AMP_FP16)


def convolution(parameters: int, name: str = "Conv2d") -> Op:
    return Op(name, OpKind.POINTWISE, 64 * 196, 32 * 196, parameters, kernel=1, area=1, shape=(32, 14, 14))


def network(*ops: Op, parameters: int = 0, buffers: int = 0, elements: float = 0.0) -> Description:
    counted = CountedWork(64 * 32 * 196.0, elements, 9.0, 0.0, 0.0, 0.0)
    return Description(ops, parameters or sum(op.parameters for op in ops), 100, "cnn", buffers=buffers, work=counted)


def part(given: Description, name: str) -> float:
    parts = step_parts(given, HALF, RTX_3090)
    assert parts is not None
    return float(parts[PARTS.index(name)])


@pytest.mark.parametrize("extras", [0, 1, 2], ids=["weights alone", "bias", "bias and gain"])
def test_a_convolution_tells_its_channels_whatever_it_has_beside_its_weights(extras: int) -> None:
    op = convolution(64 * 32 + extras * 32)
    assert channels_in(op) == 64
    work = work_of(network(op))
    assert work is not None
    assert work.macs.sum() == 64 * 32 * 196


def test_what_is_computed_once_for_a_batch_does_not_count_for_each_sample() -> None:
    table = Op("Linear", OpKind.LINEAR, 2 * 1000, 384 * 1000, 3 * 384, shape=(384,))
    head = Op("Linear", OpKind.LINEAR, 512, 10, 5130, shape=(10,))
    work = work_of(network(table, head))
    assert work is not None
    assert work.macs.tolist() == [0.0, 5120.0]


def test_standardized_weights_are_not_traffic_of_each_sample() -> None:
    listed = 96 * 196
    plain, standard = (
        work_of(network(convolution(2048, name), elements=listed + 5000.0)) for name in ("Conv2d", "StdConv2d")
    )
    assert plain is not None
    assert standard is not None
    assert (plain.unlisted_elements, standard.unlisted_elements) == (5000.0, 5000.0 - 2048)


@pytest.mark.parametrize(("buffers", "name"), [(64, "batch_norm"), (0, "group_norm")])
def test_a_norm_fused_with_its_activation_is_found_by_its_parameters(buffers: int, name: str) -> None:
    identity = Op("Identity", OpKind.VIEW, 32 * 196, 32 * 196, shape=(32, 14, 14))
    ops = (convolution(2048), identity)
    fused = network(*ops, parameters=2048 + 64, buffers=buffers, elements=160.0 * 196)
    assert part(fused, name) > 0.0
    assert part(network(*ops, buffers=buffers), name) == 0.0


def test_a_dropout_moves_what_the_trace_counted_and_no_more() -> None:
    """Most have a rate of zero and do nothing. Additions that no layer shows must not be lost behind them."""
    dropout = Op("Dropout", OpKind.DROPOUT, 32 * 196, 32 * 196, shape=(32, 14, 14))
    added = 3.0 * 32 * 196
    work = work_of(network(convolution(2048), dropout, elements=96 * 196 + added))
    assert work is not None
    assert work.elements.tolist() == [96 * 196, 0]
    assert work.unlisted_elements == added


def depthwise(kernel: int) -> Op:
    return Op("Conv2d", OpKind.DEPTHWISE, 32 * 196, 32 * 196, 32 * kernel**2, kernel, kernel**2, 32, shape=(32, 14, 14))


@pytest.mark.parametrize(
    ("norm", "kernel", "name"),
    [
        (Op("BatchNorm2d", OpKind.BATCH_NORM, 32 * 196, 32 * 196, 64, shape=(32, 14, 14)), 7, "depthwise_plain"),
        (Op("LayerNorm", OpKind.LAYER_NORM, 32 * 196, 32 * 196, 64, shape=(14, 14, 32)), 7, "depthwise_7"),
        (Op("GroupNorm", OpKind.LAYER_NORM, 32 * 196, 32 * 196, 64, shape=(32, 14, 14)), 9, "depthwise_plain"),
        (Op("BatchNorm2d", OpKind.BATCH_NORM, 32 * 196, 32 * 196, 64, shape=(32, 14, 14)), 5, "depthwise_5"),
    ],
    ids=["batch norm", "layer norm", "group norm", "kernel that cuDNN has"],
)
def test_large_depthwise_kernels_are_plain_unless_a_norm_left_the_channels_last(
    norm: Op, kernel: int, name: str
) -> None:
    given = network(norm, depthwise(kernel))
    found = {part_name for part_name in PARTS if part_name.startswith("depthwise_") and part(given, part_name) > 0.0}
    assert found == {name, "depthwise_moves"}


def test_weights_of_a_linear_layer_that_is_not_called_multiply_as_one_that_is() -> None:
    tokens, width = 196, 64
    called = Op("Linear", OpKind.LINEAR, tokens * width, tokens * width, width**2, shape=(tokens, width))
    macs = 2.0 * tokens * width**2
    twice = Description((called,), 2 * width**2, 100, "transformer", work=CountedWork(macs, 0.0, 9.0, 0.0, 0.0, 0.0))
    once = Description((called,), width**2, 100, "transformer", work=CountedWork(macs, 0.0, 9.0, 0.0, 0.0, 0.0))
    assert part(twice, "rest_macs") == 0.0 < part(once, "rest_macs")
    assert part(twice, "linear") == pytest.approx(part(once, "linear") + part(once, "rest_macs"))


@pytest.mark.parametrize(
    ("between", "is_strided"),
    [
        ((), True),
        ((Op("Affine", OpKind.OTHER, 196 * 32, 196 * 32, 64, shape=(196, 32)),), True),
        ((Op("LayerNorm", OpKind.LAYER_NORM, 196 * 32, 196 * 32, 64, shape=(196, 32)),), False),
        ((Op("Dropout", OpKind.DROPOUT, 197 * 32, 197 * 32, shape=(197, 32)),), False),
    ],
    ids=["read at once", "scaled", "norm", "class token"],
)
def test_patches_are_read_channel_by_channel_unless_something_copied_them(
    between: tuple[Op, ...], is_strided: bool
) -> None:
    patches = Op("Conv2d", OpKind.CONV, 3 * 224 * 224, 32 * 196, 3 * 32 * 256, 16, 256, stride=16, shape=(32, 14, 14))
    tokens = between[-1].shape[0] if between else 196
    reads = Op("Linear", OpKind.LINEAR, tokens * 32, tokens * 96, 32 * 96, shape=(tokens, 96))
    assert (part(network(patches, *between, reads), "strided") > 0.0) is is_strided


def strided(*ops: Op, task: Task = HALF, channels_last: bool = False) -> float:
    parts = step_parts(network(*ops), task, RTX_3090, channels_last=channels_last)
    assert parts is not None
    return float(parts[PARTS.index("strided")])


def test_what_is_read_channel_by_channel_costs_a_gradient_per_sample() -> None:
    """Of each layer that reads the residual, and of no layer that reads what another one wrote."""
    patches = Op("Conv2d", OpKind.CONV, 3 * 224 * 224, 32 * 196, 3 * 32 * 256, 16, 256, stride=16, shape=(32, 14, 14))
    norm = Op("LayerNorm", OpKind.LAYER_NORM, 196 * 32, 196 * 32, 64, shape=(196, 32))
    queries = Op("Linear", OpKind.LINEAR, 196 * 32, 196 * 96, 32 * 96, shape=(196, 96))
    projection = Op("Linear", OpKind.LINEAR, 196 * 32, 196 * 32, 32 * 32, shape=(196, 32))
    across = Op("Linear", OpKind.LINEAR, 196 * 32, 196 * 32, 196 * 196, shape=(32, 196))
    once = strided(patches, queries)
    assert strided(patches, queries, projection) == once
    assert strided(patches, queries, projection, norm, projection) == pytest.approx(once * (96 + 32) / 96)
    assert strided(patches, queries, projection, norm, across) == once
    assert strided(patches, queries, channels_last=True) == 0.0
    assert strided(patches, queries, task=replace(HALF, kind=Kind.INFERENCE)) == 0.0


def dense(channels_in: int, channels_out: int) -> Op:
    weights = channels_in * channels_out * 9
    return Op("Conv2d", OpKind.CONV, channels_in * 196, channels_out * 196, weights, 3, 9, shape=(channels_out, 14, 14))


@pytest.mark.parametrize(
    ("channels", "name", "padded"),
    [((64, 64), "conv", 1.0), ((64, 96), "conv", 128 / 96), ((72, 128), "conv", 128 / 72),
     ((32, 32), "conv_narrow", 4.0), ((3, 32), "conv_first", 1.0)],
)  # fmt: skip
def test_tensor_cores_compute_blocks_of_channels_whole(channels: tuple[int, int], name: str, padded: float) -> None:
    op = dense(*channels)
    macs = 196 * 9 * math.prod(channels)
    assert part(network(op), name) == pytest.approx(padded * arithmetic_seconds(macs, op))


@pytest.mark.parametrize(("width", "padded"), [(128, 1.0), (192, 256 / 192), (1000, 1024 / 1000)])
def test_a_linear_layer_writes_blocks_of_channels(width: int, padded: float) -> None:
    op = Op("Linear", OpKind.LINEAR, 196 * 64, 196 * width, 64 * width, shape=(196, width))
    assert part(network(op), "linear") == pytest.approx(padded * arithmetic_seconds(196 * 64 * width, op))


def arithmetic_seconds(macs: float, op: Op) -> float:
    """Of a training step at the peak, on the SMs that the layer keeps busy."""
    busy = busy_share(np.array([float(op.out_elements * HALF.batch_size)]), RTX_3090)[0]
    return float(2.0 * macs * HALF.batch_size * passes(HALF) / (dense_rate(HALF, RTX_3090) * busy))


@pytest.mark.parametrize(("width", "tiles"), [(48, 0), (64, 1), (128, 1), (160, 2)])
def test_wide_groups_take_whole_tiles(width: int, tiles: int) -> None:
    channels = 4 * width
    grouped = Op("Conv2d", OpKind.GROUPED, channels * 3136, channels * 3136, channels * width * 9, 3, 9, 4,
                 shape=(channels, 56, 56))  # fmt: skip
    given = network(grouped)
    assert part(given, "grouped_tiles") == pytest.approx(tiles * 128 / width * part(given, "grouped_wide"))


def test_scaled_layers_are_not_among_the_slow_others() -> None:
    scale = Op("LayerScale", OpKind.OTHER, 196 * 32, 196 * 32, 32, shape=(196, 32))
    assert part(network(scale), "other") == 0.0 < part(network(scale), "scale")


@pytest.mark.parametrize("cell", CELLS)
def test_every_part_rises_with_the_batch_and_so_does_their_weighted_time(cell: str) -> None:
    norm = Op("BatchNorm2d", OpKind.BATCH_NORM, 32 * 196, 32 * 196, 64, shape=(32, 14, 14))
    given = network(convolution(2048), norm, elements=1e5)
    rows = [step_parts(given, HALF, RTX_3090, batch) for batch in (1, 2, 3, 8, 100, 1000)]
    parts = np.stack([row for row in rows if row is not None])
    assert (np.diff(parts, axis=0) >= -1e-15).all()  # rounding
    weights = np.random.default_rng(CELLS.index(cell)).uniform(0.1, 9.0, len(PARTS))
    assert (np.diff(weighted_seconds(parts, weights)) >= -1e-15).all()
    assert part_shares(parts, weights).sum(1) == pytest.approx(1.0)


def test_runs_share_weights_if_their_kernels_are_chosen_alike() -> None:
    infers = replace(HALF, kind=Kind.INFERENCE)
    full = replace(HALF, precision=Precision.FP32)
    assert [cell_of(HALF, channels_last=False), cell_of(HALF, channels_last=True)] == ["training", "channels-last"]
    assert [cell_of(infers, channels_last=True), cell_of(full, channels_last=False)] == ["inference", "fp32"]
