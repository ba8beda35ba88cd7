"""Training and serving share one feature layout."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import asdict

import numpy as np
import pytest

from tests.forecast.networks import mlp, synthetic_cnn, traced_cnn
from vramcast.errors import InvalidTask
from vramcast.forecast.description import decode_profile, encode_profile, parse_profile
from vramcast.forecast.features import FACTS, TOKEN_WIDTH, TOKENS, Regime, describe
from vramcast.names import Product
from vramcast.task.task import Task
from vramcast.task.vocabulary import Architecture, Level, Optimizer
from vramcast.train.synthetic_cnn import rebuild

A100 = Product("NVIDIA-A100-SXM4-40GB")
TASK = Task(
    level=Level.PROFILE, batch_size=32, optimizer=Optimizer.ADAM, architecture=Architecture.CNN, parameters=10**7,
    activations=10**6, layers=20,
)  # fmt: skip


@pytest.mark.parametrize(
    ("network", "regime"),
    [
        (parse_profile(mlp()), Regime.REPLAYED),
        (rebuild(synthetic_cnn()), Regime.REPLAYED_CONV),
        (parse_profile(traced_cnn(depth=60)), Regime.TRACED),
        (None, Regime.SUMMARY),
    ],
)
def test_every_level_maps_into_the_same_finite_layout(network: object, regime: Regime) -> None:
    features = describe(network, TASK, A100)  # type: ignore[arg-type]
    assert features.regime is regime
    assert features.facts.shape == (len(FACTS),)
    assert features.tokens.shape == (TOKENS, TOKEN_WIDTH)
    assert np.isfinite(features.facts).all()
    assert np.isfinite(features.tokens).all()
    assert features.facts[regime] == 1.0


def test_an_unknown_gpu_gets_a_forecast() -> None:
    assert describe(None, TASK, Product("Some-New-GPU")).prior.total_bytes > 0


def test_a_deep_network_has_a_limited_number_of_tokens() -> None:
    features = describe(parse_profile(traced_cnn(depth=300)), TASK, A100)
    assert 0 < np.count_nonzero(features.kinds) <= TOKENS


def test_a_profile_survives_the_annotation() -> None:
    profile = traced_cnn()
    assert asdict(decode_profile(encode_profile(profile))) == asdict(parse_profile(profile))


@pytest.mark.parametrize("text", ["", "v1:", "v1:%%%", "v2:abcd", "v1:" + "A" * 40])
def test_a_damaged_profile_is_refused_with_advice(text: str) -> None:
    with pytest.raises(InvalidTask, match="vramcast profile"):
        decode_profile(text)


def test_serving_imports_no_torch() -> None:
    code = "import sys, json, vramcast.forecast.model; print(json.dumps(sorted(sys.modules)))"
    loaded = json.loads(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout)
    assert not {"torch", "lightgbm", "sklearn"} & set(loaded)
