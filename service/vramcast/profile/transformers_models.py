"""Hugging Face networks, by their published configurations.

They are written out so that building the catalog needs no access to the hub. Only fields that shape the network appear.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import transformers
from torch import nn

from vramcast.profile.inputs import Inputs
from vramcast.profile.sources import ModelSource, image_inputs, token_inputs

_BASE_TOKENS = 512
_LONG = (128, 2048)
_SHORT = (128, 256)  # for position tables of 512
_SPOKEN = (64, 256)  # Whisper's decoder has 448 positions, and its encoder always gets 30 seconds
_SPOKEN_BASE = 128


def sources() -> Iterator[ModelSource]:
    for name, (config_class, fields) in _encoders().items():
        yield _text(name, config_class, fields, "ForMaskedLM", _SHORT)
    for name, (config_class, fields) in _decoders().items():
        yield _text(name, config_class, fields, "ForCausalLM", _LONG)
    for name, sizes in _GPT2.items():
        yield _text(name, "GPT2", _gpt2(*sizes), "LMHeadModel", (128, 1024))
    for name, (config_class, fields) in _encoder_decoders().items():
        yield _text(name, config_class, fields, "ForConditionalGeneration", (128, 1024))
    for name, spoken in _WHISPER.items():
        make = _make("Whisper", _whisper(*spoken), "ForConditionalGeneration")
        yield ModelSource(f"hf/{name}", make, token_inputs, _SPOKEN_BASE, _SPOKEN, tokens=True)
    yield from _vision()


def _text(name: str, config_class: str, fields: dict[str, Any], head: str, others: tuple[int, ...]) -> ModelSource:
    return ModelSource(f"hf/{name}", _make(config_class, fields, head), token_inputs, _BASE_TOKENS, others, tokens=True)


def _make(prefix: str, fields: dict[str, Any], head: str) -> Callable[[int], nn.Module]:
    def make(_size: int) -> nn.Module:
        config_class = getattr(transformers, _CONFIGS.get(prefix, f"{prefix}Config"))
        model: nn.Module = getattr(transformers, f"{prefix}{head}")(config_class(**fields))
        return model

    return make


_CONFIGS = {"Gemma3": "Gemma3TextConfig"}


def _bert(vocabulary: int, width: int, layers: int, heads: int, **more: Any) -> dict[str, Any]:
    return {
        "vocab_size": vocabulary, "hidden_size": width, "num_hidden_layers": layers, "num_attention_heads": heads,
        "intermediate_size": 4 * width, **more,
    }  # fmt: skip


def _roberta(vocabulary: int, width: int, layers: int, heads: int) -> dict[str, Any]:
    return _bert(vocabulary, width, layers, heads, max_position_embeddings=514, type_vocab_size=1)


def _encoders() -> dict[str, tuple[str, dict[str, Any]]]:
    distil = {"dim": 768, "n_layers": 6, "n_heads": 12, "hidden_dim": 3072}
    return {
        "bert-tiny": ("Bert", _bert(30522, 128, 2, 2)),
        "bert-mini": ("Bert", _bert(30522, 256, 4, 4)),
        "bert-small": ("Bert", _bert(30522, 512, 4, 8)),
        "bert-medium": ("Bert", _bert(30522, 512, 8, 8)),
        "bert-base-uncased": ("Bert", _bert(30522, 768, 12, 12)),
        "bert-base-cased": ("Bert", _bert(28996, 768, 12, 12)),
        "bert-base-chinese": ("Bert", _bert(21128, 768, 12, 12)),
        "bert-base-multilingual-cased": ("Bert", _bert(119547, 768, 12, 12)),
        "bert-large-uncased": ("Bert", _bert(30522, 1024, 24, 16)),
        "bert-large-cased": ("Bert", _bert(28996, 1024, 24, 16)),
        "roberta-base": ("Roberta", _roberta(50265, 768, 12, 12)),
        "roberta-large": ("Roberta", _roberta(50265, 1024, 24, 16)),
        "distilroberta-base": ("Roberta", _roberta(50265, 768, 6, 12)),
        "xlm-roberta-base": ("XLMRoberta", _roberta(250002, 768, 12, 12)),
        "xlm-roberta-large": ("XLMRoberta", _roberta(250002, 1024, 24, 16)),
        "distilbert-base-uncased": ("DistilBert", {"vocab_size": 30522, **distil}),
        "distilbert-base-cased": ("DistilBert", {"vocab_size": 28996, **distil}),
        "distilbert-base-multilingual-cased": ("DistilBert", {"vocab_size": 119547, **distil}),
    }


_GPT2 = {
    "distilgpt2": (768, 6, 12),
    "gpt2": (768, 12, 12),
    "gpt2-medium": (1024, 24, 16),
    "gpt2-large": (1280, 36, 20),
    "gpt2-xl": (1600, 48, 25),
}


def _gpt2(width: int, layers: int, heads: int) -> dict[str, Any]:
    return {"vocab_size": 50257, "n_embd": width, "n_layer": layers, "n_head": heads, "n_positions": 1024}


def _opt(width: int, layers: int, heads: int, **more: Any) -> tuple[str, dict[str, Any]]:
    return "OPT", {
        "hidden_size": width, "num_hidden_layers": layers, "num_attention_heads": heads, "ffn_dim": 4 * width,
        "vocab_size": 50272, "word_embed_proj_dim": width, "max_position_embeddings": 2048, **more,
    }  # fmt: skip


def _neo(width: int, layers: int, heads: int) -> tuple[str, dict[str, Any]]:
    kinds = [[["global", "local"], layers // 2]]
    return "GPTNeo", {"hidden_size": width, "num_layers": layers, "num_heads": heads, "attention_types": kinds}


def _neox(width: int, layers: int, heads: int, vocabulary: int = 50304) -> tuple[str, dict[str, Any]]:
    return "GPTNeoX", {
        "hidden_size": width, "num_hidden_layers": layers, "num_attention_heads": heads,
        "intermediate_size": 4 * width, "vocab_size": vocabulary, "max_position_embeddings": 2048,
    }  # fmt: skip


def _gated(
    kind: str, vocabulary: int, width: int, layers: int, heads: tuple[int, int], inner: int, **more: Any
) -> tuple[str, dict[str, Any]]:
    """Llama and its relatives; `heads` is (query heads, key-value heads)."""
    return kind, {
        "vocab_size": vocabulary, "hidden_size": width, "num_hidden_layers": layers, "num_attention_heads": heads[0],
        "num_key_value_heads": heads[1], "intermediate_size": inner, "pad_token_id": None,
        "max_position_embeddings": 8192, **more,
    }  # fmt: skip


_TIED = {"tie_word_embeddings": True}
_H128 = {"head_dim": 128}
_H256 = {"head_dim": 256}


def _decoders() -> dict[str, tuple[str, dict[str, Any]]]:
    return {**_OLDER, **_LLAMAS, **_QWENS, **_OTHERS}


_OLDER = {
    "opt-125m": _opt(768, 12, 12),
    "opt-350m": _opt(1024, 24, 16, word_embed_proj_dim=512, do_layer_norm_before=False),
    "opt-1.3b": _opt(2048, 24, 32),
    "opt-2.7b": _opt(2560, 32, 32),
    "opt-6.7b": _opt(4096, 32, 32),
    "opt-13b": _opt(5120, 40, 40),
    "opt-30b": _opt(7168, 48, 56),
    "opt-66b": _opt(9216, 64, 72),
    "gpt-neo-125m": _neo(768, 12, 12),
    "gpt-neo-1.3B": _neo(2048, 24, 16),
    "gpt-neo-2.7B": _neo(2560, 32, 20),
    "gpt-j-6b": (
        "GPTJ", {"vocab_size": 50400, "n_embd": 4096, "n_layer": 28, "n_head": 16, "rotary_dim": 64},
    ),
    "pythia-70m": _neox(512, 6, 8),
    "pythia-160m": _neox(768, 12, 12),
    "pythia-410m": _neox(1024, 24, 16),
    "pythia-1b": _neox(2048, 16, 8),
    "pythia-1.4b": _neox(2048, 24, 16),
    "pythia-2.8b": _neox(2560, 32, 32),
    "pythia-6.9b": _neox(4096, 32, 32, 50432),
    "pythia-12b": _neox(5120, 36, 40, 50688),
    "gpt-neox-20b": _neox(6144, 44, 64, 50432),
}  # fmt: skip

_LLAMA_3_8B = _gated("Llama", 128256, 4096, 32, (32, 8), 14336)
_LLAMA_3_70B = _gated("Llama", 128256, 8192, 80, (64, 8), 28672)
_LLAMAS = {
    "Llama-2-7b-hf": _gated("Llama", 32000, 4096, 32, (32, 32), 11008),
    "Llama-2-13b-hf": _gated("Llama", 32000, 5120, 40, (40, 40), 13824),
    "Llama-2-70b-hf": _gated("Llama", 32000, 8192, 80, (64, 8), 28672),
    "CodeLlama-7b-hf": _gated("Llama", 32016, 4096, 32, (32, 32), 11008),
    "TinyLlama-1.1B": _gated("Llama", 32000, 2048, 22, (32, 4), 5632),
    "Meta-Llama-3-8B": _LLAMA_3_8B,
    "Llama-3-8B": _LLAMA_3_8B,
    "Llama-3.1-8B": _LLAMA_3_8B,
    "Llama-3.1-8B-Instruct": _LLAMA_3_8B,
    "Meta-Llama-3-70B": _LLAMA_3_70B,
    "Llama-3-70B": _LLAMA_3_70B,
    "Llama-3.1-70B": _LLAMA_3_70B,
    "Llama-3.3-70B-Instruct": _LLAMA_3_70B,
    "Llama-3.1-405B": _gated("Llama", 128256, 16384, 126, (128, 8), 53248),
    "Llama-3.2-1B": _gated("Llama", 128256, 2048, 16, (32, 8), 8192, **_TIED),
    "Llama-3.2-3B": _gated("Llama", 128256, 3072, 28, (24, 8), 8192, **_TIED),
}

_QWENS = {
    "Qwen2-0.5B": _gated("Qwen2", 151936, 896, 24, (14, 2), 4864, **_TIED),
    "Qwen2-1.5B": _gated("Qwen2", 151936, 1536, 28, (12, 2), 8960, **_TIED),
    "Qwen2-7B": _gated("Qwen2", 152064, 3584, 28, (28, 4), 18944),
    "Qwen2-72B": _gated("Qwen2", 152064, 8192, 80, (64, 8), 29568),
    "Qwen2.5-0.5B": _gated("Qwen2", 151936, 896, 24, (14, 2), 4864, **_TIED),
    "Qwen2.5-1.5B": _gated("Qwen2", 151936, 1536, 28, (12, 2), 8960, **_TIED),
    "Qwen2.5-3B": _gated("Qwen2", 151936, 2048, 36, (16, 2), 11008, **_TIED),
    "Qwen2.5-7B": _gated("Qwen2", 152064, 3584, 28, (28, 4), 18944),
    "Qwen2.5-14B": _gated("Qwen2", 152064, 5120, 48, (40, 8), 13824),
    "Qwen2.5-32B": _gated("Qwen2", 152064, 5120, 64, (40, 8), 27648),
    "Qwen2.5-72B": _gated("Qwen2", 152064, 8192, 80, (64, 8), 29568),
    "Qwen3-0.6B": _gated("Qwen3", 151936, 1024, 28, (16, 8), 3072, **_TIED, **_H128),
    "Qwen3-1.7B": _gated("Qwen3", 151936, 2048, 28, (16, 8), 6144, **_TIED, **_H128),
    "Qwen3-4B": _gated("Qwen3", 151936, 2560, 36, (32, 8), 9728, **_TIED, **_H128),
    "Qwen3-8B": _gated("Qwen3", 151936, 4096, 36, (32, 8), 12288, **_H128),
    "Qwen3-14B": _gated("Qwen3", 151936, 5120, 40, (40, 8), 17408, **_H128),
    "Qwen3-32B": _gated("Qwen3", 151936, 5120, 64, (64, 8), 25600, **_H128),
}

_PHI = {"max_position_embeddings": 2048}
_OTHERS = {
    "Mistral-7B-v0.1": _gated("Mistral", 32000, 4096, 32, (32, 8), 14336),
    "Mistral-7B-v0.3": _gated("Mistral", 32768, 4096, 32, (32, 8), 14336),
    "Mistral-Nemo-Base-2407": _gated("Mistral", 131072, 5120, 40, (32, 8), 14336, **_H128),
    "Mistral-Small-24B-Base-2501": _gated("Mistral", 131072, 5120, 40, (32, 8), 32768, **_H128),
    "gemma-2b": _gated("Gemma", 256000, 2048, 18, (8, 1), 16384, **_H256),
    "gemma-7b": _gated("Gemma", 256000, 3072, 28, (16, 16), 24576, **_H256),
    "gemma-2-2b": _gated("Gemma2", 256000, 2304, 26, (8, 4), 9216, **_H256),
    "gemma-2-9b": _gated("Gemma2", 256000, 3584, 42, (16, 8), 14336, **_H256),
    "gemma-2-27b": _gated("Gemma2", 256000, 4608, 46, (32, 16), 36864, **_H128),
    "gemma-3-1b-pt": _gated("Gemma3", 262144, 1152, 26, (4, 1), 6912, **_H256),
    "phi-1": _gated("Phi", 51200, 2048, 24, (32, 32), 8192, **_PHI),
    "phi-1_5": _gated("Phi", 51200, 2048, 24, (32, 32), 8192, **_PHI),
    "phi-2": _gated("Phi", 51200, 2560, 32, (32, 32), 10240, **_PHI),
    "Phi-3-mini-4k-instruct": _gated("Phi3", 32064, 3072, 32, (32, 32), 8192),
    "Phi-3-medium-4k-instruct": _gated("Phi3", 32064, 5120, 40, (40, 10), 17920),
    "phi-4": _gated("Phi3", 100352, 5120, 40, (40, 10), 17920),
}


def _t5(width: int, layers: int, heads: int, inner: int, key: int = 64, **more: Any) -> tuple[str, dict[str, Any]]:
    return "T5", {
        "vocab_size": 32128, "d_model": width, "num_layers": layers, "num_heads": heads, "d_ff": inner, "d_kv": key,
        "decoder_start_token_id": 0, **more,
    }  # fmt: skip


_FLAN: dict[str, Any] = {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}


def _encoder_decoders() -> dict[str, tuple[str, dict[str, Any]]]:
    return {
        "t5-small": _t5(512, 6, 8, 2048),
        "t5-base": _t5(768, 12, 12, 3072),
        "t5-large": _t5(1024, 24, 16, 4096),
        "t5-3b": _t5(1024, 24, 32, 16384, 128),
        "t5-11b": _t5(1024, 24, 128, 65536, 128),
        "flan-t5-small": _t5(512, 8, 6, 1024, **_FLAN),
        "flan-t5-base": _t5(768, 12, 12, 2048, **_FLAN),
        "flan-t5-large": _t5(1024, 24, 16, 2816, **_FLAN),
        "flan-t5-xl": _t5(2048, 24, 32, 5120, **_FLAN),
        "flan-t5-xxl": _t5(4096, 24, 64, 10240, **_FLAN),
    }


_WHISPER = {
    "whisper-tiny": (384, 4, 4, 6, 80),
    "whisper-base": (512, 6, 6, 8, 80),
    "whisper-small": (768, 12, 12, 12, 80),
    "whisper-medium": (1024, 24, 24, 16, 80),
    "whisper-large-v2": (1280, 32, 32, 20, 80),
    "whisper-large-v3": (1280, 32, 32, 20, 128),
    "whisper-large-v3-turbo": (1280, 32, 4, 20, 128),
}


def _whisper(width: int, encoder: int, decoder: int, heads: int, bins: int) -> dict[str, Any]:
    return {
        "d_model": width, "encoder_layers": encoder, "decoder_layers": decoder, "encoder_attention_heads": heads,
        "decoder_attention_heads": heads, "encoder_ffn_dim": 4 * width, "decoder_ffn_dim": 4 * width,
        "num_mel_bins": bins, "vocab_size": 51866 if bins == 128 else 51865,
    }  # fmt: skip


_VIT = {
    "vit-base-patch16-224": (768, 12, 12, 16, 224),
    "vit-base-patch16-384": (768, 12, 12, 16, 384),
    "vit-base-patch32-384": (768, 12, 12, 32, 384),
    "vit-large-patch16-224": (1024, 24, 16, 16, 224),
    "vit-huge-patch14-224-in21k": (1280, 32, 16, 14, 224),
}
_CLIP = {
    "clip-vit-base-patch32": (768, 12, 12, 32, 224, 512),
    "clip-vit-base-patch16": (768, 12, 12, 16, 224, 512),
    "clip-vit-large-patch14": (1024, 24, 16, 14, 224, 768),
    "clip-vit-large-patch14-336": (1024, 24, 16, 14, 336, 768),
}
_CLIP_TOKENS = 77


def _vision() -> Iterator[ModelSource]:
    for name, (width, layers, heads, patch, side) in _VIT.items():
        fields = _bert(0, width, layers, heads, patch_size=patch, image_size=side)
        del fields["vocab_size"]
        yield ModelSource(
            f"hf/{name}", _make("ViT", fields, "ForImageClassification"), image_inputs(), side, (side // 2, 2 * side)
        )
    for name, (width, layers, heads, patch, side, projected) in _CLIP.items():
        fields = {
            "projection_dim": projected,
            "text_config": _bert(49408, projected, 12, projected // 64),
            "vision_config": _bert(0, width, layers, heads, patch_size=patch, image_size=side),
        }
        yield ModelSource(f"hf/{name}", _make("CLIP", fields, "Model"), _image_and_text, side, (side // 2, 2 * side))


def _image_and_text(side: int) -> Inputs:
    return Inputs(shapes=((3, side, side),), sequence_length=_CLIP_TOKENS)
