"""Recordings for the catalog: stretched from a few blocks, equal to those of the whole network."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from vramcast.forecast.catalog import builtin_catalog
from vramcast.forecast.recordings import read_recordings
from vramcast.forecast.sizes import Point, Variable
from vramcast.forecast.variants import DENOISER_VARIANTS, FREQUENT_VARIANTS, LANGUAGE_VARIANTS, PLAIN_VARIANTS
from vramcast.profile.inputs import Inputs
from vramcast.profile.networks.huggingface import Published, gated, text_source
from vramcast.profile.popular import POPULAR
from vramcast.profile.recording.errors import Unrecordable
from vramcast.profile.recording.initialization import on_device
from vramcast.profile.recording.network import record_network, tape_at
from vramcast.profile.recording_models import (
    Job,
    jobs_of,
    record_job,
    record_models,
    record_variant,
    same_tape,
    settings_of_variant,
)
from vramcast.profile.sources import Depth, ModelSource, image_inputs

BLOCKS = 9


def source(published: Published, name: str = "tiny") -> ModelSource:
    return text_source(name, published, "ForCausalLM", (64, 256))


def small(kind: str = "Llama", blocks: int = BLOCKS, **more: int) -> ModelSource:
    return source(gated(kind, 160, 64, blocks, (4, 2), 96, 1024, **more))


def depth_of(model: ModelSource) -> Depth:
    assert model.depth is not None
    return model.depth


@pytest.mark.parametrize("variant", LANGUAGE_VARIANTS)
def test_a_variants_recording_is_that_of_the_whole_network(variant: str) -> None:
    """At a point that was not recorded, byte by byte. Beyond 3,072 tokens the gradient of an embedding is sorted, and
    most recorded points of so short a network have fewer."""
    depth, settings = depth_of(small()), settings_of_variant(variant)
    point: Point = {Variable.BATCH: 4, Variable.LENGTH: 640}
    if settings.lora_rank is not None:
        point = {**point, Variable.RANK: 24}
    whole = tape_at(lambda: depth.make(BLOCKS), settings, point)
    assert same_tape(record_variant(depth, variant).at(point).tape, whole)


@pytest.mark.parametrize("kind", ["Gemma2", "Gemma3"])
def test_blocks_that_alternate_are_recorded_as_a_whole(kind: str) -> None:
    depth, variant = depth_of(small(kind, sliding_window=512, head_dim=16)), "16-bit full checkpointed"
    point = {Variable.BATCH: 4, Variable.LENGTH: 256}
    whole = tape_at(lambda: depth.make(BLOCKS), settings_of_variant(variant), point)
    assert same_tape(record_variant(depth, variant).at(point).tape, whole)
    assert depth.longest == 512


def test_what_the_file_has_is_not_recorded_again(tmp_path: Path) -> None:
    out, said = tmp_path / "recordings.bin", list[str]()
    jobs = jobs_of([small(blocks=3)])
    first = record_models(out, jobs, jobs[:1], said.append)
    assert (first.recordings, first.models, first.missing, first.failed) == (1, 1, len(FREQUENT_VARIANTS) - 1, ())
    before = out.read_bytes()
    for part in out.with_suffix(".parts").iterdir():
        part.unlink()
    record_models(out, jobs, jobs[:1], said.append)
    assert list(out.with_suffix(".parts").iterdir()) == []
    assert out.read_bytes() == before
    record_models(out, jobs, jobs[:1], said.append, again=True)
    assert out.read_bytes() == before
    assert said == []
    assert jobs[0].key in read_recordings(out)


def test_a_network_that_cannot_be_recorded_is_skipped_with_the_reason(tmp_path: Path) -> None:
    def broken(_blocks: int) -> None:
        raise ValueError("no such width")

    model = small()
    job = Job(replace(model, depth=Depth(3, broken, 1024)), "16-bit full")  # type: ignore[arg-type]
    said: list[str] = []
    made = record_models(tmp_path / "recordings.bin", [job], [job], said.append)
    assert made.failed == (job.key,)
    (line,) = said
    assert "skipping hf/tiny 16-bit full" in line
    assert "no such width" in line


def test_frequent_settings_of_popular_models_come_first() -> None:
    names = ("rare", "Llama-3.1-8B", "Mistral-7B-v0.1")
    rare, llama, mistral = (source(gated("Llama", 160, 64, 3, (4, 2), 96, 1024), name) for name in names)
    keys = [job.key for job in jobs_of([rare, mistral, llama])]
    first, second, *_ = FREQUENT_VARIANTS
    assert keys[:3] == [f"hf/Llama-3.1-8B {first}", f"hf/Mistral-7B-v0.1 {first}", f"hf/Llama-3.1-8B {second}"]
    assert [key for key in keys if key.startswith("hf/rare ")] == [f"hf/rare {each}" for each in FREQUENT_VARIANTS]
    assert len(keys) == 2 * len(LANGUAGE_VARIANTS) + len(FREQUENT_VARIANTS)


def test_other_networks_are_recorded_in_the_plain_settings() -> None:
    def seq2seq(name: str) -> ModelSource:
        return text_source(name, Published("T5", {"num_layers": 6}), "ForConditionalGeneration", (64, 256))

    jobs = jobs_of([seq2seq("t5-rare"), seq2seq("t5-base")])
    of = {name: [job.variant for job in jobs if job.source.name == name] for name in ("hf/t5-base", "hf/t5-rare")}
    assert of == {"hf/t5-base": list(PLAIN_VARIANTS), "hf/t5-rare": list(PLAIN_VARIANTS)}


def test_denoisers_are_recorded_as_people_fine_tune_them() -> None:
    any_network = text_source("t5-base", Published("T5", {"num_layers": 6}), "ForConditionalGeneration", (64, 256))
    denoiser = replace(any_network, name="diffusers/any")
    assert [job.variant for job in jobs_of([denoiser])] == list(DENOISER_VARIANTS)


def test_eager_attention_is_recorded_only_of_networks_that_can_have_it() -> None:
    class Attends(nn.Module):
        """As timm writes attention: a switch, and both ways to compute it."""

        def __init__(self) -> None:
            super().__init__()
            self.fused_attn, self.patches, self.head = True, nn.Conv2d(3, 8, 16, 16), nn.Linear(8, 10)

        def forward(self, images: torch.Tensor) -> torch.Tensor:
            tokens = self.patches(images).flatten(2).transpose(1, 2).unsqueeze(1)
            if self.fused_attn:
                made = nn.functional.scaled_dot_product_attention(tokens, tokens, tokens)
            else:
                made = (tokens @ tokens.transpose(-2, -1)).softmax(-1) @ tokens
            return self.head(made.mean((1, 2)))

    def sizes(variant: str) -> list[int]:
        recording = record_job(Job(ModelSource("timm/attends", lambda _: Attends(), image_inputs(), 256, ()), variant))
        return recording.at({Variable.BATCH: 4, Variable.SIDE: 256}).tape.sizes.tolist()  # type: ignore[no-any-return]

    matrix_bytes = 4 * 256 * 256 * 2  # of 16 x 16 patches
    assert matrix_bytes not in sizes("amp full")
    assert matrix_bytes in sizes("amp full eager")
    without = ModelSource("timm/convolves", lambda _: nn.Sequential(nn.Conv2d(3, 8, 3)), image_inputs(), 128, ())
    with pytest.raises(Unrecordable, match="computes none"):
        record_job(Job(without, "amp full eager"))


def test_every_popular_model_is_in_the_catalog() -> None:
    assert len(set(POPULAR)) == len(POPULAR)
    assert [name for name in POPULAR if builtin_catalog().line(name) is None] == []


def test_a_network_that_computes_its_widths_with_tensors_is_recorded() -> None:
    """torchvision's RegNets do."""

    def make(_side: int) -> nn.Module:
        width = int(torch.tensor([8.0]).item())
        return nn.Sequential(nn.Conv2d(3, width, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, 10))

    assert record_job(Job(ModelSource("timm/valued", make, image_inputs(), 128, ()), "amp full")).pieces


