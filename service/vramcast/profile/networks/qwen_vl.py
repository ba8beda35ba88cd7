"""Qwen's language models that see.

They look at the values of the image's grid and of the tokens. Here every image is a square of one size, so what they
would work out from the values is given to them, and they run on the meta device.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from transformers import vision_utils

from vramcast.profile.inputs import Inputs
from vramcast.profile.networks.huggingface import Published, gated, make_network
from vramcast.profile.sources import ModelSource

_IMAGE_SIDE = 448  # 196 or 256 tokens
_BASE_TOKENS = 1024
_OTHERS = (512, 2048)
_FRAMES = 2  # an image counts as two equal frames
_GRID = "image_grid_thw"


def sources() -> Iterator[ModelSource]:
    for name, published in _PUBLISHED.items():
        patch = published.fields["vision_config"]["patch_size"]
        make = partial(_make, make_network(published.prefix, published.fields, "ForConditionalGeneration"), patch)
        inputs = partial(_inputs, patch)
        yield ModelSource(f"hf/{name}", make, inputs, _BASE_TOKENS, _OTHERS, tokens=True, also=published.also)


def _inputs(patch: int, length: int) -> Inputs:
    side = _IMAGE_SIDE // patch

    def make(samples: int) -> dict[str, Tensor]:
        tokens = torch.zeros(samples, length, dtype=torch.long)
        return {
            "input_ids": tokens,
            "labels": tokens,
            "position_ids": torch.zeros(3, samples, length, dtype=torch.long),
            "pixel_values": torch.zeros(samples * side * side, 3 * _FRAMES * patch * patch),
            _GRID: _grid(samples, side),
        }

    return Inputs(sequence_length=length, make=make, read=frozenset({_GRID}))


def _grid(images: int, side: int) -> Tensor:
    return torch.tensor([[1, side, side]] * images, device="cpu")


def _make(build: Callable[[int], nn.Module], patch: int, size: int) -> nn.Module:
    model: Any = build(size)
    inner = model.model
    inner.get_placeholder_mask = _placeholders
    inner.language_model._deepstack_process = _add_to_first
    inner.visual.forward = partial(_see, inner.visual, inner.visual.forward, _IMAGE_SIDE // patch)
    network: nn.Module = model
    return network


def _placeholders(_input_ids: Tensor, inputs_embeds: Tensor, **_features: Tensor) -> tuple[Tensor, Tensor]:
    mask = torch.ones_like(inputs_embeds, dtype=torch.bool)
    return mask, mask


def _add_to_first(hidden_states: Tensor, _where: Tensor, visual_embeds: Tensor) -> Tensor:
    """The image's features are added to as many tokens, wherever those are."""
    added = hidden_states.clone()
    rows = added.view(-1, added.shape[-1])[: len(visual_embeds)]
    rows.copy_(rows + visual_embeds)
    return added


def _see(
    visual: Any, forward: Callable[..., Any], side: int, hidden_states: Tensor, grid_thw: Tensor, **more: Any
) -> Any:
    grid, device = _grid(len(hidden_states) // side**2, side), hidden_states.device
    merged = visual.spatial_merge_size
    more["position_ids"] = vision_utils.get_vision_position_ids(grid, merged).to(device)
    more["cu_seqlens"] = vision_utils.get_vision_cu_seqlens(grid)
    if hasattr(visual, "window_size"):
        index, bounds = vision_utils.get_vision_window_index(grid, merged, visual.window_size, visual.patch_size)
        more |= {"window_index": index.to(device), "cu_window_seqlens": bounds}
    if hasattr(visual, "pos_embed"):
        taps = len(hidden_states), 4
        more["interp_indices"] = torch.zeros(taps, dtype=torch.long, device=device)
        more["interp_weights"] = torch.zeros(taps, device=device)
    return forward(hidden_states, grid_thw=grid_thw, **more)


def _published(prefix: str, text: dict[str, Any], section: list[int], vision: dict[str, Any], also: str) -> Published:
    positions = {"rope_type": "default", "rope_theta": 1e6, "mrope_section": section}
    tied = text["tie_word_embeddings"]
    fields = {"text_config": {**text, "rope_parameters": positions}, "vision_config": vision}
    return Published(prefix, {**fields, "tie_word_embeddings": tied}, (also,))


def _text(*figures: Any, tied: bool, **more: Any) -> dict[str, Any]:
    return gated("", *figures, tie_word_embeddings=tied, **more).fields


def _qwen2(text: dict[str, Any], also: str) -> Published:
    vision = {"depth": 32, "embed_dim": 1280, "mlp_ratio": 4, "num_heads": 16, "patch_size": 14}
    return _published("Qwen2VL", text, [16, 24, 24], {**vision, "hidden_size": text["hidden_size"]}, also)


def _qwen25(text: dict[str, Any], also: str, inner: int = 3420) -> Published:
    vision = {
        "depth": 32, "hidden_size": 1280, "intermediate_size": inner, "num_heads": 16, "patch_size": 14,
        "window_size": 112, "fullatt_block_indexes": [7, 15, 23, 31], "out_hidden_size": text["hidden_size"],
    }  # fmt: skip
    return _published("Qwen2_5_VL", text, [16, 24, 24], vision, also)


def _qwen3(text: dict[str, Any], also: str, *, small: bool = False) -> Published:
    depth, width, inner, stacked = (24, 1024, 4096, [5, 11, 17]) if small else (27, 1152, 4304, [8, 16, 24])
    vision = {
        "depth": depth, "hidden_size": width, "intermediate_size": inner, "num_heads": 16, "patch_size": 16,
        "deepstack_visual_indexes": stacked, "num_position_embeddings": 2304, "out_hidden_size": text["hidden_size"],
    }  # fmt: skip
    return _published("Qwen3VL", text, [24, 20, 20], vision, also)


_H128 = {"head_dim": 128}
_PUBLISHED = {
    "Qwen2-VL-2B": _qwen2(_text(151936, 1536, 28, (12, 2), 8960, 32768, tied=True), "Qwen2-VL-2B-Instruct"),
    "Qwen2-VL-7B": _qwen2(_text(152064, 3584, 28, (28, 4), 18944, 32768, tied=False), "Qwen2-VL-7B-Instruct"),
    "Qwen2.5-VL-3B-Instruct": _qwen25(_text(151936, 2048, 36, (16, 2), 11008, 128000, tied=True), "Qwen2.5-VL-3B"),
    "Qwen2.5-VL-7B-Instruct": _qwen25(_text(152064, 3584, 28, (28, 4), 18944, 128000, tied=False), "Qwen2.5-VL-7B"),
    "Qwen2.5-VL-72B-Instruct": _qwen25(
        _text(152064, 8192, 80, (64, 8), 29568, 128000, tied=False), "Qwen2.5-VL-72B", inner=3456),
    "Qwen3-VL-2B-Instruct": _qwen3(
        _text(151936, 2048, 28, (16, 8), 6144, 262144, tied=True, **_H128), "Qwen3-VL-2B-Thinking", small=True),
    "Qwen3-VL-4B-Instruct": _qwen3(
        _text(151936, 2560, 36, (32, 8), 9728, 262144, tied=True, **_H128), "Qwen3-VL-4B-Thinking", small=True),
    "Qwen3-VL-8B-Instruct": _qwen3(
        _text(151936, 4096, 36, (32, 8), 12288, 262144, tied=False, **_H128), "Qwen3-VL-8B-Thinking"),
}  # fmt: skip
