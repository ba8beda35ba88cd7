"""The seam to NVML, the driver's own library, through NVIDIA's binding."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any

import pynvml

from vramcast.agent.gpus import Blind, GpuLook
from vramcast.errors import VramcastError
from vramcast.task.quantity import MIB

# The driver keeps samples of a process' utilization for some seconds; the mean of these is exported.
_UTILIZATION_SECONDS = 15.0

_ABSENT = (pynvml.NVML_ERROR_NOT_SUPPORTED, pynvml.NVML_ERROR_FUNCTION_NOT_FOUND)
_LISTS: tuple[Callable[[Any], list[Any]], ...] = (
    pynvml.nvmlDeviceGetComputeRunningProcesses_v3,
    pynvml.nvmlDeviceGetGraphicsRunningProcesses_v3,
)


class NvmlUnavailable(VramcastError):
    """The library is not there, or does not answer."""


class Nvml:
    """Calls block. Raises NvmlUnavailable if the driver as a whole does not answer."""

    def __init__(self) -> None:
        try:
            pynvml.nvmlInit()
        except pynvml.NVMLError as error:
            raise NvmlUnavailable(
                f"NVML: {error}. The agent needs the driver's libnvidia-ml.so.1: run it with the nvidia runtime "
                "(agent.runtimeClassName) on nodes with a driver (agent.nodeSelector)"
            ) from None

    def gpus(self) -> list[GpuLook]:
        try:
            handles = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())]
            sliced = any(_is_sliced(handle) for handle in handles)
            return [_read(index, handle, Blind.MIG if sliced else None) for index, handle in enumerate(handles)]
        except pynvml.NVMLError as error:
            raise NvmlUnavailable(f"NVML: {error}") from None

    def close(self) -> None:
        pynvml.nvmlShutdown()


def _read(index: int, handle: Any, blind: Blind | None) -> GpuLook:
    uuid, used_mib = str(pynvml.nvmlDeviceGetUUID(handle)), _used_bytes(handle) / MIB
    gpu = GpuLook(index, uuid, used_mib, _utilization(handle), blind=blind)
    if blind is not None:
        return gpu
    found = _processes(handle)
    if isinstance(found, Blind):
        return GpuLook(index, uuid, used_mib, gpu.utilization_percent, blind=found)
    memory, clients = found
    return GpuLook(index, uuid, used_mib, gpu.utilization_percent, memory, clients, _busy(handle))


def _is_sliced(handle: Any) -> bool:
    try:
        return bool(pynvml.nvmlDeviceGetMigMode(handle)[0] == pynvml.NVML_DEVICE_MIG_ENABLE)
    except pynvml.NVMLError:
        return False


def _used_bytes(handle: Any) -> int:
    """Without the driver's own reserve, as dcgm-exporter has it; old drivers include that."""
    try:
        return int(pynvml.nvmlDeviceGetMemoryInfo(handle, version=pynvml.nvmlMemory_v2).used)
    except pynvml.NVMLError as error:
        if error.value not in _ABSENT:
            raise
        return int(pynvml.nvmlDeviceGetMemoryInfo(handle).used)


def _utilization(handle: Any) -> float | None:
    try:
        return float(pynvml.nvmlDeviceGetUtilizationRates(handle).gpu)
    except pynvml.NVMLError:
        return None


def _processes(handle: Any) -> tuple[dict[int, float], frozenset[int]] | Blind:
    """MiB by PID, and which of them are clients of MPS."""
    memory: dict[int, float] = {}
    try:
        for processes in _LISTS:
            if not _add(memory, processes(handle)):
                return Blind.NO_MEMORY
        clients: dict[int, float] = {}
        if not _add(clients, _mps_clients(handle)):
            return Blind.NO_MEMORY
    except pynvml.NVMLError as error:
        if error.value == pynvml.NVML_ERROR_NO_PERMISSION:
            return Blind.NOT_PERMITTED
        if error.value in _ABSENT:
            return Blind.OLD_DRIVER
        raise
    for pid, mib in clients.items():
        memory[pid] = max(mib, memory.get(pid, 0.0))
    return memory, frozenset(clients)


def _add(memory: dict[int, float], processes: Iterable[Any]) -> bool:
    """False: the driver does not say how much memory one of them has. A process can be in more than one list."""
    for process in processes:
        if process.usedGpuMemory is None:
            return False
        memory[process.pid] = max(process.usedGpuMemory / MIB, memory.get(process.pid, 0.0))
    return True


def _mps_clients(handle: Any) -> list[Any]:
    try:
        return list(pynvml.nvmlDeviceGetMPSComputeRunningProcesses_v3(handle))
    except pynvml.NVMLError as error:
        if error.value in _ABSENT:
            return []
        raise


def _busy(handle: Any) -> dict[int, float] | None:
    """Mean percent by PID over the last seconds. A process without a sample did nothing."""
    since_us = round((time.time() - _UTILIZATION_SECONDS) * 1e6)
    try:
        samples = pynvml.nvmlDeviceGetProcessUtilization(handle, since_us)
    except pynvml.NVMLError as error:
        return {} if error.value == pynvml.NVML_ERROR_NOT_FOUND else None
    percents: dict[int, list[int]] = defaultdict(list)
    for sample in samples:
        # The driver pads its answer with empty entries.
        if sample.timeStamp:
            percents[sample.pid].append(sample.smUtil)
    return {pid: sum(values) / len(values) for pid, values in percents.items()}
