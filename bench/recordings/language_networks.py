"""Language models by the names that the measurements use, and the losses of their training scripts. Needs torch."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from bench.recordings.cases import Loss, Recipe
from torch import Tensor, nn

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
Built = tuple[Callable[[], nn.Module], Callable[[], tuple[Any, Callable[[Any, Any], Tensor]]]]
# Language models whose blocks are all alike are recorded with this many and stretched to the rest.
_RECORDED_BLOCKS = 4

_EXTRA: dict[str, tuple[str, dict[str, Any]]] = {
    "mistralai/Mixtral-8x7B-Instruct-v0.1": (
        "Mixtral",
        {
            "vocab_size": 32000, "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32,
            "num_key_value_heads": 8, "intermediate_size": 14336, "num_local_experts": 8, "num_experts_per_tok": 2,
            "max_position_embeddings": 32768,
        },
    ),
    "bigcode/gpt_bigcode-santacoder": (
        "GPTBigCode",
        {
            "vocab_size": 49280, "n_embd": 2048, "n_layer": 24, "n_head": 16, "n_inner": 8192, "n_positions": 2048,
            "multi_query": True, "activation_function": "gelu_pytorch_tanh",
        },
    ),
    "Qwen/Qwen1.5-0.5B": (
        "Qwen2",
        {
            "vocab_size": 151936, "hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16,
            "num_key_value_heads": 16, "intermediate_size": 2816, "max_position_embeddings": 32768,
            "tie_word_embeddings": True, "pad_token_id": None,
        },
    ),
}  # fmt: skip
_ROTARY_POSITIONS, _ROTARY_WIDTH = 32768, 64  # of Qwen1.5-0.5B


@cache
def _catalog() -> dict[str, Callable[[int], nn.Module]]:
    from vramcast.profile.networks import encoders, language  # noqa: PLC0415 - they import transformers

    known = [*language.sources(), *encoders.sources()]
    return {name.lower(): source.make for source in known for name in (source.name.removeprefix("hf/"), *source.also)}


def language(name: str, recipe: Recipe, *, whole: bool) -> Built:
    tokens = int(recipe.size) if isinstance(recipe.size, int) else 0

    def build() -> nn.Module:
        model = _language_model(name, tokens)
        model.config.use_cache = False
        if not whole:
            _shorten(model)
        if recipe.variant == "rotary caches":
            _add_rotary_caches(model)
        if recipe.variant == "separate experts":
            for layer in model.model.layers:  # type: ignore[union-attr]
                layer.mlp = _SeparateExperts(model.config)
        return model.to(DTYPES[recipe.weights])

    def batch_of() -> tuple[Any, Callable[[Any, Any], Tensor]]:
        ids = torch.zeros(recipe.batch, tokens, dtype=torch.long)
        loss = _keeping_outputs if recipe.variant == "outputs kept" else _LANGUAGE_LOSSES[recipe.loss]
        return {"input_ids": ids, "labels": torch.zeros_like(ids)}, loss

    return build, batch_of


_BLOCKS = {
    "Mistral-7B-v0.1": 32, "Mixtral-8x7B-Instruct-v0.1": 32, "Llama-2-70b-hf": 80, "gpt_bigcode-santacoder": 24,
    "Meta-Llama-3-8B": 32, "Qwen1.5-0.5B": 24,
}  # fmt: skip


def blocks_of(recipe: Recipe) -> int:
    """How many blocks the network has, if it is recorded with fewer; else 0."""
    return _BLOCKS.get(recipe.network.rsplit("/", maxsplit=1)[-1], 0)


def _shorten(model: Any) -> None:
    blocks = model.transformer.h if hasattr(model, "transformer") else model.model.layers
    del blocks[_RECORDED_BLOCKS:]
    model.config.num_hidden_layers = _RECORDED_BLOCKS


def _language_model(name: str, tokens: int) -> nn.Module:
    if name not in _EXTRA:
        return _catalog()[name.rsplit("/", maxsplit=1)[-1].lower()](tokens)
    import transformers  # noqa: PLC0415

    prefix, fields = _EXTRA[name]
    model: nn.Module = getattr(transformers, f"{prefix}ForCausalLM")(getattr(transformers, f"{prefix}Config")(**fields))
    return model


class _SeparateExperts(nn.Module):
    """Mixtral's experts before transformers 5: a module each, run one after the other. Tokens spread evenly."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.count, self.chosen = config.num_local_experts, config.num_experts_per_tok
        self.gate = nn.Linear(config.hidden_size, self.count, bias=False)
        # Not a list: lists of equal modules are what the recorder takes for the blocks of a network.
        for number in range(self.count):
            self.add_module(f"expert{number}", _Expert(config.hidden_size, config.intermediate_size))

    def forward(self, hidden: Tensor) -> Tensor:
        rows = hidden.view(-1, hidden.shape[-1])
        weights, experts = torch.topk(torch.softmax(self.gate(rows), 1, dtype=torch.float32), self.chosen)
        weights = (weights / weights.sum(-1, keepdim=True)).to(rows.dtype)
        mask = torch.zeros(*experts.shape, self.count, dtype=torch.long, device=rows.device)
        result = torch.zeros_like(rows)
        for number in range(self.count):
            expert = getattr(self, f"expert{number}")
            taken = torch.zeros(len(rows) * self.chosen // self.count, dtype=torch.long, device=rows.device)
            made = expert(rows[taken]) * weights[taken, taken, None]
            result.index_add_(0, taken, made.to(rows.dtype))
        del mask
        return result.view_as(hidden)


class _Expert(nn.Module):
    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.w1 = nn.Linear(width, inner, bias=False)
        self.w2 = nn.Linear(inner, width, bias=False)
        self.w3 = nn.Linear(width, inner, bias=False)

    def forward(self, rows: Tensor) -> Tensor:
        made: Tensor = self.w2(F.silu(self.w1(rows)) * self.w3(rows))
        return made


def _add_rotary_caches(model: nn.Module) -> None:
    """Until transformers 4.42 each of Qwen2's layers kept the sines and cosines of all positions."""
    for layer in model.model.layers:  # type: ignore[union-attr]
        for angle in ("cosines", "sines"):
            layer.self_attn.register_buffer(angle, torch.empty(_ROTARY_POSITIONS, _ROTARY_WIDTH))


def _shifted_copy(model: Any, batch: Any) -> Tensor:
    """transformers before 4.46. Encoder-decoders never shifted."""
    if getattr(model, "config", None) is not None and model.config.is_encoder_decoder:
        return _shifted_labels(model, batch)
    return _without_last(_logits(model, batch["input_ids"]), batch)


def _keeping_outputs(model: Any, batch: Any) -> Tensor:
    """`outputs = model(...)` in a loop: the name holds the logits until the next step has its own."""
    if model.config.is_encoder_decoder:
        outputs = model(**batch, use_cache=False)
        loss = outputs.loss
    else:
        outputs = model(input_ids=batch["input_ids"], use_cache=False)
        loss = _without_last(outputs.logits.float(), batch)
    model.held_by_the_loop = outputs
    return loss  # type: ignore[no-any-return]


def _shifted_16_bits(model: Any, batch: Any) -> Tensor:
    logits: Tensor = model(input_ids=batch["input_ids"], use_cache=False).logits
    return _without_last(logits, batch)


def _without_last(logits: Tensor, batch: Any) -> Tensor:
    shifted = logits[..., :-1, :].contiguous()
    labels = batch["labels"][..., 1:].contiguous()
    return F.cross_entropy(shifted.view(-1, shifted.shape[-1]), labels.view(-1))


def _logits(model: Any, ids: Tensor) -> Tensor:
    logits: Tensor = model(input_ids=ids, use_cache=False).logits
    return logits.float()


def _shifted_labels(model: Any, batch: Any) -> Tensor:
    loss: Tensor = model(**batch, use_cache=False).loss
    return loss


_LANGUAGE_LOSSES = {
    Loss.SHIFTED_COPY: _shifted_copy,
    Loss.SHIFTED_16_BITS: _shifted_16_bits,
    Loss.SHIFTED_LABELS: _shifted_labels,
}
