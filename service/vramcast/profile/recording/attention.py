"""Attention as CUDA computes it: torch's choice between kernels, and the flash-attn package of transformers.

torch takes flash attention for 16 bits without a mask, the memory-efficient kernel for fp32 or a mask, and else writes
the matrices. On the meta device it would always write them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from vramcast.profile.recording.patching import Library
from vramcast.task.vocabulary import Attention

_aten = torch.ops.aten
_HALF = (torch.float16, torch.bfloat16)
_FLASH_MAX_WIDTH = 256
_FLASH_GRAIN = 8
# transformers finds our flash attention under this name. With "flash" in it, it would look for the real package.
FLASH_NAME = "vramcast_fused"
_REPEATING_NAME = "vramcast_fused_repeating"


@contextmanager
def cuda_attention(device: str) -> Iterator[None]:
    """`torch.nn.functional.scaled_dot_product_attention` chooses the kernel that it would choose on CUDA."""
    if device != "meta":  # the CPU has a flash kernel of its own, which keeps the same tensors
        yield
        return
    with Library() as library:
        library.implement("scaled_dot_product_attention", _attend, "AutogradMeta")
        yield


def _attend(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, dropout_p: float = 0.0,
    is_causal: bool = False, *, scale: float | None = None, enable_gqa: bool = False,
) -> Tensor:  # fmt: skip
    if _can_flash(query, key, value, attn_mask, is_causal, enable_gqa):
        return flash(query, key, value, dropout_p, is_causal, scale)
    if _can_be_efficient(query, key, value):
        bias = _bias(attn_mask, query, key)
        keeps = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in (query, key, value))
        return _aten._scaled_dot_product_efficient_attention.default(  # type: ignore[no-any-return]
            query, key, value, bias, keeps, dropout_p, is_causal, scale=scale
        )[0]
    return _aten._scaled_dot_product_attention_math.default(  # type: ignore[no-any-return]
        query, key, value, attn_mask, dropout_p, is_causal, None, scale=scale, enable_gqa=enable_gqa
    )[0]


def _can_flash(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, causal: bool, grouped: bool) -> bool:
    return (
        mask is None
        and query.dim() == 4
        and query.dtype in _HALF
        and query.shape[-1] == key.shape[-1] == value.shape[-1] <= _FLASH_MAX_WIDTH
        and (grouped or query.shape[1] == key.shape[1])
        and query.shape[0] == key.shape[0]
        and not (causal and query.shape[2] != key.shape[2])
    )


def _can_be_efficient(query: Tensor, key: Tensor, value: Tensor) -> bool:
    grain = 8 if query.dtype in _HALF else 4
    return (
        query.dim() == 4
        and query.dtype in (*_HALF, torch.float32)
        and query.shape[0] == key.shape[0]
        and query.shape[1] == key.shape[1] == value.shape[1]
        and not query.shape[-1] % grain
        and not value.shape[-1] % grain
    )


def flash(query: Tensor, key: Tensor, value: Tensor, dropout: float, causal: bool, scale: float | None) -> Tensor:
    """Widths are padded to a multiple of eight. The scale is that of the width before."""
    width = query.shape[-1]
    missing = -width % _FLASH_GRAIN
    if missing:
        query, key, value = (functional.pad(tensor, (0, missing)) for tensor in (query, key, value))
    scale = width**-0.5 if scale is None else scale
    out: Tensor = _aten._scaled_dot_product_flash_attention.default(
        query, key, value, dropout, causal, False, scale=scale
    )[0]
    return out[..., :width] if missing else out


def _bias(mask: Tensor | None, query: Tensor, key: Tensor) -> Tensor | None:
    """The kernel adds numbers of the query's type to every pair; rows are padded to a multiple of 16."""
    if mask is None:
        return None
    if mask.dtype is torch.bool:
        mask = torch.zeros_like(mask, dtype=query.dtype).masked_fill_(mask.logical_not(), float("-inf"))
    while mask.dim() < 4:
        mask = mask.unsqueeze(0)
    missing = -mask.shape[-1] % 16
    if missing:
        mask = functional.pad(mask, (0, missing))[..., : key.shape[2]]
    return mask.expand(query.shape[0], query.shape[1], query.shape[2], key.shape[2])


def set_attention(model: nn.Module, attention: Attention, *, repeated_heads: bool = False) -> None:
    """Makes a network of timm, diffusers or transformers compute attention this way.

    `repeated_heads`: flash attention gets grouped keys and values once for every query head, as transformers did for
    Mistral and Mixtral before 4.48.
    """
    for module in model.modules():
        if isinstance(getattr(module, "fused_attn", None), bool):  # timm
            module.fused_attn = attention is not Attention.EAGER
    if hasattr(model, "set_attn_implementation") and getattr(model, "config", None) is not None:
        _set_transformers(model, attention, _REPEATING_NAME if repeated_heads else FLASH_NAME)


def _set_transformers(model: Any, attention: Attention, flash_name: str) -> None:
    if attention is Attention.FLASH and not getattr(model, "_supports_flash_attn", False):
        attention = Attention.SDPA
    if attention is Attention.SDPA and not getattr(model, "_supports_sdpa", False):
        attention = Attention.EAGER
    if attention is Attention.FLASH:
        _register_flash()
    model.set_attn_implementation(flash_name if attention is Attention.FLASH else str(attention))


def _register_flash() -> None:
    from transformers import AttentionInterface, AttentionMaskInterface  # noqa: PLC0415  # slow, and optional
    from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS  # noqa: PLC0415

    for name, function in ((FLASH_NAME, _transformers_flash), (_REPEATING_NAME, _repeating_flash)):
        AttentionInterface.register(name, function)
        AttentionMaskInterface.register(name, ALL_MASK_ATTENTION_FUNCTIONS["flash_attention_2"])


def _transformers_flash(
    module: Any, query: Tensor, key: Tensor, value: Tensor, _mask: Tensor | None = None, dropout: float = 0.0,
    scaling: float | None = None, is_causal: bool | None = None, **_others: Any,
) -> tuple[Tensor, None]:  # fmt: skip
    """Grouped keys and values are not repeated. fp32 is cast to 16 bits, as transformers does."""
    causal = bool(getattr(module, "is_causal", True)) if is_causal is None else is_causal
    if query.dtype is torch.float32:
        dtype = torch.get_autocast_dtype("cuda") if torch.is_autocast_enabled("cuda") else torch.bfloat16
        query, key, value = (tensor.to(dtype) for tensor in (query, key, value))
    causal = causal and query.shape[2] == key.shape[2]
    return flash(query, key, value, dropout, causal, scaling).transpose(1, 2).contiguous(), None


def _repeating_flash(module: Any, query: Tensor, key: Tensor, value: Tensor, *args: Any, **kwargs: Any) -> Any:
    groups = query.shape[1] // key.shape[1]
    key, value = (tensor.repeat_interleave(groups, 1) if groups > 1 else tensor for tensor in (key, value))
    return _transformers_flash(module, query, key, value, *args, **kwargs)
