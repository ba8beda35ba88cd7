import os
from types import SimpleNamespace

_peaks: dict[int, dict[str, int]] = {}
_users: set[int] = set()
_COUNT = 2


def use(index: int, allocated: int, reserved: int) -> None:
    _users.add(os.getpid())
    _peaks[index] = {"allocated_bytes.all.peak": allocated, "reserved_bytes.all.peak": reserved, "num_ooms": 0}


def is_initialized() -> bool:
    """As in torch, a forked child has not initialized CUDA."""
    return os.getpid() in _users


def device_count() -> int:
    return _COUNT


def memory_stats(index: int) -> dict[str, int]:
    return dict(_peaks.get(index, {}))


def reset_peak_memory_stats() -> None:
    for peaks in _peaks.values():
        peaks.update({"allocated_bytes.all.peak": 0, "reserved_bytes.all.peak": 1})


def get_device_properties(index: int) -> SimpleNamespace:
    return SimpleNamespace(total_memory=42_949_672_960, uuid=f"0000-{index}")
