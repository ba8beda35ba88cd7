"""Notes every storage that is made and freed, in order, while torch runs on the meta device (or on the CPU).

A storage is noted when an operation returns it for the first time, and followed by a weak reference. Views share a
storage and in-place operations make none, so they leave no trace. Whatever a Python name keeps alive stays alive, as
it does on a GPU.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from vramcast.forecast.storage import TO_RECORD_LESS
from vramcast.forecast.tape import Mark, Moment, Role, Tape
from vramcast.profile.recording.errors import TooManyEvents
from vramcast.profile.recording.known_outputs import KnownOutputs
from vramcast.profile.recording.scratch import BLAS, SCRATCH, WORKSPACE_BYTES

MAX_EVENTS = 10_000_000
# A loop that only computes in place allocates nothing, and must end too.
_OPERATIONS_PER_EVENT = 10
_DISPATCHING = frozenset({"__torch_dispatch__", "_fn", "inner"})  # torch wraps a mode's method
_ADD = torch.ops.aten.add.Tensor
# Nothing but the engine's buffer holds a tensor with so many references: it, the dispatcher's stack, our arguments.
_OWN_REFERENCES = 4
_OWN_STORAGE_REFERENCES = 2


class Tracker(TorchDispatchMode):
    def __init__(self, device: str = "meta", max_events: int = MAX_EVENTS) -> None:
        super().__init__()
        self.device = device
        self._known = KnownOutputs() if device == "meta" else None
        self._max_events = max_events
        self._operations_left = _OPERATIONS_PER_EVENT * max_events
        self._sizes: list[int] = []
        self._roles: list[Role] = []
        self._units: list[int] = []
        self._events: list[int] = []
        self.marks: list[Mark] = []
        self._live: dict[int, int] = {}  # address of a storage: its number
        self._references: dict[int, weakref.ref[Any]] = {}
        self._in_host_memory: dict[int, weakref.ref[Any]] = {}  # by address: storages that a run has there
        self._workspaces: set[bool] = set()  # whether the forward's and the backward's thread has its own
        self._step_begins = 0
        self.in_backward = False

    def __torch_dispatch__(self, func: Any, _types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self._operations_left -= 1
        if self._operations_left < 0:
            raise TooManyEvents(
                f"the steps run more than {_OPERATIONS_PER_EVENT * self._max_events:,} operations. {TO_RECORD_LESS}"
            )
        if func in BLAS and self.in_backward not in self._workspaces:
            self._workspaces.add(self.in_backward)
            self._make(WORKSPACE_BYTES, Role.WORKSPACE)
        if func is _ADD and not kwargs and self._accumulates(args):
            into = _into(args)
            if into is not None:
                return into
        out = func(*args, **(kwargs or {})) if self._known is None else self._known.run(func, args, kwargs)
        if isinstance(out, Tensor):
            self.note(out)
        elif out is not None:
            for leaf in tree_leaves(out):
                if isinstance(leaf, Tensor):
                    self.note(leaf)
        scratch = SCRATCH.get(func)
        if scratch is not None:
            self._scratch(scratch(*args, **(kwargs or {})))
        return out

    def _accumulates(self, args: Any) -> bool:
        """Whether autograd's engine sums two gradients, which it does in place unless a dispatch mode is active."""
        if not self.in_backward or torch.is_grad_enabled() or len(args) != 2 or not isinstance(args[1], Tensor):
            return False
        return _called_by_engine() and args[0].shape == args[1].shape and args[0].dtype == args[1].dtype

    def note(self, tensor: Tensor, role: Role = Role.TEMPORARY, unit: int = -1) -> None:
        if tensor.device.type != self.device:
            return
        storage = tensor.untyped_storage()
        address = storage._cdata
        if address in self._live or address in self._in_host_memory:
            return
        size_bytes = storage.nbytes()
        if not size_bytes:
            return
        number = self._make(size_bytes, role, unit)
        self._live[address] = number
        self._references[number] = weakref.ref(storage, self._freed(address, number))

    def keep_in_host_memory(self, tensor: Tensor) -> None:
        """Its storage is not noted, though it was made on the recorded device, unless it was noted before."""
        storage = tensor.untyped_storage()
        address = storage._cdata
        if address in self._live or address in self._in_host_memory:
            return
        kept = self._in_host_memory
        kept[address] = weakref.ref(storage, lambda _reference: kept.pop(address))

    def is_in_host_memory(self, tensor: Tensor) -> bool:
        return tensor.untyped_storage()._cdata in self._in_host_memory

    def assign(self, tensors: Iterable[Tensor], role: Role, unit: int = -1) -> None:
        """Gives storages that were noted before another role."""
        for tensor in tensors:
            number = self._live.get(tensor.untyped_storage()._cdata)
            if number is not None:
                self._roles[number], self._units[number] = role, unit

    def mark(self, moment: Moment, unit: int = 0) -> None:
        if moment is Moment.STEP:
            self._step_begins = len(self._sizes)
        elif moment is Moment.BACKWARD:
            self._save()
        if moment in {Moment.STEP, Moment.FORWARD, Moment.BACKWARD, Moment.UPDATE, Moment.END}:
            self.in_backward = moment is Moment.BACKWARD
        self.marks.append(Mark(len(self._events), moment, unit))

    def tape(self) -> Tape:
        return Tape(
            sizes=np.array(self._sizes, np.int64),
            roles=np.array(self._roles, np.uint8),
            units=np.array(self._units, np.int16),
            events=np.array(self._events, np.int32),
            marks=tuple(self.marks),
        )

    def _save(self) -> None:
        """What forward made and still lives is saved for backward."""
        for number in self._live.values():
            if number >= self._step_begins and self._roles[number] is Role.TEMPORARY:
                self._roles[number] = Role.SAVED

    def _make(self, size_bytes: int, role: Role, unit: int = -1) -> int:
        number = len(self._sizes)
        if len(self._events) >= self._max_events:
            raise TooManyEvents(
                f"the steps make and free tensors more than {self._max_events:,} times. {TO_RECORD_LESS}"
            )
        self._sizes.append(size_bytes)
        self._roles.append(role)
        self._units.append(unit)
        self._events.append(number)
        return number

    def _freed(self, address: int, number: int) -> Callable[[Any], None]:
        events, live, references = self._events, self._live, self._references

        def free(_reference: Any) -> None:
            del live[address], references[number]
            events.append(~number)

        return free

    def _scratch(self, sizes: Iterable[int]) -> None:
        made = [self._make(size, Role.TEMPORARY) for size in sizes if size]
        self._events.extend(~number for number in made)


def _called_by_engine() -> bool:
    """A custom function's backward is Python, so its frame would lie between."""
    frame = sys._getframe(2)
    while frame.f_code.co_name in _DISPATCHING and frame.f_back is not None:
        frame = frame.f_back
    return frame.f_code.co_name == "_engine_run_backward"


def _into(args: Any) -> Tensor | None:
    """The sum, written into whichever of the two nothing else refers to."""
    for into, other in (args, args[::-1]):
        storage = into.untyped_storage()
        if (
            torch._C._storage_Use_Count(storage._cdata) <= _OWN_STORAGE_REFERENCES
            and into._use_count() <= _OWN_REFERENCES
            and into.numel() * into.element_size() == storage.nbytes()
        ):
            return into.add_(other)  # type: ignore[no-any-return]
    return None
