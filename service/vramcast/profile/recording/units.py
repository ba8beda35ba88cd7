"""The repeated blocks of a network, and marks where each is entered and left.

What is sharded is gathered and freed block by block, so the tape has to say which block runs. The hooks hold numbers
only and allocate nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from vramcast.forecast.tape import Moment
from vramcast.profile.recording.tracking import Tracker

Units = tuple[nn.Module, ...]


def find_units(model: nn.Module) -> Units:
    """The blocks of the class that the longest list of equal blocks is made of, in order.

    Lists of experts lie inside of blocks and may be longer.
    """
    lists = [
        module
        for path, module in model.named_modules()
        if isinstance(module, nn.ModuleList | nn.Sequential) and "expert" not in path
    ]
    counted = [(count, kind) for found in lists for kind, count in Counter(map(type, found)).items() if _is_block(kind)]
    if not counted:
        return ()
    longest, kind = max(counted, key=lambda pair: pair[0])
    if longest < 2:
        return ()
    members: list[Any] = [block for found in lists for block in found if type(block) is kind]
    return tuple(dict.fromkeys(block for block in members if any(True for _ in block.parameters())))


def _is_block(kind: type) -> bool:
    return not kind.__module__.startswith("torch.nn.modules") or kind.__name__.endswith("Layer")


def unit_numbers(model: nn.Module, units: Units) -> dict[int, int]:
    """By the identity of a parameter or buffer: 0 for the root, 1 and on for the blocks."""
    numbers = {id(tensor): 0 for tensor in (*model.parameters(), *model.buffers())}
    for number, unit in enumerate(units, start=1):
        numbers |= {id(tensor): number for tensor in (*unit.parameters(), *unit.buffers())}
    return numbers


class UnitMarks:
    """Marks the blocks of a running step. At most one block's backward is open at a time."""

    def __init__(self, tracker: Tracker, units: Units) -> None:
        self._tracker = tracker
        self._units = units
        self._open: int | None = None

    @contextmanager
    def hooked(self) -> Iterator[None]:
        with ExitStack() as stack:
            for number, unit in enumerate(self._units, start=1):
                entering, leaving = self._entering(number), self._leaving(number)
                stack.callback(unit.register_forward_pre_hook(entering, with_kwargs=True).remove)
                stack.callback(unit.register_forward_hook(leaving, always_call=True).remove)
            yield

    def close(self) -> None:
        """Backward has moved on, or ended."""
        if self._open is not None:
            self._tracker.mark(Moment.LEAVE_BACKWARD, self._open)
            self._open = None

    def _begin(self, number: int) -> None:
        if self._open != number:
            self.close()
            self._open = number
            self._tracker.mark(Moment.ENTER_BACKWARD, number)

    def _entering(self, number: int) -> Callable[..., None]:
        def grown(_gradient: Tensor) -> None:
            if self._open == number:
                self.close()

        def hook(_module: nn.Module, args: Any, kwargs: Any) -> None:
            if self._tracker.in_backward:  # checkpointing computes the block again, and then its gradients
                self._begin(number)
            self._tracker.mark(Moment.ENTER, number)
            given = _first_with_gradient((args, kwargs))
            if given is not None:
                given.register_hook(grown)

        return hook

    def _leaving(self, number: int) -> Callable[..., None]:
        def begun(_gradients: Any) -> None:
            self._begin(number)

        def hook(_module: nn.Module, _args: Any, output: Any) -> None:
            self._tracker.mark(Moment.LEAVE, number)
            result = _first_with_gradient(output)
            if result is not None and result.grad_fn is not None:
                result.grad_fn.register_prehook(begun)

        return hook


def _first_with_gradient(values: Any) -> Tensor | None:
    if isinstance(values, Tensor):
        return values if values.requires_grad else None
    return next((leaf for leaf in tree_leaves(values) if isinstance(leaf, Tensor) and leaf.requires_grad), None)
