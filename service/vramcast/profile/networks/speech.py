"""Networks that hear: Whisper, and wav2vec 2.0 with its relatives."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from vramcast.profile.inputs import Inputs
from vramcast.profile.networks.huggingface import make_network, widths
from vramcast.profile.sources import ModelSource, token_inputs

_SPOKEN = (64, 256)  # Whisper's decoder has 448 positions, and its encoder always gets 30 seconds
_SPOKEN_BASE = 128
_SECONDS = 10
_RATE = 16_000

_WHISPER = {
    "whisper-tiny": (384, 4, 4, 6, 80),
    "whisper-base": (512, 6, 6, 8, 80),
    "whisper-small": (768, 12, 12, 12, 80),
    "whisper-medium": (1024, 24, 24, 16, 80),
    "whisper-large-v2": (1280, 32, 32, 20, 80),
    "whisper-large-v3": (1280, 32, 32, 20, 128),
    "whisper-large-v3-turbo": (1280, 32, 4, 20, 128),
}
_LARGE: dict[str, Any] = {"feat_extract_norm": "layer", "conv_bias": True, "do_stable_layer_norm": True}
# Class, width, layers, heads, and how the features are normalized.
_WAVEFORM: dict[str, tuple[str, int, int, int, dict[str, Any], tuple[str, ...]]] = {
    "wav2vec2-base": ("Wav2Vec2", 768, 12, 12, {}, ("wav2vec2-base-960h", "wav2vec2-base-100h")),
    "wav2vec2-large": ("Wav2Vec2", 1024, 24, 16, {}, ("wav2vec2-large-960h",)),
    "wav2vec2-large-xlsr-53": (
        "Wav2Vec2", 1024, 24, 16, _LARGE,
        ("wav2vec2-xls-r-300m", "wav2vec2-large-960h-lv60-self", "wav2vec2-large-lv60"),
    ),
    "hubert-base-ls960": ("Hubert", 768, 12, 12, {}, ()),
    "hubert-large-ls960-ft": ("Hubert", 1024, 24, 16, _LARGE, ("hubert-large-ll60k",)),
}  # fmt: skip


def sources() -> Iterator[ModelSource]:
    for name, sizes in _WHISPER.items():
        make = make_network("Whisper", _whisper(*sizes), "ForConditionalGeneration")
        yield ModelSource(f"hf/{name}", make, token_inputs, _SPOKEN_BASE, _SPOKEN, tokens=True)
    for name, (kind, width, layers, heads, more, also) in _WAVEFORM.items():
        fields = widths(32, width, layers, heads, **more)
        make = make_network(kind, fields, "ForCTC")
        samples = _SECONDS * _RATE
        yield ModelSource(f"hf/{name}", make, _waveform, samples, (samples // 2, 2 * samples), power=1, also=also)


def _waveform(samples: int) -> Inputs:
    """One channel."""
    return Inputs(shapes=((1, samples),))


def _whisper(width: int, encoder: int, decoder: int, heads: int, bins: int) -> dict[str, Any]:
    return {
        "d_model": width, "encoder_layers": encoder, "decoder_layers": decoder, "encoder_attention_heads": heads,
        "decoder_attention_heads": heads, "encoder_ffn_dim": 4 * width, "decoder_ffn_dim": 4 * width,
        "num_mel_bins": bins, "vocab_size": 51866 if bins == 128 else 51865,
    }  # fmt: skip
