"""Builds Hugging Face networks from their configurations."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import transformers
from torch import nn

from vramcast.profile.sources import ModelSource, token_inputs

_BASE_TOKENS = 512
_LOOK_AT_VALUES = frozenset({"Bart", "DebertaV2"})
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
        tokens=True, real=published.prefix in _LOOK_AT_VALUES, also=published.also,
    )  # fmt: skip


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
