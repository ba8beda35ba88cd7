"""Inference of a language model with a key-value cache: the prompt at once, then a token."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def generation(samples: int, length: int) -> Any:
    """A batch and how the network runs on it, for `record_model` with `inference=True`.

    The cache grows by a token at a time, each layer's into a new tensor, so the last token needs the most. The logits
    of the prompt are those of its last token only, as `generate` asks for.
    """
    if length < 2:
        raise ValueError(f"length {length}: expected a prompt of at least one token, and one more")
    batch = {"input_ids": torch.zeros(samples, length - 1, dtype=torch.long), "next": torch.zeros(samples, 1).long()}
    return batch, _generate


def _generate(model: Any, batch: dict[str, Tensor]) -> Any:
    prompt = model(input_ids=batch["input_ids"], use_cache=True, logits_to_keep=1)
    return model(input_ids=batch["next"], past_key_values=prompt.past_key_values, use_cache=True)
