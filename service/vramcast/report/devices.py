"""What this process used of each GPU, as torch counted it."""

from __future__ import annotations

import os
import sys
from typing import Any


def torch_in_use() -> Any | None:
    """torch, if the process has imported it and initialized CUDA. Never imports it: that takes seconds."""
    torch = sys.modules.get("torch")
    cuda = getattr(torch, "cuda", None)
    # Half imported, or a build without CUDA.
    return torch if cuda is not None and getattr(cuda, "is_initialized", bool)() else None


def measure(torch: Any) -> dict[str, dict[str, Any]]:
    """By GPU, in bytes: the peaks of torch's allocator, and what the whole device holds now, if NVML can say it."""
    gpus = {}
    for index in range(torch.cuda.device_count()):
        stats = torch.cuda.memory_stats(index)
        reserved = stats.get("reserved_bytes.all.peak", 0)
        if not reserved:
            continue
        gpus[_name(torch, index)] = {
            "allocated": stats.get("allocated_bytes.all.peak", 0),
            "reserved": reserved,
            "ooms": stats.get("num_ooms", 0),
            "total": torch.cuda.get_device_properties(index).total_memory,
            **_used_on_device(torch, index),
        }
    return gpus


def _name(torch: Any, index: int) -> str:
    """One name for one GPU in every process: each may see the GPUs under numbers of its own."""
    uuid = getattr(torch.cuda.get_device_properties(index), "uuid", None)
    if uuid is not None:
        return "GPU-" + str(uuid)
    visible = [name.strip() for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name.strip()]
    return visible[index] if index < len(visible) else str(index)


def _used_on_device(torch: Any, index: int) -> dict[str, Any]:
    """Of all processes, neighbours and contexts included: it is the pod's own only if the pod is alone there."""
    try:
        import pynvml  # noqa: PLC0415  (optional, and only worth its start-up where a GPU was used)

        pynvml.nvmlInit()
        try:
            uuid = "GPU-" + str(torch.cuda.get_device_properties(index).uuid)
            return {"device_used": int(pynvml.nvmlDeviceGetMemoryInfo(pynvml.nvmlDeviceGetHandleByUUID(uuid)).used)}
        finally:
            pynvml.nvmlShutdown()
    except Exception:
        return {}


def versions() -> dict[str, str]:
    """Of the libraries that decide how much memory a step takes, if they are loaded."""
    found = {"python": ".".join(map(str, sys.version_info[:3]))}
    for name in ("torch", "transformers", "peft", "accelerate", "deepspeed", "bitsandbytes", "jax", "tensorflow"):
        version = getattr(sys.modules.get(name), "__version__", None)
        if isinstance(version, str):
            found[name] = version[:32]
    return found
