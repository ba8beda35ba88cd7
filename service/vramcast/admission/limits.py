"""The limit that bind writes onto a pod, in the forms that runtimes read.

A run that outgrows its promise then fails itself, instead of a neighbour on the same GPU. What a limit covers differs:
the allocators of torch, JAX and TensorFlow do not see the CUDA context, which every process takes besides its tensors,
while MPS and HAMi-core count everything. JAX and TensorFlow take their whole limit at the start, needed or not, so
theirs is the promise without slack.
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
    fraction: float  # of the GPU's memory, without the context
    pool_mib: int  # what may be taken at the start
    pool_fraction: float
    gpus: int


@dataclass(frozen=True, slots=True)
class ProcessContext:
    """What a process takes besides its tensors: surely, and by the forecasts."""

    least_mib: int
    usual_mib: int


def is_capped(task: Task | None, resource: Resource) -> bool:
    """Pods that share are, unless they say no. A pod with a GPU of its own only if it says so."""
    cap = task.cap if task else None
    return cap is Cap.SOFT or (cap is None and task is not None and resource == SHARED_GPU)


def limit(need_mib: int, sizes_mib: Sequence[int], context: ProcessContext, slack: float) -> MemoryLimit | None:
    """`sizes_mib`: the usable memory of the pod's GPUs, which is what CUDA reports as their total.

    Without the least context, a limit never stops a run within its promise. A pool is without the usual context, so
    that both together are the promise, unless that is most of a small need. A fraction holds for all GPUs of the
    process, so of different sizes the smallest counts. None: the need is smaller than a context, so nothing could run.
    """
    smallest = min(sizes_mib)
    whole = min(ceil(need_mib * (1 + slack)), smallest)
    pool = need_mib - (context.usual_mib if need_mib >= 2 * context.usual_mib else context.least_mib)
    if whole <= context.least_mib or pool <= 0:
        return None
    fraction = ceil((whole - context.least_mib) * _STEPS / smallest) / _STEPS
    return MemoryLimit(whole, fraction, pool, max(1, pool * _STEPS // smallest) / _STEPS, len(sizes_mib))


def limit_annotations(limited: MemoryLimit, runtimes: Sequence[Runtime]) -> dict[str, str]:
    forms = {
        Runtime.TORCH: f"per_process_memory_fraction:{limited.fraction:.4f}",
        Runtime.JAX: f"{limited.pool_fraction:.4f}",
        Runtime.TENSORFLOW: str(limited.pool_mib),
        # By the ordinals that the container sees.
        Runtime.MPS: ",".join(f"{ordinal}={limited.whole_mib}M" for ordinal in range(limited.gpus)),
        Runtime.HAMI_CORE: f"{limited.whole_mib}m",
    }
    return {ANNOTATIONS[runtime]: forms[runtime] for runtime in runtimes}
