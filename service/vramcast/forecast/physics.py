"""The physics prior: what a step must hold, as a sum of parts that can be shown to a person.

Where the whole graph is known, a training step is replayed on the allocator and the prior is what it reserves. Where
only leaf modules are known, the peak is read off a curve: at each layer of the backward pass, what is still saved
plus the gradients around it. Where only totals are known, each part is one multiplication.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np

from vramcast.forecast.description import IS_CONVOLUTION, Description, OpKind
from vramcast.forecast.forecast import Part
from vramcast.forecast.program import NO_WORKSPACE, Recording, Replay, Workspaces
from vramcast.forecast.replay import record
from vramcast.forecast.saved import Array, LayerTable, Saved, layer_table, saved_bytes
from vramcast.forecast.weights import WEIGHT_BYTES, model_parts, optimizer_states, update_bytes
from vramcast.hardware.products import PRODUCTS, context_mib
from vramcast.names import Product
from vramcast.task.quantity import MIB
from vramcast.task.task import Task
from vramcast.task.vocabulary import Kind, Precision

VERSION = "physics-3"

# Under mixed precision autograd saves half-precision activations, and norms and losses still save fp32.
ACTIVATION_BYTES = {
    Precision.FP32: 4.0, Precision.TF32: 4.0, Precision.AMP_FP16: 2.4, Precision.AMP_BF16: 2.4,
    Precision.FP16: 2.0, Precision.BF16: 2.0, Precision.FP8: 1.5, Precision.INT8: 1.0,
}  # fmt: skip
# What a device shows as used before the first tensor, where it was measured: context, libraries and what the driver
# and its services keep. cuDNN and its batch norm load kernels of their own.
_MEASURED_CONTEXT_MIB = {"NVIDIA-A100-SXM4-40GB": 1429, "NVIDIA-GeForce-RTX-3060": 200, "NVIDIA-GeForce-RTX-4060": 200}
_CUDNN_MIB = 250
_CUDNN_NORM_MIB = 40
# Where a context was measured on runs that all loaded cuDNN, it is in the figure already.
_CUDNN_APART = frozenset({"NVIDIA-A100-SXM4-40GB"})

# A loader that does not drop the last batch of an epoch feeds it too; 4096 samples is what the replay assumes.
_EPOCH_SAMPLES = 4096
_WARM_UP_BATCH = 2
# At the loss the logits live beside their log-softmax and two gradients.
_LOGIT_COPIES = 3.0
# Recomputing keeps about the square root of the layers; eight is a typical ratio for the nets it is used on.
_CHECKPOINTED_SHARE = 0.125
_NORMS_PER_BLOCK = 2
_INFERENCE_SHARE = 0.1
_KV_TENSORS = 2
_CUDNN_COPIES = Workspaces(1)


@dataclass(frozen=True, slots=True)
class Layered:
    """What the prior knows layer by layer."""

    table: LayerTable
    saved: Saved
    curve_bytes: Array  # (operations,) live bytes of one sample as the backward pass reaches a layer

    @property
    def convolves(self) -> bool:
        return bool(IS_CONVOLUTION[self.table.kind].any())


@dataclass(frozen=True, slots=True)
class Prior:
    """The sum, its parts, and the intermediate figures that the learned correction may weigh."""

    total_bytes: float
    parts: tuple[Part, ...]
    figures: Mapping[str, float] = field(default_factory=dict)
    layered: Layered | None = None


def held_share(task: Task) -> float:
    """Of the fp32 bytes that a training step saves, what this run holds at once."""
    share = ACTIVATION_BYTES[task.precision] / 4.0
    if task.kind is Kind.INFERENCE:
        return share * _INFERENCE_SHARE
    return share * (_CHECKPOINTED_SHARE if task.gradient_checkpointing else 1.0)


def summary_prior(task: Task, product: Product) -> Prior:
    """From totals alone."""
    parameters, activations = task.parameters or 0, task.activations or 0
    parts = [
        *model_parts(task, parameters),
        *_step_parts(task, 4.0 * activations, update_bytes(task, parameters)),
        _context_part(product, cudnn=task.architecture != "mlp", norms=False),
    ]
    total = float(sum(part.size_bytes for part in parts))
    return Prior(total, tuple(part for part in parts if part.size_bytes))


def described_prior(network: Description, task: Task, product: Product) -> Prior:
    """From layers: replayed where the graph is known and the run is a plain one, else the curve."""
    layered = layers_of(network)
    plain = (
        task.kind is not Kind.INFERENCE and not task.gradient_checkpointing and task.lora_rank is None
        and task.zero_stage == 0 and WEIGHT_BYTES[task.precision] == ACTIVATION_BYTES[task.precision] == 4.0
    )  # fmt: skip
    if network.replayable and plain:
        return _from_replay(network, task, product, layered)
    return _from_curve(network, task, product, layered)


def forget() -> None:
    """Of networks that were met before, nothing is remembered: for measuring what one forecast takes."""
    for remembering in (layers_of, _recorded, _replayed):
        remembering.cache_clear()


# A task is forecast for every product of a cluster, and a sweep asks for one network at many batch sizes: what does not
# hang on the product, or not even on the batch, is computed once.
@lru_cache(maxsize=128)
def layers_of(network: Description) -> Layered:
    table = layer_table(network.ops)
    saved = saved_bytes(network, table)
    return Layered(table, saved, _curve(table, saved))


@lru_cache(maxsize=128)
def _recorded(network: Description, states: int) -> Recording:
    return record(network, states)


@lru_cache(maxsize=2048)
def _replayed(network: Description, batches: tuple[int, ...], states: int, convolves: bool) -> Replay:
    """Once, with cuDNN's likely copies: other assumptions about them told the learned part nothing (docs/log.md)."""
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
    # What cuDNN takes outweighs what the odd batch cuts up: there two steps say as much as four.
    batches = (batch, batch) if layered.convolves else (batch, batch, *([rest] if rest else []), batch)
    norms = layered.convolves and bool((layered.table.kind == OpKind.BATCH_NORM).any())
    replayed = _replayed(network, batches, states, layered.convolves)
    model = model_parts(task, network.parameters)
    step_bytes = max(0, replayed.reserved_bytes - sum(part.size_bytes for part in model))
    how = f"steps of {list(batches)} replayed on the caching allocator"
    how += ", with cuDNN's copies in channels-last layout" if layered.convolves else ""
    context = _context_part(product, cudnn=layered.convolves, norms=norms)
    parts = (
        *model,
        Part("activations and blocks", step_bytes, how),
        context,
    )
    figures = {"reserved": float(replayed.reserved_bytes), "active": float(replayed.peak_active_bytes)}
    total = float(context.size_bytes + replayed.reserved_bytes)
    return Prior(total, tuple(p for p in parts if p.size_bytes), figures, layered)


