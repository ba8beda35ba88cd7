"""The limit that bind writes onto a pod, in the forms that runtimes read.

A run that outgrows its promise then fails itself, instead of a neighbour on the same GPU. What a limit covers differs:
the allocators of torch, JAX and TensorFlow do not see the CUDA context, which every process takes besides its tensors,
while MPS and HAMi-core count everything.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from typing import Final

from vramcast.hardware.vendors import SHARED_GPU
from vramcast.names import Resource
from vramcast.settings import Runtime
from vramcast.task.task import Task
from vramcast.task.vocabulary import Cap, Written

ANNOTATIONS: Final[dict[Runtime, Written]] = {
    Runtime.TORCH: Written.LIMIT_TORCH,
    Runtime.JAX: Written.LIMIT_JAX,
    Runtime.TENSORFLOW: Written.LIMIT_TENSORFLOW,
    Runtime.MPS: Written.LIMIT_MPS,
    Runtime.HAMI_CORE: Written.LIMIT_HAMI_CORE,
}
# A fraction of an 80 GB GPU to 8 MiB.
_STEPS: Final = 10_000


@dataclass(frozen=True, slots=True)
class MemoryLimit:
    """Of one process on each GPU of its pod."""

    whole_mib: int  # everything included
    tensors_mib: int  # without the context
    fraction: float  # the tensors' part of the GPU's memory
    gpus: int


def is_capped(task: Task | None, resource: Resource) -> bool:
    """Pods that share are, unless they say no. A pod with a GPU of its own only if it says so."""
    cap = task.cap if task else None
    return cap is Cap.SOFT or (cap is None and task is not None and resource == SHARED_GPU)


def limit(need_mib: int, sizes_mib: Sequence[int], context_mib: int, slack: float) -> MemoryLimit | None:
    """`sizes_mib`: the usable memory of the pod's GPUs, which is what CUDA reports as their total.

    `context_mib`: the least that a process takes besides its tensors, so that the limit never stops a run within its
    promise. A fraction holds for all GPUs of the process, so of different sizes the smallest counts. None: the need is
    smaller than a context, so no limit would let the process run.
    """
    smallest = min(sizes_mib)
    whole = min(ceil(need_mib * (1 + slack)), smallest)
    tensors = whole - context_mib
    if tensors <= 0:
        return None
    return MemoryLimit(whole, tensors, ceil(tensors * _STEPS / smallest) / _STEPS, len(sizes_mib))


def limit_annotations(limited: MemoryLimit, runtimes: Sequence[Runtime]) -> dict[str, str]:
    forms = {
        Runtime.TORCH: f"per_process_memory_fraction:{limited.fraction:.4f}",
        Runtime.JAX: f"{limited.fraction:.4f}",
        Runtime.TENSORFLOW: str(limited.tensors_mib),
        # By the ordinals that the container sees.
        Runtime.MPS: ",".join(f"{ordinal}={limited.whole_mib}M" for ordinal in range(limited.gpus)),
        Runtime.HAMI_CORE: f"{limited.whole_mib}m",
    }
    return {ANNOTATIONS[runtime]: forms[runtime] for runtime in runtimes}
