"""LoRA by PEFT's arithmetic, casts included: they decide how many copies of a layer's input are kept."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from vramcast.profile.recording.errors import Unrecordable
from vramcast.profile.recording.quantized import Quantized
from vramcast.task.vocabulary import LoraTargets, Quantization

_HALF = (torch.float16, torch.bfloat16)
# What the libraries call these projections. PEFT compares the last part of a module's name.
_QUERY_VALUE = (
    "q_proj", "v_proj", "query", "value", "q", "v", "c_attn", "query_key_value", "qkv", "qkv_proj", "to_q", "to_v",
    "Wqkv", "in_proj", "attn_qkv", "q_lin", "v_lin",
)  # fmt: skip
_ATTENTION = (
    *_QUERY_VALUE, "k_proj", "o_proj", "out_proj", "key", "k", "o", "to_k", "to_out.0", "k_lin", "out_lin", "Wo",
    "attn.c_proj", "attn.proj", "attention.dense", "attention.output.dense", "self_attention.dense", "self_attn.dense",
    "attn.out_proj", "to_query", "to_key", "to_value", "self_attention.out_layer", "cross_attention.out_layer",
)  # fmt: skip
_WORDS = {LoraTargets.QV: _QUERY_VALUE, LoraTargets.ATTENTION: _ATTENTION}


class Adapted(nn.Module):
    """A frozen linear layer and its adapter. The adapter of a 16-bit layer is in fp32 if it is `wide`."""

    def __init__(self, base: nn.Module, rank: int, dropout: float, *, wide: bool) -> None:
        super().__init__()
        self.base_layer = base
        width, outputs = _features(base)
        dtype = _weight_dtype(base)
        dtype = torch.float32 if wide and dtype in _HALF else dtype
        self.lora_dropout = nn.Dropout(dropout) if dropout else nn.Identity()
        self.lora_A = nn.Linear(width, rank, bias=False, dtype=dtype)
        self.lora_B = nn.Linear(rank, outputs, bias=False, dtype=dtype)
        self.scaling = 2.0

    @property
    def weight(self) -> Any:
        """Networks look at the number format of a layer's weight."""
        return self.base_layer.weight

    @property
    def bias(self) -> Any:
        return self.base_layer.bias

    def forward(self, given: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        result: Tensor = self.base_layer(given, *args, **kwargs)
        if isinstance(self.base_layer, Quantized):
            return self._beside_quantized(given, result, self.base_layer.kind)
        dtype = result.dtype
        result = result + self.lora_B(self.lora_A(self.lora_dropout(given.to(self.lora_A.weight.dtype)))) * self.scaling
        return result.to(dtype)

    def _beside_quantized(self, given: Tensor, result: Tensor, kind: Quantization) -> Tensor:
        if kind is Quantization.NF4:
            result = result.clone()  # PEFT: "defensively"
        converts, dtype = not torch.is_autocast_enabled(), result.dtype
        if converts:
            given = given.to(self.lora_A.weight.dtype)
        output = self.lora_B(self.lora_A(self.lora_dropout(given)))
        if kind is Quantization.INT4:
            if converts:
                output = output.to(dtype)
            result += output * self.scaling
            return result
        output = output * self.scaling
        if converts:
            output = output.to(dtype)
        return result + output  # type: ignore[no-any-return]


def add_lora(model: nn.Module, rank: int, targets: str, dropout: float, *, wide: bool = True) -> None:
    """Freezes the network and adapts the targeted layers."""
    model.requires_grad_(False)
    found = list(_targeted(model, targets))
    if not found:
        raise Unrecordable(
            f"lora-targets {targets}: the network has no such linear layer; name the modules, such as "
            f"{', '.join(_some_names(model)) or 'q_proj,v_proj'}"
        )
    for parent, name, base in found:
        setattr(parent, name, Adapted(base, rank, dropout, wide=wide))


def require_input_gradients(model: Any) -> None:
    """What transformers and PEFT do before checkpointing, or no gradient would reach the first adapter."""
    if hasattr(model, "enable_input_require_grads"):
        model.enable_input_require_grads()


def output_layer(model: Any) -> nn.Module | None:
    """The head of a language model, which neither LoRA nor quantization touches."""
    getter = getattr(model, "get_output_embeddings", None)
    found = getter() if getter is not None else None
    return found if isinstance(found, nn.Module) else None


def is_linear(module: nn.Module) -> bool:
    return isinstance(module, nn.Linear | Quantized) or type(module).__name__ == "Conv1D"


def _targeted(model: nn.Module, targets: str) -> Iterator[tuple[nn.Module, str, nn.Module]]:
    head = output_layer(model)
    if targets == LoraTargets.ALL_LINEAR:
        names = None
    elif targets in _WORDS:
        names = _WORDS[LoraTargets(targets)]
    else:
        names = tuple(name.strip() for name in targets.split(","))
    for path, parent in list(model.named_modules()):
        for name, child in list(parent.named_children()):
            full = f"{path}.{name}"
            wanted = names is None or any(full.endswith(f".{suffix}") for suffix in names)
            if wanted and is_linear(child) and child is not head:
                yield parent, name, child


def _some_names(model: nn.Module) -> list[str]:
    names = (path.rsplit(".", maxsplit=1)[-1] for path, module in model.named_modules() if is_linear(module))
    return list(dict.fromkeys(name for name in names if name))[:5]


def _features(base: Any) -> tuple[int, int]:
    if type(base).__name__ == "Conv1D":
        return int(base.weight.shape[0]), int(base.weight.shape[1])
    return int(base.in_features), int(base.out_features)


def _weight_dtype(base: Any) -> torch.dtype:
    return base.dtype if isinstance(base, Quantized) else base.weight.dtype
