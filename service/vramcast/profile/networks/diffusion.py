"""Denoisers of diffusers. Sizes are those of the latents: an eighth of the pixels' side, a quarter of the frames."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import diffusers
import torch
from torch import Tensor, nn

from vramcast.profile.inputs import Inputs
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
_UNETS: dict[str, tuple[int, dict[str, Any]]] = {
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
    for name, (side, config) in _UNETS.items():
        yield ModelSource(
            f"diffusers/{name}", _unet(config), image_inputs(_LATENT_CHANNELS), side, (2 * side, side // 2)
        )
    for name, (kind, config, also) in _IMAGE_TRANSFORMERS.items():
        inputs = _FLUX_INPUTS.get(kind, _sd3_inputs)(config)
        yield ModelSource(f"diffusers/{name}", _network(kind, config), inputs, 128, (64, 192), also=also)
    for name, (kind, config, shape, also) in _VIDEO_TRANSFORMERS.items():
        inputs = _video_inputs(kind, shape)
        side = shape[2]
        yield ModelSource(f"diffusers/{name}", _network(kind, config), inputs, side, (side // 2,), also=also)


def _unet(config: dict[str, Any]) -> Callable[[int], nn.Module]:
    return lambda side: diffusers.UNet2DConditionModel(sample_size=side, **config)


def _network(kind: str, config: dict[str, Any]) -> Callable[[int], nn.Module]:
    def make(_size: int) -> nn.Module:
        model: nn.Module = getattr(diffusers, kind)(**config)
        return model

    return make


def _sd3(layers: int, heads: int, positions: int, **more: Any) -> dict[str, Any]:
    return {
        "sample_size": 128, "patch_size": 2, "in_channels": 16, "out_channels": 16, "num_layers": layers,
        "attention_head_dim": 64, "num_attention_heads": heads, "joint_attention_dim": 4096,
        "caption_projection_dim": 64 * heads, "pooled_projection_dim": 2048, "pos_embed_max_size": positions, **more,
    }  # fmt: skip


def _flux2(double: int, single: int, heads: int, prompt: int, guided: bool) -> dict[str, Any]:
    return {
        "num_layers": double, "num_single_layers": single, "num_attention_heads": heads, "attention_head_dim": 128,
        "joint_attention_dim": prompt, "in_channels": 128, "guidance_embeds": guided,
    }  # fmt: skip


_SD3_CLASS, _FLUX_CLASS, _FLUX2_CLASS = "SD3Transformer2DModel", "FluxTransformer2DModel", "Flux2Transformer2DModel"
_RMS = {"qk_norm": "rms_norm"}
_IMAGE_TRANSFORMERS: dict[str, tuple[str, dict[str, Any], tuple[str, ...]]] = {
    "stable-diffusion-3-medium": (_SD3_CLASS, _sd3(24, 24, 192), ("stable-diffusion-3-medium-diffusers",)),
    "stable-diffusion-3.5-medium": (
        _SD3_CLASS, _sd3(24, 24, 384, dual_attention_layers=list(range(13)), **_RMS), (),
    ),
    "stable-diffusion-3.5-large": (_SD3_CLASS, _sd3(38, 38, 192, **_RMS), ("stable-diffusion-3.5-large-turbo",)),
    "FLUX.1-dev": (_FLUX_CLASS, {"guidance_embeds": True}, ("FLUX.1-Krea-dev", "FLUX.1-Kontext-dev")),
    "FLUX.1-schnell": (_FLUX_CLASS, {"guidance_embeds": False}, ()),
    "FLUX.2-dev": (_FLUX2_CLASS, _flux2(8, 48, 48, 15360, True), ()),
    "FLUX.2-klein-4B": (_FLUX2_CLASS, _flux2(5, 20, 24, 7680, False), ("FLUX.2-klein-base-4B",)),
    "FLUX.2-klein-9B": (_FLUX2_CLASS, _flux2(8, 24, 32, 12288, False), ("FLUX.2-klein-base-9B",)),
}  # fmt: skip


def _sd3_inputs(config: dict[str, Any]) -> Callable[[int], Inputs]:
    def inputs(side: int) -> Inputs:
        def make(samples: int) -> dict[str, Tensor]:
            return {
                "hidden_states": torch.zeros(samples, 16, side, side),
                "encoder_hidden_states": torch.zeros(samples, 77 + 256, config["joint_attention_dim"]),
                "pooled_projections": torch.zeros(samples, config["pooled_projection_dim"]),
                "timestep": torch.zeros(samples),
            }

        return Inputs(shapes=((16, side, side),), make=make)

    return inputs


def _flux_inputs(config: dict[str, Any]) -> Callable[[int], Inputs]:
    """Four neighbouring latents are one token."""
    return _packed(config, channels=16, prompt=4096, axes=3, more={"pooled_projections": (768,)})


def _flux2_inputs(config: dict[str, Any]) -> Callable[[int], Inputs]:
    return _packed(config, channels=32, prompt=config["joint_attention_dim"], axes=4, more={})


_FLUX_INPUTS = {_FLUX_CLASS: _flux_inputs, _FLUX2_CLASS: _flux2_inputs}
_FLUX_TEXT_TOKENS = 512


def _packed(
    config: dict[str, Any], channels: int, prompt: int, axes: int, more: dict[str, tuple[int, ...]]
) -> Callable[[int], Inputs]:
    def inputs(side: int) -> Inputs:
        tokens = side * side // 4

        def make(samples: int) -> dict[str, Tensor]:
            return {
                "hidden_states": torch.zeros(samples, tokens, 4 * channels),
                "encoder_hidden_states": torch.zeros(samples, _FLUX_TEXT_TOKENS, prompt),
                "timestep": torch.zeros(samples),
                "img_ids": torch.zeros(tokens, axes),
                "txt_ids": torch.zeros(_FLUX_TEXT_TOKENS, axes),
                **({"guidance": torch.zeros(samples)} if config["guidance_embeds"] else {}),
                **{name: torch.zeros(samples, *shape) for name, shape in more.items()},
            }

        return Inputs(shapes=((channels, side, side),), make=make)

    return inputs


def _wan(heads: int, layers: int, inner: int) -> dict[str, Any]:
    return {
        "num_attention_heads": heads, "attention_head_dim": 128, "num_layers": layers, "ffn_dim": inner,
        "in_channels": 16, "out_channels": 16, "text_dim": 4096, "freq_dim": 256, "patch_size": (1, 2, 2),
        "cross_attn_norm": True, "qk_norm": "rms_norm_across_heads",
    }  # fmt: skip


def _cog(heads: int, layers: int, rotary: bool) -> dict[str, Any]:
    return {
        "num_attention_heads": heads, "attention_head_dim": 64, "num_layers": layers, "in_channels": 16,
        "out_channels": 16, "text_embed_dim": 4096, "time_embed_dim": 512, "sample_width": 90, "sample_height": 60,
        "sample_frames": 49, "patch_size": 2, "max_text_seq_length": 226,
        "use_rotary_positional_embeddings": rotary,
    }  # fmt: skip


_WAN_CLASS, _COG_CLASS = "WanTransformer3DModel", "CogVideoXTransformer3DModel"
# Channels, frames, height and width of the latents.
_WAN_SHAPE, _COG_SHAPE = (16, 21, 60, 104), (16, 13, 60, 90)
_Video = tuple[str, dict[str, Any], tuple[int, int, int, int], tuple[str, ...]]
_VIDEO_TRANSFORMERS: dict[str, _Video] = {
    "Wan2.1-T2V-1.3B": (_WAN_CLASS, _wan(12, 30, 8960), _WAN_SHAPE, ("Wan2.1-T2V-1.3B-Diffusers",)),
    "Wan2.1-T2V-14B": (
        _WAN_CLASS, _wan(40, 40, 13824), _WAN_SHAPE, ("Wan2.1-T2V-14B-Diffusers", "Wan2.2-T2V-A14B-Diffusers"),
    ),
    "CogVideoX-2b": (_COG_CLASS, _cog(30, 30, rotary=False), _COG_SHAPE, ()),
    "CogVideoX-5b": (_COG_CLASS, _cog(48, 42, rotary=True), _COG_SHAPE, ()),
}  # fmt: skip
_VIDEO_TEXT_TOKENS = {_WAN_CLASS: 512, _COG_CLASS: 226}


def _video_inputs(kind: str, shape: tuple[int, int, int, int]) -> Callable[[int], Inputs]:
    channels, frames, base, wide = shape

    def inputs(height: int) -> Inputs:
        width = wide * height // base

        def make(samples: int) -> dict[str, Tensor]:
            latents = torch.zeros(samples, channels, frames, height, width)
            return {
                "hidden_states": latents.transpose(1, 2) if kind == _COG_CLASS else latents,
                "encoder_hidden_states": torch.zeros(samples, _VIDEO_TEXT_TOKENS[kind], 4096),
                "timestep": torch.zeros(samples),
            }

        return Inputs(shapes=((channels, frames, height, width),), make=make)

    return inputs
