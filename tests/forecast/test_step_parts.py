"""The parts of a step: rise with the batch, know norms that no layer shows, and leave out what runs once."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from vramcast.forecast.description import CountedWork, Description, Op, OpKind
from vramcast.forecast.step_parts import CELLS, PARTS, cell_of, part_shares, step_parts, weighted_seconds
from vramcast.forecast.work import channels_in, work_of
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
