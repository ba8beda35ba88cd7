"""Small networks and batches to record."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import transformers
from torch import Tensor, nn
from torch.nn import functional

WIDTH, HEADS, LAYERS, VOCABULARY = 64, 4, 3, 128


class Block(nn.Module):
    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.project = nn.Linear(WIDTH, 3 * WIDTH)
        self.wide, self.narrow = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        self.dropout = nn.Dropout(dropout)

    def forward(self, given: Tensor) -> Tensor:
        query, key, value = (
            self.project(self.norm(given)).unflatten(-1, (3, HEADS, WIDTH // HEADS)).permute(2, 0, 3, 1, 4)
        )
        mixed = functional.scaled_dot_product_attention(query, key, value).transpose(1, 2).flatten(2)
        return given + self.dropout(self.narrow(functional.gelu(self.wide(mixed))))  # type: ignore[no-any-return]


class Tower(nn.Module):
    """Three blocks without any library's switch for checkpointing."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.stem = nn.Linear(WIDTH, WIDTH)
        self.blocks = nn.ModuleList([Block(dropout) for _ in range(LAYERS)])
        self.head = nn.Linear(WIDTH, 10)

    def forward(self, given: Tensor) -> Tensor:
        given = self.stem(given)
        for block in self.blocks:
            given = block(given)
        return self.head(given.mean(1))  # type: ignore[no-any-return]


def llama(**fields: Any) -> nn.Module:
    sizes = {
        "vocab_size": VOCABULARY, "hidden_size": WIDTH, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS,
        "num_key_value_heads": 2, "intermediate_size": 2 * WIDTH, "use_cache": False,
    }  # fmt: skip
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**{**sizes, **fields}))


def sequences(samples: int = 4, length: int = 32) -> Callable[[], Any]:
    """For `Tower`."""

    def batch() -> Any:
        given = torch.zeros(samples, length, WIDTH), torch.zeros(samples, dtype=torch.long)
        return given, lambda model, pair: functional.cross_entropy(model(pair[0]), pair[1])

    return batch


def tokens(samples: int = 4, length: int = 32) -> Callable[[], Any]:
    """For language models of transformers."""

    def batch() -> Any:
        given = {name: torch.zeros(samples, length, dtype=torch.long) for name in ("input_ids", "labels")}
        return given, lambda model, named: model(**named).loss

    return batch