def test_a_recording_needs_no_initial_weights() -> None:
    """Neither torch's own functions nor a library's may take time for values that nobody reads."""
    computed: list[str] = []

    class Initialized(nn.Linear):
        def reset_parameters(self) -> None:
            nn.init.kaiming_uniform_(self.weight, a=5**0.5)
            self.weight.data.normal_().erfinv_().clamp_(min=-1.0)

    class Noted(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, _types: Any, args: Any = (), kwargs: Any = None) -> Any:
            computed.append(func._schema.name)
            return func(*args, **(kwargs or {}))

    with Noted(), on_device("meta"):
        made = Initialized(4, 4)
    assert made.weight.is_meta
    assert set(computed) <= {"aten::empty", "aten::empty.memory_format", "aten::detach"}


@pytest.mark.parametrize("variant", ["amp full", "16-bit full", "fp32 full"])
def test_an_image_networks_recording_answers_other_batches_and_sides(variant: str) -> None:
    def make(_side: int) -> nn.Module:
        return nn.Sequential(
            nn.Conv2d(3, 8, 3, 2, 1), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 16, 3, 2, 1), nn.AdaptiveAvgPool2d(1),
            nn.Flatten(), nn.Linear(16, 10),
        )  # fmt: skip

    recording = record_job(Job(ModelSource("timm/small", make, image_inputs(), 128, ()), variant))
    assert recording.info["input-size"] == "3x128x128"
    assert "cudnn" in recording.info
    build, settings = partial(make, 128), settings_of_variant(variant)
    fresh = record_network(build, Inputs(shapes=((3, 192, 192),)), settings, {})
    for side in (96, 128, 192):
        point = {Variable.BATCH: 6, Variable.SIDE: side}
        assert same_tape(recording.at(point).tape, fresh.at(point).tape)
