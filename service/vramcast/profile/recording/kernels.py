"""Operators that CUDA computes in one fused kernel and other devices in several steps."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from vramcast.profile.recording.patching import Library

_aten = torch.ops.aten
# Below this key torch splits these operators into others; autograd's key comes first.
_AUTOGRAD = {"meta": "AutogradMeta", "cpu": "AutogradCPU"}


@contextmanager
def cuda_kernels(device: str) -> Iterator[None]:
    with Library() as library:
        for name, kernel in _KERNELS.items():
            if device == "meta" or name == "dropout":  # the CPU has no fused kernels for the others
                library.implement(name, kernel, _AUTOGRAD[device])
        yield


def _dropout(given: Tensor, p: float, train: bool) -> Tensor:
    """Keeps one byte an element for backward; elsewhere the mask is as large as the input."""
    if not train or not 0 < p < 1 or not given.numel():
        return _aten.dropout.default.decompose(given, p, train)  # type: ignore[no-any-return]
    return _aten.native_dropout.default(given, p, train)[0]  # type: ignore[no-any-return]


def _softmax(given: Tensor, dim: int, dtype: torch.dtype | None = None) -> Tensor:
    """Reads fp16 and writes fp32 without a copy between."""
    if given.dtype is torch.float16 and dtype is torch.float32:
        return _aten._softmax.default(given, dim, True)  # type: ignore[no-any-return]
    return _aten._softmax.default(given if dtype is None else given.to(dtype), dim, False)  # type: ignore[no-any-return]


def _log_softmax(given: Tensor, dim: int, dtype: torch.dtype | None = None) -> Tensor:
    if given.dtype is torch.float16 and dtype is torch.float32:
        return _aten._log_softmax.default(given, dim, True)  # type: ignore[no-any-return]
    return _aten._log_softmax.default(given if dtype is None else given.to(dtype), dim, False)  # type: ignore[no-any-return]


def _rms_norm(given: Tensor, shape: Sequence[int], weight: Tensor | None = None, eps: float | None = None) -> Tensor:
    """Keeps its input and one number a row."""
    if weight is not None and weight.dtype is not given.dtype:
        return _aten.rms_norm.default.decompose(given, shape, weight, eps)  # type: ignore[no-any-return]
    return _aten._fused_rms_norm.default(given, shape, weight, eps)[0]  # type: ignore[no-any-return]


_KERNELS: dict[str, Callable[..., Tensor]] = {
    "dropout": _dropout,
    "softmax.int": _softmax,
    "log_softmax.int": _log_softmax,
    "rms_norm": _rms_norm,
}
