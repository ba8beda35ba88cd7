"""Builds Hugging Face networks from their configurations."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import transformers
from torch import nn

from vramcast.profile.sources import Depth, ModelSource, token_inputs

_BASE_TOKENS = 512
_LOOK_AT_VALUES = frozenset({"Bart", "DebertaV2"})
# One half reads the text and the other writes, or kinds of attention are listed per block.
_DECODERS_AND_ENCODERS = frozenset({"ForCausalLM", "LMHeadModel", "ForMaskedLM"})
_SEVERAL_KINDS = frozenset({"GPTNeo"})
_ALTERNATING = frozenset({"Gemma2", "Gemma3", "GptOss", "ModernBert", "DeepseekV3", "SmolLM3"})
_BLOCKS = ("num_hidden_layers", "n_layer", "num_layers", "n_layers")
_POSITIONS = ("max_position_embeddings", "n_positions", "max_seq_len")
_USUAL_POSITIONS = {"ForCausalLM": 2048, "LMHeadModel": 1024, "ForMaskedLM": 512}
LONG = (128, 2048)
SHORT = (128, 256)  # for position tables of 512


@dataclass(frozen=True, slots=True)
class Published:
    """A configuration: the prefix of its classes, its fields, and other models that have the same."""

    prefix: str
    fields: dict[str, Any]
    also: tuple[str, ...] = field(default=())


def text_source(name: str, published: Published, head: str, others: tuple[int, ...]) -> ModelSource:
    return ModelSource(
        f"hf/{name}", make_network(published.prefix, published.fields, head), token_inputs, _BASE_TOKENS, others,
        tokens=True, real=published.prefix in _LOOK_AT_VALUES, depth=_depth(published, head), also=published.also,
    )  # fmt: skip


def _depth(published: Published, head: str) -> Depth | None:
    fields, prefix = published.fields, published.prefix
    counted = next((name for name in _BLOCKS if name in fields), None)
    if counted is None or head not in _DECODERS_AND_ENCODERS or prefix in (_LOOK_AT_VALUES | _SEVERAL_KINDS):
        return None

    def make(blocks: int) -> nn.Module:
        return make_network(prefix, {**fields, counted: blocks}, head)(blocks)

    longest = next((fields[name] for name in _POSITIONS if name in fields), _USUAL_POSITIONS[head])
    return Depth(fields[counted], make, min(longest, fields.get("sliding_window") or longest),
                 alike=prefix not in _ALTERNATING)  # fmt: skip


def make_network(prefix: str, fields: dict[str, Any], head: str) -> Callable[[int], nn.Module]:
    def make(_size: int) -> nn.Module:
        config_class = getattr(transformers, _CONFIGS.get(f"{prefix}{head}", f"{prefix}Config"))
        model: nn.Module = getattr(transformers, f"{prefix}{head}")(config_class(**fields))
        return model

    return make


_CONFIGS = {"Gemma3ForCausalLM": "Gemma3TextConfig"}


def widths(vocabulary: int, width: int, layers: int, heads: int, **more: Any) -> dict[str, Any]:
    """In BERT's words, with the usual inner width."""
    return {
        "vocab_size": vocabulary, "hidden_size": width, "num_hidden_layers": layers, "num_attention_heads": heads,
        "intermediate_size": 4 * width, **more,
    }  # fmt: skip


def gated(
    kind: str, vocabulary: int, width: int, layers: int, heads: tuple[int, int], inner: int, length: int,
    also: str = "", **more: Any,
) -> Published:  # fmt: skip
    """`heads` is (query heads, key-value heads); `length` what the positions were trained for."""
    return Published(kind, {
        "vocab_size": vocabulary, "hidden_size": width, "num_hidden_layers": layers, "num_attention_heads": heads[0],
        "num_key_value_heads": heads[1], "intermediate_size": inner, "pad_token_id": None,
        "max_position_embeddings": length, **more,
    }, tuple(also.split()))  # fmt: skip
