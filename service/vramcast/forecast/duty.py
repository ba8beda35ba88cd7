"""How busy a step keeps its GPU, where no measured run tells: by the parts of the step's time.

Kernels are started ahead, so the GPU only waits where starting them takes longer than running them. A loader that does
not keep up, or other GPUs that are waited for, are not known here: telemetry shows them once the task runs.
"""

from __future__ import annotations

from functools import cache

from vramcast.errors import ArtifactUnusable
from vramcast.forecast.catalog import builtin_artifact
from vramcast.forecast.description import Description
from vramcast.forecast.roofline import busy_share, roofline
from vramcast.forecast.saved import Array
from vramcast.forecast.speed_artifact import load_speed_artifact
from vramcast.forecast.step_parts import cell_of, running_share, step_parts
from vramcast.forecast.warnings import warn
from vramcast.hardware.peaks import PEAKS, PeakRates
from vramcast.hardware.utilization import UNKNOWN_UTILIZATION, Utilization
from vramcast.names import Product
from vramcast.task.task import Task
from vramcast.task.vocabulary import Offload


def duty(network: Description, task: Task, product: Product) -> Utilization:
    """`gpu_util` and `sm_active`; unknown where the layers do not tell their work, or the host does a part of it."""
    peaks, weights = PEAKS.get(product), _weights()
    if peaks is None or weights is None or task.offload is not Offload.NONE:
        return UNKNOWN_UTILIZATION
    parts = step_parts(network, task, peaks)
    if parts is None:
        return UNKNOWN_UTILIZATION
    busy = running_share(parts, weights[cell_of(task, channels_last=False)], task.gradient_accumulation)
    return Utilization(gpu_util=busy, sm_active=busy * _filled_share(network, task, peaks))


def _filled_share(network: Description, task: Task, peaks: PeakRates) -> float:
    """Of the SMs, while kernels run: small layers leave some idle."""
    step = roofline(network, task, peaks)
    if step is None or step.layers.sum() <= 0:
        return 1.0
    return float((step.layers * busy_share(step.table.out_elements * task.batch_size, peaks)).sum() / step.layers.sum())


@cache
def _weights() -> dict[str, Array] | None:
    """By cell. None where there are no step times: a pod is forecast without them."""
    try:
        return load_speed_artifact(builtin_artifact()).weights
    except ArtifactUnusable as error:
        warn("how busy recorded runs keep their GPU is not forecast", error=str(error))
        return None
