"""The denoising networks of Stable Diffusion, by their published configurations; sizes are those of the latents."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from diffusers import UNet2DConditionModel
from torch import nn

from vramcast.profile.sources import ModelSource, image_inputs

_LATENT_CHANNELS = 4
_SD_2 = {"cross_attention_dim": 1024, "attention_head_dim": [5, 10, 20, 20], "use_linear_projection": True}
_XL: dict[str, Any] = {
    "cross_attention_dim": 2048,
    "attention_head_dim": [5, 10, 20],
    "use_linear_projection": True,
    "block_out_channels": [320, 640, 1280],
    "down_block_types": ["DownBlock2D", "CrossAttnDownBlock2D", "CrossAttnDownBlock2D"],
    "up_block_types": ["CrossAttnUpBlock2D", "CrossAttnUpBlock2D", "UpBlock2D"],
    "transformer_layers_per_block": [1, 2, 10],
    "addition_embed_type": "text_time",
    "addition_time_embed_dim": 256,
    "projection_class_embeddings_input_dim": 2816,
}
_NETWORKS: dict[str, tuple[int, dict[str, Any]]] = {
    "stable-diffusion-v1-4": (64, {"cross_attention_dim": 768}),
    "stable-diffusion-v1-5": (64, {"cross_attention_dim": 768}),
    "stable-diffusion-2-base": (64, _SD_2),
    "stable-diffusion-2": (96, _SD_2),
    "stable-diffusion-2-1-base": (64, _SD_2),
    "stable-diffusion-2-1": (96, _SD_2),
    "stable-diffusion-xl-base-1.0": (128, _XL),
    "sdxl-turbo": (64, _XL),
}


def sources() -> Iterator[ModelSource]:
    for name, (side, config) in _NETWORKS.items():
        yield ModelSource(
            f"diffusers/{name}", _make(config), image_inputs(_LATENT_CHANNELS), side, (side // 2, 2 * side)
        )


def _make(config: dict[str, Any]) -> Callable[[int], nn.Module]:
    return lambda side: UNet2DConditionModel(sample_size=side, **config)
