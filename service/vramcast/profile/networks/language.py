"""Language models that read from left to right, older ones first; the newer ones are in gated.py."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from vramcast.profile.networks.gated import GATED
from vramcast.profile.networks.huggingface import LONG, Published, text_source, widths
from vramcast.profile.networks.mixtures import MIXTURES
from vramcast.profile.sources import ModelSource

_SHORTEST = (64, 256)  # for position tables of 512
_SHORT_NAMES = frozenset({"pythia-14m"})


def sources() -> Iterator[ModelSource]:
    for name, published in PUBLISHED.items():
        shortest = name in _SHORT_NAMES
        yield text_source(name, published, "ForCausalLM", _SHORTEST if shortest else LONG)
    for name, sizes in _GPT2.items():
        yield text_source(name, _gpt2(*sizes), "LMHeadModel", (128, 1024))
    for name, published in _FOUNDRY.items():
        yield text_source(name, published, "LMHeadModel", LONG)


def _gpt2(width: int, layers: int, heads: int, *also: str) -> Published:
    fields = {"vocab_size": 50257, "n_embd": width, "n_layer": layers, "n_head": heads, "n_positions": 1024}
    return Published("GPT2", fields, also)


_GPT2: dict[str, tuple[Any, ...]] = {
    "distilgpt2": (768, 6, 12),
    "gpt2": (768, 12, 12, "DialoGPT-small"),
    "gpt2-medium": (1024, 24, 16, "DialoGPT-medium"),
    "gpt2-large": (1280, 36, 20, "DialoGPT-large"),
    "gpt2-xl": (1600, 48, 25),
}


def _opt(width: int, layers: int, heads: int, **more: Any) -> Published:
    return Published("OPT", {
        "hidden_size": width, "num_hidden_layers": layers, "num_attention_heads": heads, "ffn_dim": 4 * width,
        "vocab_size": 50272, "word_embed_proj_dim": width, "max_position_embeddings": 2048, **more,
    })  # fmt: skip


def _neo(width: int, layers: int, heads: int) -> Published:
    kinds = [[["global", "local"], layers // 2]]
    fields = {"hidden_size": width, "num_layers": layers, "num_heads": heads, "attention_types": kinds}
    return Published("GPTNeo", fields)


def _neox(
    width: int, layers: int, heads: int, vocabulary: int = 50304, length: int = 2048, also: str = ""
) -> Published:
    fields = widths(vocabulary, width, layers, heads, max_position_embeddings=length)
    return Published("GPTNeoX", fields, tuple(also.split()))


def _bloom(width: int, layers: int, heads: int, also: str) -> Published:
    fields = {"vocab_size": 250880, "hidden_size": width, "n_layer": layers, "n_head": heads}
    return Published("Bloom", fields, (also,))


def _falcon(width: int, layers: int, heads: int, groups: int | None, also: str) -> Published:
    """The larger ones have groups of key-value heads and two norms for each block."""
    newer = {"new_decoder_architecture": True, "num_kv_heads": groups} if groups else {"multi_query": True}
    fields = {"vocab_size": 65024, "hidden_size": width, "num_hidden_layers": layers, "num_attention_heads": heads}
    return Published("Falcon", {**fields, **newer, "bias": False, "parallel_attn": True, "alibi": False}, (also,))


def _big_code(width: int, layers: int, heads: int, vocabulary: int, length: int, also: str) -> Published:
    return Published("GPTBigCode", {
        "vocab_size": vocabulary, "n_embd": width, "n_layer": layers, "n_head": heads, "n_inner": 4 * width,
        "n_positions": length, "multi_query": True,
    }, (also,))  # fmt: skip


def _mpt(width: int, layers: int, heads: int, length: int) -> Published:
    return Published("Mpt", {
        "vocab_size": 50432, "d_model": width, "n_layers": layers, "n_heads": heads, "max_seq_len": length,
        "no_bias": True,
    })  # fmt: skip


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
    "gpt-j-6b": Published(
        "GPTJ", {"vocab_size": 50400, "n_embd": 4096, "n_layer": 28, "n_head": 16, "rotary_dim": 64},
    ),
    "pythia-14m": _neox(128, 6, 4, length=512),
    "pythia-31m": _neox(256, 6, 8, length=1024),
    "pythia-70m": _neox(512, 6, 8, also="pythia-70m-deduped"),
    "pythia-160m": _neox(768, 12, 12, also="pythia-160m-deduped"),
    "pythia-410m": _neox(1024, 24, 16, also="pythia-410m-deduped"),
    "pythia-1b": _neox(2048, 16, 8, also="pythia-1b-deduped"),
    "pythia-1.4b": _neox(2048, 24, 16, also="pythia-1.4b-deduped"),
    "pythia-2.8b": _neox(2560, 32, 32, also="pythia-2.8b-deduped"),
    "pythia-6.9b": _neox(4096, 32, 32, 50432, also="pythia-6.9b-deduped"),
    "pythia-12b": _neox(5120, 36, 40, 50688, also="pythia-12b-deduped"),
    "gpt-neox-20b": _neox(6144, 44, 64, 50432),
    "stablelm-base-alpha-3b": _neox(4096, 16, 32, 50688, 4096, "stablelm-tuned-alpha-3b"),
    "stablelm-base-alpha-7b": _neox(6144, 16, 48, 50432, 4096, "stablelm-tuned-alpha-7b"),
    "stablecode-completion-alpha-3b": _neox(
        2560, 32, 32, 49152, 16384, "stablecode-completion-alpha-3b-4k stablecode-instruct-alpha-3b"),
    "bloom-560m": _bloom(1024, 24, 16, "bloomz-560m"),
    "bloom-1b1": _bloom(1536, 24, 16, "bloomz-1b1"),
    "bloom-1b7": _bloom(2048, 24, 16, "bloomz-1b7"),
    "bloom-3b": _bloom(2560, 30, 32, "bloomz-3b"),
    "bloom-7b1": _bloom(4096, 30, 32, "bloomz-7b1"),
    "falcon-7b": _falcon(4544, 32, 71, None, "falcon-7b-instruct"),
    "falcon-40b": _falcon(8192, 60, 128, 8, "falcon-40b-instruct"),
    "falcon-180B": _falcon(14848, 80, 232, 8, "falcon-180B-chat"),
    "santacoder": _big_code(2048, 24, 16, 49280, 2048, "gpt_bigcode-santacoder"),
    "starcoder": _big_code(6144, 40, 48, 49152, 8192, "starcoderbase"),
    "mpt-7b": _mpt(4096, 32, 32, 2048),
    "mpt-30b": _mpt(7168, 48, 64, 8192),
}  # fmt: skip


def _foundry(width: int, layers: int, heads: int) -> Published:
    """llm-foundry's: positions that are learned, flash attention, one matrix for embeddings and head."""
    return Published("GPT2", {
        "vocab_size": 50368, "n_embd": width, "n_layer": layers, "n_head": heads, "n_positions": 2048,
        "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0, "activation_function": "gelu",
    })  # fmt: skip


_FOUNDRY = {
    "llm-foundry-mpt-125m": _foundry(768, 12, 12),
    "llm-foundry-mpt-350m": _foundry(1024, 24, 16),
    "llm-foundry-mpt-760m": _foundry(1536, 24, 12),
    "llm-foundry-mpt-1b": _foundry(2048, 24, 16),
    "llm-foundry-mpt-3b": _foundry(2560, 32, 20),
    "llm-foundry-mpt-7b": _foundry(4096, 32, 32),
    "llm-foundry-mpt-13b": _foundry(5120, 40, 40),
    "llm-foundry-mpt-30b": _foundry(7168, 48, 56),
    "llm-foundry-mpt-70b": _foundry(8192, 80, 64),
}

PUBLISHED: dict[str, Published] = _OLDER | GATED | MIXTURES
