"""`torch.autocast("cuda")` on the meta device: CUDA's lists, and casts of trained weights cached until it ends.

The casts are registered as kernels of torch's own dispatch key for CUDA's autocast, which lies above autograd. So what
checkpointing computes again is cast too, and nested or disabled contexts work as torch defines them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from vramcast.profile.recording.patching import Library, patched

_KEY = torch._C.DispatchKey.AutocastCUDA
_KEYS = torch._C.DispatchKeySet(_KEY)

# From ATen/autocast_mode.h.
_LOWER = (
    "_convolution.deprecated", "_convolution", "conv1d", "conv2d", "conv3d", "conv_tbc", "conv_transpose1d",
    "conv_transpose2d.input", "conv_transpose3d.input", "convolution", "prelu", "addmm", "addmv", "addr", "matmul",
    "einsum", "mm", "mv", "linalg_vecdot", "linear", "addbmm", "baddbmm", "bmm", "chain_matmul", "linalg_multi_dot",
    "_thnn_fused_lstm_cell", "_thnn_fused_gru_cell", "lstm_cell", "gru_cell", "rnn_tanh_cell", "rnn_relu_cell",
    "_scaled_dot_product_flash_attention", "scaled_dot_product_attention",
)  # fmt: skip
_FULL = (
    "acos", "asin", "cosh", "erfinv", "exp", "expm1", "log", "log10", "log2", "log1p", "reciprocal", "rsqrt", "sinh",
    "tan", "pow.Tensor_Scalar", "pow.Tensor_Tensor", "pow.Scalar", "softplus", "layer_norm", "native_layer_norm",
    "rms_norm", "group_norm", "frobenius_norm.dim", "nuclear_norm", "nuclear_norm.dim", "cosine_similarity",
    "poisson_nll_loss", "cosine_embedding_loss", "nll_loss", "nll_loss2d", "hinge_embedding_loss", "kl_div", "l1_loss",
    "smooth_l1_loss", "huber_loss", "mse_loss", "margin_ranking_loss", "multilabel_margin_loss", "soft_margin_loss",
    "triplet_margin_loss", "multi_margin_loss", "binary_cross_entropy_with_logits", "dist", "pdist", "cdist", "renorm",
    "logsumexp", "upsample_nearest1d", "_upsample_nearest_exact1d", "upsample_nearest2d", "_upsample_nearest_exact2d",
    "upsample_nearest3d", "_upsample_nearest_exact3d", "upsample_linear1d", "upsample_bilinear2d",
    "_upsample_bilinear2d_aa", "upsample_trilinear3d", "upsample_bicubic2d", "_upsample_bicubic2d_aa",
)  # fmt: skip
# The result's dtype is an argument, and becomes fp32 if it is not given. The number is the argument's position.
_FULL_RESULT = {
    "prod": None, "prod.dim_int": None, "softmax.int": 2, "log_softmax.int": 2, "cumprod": None, "cumsum": None,
    "linalg_vector_norm": None, "linalg_matrix_norm": None, "linalg_matrix_norm.str_ord": None, "sum": None,
    "sum.dim_IntList": None,
}  # fmt: skip
_NORMS = {"norm.Scalar": "norm.ScalarOpt_dtype", "norm.ScalarOpt_dim": "norm.ScalarOpt_dim_dtype"}
_WIDEST = (
    "addcdiv", "addcmul", "atan2", "bilinear", "cross", "dot", "vdot", "grid_sampler", "index_put", "tensordot",
    "scatter_add",
)  # fmt: skip


@contextmanager
def cuda_autocast(device: str) -> Iterator[None]:
    """While this is active, `torch.autocast("cuda")` acts on tensors of `device`."""
    casts = _Casts(device)
    with Library() as library:
        for names, kernel in ((_LOWER, casts.lower), (_FULL, casts.full), (_WIDEST, casts.widest)):
            for name in names:
                library.implement(name, kernel(_operator(name)), "AutocastCUDA")
        for name, position in _FULL_RESULT.items():
            library.implement(name, casts.full_result(_operator(name), position), "AutocastCUDA")
        for name, wider in _NORMS.items():
            library.implement(name, casts.norm(_operator(name), _operator(wider)), "AutocastCUDA")
        with patched(_patches(casts)), torch._C._IncludeDispatchKeyGuard(_KEY):
            yield


def _operator(name: str) -> Any:
    packet, _, overload = name.partition(".")
    return getattr(getattr(torch.ops.aten, packet), overload or "default")


class _Casts:
    def __init__(self, device: str) -> None:
        self._device = device
        self._cached: dict[int, tuple[Tensor, Tensor]] = {}

    def clear(self) -> None:
        self._cached.clear()

    def lower(self, operator: Any) -> Callable[..., Any]:
        def kernel(*args: Any, **kwargs: Any) -> Any:
            dtype = torch.get_autocast_dtype("cuda")
            with torch._C._ExcludeDispatchKeyGuard(_KEYS):
                return operator(*self._cast_all(args, dtype), **{n: self._cast(v, dtype) for n, v in kwargs.items()})

        return kernel

    def full(self, operator: Any) -> Callable[..., Any]:
        def kernel(*args: Any, **kwargs: Any) -> Any:
            with torch._C._ExcludeDispatchKeyGuard(_KEYS):
                full = {name: self._cast(value, torch.float32) for name, value in kwargs.items()}
                return operator(*self._cast_all(args, torch.float32), **full)

        return kernel

    def full_result(self, operator: Any, position: int | None) -> Callable[..., Any]:
        def kernel(*args: Any, **kwargs: Any) -> Any:
            given = position is not None and len(args) > position and args[position] is not None
            if self._eligible(args[0]) and not given and kwargs.get("dtype") is None:
                args = args[:position] if position is not None else args
                kwargs = {**kwargs, "dtype": torch.float32}
            with torch._C._ExcludeDispatchKeyGuard(_KEYS):
                return operator(*args, **kwargs)

        return kernel

    def norm(self, operator: Any, wider: Any) -> Callable[..., Any]:
        def kernel(given: Tensor, *args: Any) -> Any:
            with torch._C._ExcludeDispatchKeyGuard(_KEYS):
                if not self._eligible(given):
                    return operator(given, *args)
                power = args[0] if args else 2
                if operator is wider or len(args) < 2:
                    return wider(given, power, dtype=torch.float32)
                keep = args[2] if len(args) > 2 else False
                return wider(given, power, args[1], keep, dtype=torch.float32)

        return kernel

    def widest(self, operator: Any) -> Callable[..., Any]:
        def kernel(*args: Any, **kwargs: Any) -> Any:
            with torch._C._ExcludeDispatchKeyGuard(_KEYS):
                floats = [given.dtype for given in _flat(args) if self._eligible(given)]
                dtype = torch.float32 if torch.float32 in floats else torch.get_autocast_dtype("cuda")
                return operator(*self._cast_all(args, dtype), **kwargs)

        return kernel

    def _eligible(self, value: Any) -> bool:
        return (
            isinstance(value, Tensor)
            and value.is_floating_point()
            and value.dtype is not torch.float64
            and value.device.type == self._device
        )

    def _cast_all(self, values: Any, dtype: torch.dtype) -> list[Any]:
        return [self._cast(value, dtype) for value in values]

    def _cast(self, value: Any, dtype: torch.dtype) -> Any:
        if isinstance(value, list | tuple):
            return self._cast_all(value, dtype)
        if not self._eligible(value) or value.dtype is dtype:
            return value
        cacheable = (
            dtype is not torch.float32
            and value.dtype is torch.float32
            and value.requires_grad
            and value.is_leaf
            and not value._is_view()
            and torch.is_autocast_cache_enabled()
        )
        if not cacheable:
            return value.to(dtype)
        if id(value) not in self._cached:
            self._cached[id(value)] = (value, value.to(dtype))
        return self._cached[id(value)][1]


def _flat(values: Any) -> Iterator[Any]:
    for value in values:
        if isinstance(value, list | tuple):
            yield from _flat(value)
        else:
            yield value


def _patches(casts: _Casts) -> list[tuple[Any, str, Any]]:
    clear, begin = torch.clear_autocast_cache, torch.amp.autocast_mode.autocast.__init__

    def clear_all() -> None:
        casts.clear()
        clear()

    def begin_on_cuda(self: Any, device_type: str, *args: Any, **kwargs: Any) -> None:
        begin(self, "cuda" if device_type == "meta" else device_type, *args, **kwargs)

    return [
        (torch, "clear_autocast_cache", clear_all),
        (torch.amp.autocast_mode.autocast, "__init__", begin_on_cuda),
        (torch.cuda.amp.common, "amp_definitely_not_available", lambda: False),
        (torch.cuda, "is_bf16_supported", lambda *_args, **_named: True),
        (torch.utils.checkpoint, "_infer_device_type", lambda *_args: "cuda"),
    ]
