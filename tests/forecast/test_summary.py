"""A network's summary: four numbers, the same for training, profiles and the catalog."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.forecast.networks import mlp, synthetic_cnn, traced_cnn
from vramcast.forecast.description import Description, parse_profile
from vramcast.forecast.physics import described_prior, summary_prior
from vramcast.forecast.summary import summarize
from vramcast.names import Product
from vramcast.task.task import Task
from vramcast.task.vocabulary import Level, Optimizer
from vramcast.train.synthetic_cnn import rebuild

A100 = Product("NVIDIA-A100-SXM4-40GB")


def test_a_chain_counts_each_layers_input_once() -> None:
    """Two hidden layers of 8, ReLU: the input, each ReLU's output (the next layer's input too) and the softmax."""
    summary = summarize(parse_profile(mlp(width=8, depth=2, classes=4)))
    assert (summary.architecture, summary.parameters, summary.layers) == ("mlp", 180, 6)
    assert summary.activations == 8 + 8 + 8 + 4


def test_a_traced_networks_activations_are_what_was_traced() -> None:
    profile = traced_cnn(depth=10)
    activations = summarize(parse_profile(profile)).activations
    assert activations == pytest.approx(profile["saved_bytes_per_sample"] / 4, rel=0.1)
    assert activations >= profile["saved_bytes_per_sample"] / 4


def test_a_language_models_summary_includes_the_logits_at_the_loss() -> None:
    plain = parse_profile(traced_cnn())
    spoken = replace(plain, sequence_length=128)
    assert summarize(spoken).activations > summarize(plain).activations


@pytest.mark.parametrize(
    "network",
    [parse_profile(mlp(width=2048, depth=6)), rebuild(synthetic_cnn(32, 64, 6)), parse_profile(traced_cnn(64, 64, 9))],
    ids=["mlp", "replayed", "traced"],
)
@pytest.mark.parametrize("batch", [8, 256])
def test_the_summarys_prior_is_close_to_that_of_the_layers(network: Description, batch: int) -> None:
    """Replays are higher, because they include what the allocator and cuDNN add."""
    summary = summarize(network)
    task = Task(
        Level.SUMMARY, architecture=summary.architecture, parameters=summary.parameters,  # type: ignore[arg-type]
        layers=summary.layers, activations=summary.activations, batch_size=batch, optimizer=Optimizer.ADAM,
    )  # fmt: skip
    ratio = summary_prior(task, A100).total_bytes / described_prior(network, task, A100).total_bytes
    assert 0.7 < ratio < 1.1
