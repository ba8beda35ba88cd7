"""Builds networks on the meta device without computing initial weights.

There are no values to compute, yet torch checks the shapes of every operation: for half of timm's networks that takes
longer than the steps that are recorded.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

_CHANGES_VALUES_ONLY = frozenset(
    getattr(Tensor, name)
    for name in (
        "add_", "bernoulli_", "clamp_", "copy_", "div_", "erfinv_", "exponential_", "fill_", "mul_", "normal_",
        "sub_", "trunc_", "uniform_", "zero_",
    )
) | frozenset(
    getattr(nn.init, name)
    for name in (
        "constant_", "dirac_", "eye_", "kaiming_normal_", "kaiming_uniform_", "normal_", "ones_", "orthogonal_",
        "trunc_normal_", "uniform_", "xavier_normal_", "xavier_uniform_", "zeros_",
    )
)  # fmt: skip


class _Uninitialized(TorchFunctionMode):
    def __torch_function__(self, func: Any, _types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in _CHANGES_VALUES_ONLY:
            changed = args[0] if args else kwargs.get("tensor")  # as torch.nn.init names it
            if isinstance(changed, Tensor) and changed.is_meta:
                return changed
        return func(*args, **kwargs)


@contextmanager
def on_device(device: str) -> Iterator[None]:
    """Makes `device` the default; on the meta device weights stay as they are made."""
    with torch.device(device), _Uninitialized():
        yield