def sample_peak_bytes(network: Description) -> float:
    """Bytes of one sample in fp32 that live at once: what autograd keeps, and the gradients or logits at its peak."""
    layered = layers_of(network)
    saved = layered.saved
    kept = saved.per_sample_bytes - saved.fused_attention_bytes + logits_bytes(network)
    return max(kept, float(layered.curve_bytes.max(initial=0.0)))


def logits_bytes(network: Description) -> float:
    """Of one sample: a language model's logits and their copies at the loss."""
    if not network.sequence_length or not network.largest_saved_bytes_per_sample:
        return 0.0
    return _LOGIT_COPIES * network.largest_saved_bytes_per_sample


def _from_curve(network: Description, task: Task, product: Product, layered: Layered) -> Prior:
    saved = layered.saved
    parts = [
        *model_parts(task, network.parameters, network),
        Part("buffers", round(4.0 * network.buffers), f"{network.buffers:,} x 4 B"),
        *_step_parts(task, sample_peak_bytes(network), update_bytes(task, network.parameters), network),
        Part("kept whatever the batch", round(saved.static_bytes), "position tables, standardized weights"),
        Part("input", 8 * task.batch_size * network.input_elements, "this batch and the next"),
        *_kv_cache(network, task),
        _context_part(product, cudnn=layered.convolves, norms=False),
    ]
    total = float(sum(part.size_bytes for part in parts))
    figures = {"logits": logits_bytes(network) * task.batch_size}
    return Prior(total, tuple(p for p in parts if p.size_bytes), figures, layered)


def _kv_cache(network: Description, task: Task) -> Iterator[Part]:
    """Generating keeps keys and values of every projected token."""
    if task.kind is not Kind.INFERENCE or not network.sequence_length:
        return
    width_bytes = sum(op.in_elements for op in network.ops if op.type == "Linear" and op.channels_out == op.channels_in)
    size = round(_KV_TENSORS / 4 * width_bytes * WEIGHT_BYTES[task.precision] * task.batch_size)
    yield Part("keys and values", size, f"{network.sequence_length} tokens x batch {task.batch_size}")


def _step_parts(task: Task, fp32_bytes: float, update: float, network: Description | None = None) -> Iterator[Part]:
    """Activations of a step, from one sample's peak in fp32; and the update's copies where those are more."""
    logits = logits_bytes(network) if network else 0.0
    body, why = _held_bytes(task, max(0.0, fp32_bytes - logits), network)
    sample_bytes = ACTIVATION_BYTES[task.precision] / 4.0 * body + _at_loss_bytes(task, logits)
    size_bytes = round(sample_bytes * task.batch_size)
    yield Part("activations", size_bytes, f"{sample_bytes / MIB:,.1f} MiB x batch {task.batch_size}{why}")
    copied = max(0, round(update) - size_bytes)
    yield Part("update", copied, "the optimizer's lists hold a copy of what is trained, when activations are gone")


def _held_bytes(task: Task, body: float, network: Description | None) -> tuple[float, str]:
    """Of what a sample's activations take in fp32, what is there at once; and why."""
    if task.kind is Kind.INFERENCE:
        return body * _INFERENCE_SHARE, ", freed as the pass goes on"
    if not task.gradient_checkpointing:
        return body, ""
    norms = [op.out_elements for op in network.ops if op.kind is OpKind.LAYER_NORM] if network else []
    if network is None or not network.sequence_length or not norms:
        return body * _CHECKPOINTED_SHARE, ", most recomputed"
    blocks = max(1, len(norms) // _NORMS_PER_BLOCK)
    kept = min(body, blocks * 4.0 * max(norms) + body / blocks)
    return kept, f", inputs of {blocks} blocks and one block computed anew"


def _at_loss_bytes(task: Task, logits: float) -> float:
    """The loss is computed in fp32, beside the logits and their gradient in the run's own precision."""
    if task.kind is Kind.INFERENCE:
        return logits / _LOGIT_COPIES
    scale = ACTIVATION_BYTES[task.precision] / 4.0
    return logits if scale == 1.0 else logits * (1.0 + 2.0 * scale / _LOGIT_COPIES)


def _context_part(product: Product, *, cudnn: bool, norms: bool) -> Part:
    unmeasured = context_mib(product) if product in PRODUCTS else max(_MEASURED_CONTEXT_MIB.values())
    mib = _MEASURED_CONTEXT_MIB.get(product, unmeasured)
    if cudnn and (product in _CUDNN_APART or product not in _MEASURED_CONTEXT_MIB):
        mib += _CUDNN_MIB
    return Part("CUDA context", (mib + (_CUDNN_NORM_MIB if norms else 0)) * MIB, f"one process on {product}")
