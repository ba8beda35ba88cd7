"""Language models that see. A size is the number of tokens, those of the one image included."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from vramcast.profile.inputs import Inputs
from vramcast.profile.networks.huggingface import LONG, Published, gated, make_network, widths
from vramcast.profile.sources import ModelSource

_BASE_TOKENS = 1024  # an image takes 256 to 576 of them
_OTHERS = (768, 2048)

Make = Callable[[int], nn.Module]


def sources() -> Iterator[ModelSource]:
    for name, (fields, also) in _LLAVA.items():
        make = _trusting(make_network("Llava", fields, "ForConditionalGeneration"))
        yield _source(name, make, partial(_pictured, 336), also)
    for name, (fields, also) in _GEMMA.items():
        make = _trusting(make_network("Gemma3", fields, "ForConditionalGeneration"))
        yield _source(name, make, partial(_pictured, 896), also)
    for name, (fields, also) in _MLLAMA.items():
        make = make_network("Mllama", fields, "ForConditionalGeneration")
        yield ModelSource(f"hf/{name}", make, _tiled, 512, LONG, tokens=True, also=also)


def _source(name: str, make: Make, inputs: Callable[[int], Inputs], also: tuple[str, ...]) -> ModelSource:
    return ModelSource(f"hf/{name}", make, inputs, _BASE_TOKENS, _OTHERS, tokens=True, also=also)


def _trusting(make: Make) -> Make:
    """Without the check that as many tokens stand for the image as it has features: it looks at values."""

    def made(size: int) -> nn.Module:
        model: Any = make(size)
        model.model.get_placeholder_mask = _placeholders
        network: nn.Module = model
        return network

    return made


def _placeholders(_input_ids: Tensor, inputs_embeds: Tensor, **_features: Tensor) -> Tensor:
    return torch.ones_like(inputs_embeds, dtype=torch.bool)


def _pictured(side: int, length: int) -> Inputs:
    def make(samples: int) -> dict[str, Tensor]:
        tokens = torch.zeros(samples, length, dtype=torch.long)
        images = torch.zeros(samples, 3, side, side)
        return {"input_ids": tokens, "labels": tokens, "pixel_values": images, "token_type_ids": tokens}

    return Inputs(sequence_length=length, make=make)


def _tiled(length: int) -> Inputs:
    """Llama 3.2 Vision cuts an image into at most four tiles."""

    def make(samples: int) -> dict[str, Tensor]:
        tokens = torch.zeros(samples, length, dtype=torch.long)
        return {
            "input_ids": tokens,
            "labels": tokens,
            "pixel_values": torch.zeros(samples, 1, 4, 3, 560, 560),
            "aspect_ratio_ids": torch.zeros(samples, 1, dtype=torch.long),
            "aspect_ratio_mask": torch.ones(samples, 1, 4, dtype=torch.long),
        }

    return Inputs(sequence_length=length, make=make)


def _text(*figures: Any, **more: Any) -> dict[str, Any]:
    return gated(*figures, **more).fields


_CLIP_LARGE = widths(0, 1024, 24, 16, image_size=336, patch_size=14, projection_dim=768) | {"vocab_size": 32000}


def _llava(text: dict[str, Any]) -> dict[str, Any]:
    return {
        "vision_config": {"model_type": "clip_vision_model", **_CLIP_LARGE},
        "text_config": {"model_type": "llama", **text}, "image_token_id": 32000, "vision_feature_layer": -2,
        "vision_feature_select_strategy": "default", "image_seq_length": 576,
    }  # fmt: skip


_LLAVA: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "llava-1.5-7b-hf": (
        _llava(_text("Llama", 32064, 4096, 32, (32, 32), 11008, 4096)), ("llava-v1.5-7b", "llava-1.5-7b"),
    ),
    "llava-1.5-13b-hf": (
        _llava(_text("Llama", 32064, 5120, 40, (40, 40), 13824, 4096)), ("llava-v1.5-13b", "llava-1.5-13b"),
    ),
}  # fmt: skip

_SIGLIP = {
    "hidden_size": 1152, "intermediate_size": 4304, "num_hidden_layers": 27, "num_attention_heads": 16,
    "image_size": 896, "patch_size": 14, "vision_use_head": False,
}  # fmt: skip


def _gemma(width: int, layers: int, heads: tuple[int, int], inner: int, head: int) -> dict[str, Any]:
    text = _text("Gemma3", 262208, width, layers, heads, inner, 131072, head_dim=head, sliding_window=1024)
    return {"text_config": text, "vision_config": _SIGLIP, "mm_tokens_per_image": 256}


_GEMMA = {
    "gemma-3-4b-pt": (_gemma(2560, 34, (8, 4), 10240, 256), ("gemma-3-4b-it",)),
    "gemma-3-12b-pt": (_gemma(3840, 48, (16, 8), 15360, 256), ("gemma-3-12b-it",)),
    "gemma-3-27b-pt": (_gemma(5376, 62, (32, 16), 21504, 128), ("gemma-3-27b-it",)),
}


def _mllama(width: int, layers: int, heads: tuple[int, int], inner: int, crossing: list[int]) -> dict[str, Any]:
    ratios = [[1, 1], [1, 2], [1, 3], [1, 4], [2, 1], [2, 2], [3, 1], [4, 1]]
    return {
        "text_config": _text("Llama", 128256, width, layers, heads, inner, 131072, cross_attention_layers=crossing),
        "vision_config": {
            "hidden_size": 1280, "num_hidden_layers": 32, "num_global_layers": 8, "attention_heads": 16,
            "intermediate_size": 5120, "vision_output_dim": 7680, "image_size": 560, "patch_size": 14,
            "max_num_tiles": 4, "intermediate_layers_indices": [3, 7, 15, 23, 30], "supported_aspect_ratios": ratios,
        },
    }  # fmt: skip


_MLLAMA: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "Llama-3.2-11B-Vision": (
        _mllama(4096, 40, (32, 8), 14336, [3, 8, 13, 18, 23, 28, 33, 38]), ("Llama-3.2-11B-Vision-Instruct",),
    ),
    "Llama-3.2-90B-Vision": (
        _mllama(8192, 100, (64, 8), 28672, list(range(3, 100, 5))), ("Llama-3.2-90B-Vision-Instruct",),
    ),
}  # fmt: skip

TEXTS: dict[str, Published] = {
    name: Published("Gemma3", fields["text_config"], also) for name, (fields, also) in _GEMMA.items()
}
