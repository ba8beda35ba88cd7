"""Anybody can edit a profile: figures that no network has are refused, and nothing fails on the others."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.forecast.networks import mlp, synthetic_cnn, traced_cnn
from vramcast.errors import InvalidInput, InvalidTask
from vramcast.forecast.catalog import builtin_catalog
from vramcast.forecast.description import decode_profile, encode_profile, parse_profile
from vramcast.forecast.forecaster import PhysicsForecaster
from vramcast.forecast.step_time import builtin_step_timer
from vramcast.names import Product
from vramcast.task.task import Task
from vramcast.task.vocabulary import Level, Precision

_A100 = Product("NVIDIA-A100-SXM4-80GB")
_CONVOLUTION = ["Conv2d", 1024, 432, [3, 3], 1, False, 3072, [16, 8, 8], [1, 1]]
_FIELDS = ("parameters", "input_shape", "buffers", "saved_bytes_per_sample", "sequence_length", "work")
_FIGURES = st.sampled_from([
    0, 1, -1, 7, 1 << 40, 10**19, 1.5, None, True, "x", [], [0], [-2], [3, 0], [1], [2, 3, 4], [1.5], ["x"], [[1]],
    float("nan"), float("inf"),
])  # fmt: skip


@pytest.mark.parametrize(
    ("at", "wrong"),
    [
        (0, 7), (1, "x"), (1, -1), (1, 1.5), (1, True), (1, 10**19), (2, None), (2, -1), (3, [0, 3]), (3, "3x3"),
        (4, 0), (4, [1]), (6, None), (7, [16, 0, 8]), (7, []), (7, [16.0, 8, 8]), (8, [0]),
    ],
)  # fmt: skip
def test_a_layer_with_a_figure_that_no_layer_has_is_refused(at: int, wrong: Any) -> None:
    layer = [*_CONVOLUTION[:at], wrong, *_CONVOLUTION[at + 1 :]]
    with pytest.raises(InvalidInput, match="malformed"):
        parse_profile({**traced_cnn(), "layers": [layer]})


@pytest.mark.parametrize(
    ("field", "wrong"),
    [
        ("parameters", -1), ("parameters", "many"), ("buffers", 1.5), ("saved_bytes_per_sample", "x"),
        ("saved_bytes_per_sample", float("nan")), ("sequence_length", 0), ("sequence_length", [512]),
        ("input_shape", [3, 0, 32]), ("input_shape", "3x32x32"), ("work", [1.0, 2.0]),
        ("work", [float("inf"), 0, 0, 0, 0, 0]), ("layers", [[2, "Conv2d"]]), ("layers", None),
    ],
)  # fmt: skip
def test_a_network_with_a_figure_that_no_network_has_is_refused(field: str, wrong: Any) -> None:
    with pytest.raises(InvalidInput, match="malformed"):
        parse_profile({**traced_cnn(), field: wrong})


def test_every_network_of_the_catalog_has_figures_of_layers() -> None:
    catalog = builtin_catalog()
    assert all(catalog.describe(line.name, None, None).network.ops for line in catalog.lines())


@given(
    st.sampled_from([mlp, synthetic_cnn, traced_cnn]),
    st.lists(st.tuples(st.integers(0, 30), st.integers(0, 8), _FIGURES), max_size=3),
    st.lists(st.tuples(st.sampled_from(_FIELDS), _FIGURES), max_size=2),
)
def test_whatever_is_edited_a_profile_is_refused_or_forecast(
    made: Any, of_layers: list[tuple[int, int, Any]], of_network: list[tuple[str, Any]]
) -> None:
    profile = copy.deepcopy(made()) | dict(of_network)
    for index, field, figure in of_layers:
        layer = profile["layers"][index % len(profile["layers"])]
        layer[field % len(layer)] = figure
    try:
        text = encode_profile(profile)
        decode_profile(text)
    except InvalidTask:
        return
    task = Task(Level.PROFILE, profile=text, batch_size=4, precision=Precision.AMP_FP16)
    try:
        PhysicsForecaster(0.05).forecast(task, _A100)
    except InvalidTask:
        return
    builtin_step_timer().forecast(task, _A100)
