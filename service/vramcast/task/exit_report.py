"""What `vramcast.report` left in the termination messages of a pod's containers.

Anybody who can write a file in the container can write this. It counts for the pod that it came from.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

import msgspec

from vramcast.task.forms import MAX_GPU_MEMORY_MIB
from vramcast.task.quantity import ceil_mib

_VERSION = 1
_PREFIX = '{"vramcast":'
# The kubelet keeps 4 KiB of each message.
_MOST_CHARACTERS = 8192


@dataclass(frozen=True, slots=True)
class ExitReport:
    """Memory on the fullest GPU, over all processes that had some there. Contexts are not in it."""

    reserved_mib: int
    allocated_mib: int
    processes: int
    out_of_memory: bool = False
    steps_per_second: float | None = None  # of the slowest process
    framework: str = ""  # "torch 2.9.0"


class _Gpu(msgspec.Struct, frozen=True, gc=False):
    allocated: int = 0
    reserved: int = 0


class _Process(msgspec.Struct, frozen=True, gc=False):
    ended: str = ""
    gpus: dict[str, _Gpu] = {}
    versions: dict[str, str] = {}
    steps_per_second: float | None = None


class _Report(msgspec.Struct, frozen=True, gc=False):
    vramcast: int
    processes: dict[str, _Process] = {}


_DECODER = msgspec.json.Decoder(_Report)


def read_report(messages: Iterable[str | None]) -> ExitReport | None:
    """One report of all containers. None if no process told of GPU memory. Never raises."""
    processes = [process for message in messages if message for process in _processes(message)]
    gpus: dict[str, list[_Gpu]] = defaultdict(list)
    for process in processes:
        for name, gpu in process.gpus.items():
            if gpu.reserved > 0 and 0 <= gpu.allocated <= gpu.reserved:
                gpus[name].append(gpu)
    if not gpus:
        return None
    fullest = max(gpus.values(), key=lambda used: sum(gpu.reserved for gpu in used))
    reserved_mib = ceil_mib(sum(gpu.reserved for gpu in fullest))
    if reserved_mib > MAX_GPU_MEMORY_MIB:
        return None
    rates = [rate for process in processes if (rate := process.steps_per_second) is not None and 0 < rate < 1e6]
    versions = [version for process in processes if (version := process.versions.get("torch"))]
    return ExitReport(
        reserved_mib=reserved_mib,
        allocated_mib=ceil_mib(sum(gpu.allocated for gpu in fullest)),
        processes=len(fullest),
        out_of_memory=any(process.ended == "oom" for process in processes),
        steps_per_second=min(rates, default=None),
        framework=f"torch {versions[0][:32]}" if versions else "",
    )


def _processes(message: str) -> Iterable[_Process]:
    line = message[-_MOST_CHARACTERS:].rstrip("\n").rpartition("\n")[2]
    # Most messages are the end of a log: not worth an exception.
    if not line.startswith(_PREFIX):
        return ()
    try:
        report = _DECODER.decode(line)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return ()
    return report.processes.values() if report.vramcast == _VERSION else ()
