"""The prior: what a replayed step holds, and that its parts add up."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.forecast.networks import mlp, synthetic_cnn, traced_cnn
from vramcast.forecast.description import parse_profile
from vramcast.forecast.physics import described_prior, summary_prior
from vramcast.forecast.replay import NO_WORKSPACE, Workspaces, replay
from vramcast.names import Product
from vramcast.task.quantity import MIB
from vramcast.task.task import Task
from vramcast.task.vocabulary import Architecture, Kind, Level, Optimizer
from vramcast.train.synthetic_cnn import rebuild

A100 = Product("NVIDIA-A100-SXM4-40GB")
TASK = Task(level=Level.PROFILE, batch_size=32, optimizer=Optimizer.ADAM, architecture=Architecture.MLP)
DESCRIBED = [parse_profile(mlp()), rebuild(synthetic_cnn()), parse_profile(traced_cnn())]


def test_adam_holds_five_copies_of_the_parameters() -> None:
    """Weights, gradients, two states and the update's temporaries: 64 MiB weights reserve 320 MiB."""
    network = parse_profile(mlp(width=4096, depth=1, classes=1))
    reserved = replay(network, [1, 1], 2, NO_WORKSPACE, 0).reserved_bytes
    assert 5 * 64 * MIB <= reserved <= 5 * 64 * MIB + 64 * MIB


def test_workspaces_and_larger_batches_need_more() -> None:
    network = rebuild(synthetic_cnn(channels=32, side=64, depth=4))
    bare = replay(network, [64, 64], 2, NO_WORKSPACE, 2).reserved_bytes
    assert replay(network, [64, 64], 2, Workspaces(1), 2).reserved_bytes > bare
    assert replay(network, [128, 128], 2, NO_WORKSPACE, 2).reserved_bytes > bare


@pytest.mark.parametrize("network", DESCRIBED, ids=["replayed", "replayed conv", "traced"])
def test_the_parts_add_up(network: object) -> None:
    prior = described_prior(network, TASK, A100)  # type: ignore[arg-type]
    assert sum(part.size_bytes for part in prior.parts) == pytest.approx(prior.total_bytes, rel=0.02)
    assert all(part.because for part in prior.parts)


@pytest.mark.parametrize("network", DESCRIBED, ids=["replayed", "replayed conv", "traced"])
def test_more_samples_never_need_less(network: object) -> None:
    needs = [
        described_prior(network, replace(TASK, batch_size=batch), A100).total_bytes  # type: ignore[arg-type]
        for batch in (1, 8, 64, 512)
    ]
    assert needs == sorted(needs)


@pytest.mark.parametrize(
    ("change", "part"),
    [
        ({"lora_rank": 8}, "gradients"),
        ({"zero_stage": 3, "data_parallel_size": 8}, "weights"),
        ({"gradient_checkpointing": True}, "activations"),
        ({"kind": Kind.INFERENCE}, "activations"),
        ({"optimizer": Optimizer.ADAM8BIT}, "adam8bit states"),
    ],
)
def test_savings_show_in_their_part(change: dict[str, object], part: str) -> None:
    task = replace(TASK, parameters=10**8, activations=10**7)
    plain = {p.name: p.size_bytes for p in summary_prior(task, A100).parts}
    saving = {p.name: p.size_bytes for p in summary_prior(replace(task, **change), A100).parts}  # type: ignore[arg-type]
    assert saving[part] < plain.get(part, plain["adam states"])


def test_standardized_weights_do_not_grow_with_the_batch() -> None:
    plain = traced_cnn(channels=64)
    standardized = {
        **plain,
        "layers": [[("StdConv2d" if name == "Conv2d" else name), *rest] for name, *rest in plain["layers"]],
    }
    parts = {part.name for part in described_prior(parse_profile(standardized), TASK, A100).parts}
    assert "batch-independent tensors" in parts
