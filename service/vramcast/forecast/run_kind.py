"""Which kind of run a task with a recording is."""

from __future__ import annotations

from vramcast.forecast.recorded_bounds import Method, RunKind
from vramcast.forecast.recording import Recording
from vramcast.task.task import Task
from vramcast.task.vocabulary import Kernels, Kind, Length, Quantization

LOOP = "loop"  # in the `info` of a recorded loop: its name
_IMAGES = "input-size"  # in the `info` of a network that reads images


def run_kind(recording: Recording, task: Task) -> RunKind:
    return RunKind(
        method=_method(task),
        sharded=task.zero_stage > 0,
        replicated=task.zero_stage == 0 and task.data_parallel_size > 1,
        fused=task.kernels is not Kernels.NONE or recording.info.get("kernels", Kernels.NONE) != Kernels.NONE,
        convolves="cudnn" in recording.info,
        images=_IMAGES in recording.info,
        own_loop=LOOP in recording.info,
        varies=task.length is not Length.FIXED,
    )


def _method(task: Task) -> Method:
    if task.kind is Kind.INFERENCE:
        return Method.INFERENCE
    if task.quantization is not Quantization.NONE:
        return Method.QUANTIZED
    return Method.LORA if task.lora_rank else Method.FULL
