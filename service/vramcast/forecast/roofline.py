"""How long each layer takes at least: the slower of its arithmetic and its memory traffic, and never less than the
time to start its kernels.

Everything rises with the batch, so a forecast that multiplies this by a factor of the network does too.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from vramcast.forecast.description import CONVOLUTIONS, Description, OpKind, among
from vramcast.forecast.saved import Array, LayerTable, layer_table
from vramcast.forecast.work import FLOPS_PER_MAC, Work, passes, work_of
from vramcast.hardware.peaks import PeakRates
from vramcast.task.task import Task
from vramcast.task.vocabulary import Attention, Kind, Precision

HALF = frozenset({Precision.FP16, Precision.BF16, Precision.AMP_FP16, Precision.AMP_BF16})
_CONVOLVES = among(*CONVOLUTIONS)
_DEPTHWISE = among(OpKind.DEPTHWISE)
# They move nothing.
_FREE = among(OpKind.VIEW)
# Kernels work on tiles of this many output elements, and a tile needs a whole SM.
_TILE = 128 * 64
# Eager PyTorch starts a kernel about this often, and a layer's backward pass takes twice as many kernels.
START_SECONDS = 6e-6
WEIGHT_BYTES = 4.0
# An update reads weight, gradient and states, and writes weight and states.
UPDATE_BYTES = 28.0


@dataclass(frozen=True, slots=True, eq=False)
class Roofline:
    """Seconds of one update; arrays are (operations,)."""

    table: LayerTable
    work: Work
    arithmetic: Array
    traffic: Array
    layers: Array  # the larger of the two, and of the time to start
    unlisted: float  # what no layer shows
    attention: float
    update: float
    repeats: int  # batches in an update

    @property
    def pass_seconds(self) -> float:
        """Of one batch, forward and backward."""
        return float(self.layers.sum()) + self.unlisted + self.attention

    @property
    def total_seconds(self) -> float:
        return self.repeats * self.pass_seconds + self.update


def roofline(network: Description, task: Task, peaks: PeakRates, batch: int | None = None) -> Roofline | None:
    """`batch`: instead of the task's. None if the layers do not tell their work."""
    work = work_of(network)
    if work is None:
        return None
    table = layer_table(network.ops)
    samples, rounds, trains = batch or task.batch_size, passes(task), task.kind is not Kind.INFERENCE
    bandwidth, dense, size = 1e9 * peaks.bandwidth_gb_per_second, dense_rate(task, peaks), activation_bytes(task)
    flops = FLOPS_PER_MAC * samples * rounds
    arithmetic = flops * work.macs / (_rates(table, task, peaks) * busy_share(table.out_elements * samples, peaks))
    moved = size * work.elements * samples + WEIGHT_BYTES * work.weights
    runs = ~_FREE[table.kind]
    traffic = np.where(runs, moved * rounds / bandwidth, 0.0)
    layers = np.maximum(np.maximum(arithmetic, traffic), runs * (START_SECONDS * rounds))

    def between(macs: float, elements: float, kernels: float) -> float:
        seconds = max(0.0, macs) * flops / dense + elements * size * samples * rounds / bandwidth
        return float(max(seconds, kernels * START_SECONDS * rounds))

    unlisted = between(work.unlisted_macs, work.unlisted_elements, work.unlisted_kernels)
    fused = task.attention is not Attention.EAGER
    matrices, kernels = (0.0, 0.0) if fused else (work.attention_elements, work.attention_kernels)
    attention = between(work.attention_macs, matrices, kernels)
    update = UPDATE_BYTES * network.parameters / bandwidth if trains else 0.0
    return Roofline(table, work, arithmetic, traffic, layers, unlisted, attention, update, task.gradient_accumulation)


def busy_share(out_elements: Array, peaks: PeakRates) -> Array:
    """Of the SMs. A tile takes as long alone as beside others on the SMs that it leaves idle."""
    return np.asarray(np.clip(out_elements / _TILE, 1.0, peaks.sms) / peaks.sms, dtype=np.float64)


def activation_bytes(task: Task) -> float:
    return 2.0 if task.precision in HALF else 4.0


def dense_rate(task: Task, peaks: PeakRates) -> float:
    """FLOPs per second of matrix products."""
    if task.precision in HALF:
        return 1e12 * (peaks.fp16_tflops or peaks.fp32_tflops)
    if task.precision is Precision.TF32:
        return 1e12 * (peaks.tf32_tflops or peaks.fp32_tflops)
    return 1e12 * peaks.fp32_tflops


def _rates(table: LayerTable, task: Task, peaks: PeakRates) -> Array:
    """By layer. cuDNN convolves in TF32 unless told otherwise, and depthwise kernels use no tensor cores."""
    dense = dense_rate(task, peaks)
    convolutions = max(dense, 1e12 * (peaks.tf32_tflops or 0.0))
    plain = 1e12 * peaks.fp32_tflops
    rates = np.where(_CONVOLVES[table.kind], convolutions, dense)
    return np.asarray(np.where(_DEPTHWISE[table.kind], plain, rates), dtype=np.float64)
