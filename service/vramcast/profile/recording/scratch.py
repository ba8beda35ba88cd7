"""Memory that CUDA's kernels take for themselves and the meta device's do not."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

_aten = torch.ops.aten

# cuBLAS takes its workspace at the first product of each thread: the loop's, and autograd's own for backward.
# This is the default up to Ada; Hopper takes 32 MiB.
WORKSPACE_BYTES = 8_519_680
BLAS = frozenset({
    _aten.mm.default, _aten.addmm.default, _aten.bmm.default, _aten.baddbmm.default, _aten.mv.default,
    _aten.addmv.default, _aten.addbmm.default,
})  # fmt: skip
_FLOAT = 4
_INDEX = 8
_IMAGE_DIMENSIONS = 4


def _rounded(size: int, grain: int) -> int:
    return -(-size // grain) * grain


def _flash_backward(
    _grad: Tensor, query: Tensor, key: Tensor, value: Tensor, *_rest: Any, **_named: Any
) -> Iterable[int]:
    """Row sums, query gradients summed in fp32, and gradients of grouped keys and values for every query head."""
    batch, heads, length, width = query.shape
    rounded = _rounded(length, 128)
    yield batch * heads * rounded * _FLOAT
    yield batch * heads * rounded * _rounded(width, 32) * _FLOAT
    if key.shape[1] != heads:
        for tensor in (key, value):
            yield batch * heads * tensor.shape[2] * tensor.shape[3] * tensor.element_size()


def _efficient_backward(_grad: Tensor, query: Tensor, *_rest: Any, **_named: Any) -> Iterable[int]:
    """Row sums; in 16 bits query gradients summed in fp32, in fp32 the product that the row sums are taken of."""
    batch, heads, length, width = query.shape
    yield batch * heads * _rounded(length, 32) * _FLOAT
    yield batch * heads * length * width * _FLOAT


def _embedding_backward(grad: Tensor, indices: Tensor, rows: int, _padding: int, _scale: bool) -> Iterable[int]:
    """Sorts the indices (keys and positions, twice), then sums runs of equal ones in fp32."""
    if indices.numel() <= 3072:
        return
    for _ in range(4):
        yield indices.numel() * _INDEX
    segments = min(indices.numel(), rows)
    yield (indices.numel() // 10 + segments) * grad.shape[-1] * _FLOAT


def _convolution_backward(
    grad: Tensor, given: Tensor, weight: Tensor, _bias: Any, _stride: Any, _padding: Any, _dilation: Any,
    _transposed: bool, _output_padding: Any, groups: int, _mask: Any,
) -> Iterable[int]:  # fmt: skip
    """With `torch.backends.cudnn.benchmark` the fastest kernels run: those of tensor cores, which are channels-last.

    They copy what has its channels first. Grouped convolutions have no such kernels.
    """
    channels_first = given.is_contiguous() and grad.dim() == _IMAGE_DIMENSIONS
    if torch.backends.cudnn.benchmark and groups == 1 and channels_first:
        yield sum(tensor.numel() * tensor.element_size() for tensor in (grad, given, weight))


SCRATCH: dict[Any, Callable[..., Iterable[int]]] = {
    _aten._scaled_dot_product_flash_attention_backward.default: _flash_backward,
    _aten._scaled_dot_product_efficient_attention_backward.default: _efficient_backward,
    _aten.embedding_dense_backward.default: _embedding_backward,
    _aten.convolution_backward.default: _convolution_backward,
}
