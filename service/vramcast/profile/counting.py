"""Counts the work of a forward pass as it runs: multiplications, elements that kernels move, and kernels.

The functional operations between modules count too. Attention is counted apart, because a fused kernel moves only its
arguments and its result. Weights are not in the elements: they do not grow with the batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

_FLOPS_PER_MAC = 2
# They give another shape to the same memory, or memory that is not written yet.
_MOVES_NOTHING = frozenset({
    "view", "_unsafe_view", "reshape", "_reshape_alias", "expand", "permute", "transpose", "t", "slice", "select",
    "split", "split_with_sizes", "chunk", "unbind", "squeeze", "unsqueeze", "as_strided", "detach", "alias", "empty",
    "empty_like", "new_empty", "unfold", "diagonal", "narrow", "lift_fresh", "size", "sym_size", "empty_strided",
    "new_empty_strided", "view_as_complex", "view_as_real", "scalar_tensor", "_assert_async", "item",
})  # fmt: skip


@dataclass(slots=True)
class Counts:
    """Of the whole pass."""

    macs: int = 0
    elements: int = 0  # read and written
    kernels: int = 0
    attention_macs: int = 0  # part of `macs`
    attention_elements: int = 0  # not part of `elements`: what attention moves if no kernel fuses it
    attention_kernels: int = 0  # not part of `kernels`


def count_work(model: nn.Module, call: Callable[[nn.Module], object], samples: int) -> list[int] | None:
    """In the order of `forecast/description.py`, per sample. None: the pass cannot be counted."""
    counting = Counting({weight.untyped_storage()._cdata for weight in model.parameters()})
    try:
        with counting.watching() as counts:
            call(model)
    except Exception:
        # The pass itself works, or there would be no trace. A profile without counts is still a profile.
        return None
    return [
        counts.macs // samples, counts.elements // samples, counts.kernels, counts.attention_macs // samples,
        counts.attention_elements // samples, counts.attention_kernels,
    ]  # fmt: skip


class Counting(TorchDispatchMode):
    """`weights`: addresses of the storages that are not counted."""

    def __init__(self, weights: set[int]) -> None:
        super().__init__()
        self._weights = weights
        self.counts = Counts()
        self.attending = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        packet = func.overloadpacket
        if packet.__name__.rstrip("_") in _MOVES_NOTHING:
            return result
        counts = self.counts
        formula = flop_registry.get(packet)
        macs = formula(*args, **(kwargs or {}), out_val=result) // _FLOPS_PER_MAC if formula is not None else 0
        moved = self._elements(args) + self._elements(result)
        counts.macs += macs
        if self.attending:
            counts.attention_macs += macs
            counts.attention_elements += moved
            counts.attention_kernels += 1
        else:
            counts.elements += moved
            counts.kernels += 1
        return result

    @contextmanager
    def watching(self) -> Iterator[Counts]:
        original = functional.scaled_dot_product_attention

        def watched(query: Tensor, key: Tensor, value: Tensor, *args: Any, **kwargs: Any) -> Tensor:
            outer, self.attending = self.attending, True
            try:
                result: Tensor = original(query, key, value, *args, **kwargs)
            finally:
                self.attending = outer
            self.counts.elements += self._elements((query, key, value, result))
            self.counts.kernels += 1
            return result

        functional.scaled_dot_product_attention = watched
        try:
            with self:
                yield self.counts
        finally:
            functional.scaled_dot_product_attention = original

    def _elements(self, value: Any) -> int:
        if isinstance(value, Tensor):
            return 0 if value.untyped_storage()._cdata in self._weights else value.numel()
        return sum(map(self._elements, value)) if isinstance(value, list | tuple) else 0
