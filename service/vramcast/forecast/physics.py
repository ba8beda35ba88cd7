"""The physics prior: what a training step must hold, as a sum of parts that people can check.

There are three ways to get it, from most to least known:
- the whole graph: the step is replayed on the caching allocator, and the prior is what that reserves;
- leaf modules: the peak is the highest point of a curve. At each layer of the backward pass the curve adds what is
  still saved to the gradients around that layer;
- totals: each part is one multiplication, by the rules in `rules.py`.

The first two are of plain fp32 training. In other settings layers tell no more than totals do, and recordings do.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import pairwise
from math import log

import numpy as np

from vramcast.forecast.description import IS_CONVOLUTION, Description, OpKind
from vramcast.forecast.forecast import CONTEXT_PART, Part
from vramcast.forecast.replay import NO_WORKSPACE, RecordedSteps, Replay, Workspaces, record
from vramcast.forecast.rules import model_parts, optimizer_states, step_parts
from vramcast.forecast.saved import Array, LayerTable, Saved, layer_table, saved_bytes
from vramcast.hardware.products import PRODUCTS
from vramcast.names import Product
from vramcast.task.framework import TORCH, is_older
from vramcast.task.quantity import MIB
from vramcast.task.task import Task

VERSION = "physics-3"

# Memory that a device shows as used before the first tensor, where we have measurements: the context, the libraries,
# and what the driver and its services keep. cuDNN and its batch norm load more kernels on top.
_MEASURED_CONTEXT_MIB = {"NVIDIA-A100-SXM4-40GB": 1429, "NVIDIA-GeForce-RTX-3060": 200, "NVIDIA-GeForce-RTX-4060": 200}
_CUDNN_MIB = 250
_CUDNN_NORM_MIB = 40
# FSDP on two A100s with plain kernels: LoRA of Mistral-7B and all weights or QLoRA of santacoder showed 0.9 to 1.3 GiB
# more than torch can have reserved. On one GPU nothing was missing.
_NCCL_MIB = 1024
# Before torch 1.13 CUDA loaded all kernels at the start. An RTX 3090 then had 2,100 MiB less for tensors
# (bench/recordings/context.py), which is so much more than its reserve and a context of today. SchedTune's fp32 runs
# show 630 more there and on a V100, and 40 on a K80, for which torch came with few kernels.
_ALL_KERNELS_MIB = 1150
_LOADS_WHEN_USED = (1, 13)
_FEW_KERNELS_BELOW = 5.0  # compute capability
# On the other measured products every run loaded cuDNN, so the figure already includes it.
_MEASURED_WITHOUT_CUDNN = frozenset({"NVIDIA-A100-SXM4-40GB"})

# A data loader that keeps the last, partial batch of an epoch feeds it too. The replay assumes 4096 samples per epoch.
_EPOCH_SAMPLES = 4096
_WARM_UP_BATCH = 2
# At the loss the logits, their log-softmax and two gradients are live.
_LOGIT_COPIES = 3.0
_CUDNN_COPIES = Workspaces(1)

# Bound over median by accepted risk, for physics without a calibrated model.
_BOUND_FACTORS = ((0.5, 1.0), (0.1, 1.3), (0.05, 1.45), (0.01, 1.9), (0.001, 2.4), (0.0001, 3.0))


@dataclass(frozen=True, slots=True)
class Layered:
    """What the prior knows about each layer."""

    table: LayerTable
    saved: Saved
    curve_bytes: Array  # (operations,) live bytes of one sample when the backward pass reaches a layer

    @property
    def convolves(self) -> bool:
        return bool(IS_CONVOLUTION[self.table.kind].any())


@dataclass(frozen=True, slots=True)
class Prior:
    """The total, its parts, and the intermediate figures that the learned correction uses."""

    total_bytes: float
    parts: tuple[Part, ...]
    held_bytes: int = 0  # weights, gradients and states: no run needs less
    figures: Mapping[str, float] = field(default_factory=dict)
    layered: Layered | None = None


def bound_factor(risk: float) -> float:
    """Linear in log(risk) between the table's entries: halving the risk costs a constant step."""
    clamped = min(max(risk, _BOUND_FACTORS[-1][0]), _BOUND_FACTORS[0][0])
    for (high, low_factor), (low, high_factor) in pairwise(_BOUND_FACTORS):
        if clamped >= low:
            way = (log(high) - log(clamped)) / (log(high) - log(low))
            return low_factor + way * (high_factor - low_factor)
    return _BOUND_FACTORS[-1][1]


def summary_prior(task: Task, product: Product) -> Prior:
    """From totals alone, by the rules for the run's settings."""
    parameters, activations = task.parameters or 0, task.activations or 0
    model = model_parts(task, parameters)
    parts = [
        *model,
        *step_parts(task, parameters, 4.0 * activations),
        context_part(product, cudnn=task.architecture != "mlp", norms=False, framework=task.framework),
    ]
    return Prior(float(_size_bytes(parts)), tuple(part for part in parts if part.size_bytes), _size_bytes(model))


def described_prior(network: Description, task: Task, product: Product) -> Prior:
    """Of plain fp32 training, from layers: a replay if the graph is known, else the curve."""
    layered = layered_of(network)
    return (_from_replay if network.replayable else _from_curve)(network, task, product, layered)


def clear_caches() -> None:
    """For benchmarks that measure an uncached forecast."""
    for cached in (layered_of, _recorded, _replayed):
        cached.cache_clear()


# A task is forecast for every product in the cluster, and a sweep asks for one network at many batch sizes. So results
# that do not depend on the product, or not even on the batch, are cached.
@lru_cache(maxsize=128)
def layered_of(network: Description) -> Layered:
    table = layer_table(network.ops)
    saved = saved_bytes(network, table)
    return Layered(table, saved, _curve(table, saved))


