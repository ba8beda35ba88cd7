"""Denoisers of videos. Shapes are those of the latents: channels, frames, height and width."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

from vramcast.profile.networks.denoising import Config, Denoiser, Shape, tokens, zeros


def _wan(
    heads: int, layers: int, inner: int, *also: str, channels: int = 16, more: Config | None = None, side: int = 8,
    shape: tuple[int, ...] = (21, 60, 104), pictures: int = 0,
) -> Denoiser:  # fmt: skip
    """`pictures`: channels more that a first image is given in."""
    config = {
        "num_attention_heads": heads, "attention_head_dim": 128, "num_layers": layers, "ffn_dim": inner,
        "in_channels": channels + pictures, "out_channels": channels, "text_dim": 4096, "freq_dim": 256,
        "patch_size": (1, 2, 2), "cross_attn_norm": True, "qk_norm": "rms_norm_across_heads", **(more or {}),
    }  # fmt: skip
    return Denoiser(
        "WanTransformer3DModel", config, partial(_wan_batch, pictures), (channels, *shape), side, also=also,
    )  # fmt: skip


def _wan_batch(pictures: int, config: Config, samples: int, shape: Shape) -> dict[str, Any]:
    channels, *sizes = shape
    image = {"encoder_hidden_states_image": zeros(samples, 257, 1280)} if config.get("image_dim") else {}
    return _prompted(512, 4096, config, samples, (channels + pictures, *sizes)) | image


def _prompted(prompt: int, width: int, _config: Config, samples: int, shape: Shape) -> dict[str, Any]:
    return {
        "hidden_states": zeros(samples, *shape),
        "encoder_hidden_states": zeros(samples, prompt, width),
        "timestep": zeros(samples),
    }


def _masked(prompt: int, width: int, config: Config, samples: int, shape: Shape) -> dict[str, Any]:
    mask = torch.ones(samples, prompt, dtype=torch.bool)
    return {**_prompted(prompt, width, config, samples, shape), "encoder_attention_mask": mask}


def _cog(heads: int, layers: int, shape: tuple[int, ...], *also: str, **more: Any) -> Denoiser:
    config = {
        "num_attention_heads": heads, "attention_head_dim": 64, "num_layers": layers, "in_channels": 16,
        "out_channels": 16, "text_embed_dim": 4096, "time_embed_dim": 512, "sample_width": 90, "sample_height": 60,
        "sample_frames": 49, "patch_size": 2, "max_text_seq_length": 226, **more,
    }  # fmt: skip
    return Denoiser("CogVideoXTransformer3DModel", config, _cog_batch, (16, *shape), also=also,
                    depth=more.get("patch_size_t", 1))  # fmt: skip


def _cog_batch(config: Config, samples: int, shape: Shape) -> dict[str, Any]:
    """The larger ones are given the angles of rotary positions, in fp32."""
    channels, frames, height, width = shape
    depth = config.get("patch_size_t", 1)
    frames = -(-frames // depth) * depth
    given = _prompted(226, 4096, config, samples, (frames, channels, height, width))
    if not config["use_rotary_positional_embeddings"]:
        return given
    count = tokens((channels, frames // depth, height, width))
    return {**given, "image_rotary_emb": (zeros(count, 64), zeros(count, 64))}


def _ltx_batch(config: Config, samples: int, shape: Shape) -> dict[str, Any]:
    """Every latent is a token."""
    channels, frames, height, width = shape
    given = _masked(128, 4096, config, samples, (tokens(shape, 1), channels))
    return {**given, "num_frames": frames, "height": height, "width": width}


def _ltx(heads_wide: int, layers: int, *also: str) -> Denoiser:
    config = {"attention_head_dim": heads_wide, "num_layers": layers, "cross_attention_dim": 32 * heads_wide}
    return Denoiser("LTXVideoTransformer3DModel", config, _ltx_batch, (128, 13, 16, 24), 32, 8, also=also, rows=16,
                    width=1)  # fmt: skip


def _ltx2_batch(_config: Config, samples: int, shape: Shape) -> dict[str, Any]:
    """With the sound: 25 latents a second."""
    channels, frames, height, width = shape
    sound = 126
    return {
        "hidden_states": zeros(samples, tokens(shape, 1), channels),
        "audio_hidden_states": zeros(samples, sound, 128),
        "encoder_hidden_states": zeros(samples, 1024, 3840),
        "audio_encoder_hidden_states": zeros(samples, 1024, 3840),
        "encoder_attention_mask": torch.ones(samples, 1024),
        "audio_encoder_attention_mask": torch.ones(samples, 1024),
        "timestep": zeros(samples),
        "num_frames": frames, "height": height, "width": width, "audio_num_frames": sound,
    }  # fmt: skip


def _hunyuan_batch(config: Config, samples: int, shape: Shape) -> dict[str, Any]:
    more = {"pooled_projections": zeros(samples, 768), "guidance": zeros(samples)}
    return _masked(256, 4096, config, samples, shape) | more


def _kandinsky_batch(config: Config, samples: int, shape: Shape) -> dict[str, Any]:
    """Channels come last; a model of videos is given a first frame and its mask too."""
    channels, *sizes = shape
    frames, height, width = sizes if len(sizes) == 3 else (1, *sizes)
    given = 2 * channels + 1 if config["visual_cond"] else channels
    return {
        "hidden_states": zeros(samples, frames, height, width, given),
        "encoder_hidden_states": zeros(samples, 256, 3584),
        "timestep": zeros(samples),
        "pooled_projections": zeros(samples, 768),
        "visual_rope_pos": [torch.arange(frames), torch.arange(height // 2), torch.arange(width // 2)],
        "text_rope_pos": torch.arange(256),
    }


def _kandinsky(width: int, inner: int, blocks: int, shape: tuple[int, ...], *also: str, **more: Any) -> Denoiser:
    config = {
        "in_visual_dim": 16, "out_visual_dim": 16, "model_dim": width, "ff_dim": inner, "num_visual_blocks": blocks,
        **more,
    }  # fmt: skip
    return Denoiser("Kandinsky5Transformer3DModel", config, _kandinsky_batch, (16, *shape), also=also,
                    blocks="num_visual_blocks")  # fmt: skip


_IMAGE: Config = {"image_dim": 1280, "added_kv_proj_dim": 5120}
_WAN_720 = (31, 44, 80)
TRANSFORMERS = {
    "Wan2.1-T2V-1.3B": _wan(12, 30, 8960, "Wan2.1-T2V-1.3B-Diffusers"),
    "Wan2.1-T2V-14B": _wan(40, 40, 13824, "Wan2.1-T2V-14B-Diffusers", "Wan2.2-T2V-A14B-Diffusers", "Wan2.2-T2V-A14B"),
    "Wan2.1-I2V-14B-480P": _wan(
        40, 40, 13824, "Wan2.1-I2V-14B-480P-Diffusers", "Wan2.1-I2V-14B-720P", "Wan2.1-I2V-14B-720P-Diffusers",
        more=_IMAGE, pictures=20),
    "Wan2.2-I2V-A14B": _wan(40, 40, 13824, "Wan2.2-I2V-A14B-Diffusers", pictures=20),
    "Wan2.2-TI2V-5B": _wan(24, 30, 14336, "Wan2.2-TI2V-5B-Diffusers", channels=48, side=16, shape=_WAN_720),
    "CogVideoX-2b": _cog(30, 30, (13, 60, 90), "CogVideoX-t2v-2b", use_rotary_positional_embeddings=False),
    "CogVideoX-5b": _cog(48, 42, (13, 60, 90), "CogVideoX-t2v-5b", use_rotary_positional_embeddings=True),
    "CogVideoX1.5-5B": _cog(
        48, 42, (22, 96, 170), use_rotary_positional_embeddings=True, patch_size_t=2, patch_bias=False,
        sample_width=300, sample_height=300, sample_frames=81),
    "LTX-Video": _ltx(64, 28, "LTX-Video-0.9.5", "LTX-Video-0.9.1", "LTX-Video-0.9"),
    "LTX-Video-0.9.7-dev": _ltx(128, 48, "LTX-Video-0.9.8-13B-distilled", "LTX-Video-13B"),
    "LTX-2": Denoiser(
        "LTX2VideoTransformer3DModel", {}, _ltx2_batch, (128, 16, 16, 24), 32, 8, rows=16, width=1),
    "HunyuanVideo": Denoiser(
        "HunyuanVideoTransformer3DModel", {}, _hunyuan_batch, (16, 16, 60, 104), blocks="",
        also=("HunyuanVideo-diffusers",)),
    "SANA-Video_2B_480p": Denoiser(
        "SanaVideoTransformer3DModel", {}, partial(_masked, 300, 2304), (16, 21, 60, 104),
        also=("SANA-Video_2B_480p_diffusers",), blocks=""),
    "Kandinsky-5.0-T2V-Lite": _kandinsky(
        1792, 7168, 32, (31, 64, 96), "Kandinsky-5.0-T2V-Lite-sft-5s-Diffusers", "Kandinsky-5.0-T2V-Lite-sft-5s",
        "Kandinsky-5.0-T2V-Lite-pretrain-5s-Diffusers", visual_cond=True),
    "Kandinsky-5.0-T2I-Lite": _kandinsky(
        2560, 10240, 50, (128, 128), "Kandinsky-5.0-T2I-Lite-sft-Diffusers", "Kandinsky-5.0-T2I-Lite-sft",
        visual_cond=False, axes_dims=(32, 48, 48)),
}  # fmt: skip
