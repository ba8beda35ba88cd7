"""The catalog's networks, as the libraries build them today."""

from __future__ import annotations

from collections import Counter
from functools import lru_cache

import pytest

from tests.forecast.parameters import pinned
from tests.profiling.parameters import count
from vramcast.forecast.model_names import ModelNames
from vramcast.profile.sources import ModelSource, all_sources

# One of each family that builds in a second.
BUILT = (
    "hf/opt-125m", "hf/pythia-160m", "hf/bloom-560m", "hf/santacoder", "hf/gpt2", "hf/SmolLM2-135M", "hf/Qwen2.5-0.5B",
    "hf/Qwen3-0.6B", "hf/Mistral-7B-v0.1", "hf/gemma-2-2b", "hf/gemma-3-270m", "hf/phi-2", "hf/OLMo-1B-hf",
    "hf/Mixtral-8x7B-v0.1", "hf/gpt-oss-20b", "hf/DeepSeek-V2-Lite", "hf/bert-base-uncased", "hf/ModernBERT-base",
    "hf/t5-small", "hf/whisper-tiny", "hf/wav2vec2-base", "hf/clip-vit-base-patch32", "hf/siglip-base-patch16-224",
    "hf/dinov2-small", "hf/sam-vit-base", "hf/yolos-tiny", "hf/llava-1.5-7b-hf", "hf/Qwen2.5-VL-3B-Instruct",
    "hf/Qwen3-VL-2B-Instruct", "diffusers/stable-diffusion-v1-5", "diffusers/stable-diffusion-3-medium",
    "diffusers/FLUX.1-dev", "diffusers/Wan2.1-T2V-1.3B", "diffusers/CogVideoX-2b", "ultralytics/yolov8n",
    "torchvision/resnet18", "timm/resnet50", "hf/chatglm2-6b", "hf/granite-3.0-1b-a400m-base", "hf/all-MiniLM-L6-v2",
    "hf/internlm2-1_8b", "hf/albert-base-v1", "hf/beit-base-patch16-224", "hf/llm-foundry-mpt-70b",
    "diffusers/PixArt-XL-2-512x512", "diffusers/LTX-Video", "diffusers/Kandinsky-5.0-T2V-Lite", "diffusers/amused-512",
)  # fmt: skip


@lru_cache
def sources() -> dict[str, ModelSource]:
    return {source.name: source for source in all_sources()}


@pytest.mark.parametrize("name", BUILT)
def test_a_network_has_as_many_parameters_as_published(name: str) -> None:
    assert count(sources()[name]) == pinned()[name].parameters


def test_every_pinned_network_can_be_built_by_its_name() -> None:
    assert pinned().keys() <= sources().keys()


def test_no_two_networks_share_a_name() -> None:
    spelled = Counter(
        (source.name.partition("/")[0], name.lower())
        for source in sources().values()
        for name in (source.name.partition("/")[2], *source.also)
    )
    assert [name for name, times in spelled.items() if times > 1] == []


def test_every_name_finds_its_own_network() -> None:
    names = ModelNames((source.name, source.also) for source in sources().values())
    for source in sources().values():
        family = source.name.partition("/")[0]
        assert all(names.find(f"{family}/{name}") == source.name for name in source.also), source.name
