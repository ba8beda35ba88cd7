"""One recording answers batches, lengths, sides and ranks that nobody recorded."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import transformers
from torch import Tensor, nn

from tests.profiling.recording.networks import llama
from vramcast.forecast.older_loss import NEXT_TOKEN, NOT_UPCAST
from vramcast.forecast.peaks import peaks
from vramcast.forecast.sizes import Point, Variable
from vramcast.forecast.storage import decode, encode
from vramcast.profile.inputs import Inputs
from vramcast.profile.recording.errors import NeedsValues, TooManyEvents, Unrecordable
from vramcast.profile.recording.losses import loss_of
from vramcast.profile.recording.network import Build, NetworkSteps, network_info, record_network, settings_of
from vramcast.profile.recording.settings import RunSettings
from vramcast.profile.step_plot import plot_step
from vramcast.task.task import parse_task
from vramcast.task.vocabulary import PREFIX, Precision

BATCH, LENGTH, SIDE, RANK = Variable.BATCH, Variable.LENGTH, Variable.SIDE, Variable.RANK
IMAGES = Inputs(shapes=((3, 128, 128),))
TOKENS = Inputs(sequence_length=256)


def convolutions() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 8, 7, stride=2, padding=3), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(8, 16, 3, padding=1), nn.GELU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 10),
    )  # fmt: skip


def fixed_size() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 4, 32, stride=32), nn.Flatten(), nn.Linear(4 * 16, 10))


class LooksAtValues(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, given: Tensor) -> Tensor:
        return self.layer(given) if given.sum().item() > 0 else given  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("build", "inputs", "settings", "point"),
    [
        (convolutions, IMAGES, RunSettings(), {BATCH: 17, SIDE: 96}),
        (convolutions, IMAGES, RunSettings(precision=Precision.AMP_FP16), {BATCH: 64, SIDE: 224}),
        (fixed_size, IMAGES, RunSettings(precision=Precision.BF16), {BATCH: 9}),
        (llama, TOKENS, RunSettings(precision=Precision.BF16, gradient_checkpointing=True), {BATCH: 6, LENGTH: 200}),
        (llama, TOKENS, RunSettings(precision=Precision.BF16, lora_rank=16), {BATCH: 4, LENGTH: 384, RANK: 8}),
    ],
)
def test_a_recording_agrees_with_a_fresh_one_at_a_point_that_was_not_recorded(
    build: Build, inputs: Inputs, settings: RunSettings, point: Point
) -> None:
    recording = decode(encode(record_network(build, inputs, settings)))
    solved = peaks(recording.at(point).tape)
    fresh = peaks(NetworkSteps(build, inputs, settings).tape(point))
    assert solved.active_bytes == pytest.approx(fresh.active_bytes, rel=0.005)
    assert solved.reserved_bytes == pytest.approx(fresh.reserved_bytes, rel=0.005)


@pytest.mark.parametrize(
    ("said", "autocast"),
    [
        ({"lora-rank": "8", "quantization": "nf4"}, True),
        ({"lora-rank": "8", "quantization": "nf4", "upcast": "false"}, True),
        ({"lora-rank": "8", "quantization": "int4"}, True),
        ({"lora-rank": "8"}, False),
        ({"lora-rank": "8", "quantization": "nf4", "precision": "fp32"}, False),
        ({"quantization": "nf4", "task": "inference"}, False),
    ],
)
def test_quantized_networks_are_trained_under_autocast(said: dict[str, str], autocast: bool) -> None:
    named = {"model": "any", "precision": "bf16", **said}
    task = parse_task({PREFIX + name: value for name, value in named.items()})
    assert task is not None
    assert settings_of(task).autocast is autocast


@pytest.mark.filterwarnings("ignore:.*torch.jit.script:FutureWarning")  # GPTBigCode uses it
def test_a_recording_knows_what_older_versions_did_otherwise() -> None:
    small = {"n_embd": 64, "n_layer": 2, "n_head": 4, "vocab_size": 100, "bos_token_id": None, "eos_token_id": None}
    with torch.device("meta"):
        starcoder = transformers.GPTBigCodeForCausalLM(transformers.GPTBigCodeConfig(**small))
        gpt2 = transformers.GPT2LMHeadModel(transformers.GPT2Config(**small))
        today = llama()
    keys_and_values = 2 * 64 // 4
    assert network_info(starcoder)["kept-for-cache"] == str(64 + keys_and_values)
    assert network_info(starcoder)["loss"] == network_info(gpt2)["loss"] == NOT_UPCAST
    assert "kept-for-cache" not in network_info(gpt2)
    assert network_info(today)["loss"] == NEXT_TOKEN


def test_a_network_that_takes_one_image_size_is_recorded_at_that_size() -> None:
    assert record_network(fixed_size, IMAGES, RunSettings()).variables == (BATCH,)


def test_a_network_that_looks_at_values_says_so() -> None:
    with pytest.raises(NeedsValues, match="looks at the values of a tensor"):
        record_network(LooksAtValues, Inputs(shapes=((4,),)), RunSettings())


def test_a_network_with_more_events_than_a_profile_holds_says_so() -> None:
    steps = NetworkSteps(convolutions, IMAGES, RunSettings(), max_events=100)
    with pytest.raises(TooManyEvents, match=r"more than 100 times\. Record fewer micro-batches, iterations or layers"):
        steps.tape({BATCH: 2, SIDE: 64})


def test_a_network_without_anything_to_train_says_so() -> None:
    with pytest.raises(Unrecordable, match="train at least one parameter"):
        record_network(lambda: convolutions().requires_grad_(False), IMAGES, RunSettings())


@pytest.mark.parametrize(
    ("outputs", "loss"),
    [
        ({"loss": torch.tensor(3.0)}, 3.0),
        ({"classes": torch.tensor(1.0), "boxes": torch.tensor(2.5)}, 3.5),
        (torch.full((2, 4), 7.0, requires_grad=True), 1.3863),
        (torch.full((2, 4, 3, 3), 7.0, requires_grad=True), 1.3863),
        ((torch.full((2, 5, 6), 2.0, requires_grad=True), None), 4.0),
    ],
)
def test_the_loss_is_the_networks_own_or_the_usual_one_for_its_outputs(outputs: object, loss: float) -> None:
    assert float(loss_of(outputs).detach()) == pytest.approx(loss, abs=1e-4)


def test_a_step_can_be_drawn(tmp_path: Path) -> None:
    tape = record_network(convolutions, IMAGES, RunSettings()).at({BATCH: 8, SIDE: 128}).tape
    plot_step(tape, "convolutions", tmp_path / "step.png")
    assert (tmp_path / "step.png").read_bytes().startswith(b"\x89PNG")
