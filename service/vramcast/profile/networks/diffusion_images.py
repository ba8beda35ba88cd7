"""Denoisers of images. Shapes are those of the latents that the autoencoder makes of 1,024 pixels a side, or 512.

Prompts have the length that the model's own pipeline pads them to.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from vramcast.profile.networks.denoising import Batch, Config, Denoiser, Shape, tokens, zeros

_SD_2: Config = {"cross_attention_dim": 1024, "attention_head_dim": [5, 10, 20, 20], "use_linear_projection": True}
_XL: Config = {
    "cross_attention_dim": 2048, "attention_head_dim": [5, 10, 20], "use_linear_projection": True,
    "block_out_channels": [320, 640, 1280],
    "down_block_types": ["DownBlock2D", "CrossAttnDownBlock2D", "CrossAttnDownBlock2D"],
    "up_block_types": ["CrossAttnUpBlock2D", "CrossAttnUpBlock2D", "UpBlock2D"],
    "transformer_layers_per_block": [1, 2, 10], "addition_embed_type": "text_time", "addition_time_embed_dim": 256,
    "projection_class_embeddings_input_dim": 2816,
}  # fmt: skip
_KOLORS: Config = {
    **_XL, "projection_class_embeddings_input_dim": 5632, "encoder_hid_dim": 4096, "encoder_hid_dim_type": "text_proj",
}  # fmt: skip


def _unet_batch(prompt: int, config: Config, samples: int, shape: Shape) -> dict[str, Any]:
    width: int = config.get("encoder_hid_dim") or config["cross_attention_dim"]
    given: dict[str, Any] = {
        "sample": zeros(samples, *shape),
        "timestep": torch.zeros(samples, dtype=torch.long),
        "encoder_hidden_states": zeros(samples, prompt, width),
    }
    if config.get("addition_embed_type") == "text_time":
        pooled = config["projection_class_embeddings_input_dim"] - 6 * config["addition_time_embed_dim"]
        given["added_cond_kwargs"] = {"text_embeds": zeros(samples, pooled), "time_ids": zeros(samples, 6)}
    return given


def _unet(side: int, config: Config, *also: str, prompt: int = 77) -> Denoiser:
    """It halves its input up to three times."""
    return Denoiser(
        "UNet2DConditionModel", {"sample_size": side, **config}, partial(_unet_batch, prompt), (4, side, side),
        also=also, others=(2, 0.5), rows=64, width=8, blocks="",
    )  # fmt: skip


_SD_1: Config = {"cross_attention_dim": 768}
UNETS = {
    "stable-diffusion-v1-4": _unet(64, _SD_1),
    "stable-diffusion-v1-5": _unet(64, _SD_1, "dreamshaper-8", "stable-diffusion-v1-5-diffusers"),
    "stable-diffusion-2-base": _unet(64, _SD_2),
    "stable-diffusion-2": _unet(96, _SD_2),
    "stable-diffusion-2-1-base": _unet(64, _SD_2),
    "stable-diffusion-2-1": _unet(96, _SD_2),
    "stable-diffusion-xl-base-1.0": _unet(128, _XL, "sdxl", "sdxl-base-1.0", "playground-v2.5-1024px-aesthetic"),
    "sdxl-turbo": _unet(64, _XL),
    "Kolors": _unet(128, _KOLORS, "Kolors-diffusers", prompt=256),
}


def _sd3(layers: int, heads: int, positions: int, *also: str, blocks: str = "num_layers", **more: Any) -> Denoiser:
    config = {
        "sample_size": 128, "patch_size": 2, "in_channels": 16, "out_channels": 16, "num_layers": layers,
        "attention_head_dim": 64, "num_attention_heads": heads, "joint_attention_dim": 4096,
        "caption_projection_dim": 64 * heads, "pooled_projection_dim": 2048, "pos_embed_max_size": positions, **more,
    }  # fmt: skip
    return Denoiser("SD3Transformer2DModel", config, _sd3_batch, (16, 128, 128), also=also, others=(0.5, 1.5),
                    blocks=blocks)  # fmt: skip


def _sd3_batch(config: Config, samples: int, shape: Shape) -> dict[str, Any]:
    return {
        "hidden_states": zeros(samples, *shape),
        "encoder_hidden_states": zeros(samples, 77 + 256, config["joint_attention_dim"]),
        "pooled_projections": zeros(samples, config["pooled_projection_dim"]),
        "timestep": zeros(samples),
    }


def _packed(kind: str, config: Config, batch: Batch, channels: int, *also: str, blocks: str = "") -> Denoiser:
    """Four neighbouring latents are one token."""
    return Denoiser(kind, config, batch, (channels, 128, 128), also=also, blocks=blocks)


def _flux_batch(
    prompt: int, axes: int, more: dict[str, int], config: Config, samples: int, shape: Shape
) -> dict[str, Any]:
    count = tokens(shape)
    return {
        "hidden_states": zeros(samples, count, 4 * shape[0]),
        "encoder_hidden_states": zeros(samples, prompt, config["joint_attention_dim"]),
        "timestep": zeros(samples),
        "img_ids": zeros(count, axes),
        "txt_ids": zeros(prompt, axes),
        **({"guidance": zeros(samples)} if config.get("guidance_embeds") else {}),
        **{name: zeros(samples, width) for name, width in more.items()},
    }


def _flux(guided: bool, *also: str) -> Denoiser:
    config = {"guidance_embeds": guided, "joint_attention_dim": 4096}
    batch = partial(_flux_batch, 512, 3, {"pooled_projections": 768})
    return _packed("FluxTransformer2DModel", config, batch, 16, *also)


def _flux2(double: int, single: int, heads: int, prompt: int, guided: bool, *also: str) -> Denoiser:
    config = {
        "num_layers": double, "num_single_layers": single, "num_attention_heads": heads, "attention_head_dim": 128,
        "joint_attention_dim": prompt, "in_channels": 128, "guidance_embeds": guided,
    }  # fmt: skip
    return _packed("Flux2Transformer2DModel", config, partial(_flux_batch, 512, 4, {}), 32, *also)


def _chroma_batch(config: Config, samples: int, shape: Shape) -> dict[str, Any]:
    masked = {"attention_mask": torch.ones(samples, 512 + tokens(shape), dtype=torch.bool)}
    return _flux_batch(512, 3, {}, {"joint_attention_dim": 4096, **config}, samples, shape) | masked


def _qwen_batch(_config: Config, samples: int, shape: Shape) -> dict[str, Any]:
    _, height, width = shape
    return {
        "hidden_states": zeros(samples, tokens(shape), 64),
        "encoder_hidden_states": zeros(samples, 512, 3584),
        "encoder_hidden_states_mask": torch.ones(samples, 512, dtype=torch.bool),
        "timestep": zeros(samples),
        "img_shapes": [[(1, height // 2, width // 2)]] * samples,
    }


def _z_image_batch(_config: Config, samples: int, shape: Shape) -> dict[str, Any]:
    channels, height, width = shape
    return {
        "x": [zeros(channels, 1, height, width) for _ in range(samples)],
        "t": zeros(samples),
        "cap_feats": [zeros(512, 2560) for _ in range(samples)],
    }


def _krea_batch(_config: Config, samples: int, shape: Shape) -> dict[str, Any]:
    return {
        "hidden_states": zeros(samples, tokens(shape), 64),
        "encoder_hidden_states": zeros(samples, 512, 12, 2560),
        "timestep": zeros(samples),
        "position_ids": zeros(512 + tokens(shape), 3),
    }


def _prompted(
    prompt: int, width: int, extra: Callable[[int], dict[str, Any]], _config: Config, samples: int, shape: Shape
) -> dict[str, Any]:
    return {
        "hidden_states": zeros(samples, *shape),
        "encoder_hidden_states": zeros(samples, prompt, width),
        "timestep": zeros(samples),
        **extra(samples),
    }


def _nothing(_samples: int) -> dict[str, Any]:
    return {}


def _mask(prompt: int, samples: int) -> dict[str, Any]:
    return {"encoder_attention_mask": torch.ones(samples, prompt, dtype=torch.bool)}


def _pixart(prompt: int, side: int, *also: str, layers: int = 28, conditions: bool = False) -> Denoiser:
    config = {
        "sample_size": side, "caption_channels": 4096, "use_additional_conditions": conditions, "num_layers": layers,
    }  # fmt: skip

    def extra(samples: int) -> dict[str, Any]:
        told = {"resolution": zeros(samples, 2), "aspect_ratio": zeros(samples, 1)} if conditions else {}
        sizes = told or {"resolution": None, "aspect_ratio": None}
        return {"added_cond_kwargs": sizes, **_mask(prompt, samples)}

    return Denoiser("PixArtTransformer2DModel", config, partial(_prompted, prompt, 4096, extra), (4, side, side),
                    also=also)  # fmt: skip


def _sana(layers: int, heads: int, cross: int, *also: str) -> Denoiser:
    """Its autoencoder shrinks a side by 32."""
    config = {
        "num_layers": layers, "num_attention_heads": heads, "num_cross_attention_heads": cross,
        "cross_attention_dim": 32 * heads, "cross_attention_head_dim": 32 * heads // cross,
    }  # fmt: skip
    batch = partial(_prompted, 300, 2304, partial(_mask, 300))
    return Denoiser("SanaTransformer2DModel", config, batch, (32, 32, 32), 32, also=also, rows=16, width=1,
                    blocks="")  # fmt: skip


def _full_prompts(model: Any) -> None:
    """Its positions depend on how many tokens each prompt has. Here all of them are used."""
    positions = model.rope_embedder.forward

    def forward(hidden_states: Tensor, mask: Tensor) -> Any:
        return positions(hidden_states, torch.ones(mask.shape, dtype=torch.bool, device="cpu"))

    model.rope_embedder.forward = forward


def _cogview(samples: int) -> dict[str, Any]:
    return {name: zeros(samples, 2) for name in ("original_size", "target_size", "crop_coords")}


def _cosmos_batch(_config: Config, samples: int, shape: Shape) -> dict[str, Any]:
    channels, height, width = shape
    return {
        "hidden_states": zeros(samples, channels, 1, height, width),
        "timestep": zeros(samples),
        "encoder_hidden_states": zeros(samples, 512, 1024),
        "padding_mask": zeros(1, 1, 8 * height, 8 * width),
    }


def _cosmos(heads: int, layers: int, *also: str) -> Denoiser:
    config = {
        "num_attention_heads": heads, "attention_head_dim": 128, "num_layers": layers, "text_embed_dim": 1024,
        "rope_scale": (1.0, 4.0, 4.0), "extra_pos_embed_type": None, "concat_padding_mask": True,
    }  # fmt: skip
    return Denoiser("CosmosTransformer3DModel", config, _cosmos_batch, (16, 128, 128), also=also)


def _cascade_batch(_config: Config, samples: int, shape: Shape) -> dict[str, Any]:
    return {
        "sample": zeros(samples, *shape),
        "timestep_ratio": zeros(samples),
        "clip_text_pooled": zeros(samples, 1, 1280),
        "clip_text": zeros(samples, 77, 1280),
        "clip_img": zeros(samples, 1, 768),
    }


def _ernie_batch(config: Config, samples: int, shape: Shape) -> dict[str, Any]:
    return {
        "hidden_states": zeros(samples, *shape),
        "timestep": zeros(samples),
        "text_bth": zeros(samples, 256, config["text_in_dim"]),
        "text_lens": torch.full((samples,), 256),
    }


def _amused_batch(_config: Config, samples: int, shape: Shape) -> dict[str, Any]:
    return {
        "input_ids": torch.zeros(samples, *shape[1:], dtype=torch.long),
        "encoder_hidden_states": zeros(samples, 77, 768),
        "pooled_text_emb": zeros(samples, 768),
        "micro_conds": zeros(samples, 5),
    }


def _amused(side: int, halved: bool) -> Denoiser:
    """It reads the codes of patches of 16 pixels, not latents."""
    config = {"downsample": halved, "upsample": halved, "sample_size": side}
    return Denoiser("UVit2DModel", config, _amused_batch, (1, side, side), 16, rows=16, width=2,
                    blocks="num_hidden_layers")  # fmt: skip


_RMS = {"qk_norm": "rms_norm"}
_ERNIE: Config = {
    "hidden_size": 4096, "num_attention_heads": 32, "num_layers": 36, "ffn_hidden_size": 12288, "text_in_dim": 3072,
}  # fmt: skip
_COG_VIEW: Config = {"num_layers": 28, "attention_head_dim": 128, "num_attention_heads": 32}
_CASCADE: Config = {
    "clip_text_in_channels": 1280, "clip_image_in_channels": 768, "timestep_conditioning_type": ("sca", "crp"),
}  # fmt: skip

TRANSFORMERS = {
    "stable-diffusion-3-medium": _sd3(24, 24, 192, "stable-diffusion-3-medium-diffusers"),
    "stable-diffusion-3.5-medium": _sd3(24, 24, 384, blocks="", dual_attention_layers=list(range(13)), **_RMS),
    "stable-diffusion-3.5-large": _sd3(38, 38, 192, "stable-diffusion-3.5-large-turbo", **_RMS),
    "FLUX.1-dev": _flux(True, "FLUX.1-Krea-dev", "FLUX.1-Kontext-dev"),
    "FLUX.1-schnell": _flux(False),
    "FLUX.2-dev": _flux2(8, 48, 48, 15360, True),
    "FLUX.2-klein-4B": _flux2(5, 20, 24, 7680, False, "FLUX.2-klein-base-4B"),
    "FLUX.2-klein-9B": _flux2(8, 24, 32, 12288, False, "FLUX.2-klein-base-9B"),
    "Chroma1-HD": _packed("ChromaTransformer2DModel", {}, _chroma_batch, 16, "Chroma1-Base", "Chroma", "Chroma1-Flash"),
    "Qwen-Image": _packed("QwenImageTransformer2DModel", {}, _qwen_batch, 16, "Qwen-Image-2512", blocks="num_layers"),
    "Z-Image": _packed("ZImageTransformer2DModel", {}, _z_image_batch, 16, "Z-Image-Turbo"),
    "Krea-2-Raw": _packed(
        "Krea2Transformer2DModel", {}, _krea_batch, 16, "Krea-2", "Krea-2-Turbo", blocks="num_layers"),
    "LongCat-Image": _packed(
        "LongCatImageTransformer2DModel", {"num_layers": 10, "num_single_layers": 20, "joint_attention_dim": 3584},
        partial(_flux_batch, 512, 3, {}), 16, "LongCat-Image-Dev"),
    "ERNIE-Image": Denoiser(
        "ErnieImageTransformer2DModel", _ERNIE, _ernie_batch, (128, 64, 64), 16, also=("ERNIE-Image-Turbo",), width=1),
    "AuraFlow": Denoiser(
        "AuraFlowTransformer2DModel", {"pos_embed_max_size": 1024, "sample_size": 64},
        partial(_prompted, 256, 2048, _nothing), (4, 64, 64), others=(), blocks=""),
    "AuraFlow-v0.3": Denoiser(
        "AuraFlowTransformer2DModel", {"pos_embed_max_size": 9216}, partial(_prompted, 256, 2048, _nothing),
        (4, 128, 128), also=("AuraFlow-v0.2",), blocks=""),
    "PixArt-XL-2-1024-MS": _pixart(120, 128, conditions=True),
    "PixArt-XL-2-512x512": _pixart(120, 64),
    "PixArt-Sigma-XL-2-1024-MS": _pixart(300, 128),
    "PixArt-Sigma-XL-2-512-MS": _pixart(300, 64),
    "pixart-900m-1024-ft-v0.6": _pixart(300, 128, "pixart-900m-1024-ft", layers=42),
    "Sana_1600M_1024px_diffusers": _sana(
        20, 70, 20, "Sana_1600M_1024px", "Sana_1600M_1024px_BF16_diffusers", "sana-1.6b-1024px",
        "Sana_1600M_512px_diffusers"),
    "Sana_600M_1024px_diffusers": _sana(28, 36, 16, "Sana_600M_1024px", "Sana_600M_512px_diffusers"),
    "Lumina-Image-2.0": Denoiser(
        "Lumina2Transformer2DModel", {"cap_feat_dim": 2304}, partial(_prompted, 256, 2304, partial(_mask, 256)),
        (16, 128, 128), also=("lumina2",), prepare=_full_prompts, blocks=""),
    "CogView4-6B": Denoiser(
        "CogView4Transformer2DModel", _COG_VIEW, partial(_prompted, 224, 4096, _cogview), (16, 128, 128)),
    "Cosmos-Predict2-2B-Text2Image": _cosmos(16, 28),
    "Cosmos-Predict2-14B-Text2Image": _cosmos(40, 36),
    "stable-cascade-prior": Denoiser(
        "StableCascadeUNet", _CASCADE, _cascade_batch, (16, 24, 24), 128 / 3, also=("stable-cascade",), rows=16,
        width=1, blocks=""),
    "amused-256": _amused(16, halved=False),
    "amused-512": _amused(32, halved=True),
}  # fmt: skip