@lru_cache(maxsize=128)
def _recorded(network: Description, states: int) -> RecordedSteps:
    return record(network, states)


@lru_cache(maxsize=2048)
def _replayed(network: Description, batches: tuple[int, ...], states: int, convolves: bool) -> Replay:
    """One replay, with cuDNN's likely copies: replays with other assumptions taught the model nothing (docs/log.md)."""
    program = _recorded(network, states).program(batches, _WARM_UP_BATCH)
    return program.run(_CUDNN_COPIES if convolves else NO_WORKSPACE)


def _curve(table: LayerTable, saved: Saved) -> Array:
    fused_share = 1.0 - saved.fused_attention_bytes / max(saved.per_sample_bytes, 1.0)
    return np.asarray(
        np.cumsum(saved.per_layer_bytes) * fused_share + 4.0 * (table.in_elements + table.out_elements),
        dtype=np.float64,
    )


def _from_replay(network: Description, task: Task, product: Product, layered: Layered) -> Prior:
    batch, states = task.batch_size, optimizer_states(task.optimizer)
    rest = _EPOCH_SAMPLES % batch
    # cuDNN's copies outweigh the fragmentation by a partial batch, so for convolutions two steps are enough.
    batches = (batch, batch) if layered.convolves else (batch, batch, *([rest] if rest else []), batch)
    norms = layered.convolves and bool((layered.table.kind == OpKind.BATCH_NORM).any())
    replayed = _replayed(network, batches, states, layered.convolves)
    model = model_parts(task, network.parameters)
    held_bytes = _size_bytes(model)
    step_bytes = max(0, replayed.reserved_bytes - held_bytes)
    how = f"steps of {list(batches)} replayed on the caching allocator"
    how += ", with cuDNN's copies in channels-last layout" if layered.convolves else ""
    context = context_part(product, cudnn=layered.convolves, norms=norms, framework=task.framework)
    parts = (*model, Part("activations and blocks", step_bytes, how), context)
    figures = {"reserved": float(replayed.reserved_bytes), "active": float(replayed.peak_active_bytes)}
    total = float(context.size_bytes + replayed.reserved_bytes)
    return Prior(total, tuple(p for p in parts if p.size_bytes), held_bytes, figures, layered)


def sample_peak_bytes(network: Description) -> float:
    """Peak live bytes of one sample in fp32: what autograd saves, plus the gradients or logits at that point."""
    layered = layered_of(network)
    saved = layered.saved
    kept = saved.per_sample_bytes - saved.fused_attention_bytes + _logits_bytes(network)
    return max(kept, float(layered.curve_bytes.max(initial=0.0)))


def _logits_bytes(network: Description) -> float:
    """One sample's logits and their copies at the loss; 0 unless it is a language model."""
    if not network.sequence_length or not network.largest_saved_bytes_per_sample:
        return 0.0
    return _LOGIT_COPIES * network.largest_saved_bytes_per_sample


def _from_curve(network: Description, task: Task, product: Product, layered: Layered) -> Prior:
    saved = layered.saved
    model = model_parts(task, network.parameters)
    parts = [
        *model,
        Part("buffers", round(4.0 * network.buffers), f"{network.buffers:,} x 4 B"),
        *step_parts(task, network.parameters, sample_peak_bytes(network)),
        Part("batch-independent tensors", round(saved.static_bytes), "position tables, standardized weights"),
        Part("input", 8 * task.batch_size * network.input_elements, "this batch and the next"),
        context_part(product, cudnn=layered.convolves, norms=False, framework=task.framework),
    ]
    total = float(_size_bytes(parts))
    figures = {"logits": _logits_bytes(network) * task.batch_size}
    return Prior(total, tuple(p for p in parts if p.size_bytes), _size_bytes(model), figures, layered)


def _size_bytes(parts: Iterable[Part]) -> int:
    return sum(part.size_bytes for part in parts)


def context_part(
    product: Product, *, cudnn: bool, norms: bool, communicates: bool = False, framework: str = ""
) -> Part:
    """`communicates`: with other GPUs."""
    unmeasured = PRODUCTS[product].context_mib if product in PRODUCTS else max(_MEASURED_CONTEXT_MIB.values())
    mib = _MEASURED_CONTEXT_MIB.get(product, unmeasured)
    if cudnn and (product in _MEASURED_WITHOUT_CUDNN or product not in _MEASURED_CONTEXT_MIB):
        mib += _CUDNN_MIB
    few = product in PRODUCTS and PRODUCTS[product].compute_capability < _FEW_KERNELS_BELOW
    all_kernels = bool(framework) and not few and is_older(framework, TORCH, _LOADS_WHEN_USED)
    mib += (_CUDNN_NORM_MIB if norms else 0) + (_NCCL_MIB if communicates else 0)
    mib += _ALL_KERNELS_MIB if all_kernels else 0
    how = f"one process on {product}{', with NCCL' if communicates else ''}"
    version = ".".join(map(str, _LOADS_WHEN_USED))
    return Part(CONTEXT_PART, mib * MIB, how + f", with all kernels, as before torch {version}" * all_kernels)


def least_context_mib(product: Product) -> int:
    """What a process surely takes besides its tensors: of several figures, the smallest."""
    known = (_MEASURED_CONTEXT_MIB.get(product), PRODUCTS[product].context_mib if product in PRODUCTS else None)
    return min((mib for mib in known if mib is not None), default=min(_MEASURED_CONTEXT_MIB.values()))
