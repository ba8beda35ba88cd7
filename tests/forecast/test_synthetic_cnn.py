"""Generated networks are rebuilt from their weights alone."""

from __future__ import annotations

import pytest

from tests.forecast.networks import synthetic_cnn
from vramcast.errors import InvalidInput
from vramcast.train.synthetic_cnn import is_synthetic_cnn, rebuild


def test_shapes_come_from_the_weights_not_from_the_listed_elements() -> None:
    network = rebuild(synthetic_cnn(channels=16, side=32))
    assert network.ops[0].out_elements == 16 * 32 * 32
    assert network.replayable


def test_weights_that_match_no_channels_are_refused() -> None:
    profile = synthetic_cnn()
    profile["layers"][3][2] += 1
    with pytest.raises(InvalidInput, match="not a network of this generator"):
        rebuild(profile)


def test_a_residual_block_adds_its_shortcut() -> None:
    elements = 8 * 8 * 16 * 16
    conv = ["Conv2d", elements, (9 * 8 + 1) * 8, [3, 3], 1, False]
    profile = synthetic_cnn(channels=8, side=16, depth=1, group="residual")
    head = profile["layers"][-3:]
    shortcut = ["Conv2d", elements, (3 + 1) * 8, [1, 1], 1, False]
    first = ["Conv2d", elements, (9 * 3 + 1) * 8, [3, 3], 1, False]
    relu = ["ReLU", elements, 0, None, None, False]
    profile["layers"] = [shortcut, first, relu, conv, relu, *head]
    network = rebuild(profile)
    add = next(op for op in network.ops if op.type == "Add")
    assert add.inputs == (4, 0)
    assert is_synthetic_cnn(profile)
