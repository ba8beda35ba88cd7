"""Runs a loop that was written for a GPU: what it puts on CUDA goes to the recorded device instead.

Loops print losses and norms, so outside of a network's forward pass a single value reads as zero. Inside, where the
value may decide what is computed, it stays unknown and the recording fails.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from vramcast.forecast.tape import Role
from vramcast.profile.recording.errors import NeedsOneGpu
from vramcast.profile.recording.patching import patched
from vramcast.profile.recording.tracking import Tracker

MOST_COPIED = 1 << 26  # elements of a tensor that a loop may copy to the host, to look at it or to keep it there


class OnRecordedDevice(TorchFunctionMode):
    """Until `begin` is called nothing is noted: what is loaded is noted as a whole."""

    def __init__(self, tracker: Tracker) -> None:
        super().__init__()
        self._tracker = tracker
        self._device = tracker.device
        self._begun = False
        self._asked_for: set[int] = set()  # storages that were asked for on the GPU before the steps began

    def begin(self, others: Iterable[Tensor]) -> None:
        """`others` are tensors that the loop has made besides networks: data, in the host's memory or on the GPU."""
        self._begun = True
        for tensor in others:
            if tensor.untyped_storage()._cdata in self._asked_for:
                self._tracker.note(tensor, Role.INPUT)
            else:
                self._tracker.keep_in_host_memory(tensor)

    def __torch_function__(self, func: Any, _types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in _READS:
            return self._read(func, args, kwargs)
        if func is Tensor.cuda:
            return self._moved(args[0])
        if func is Tensor.to and any(map(_is_host, (*args[1:], *kwargs.values()))):
            return self._to_host(args, kwargs)
        if func is Tensor.to and _asks_for_gpu((*args[1:], *kwargs.values())):
            moved = self._moved(args[0])
            rest = [given for given in args[1:] if not _is_gpu(given)]
            named = {name: given for name, given in kwargs.items() if not _is_gpu(given) and name != "non_blocking"}
            return func(moved, *[given for given in rest if not isinstance(given, bool)], **named)
        if _is_gpu(kwargs.get("device")):
            made = func(*args, **{**kwargs, "device": self._device})
            if isinstance(made, Tensor):
                self._arrived(made)
            return made
        return func(*args, **kwargs)

    def _to_host(self, args: Any, kwargs: Any) -> Any:
        """What is in the host's memory there is here too, so that an optimizer can step it."""
        copied = self._read(Tensor.cpu, args[:1], {})
        rest = [given for given in args[1:] if not _is_host(given)]
        return copied.to(*rest, **{name: given for name, given in kwargs.items() if not _is_host(given)})

    def _moved(self, tensor: Tensor) -> Tensor:
        """A copy of what is in the host's memory, or the tensor itself if it is on the GPU already."""
        if tensor.device.type == self._device and not self._tracker.is_in_host_memory(tensor):
            if not self._begun:
                self._arrived(tensor)
            return tensor
        moved = tensor.detach().to(self._device, copy=True)
        self._arrived(moved)
        return moved

    def _arrived(self, tensor: Tensor) -> None:
        if self._begun:
            self._tracker.note(tensor, Role.INPUT)
            self._tracker.assign([tensor], Role.INPUT)
        else:
            self._asked_for.add(tensor.untyped_storage()._cdata)

    def _read(self, func: Any, args: Any, kwargs: Any) -> Any:
        tensor = args[0]
        if not tensor.is_meta or _in_forward() or tensor.numel() > (MOST_COPIED if func is Tensor.cpu else 1):
            return func(*args, **kwargs)
        zeros = torch.zeros(tensor.shape, dtype=tensor.dtype, device="cpu")
        return func(zeros, *args[1:], **kwargs)


_READS: frozenset[Any] = frozenset({
    Tensor.item, Tensor.tolist, Tensor.cpu, Tensor.numpy, Tensor.__float__, Tensor.__int__, Tensor.__bool__,
    Tensor.__format__,
})  # fmt: skip


def _is_gpu(given: Any) -> bool:
    if isinstance(given, torch.device):
        return given.type == "cuda"
    is_index = isinstance(given, int) and not isinstance(given, bool)
    return is_index or (isinstance(given, str) and given.startswith("cuda"))


def _is_host(given: Any) -> bool:
    return given.type == "cpu" if isinstance(given, torch.device) else isinstance(given, str) and given == "cpu"


def _asks_for_gpu(given: tuple[Any, ...]) -> bool:
    return any(_is_gpu(value) for value in given)


def _in_forward() -> bool:
    frame = sys._getframe(1)
    while frame.f_back is not None:
        if frame.f_code.co_name == "_call_impl":
            return True
        frame = frame.f_back
    return False


@contextmanager
def pretended_gpu() -> Iterator[None]:
    """One GPU that a loop can ask about. It answers, and does nothing."""
    answers: dict[str, Callable[..., Any]] = {
        "is_available": lambda: True, "device_count": lambda: 1, "current_device": lambda: 0, "set_device": _nothing,
        "synchronize": _nothing, "empty_cache": _nothing, "reset_peak_memory_stats": _nothing,
        "max_memory_allocated": _zero, "memory_allocated": _zero, "max_memory_reserved": _zero,
        "memory_reserved": _zero, "ipc_collect": _nothing, "manual_seed": _nothing, "manual_seed_all": _nothing,
        "is_current_stream_capturing": lambda: False, "current_stream": lambda *_args: _Stream(),
        "get_device_name": lambda *_args: "NVIDIA A100-SXM4-40GB", "get_device_capability": lambda *_args: (8, 0),
        "memory_summary": lambda *_args, **_named: "", "reset_max_memory_allocated": _nothing,
        "set_per_process_memory_fraction": _nothing, "Event": _Event,
    }  # fmt: skip
    patches: list[tuple[Any, str, Any]] = [(torch.cuda, name, answer) for name, answer in answers.items()]
    streams = (torch.accelerator, "current_stream", lambda *_args: _Stream())
    pinning = (Tensor, "pin_memory", lambda tensor, *_args: tensor)
    # NCCL would end this process without a GPU. A loop may have its own name for init_process_group, which calls these.
    groups = [
        (torch.distributed.distributed_c10d, name, _no_process_group)
        for name in ("rendezvous", "_new_process_group_helper")
        if torch.distributed.is_available()
    ]
    with patched([*patches, streams, *groups, pinning, (torch, "compile", _not_compiled)]):
        yield


class _Stream:
    def is_capturing(self) -> bool:
        return False

    def synchronize(self) -> None:
        return None


class _Event:
    """Loops time themselves with these."""

    def __init__(self, **_options: Any) -> None:
        return None

    def record(self, *_stream: Any) -> None:
        return None

    def wait(self, *_stream: Any) -> None:
        return None

    def synchronize(self) -> None:
        return None

    def query(self) -> bool:
        return True

    def elapsed_time(self, _end: Any) -> float:
        return 0.0


def _no_process_group(*_args: Any, **_named: Any) -> None:
    raise NeedsOneGpu(
        "the loop starts a process group, and a recording is of one GPU: leave init_process_group out of the function, "
        "wrap the model only if torch.distributed.is_initialized(), and set data-parallel-size on the pod"
    )


def _nothing(*_args: Any, **_named: Any) -> None:
    return None


def _zero(*_args: Any, **_named: Any) -> int:
    return 0


def _not_compiled(model: Any = None, **_options: Any) -> Any:
    return model if model is not None else _not_compiled
