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

from vramcast.core.forecast import Part
from vramcast.core.names import Product
from vramcast.core.products import PRODUCTS, context_mib
from vramcast.core.quantity import MIB
from vramcast.core.task import Task
from vramcast.core.vocabulary import Kind, Optimizer, Precision, Quantization
from vramcast.forecast.description import IS_CONVOLUTION, Description, OpKind
from vramcast.forecast.program import NO_WORKSPACE, Recording, Workspaces
from vramcast.forecast.replay import record
from vramcast.forecast.saved import Array, LayerTable, Saved, layer_table, saved_bytes

VERSION = "physics-2"

WEIGHT_BYTES = {
    Precision.FP32: 4.0, Precision.TF32: 4.0, Precision.AMP_FP16: 4.0, Precision.AMP_BF16: 4.0,
    Precision.FP16: 2.0, Precision.BF16: 2.0, Precision.FP8: 2.0, Precision.INT8: 1.0,
}  # fmt: skip
# Under mixed precision autograd saves half-precision activations, and norms and losses still save fp32.
ACTIVATION_BYTES = {
    Precision.FP32: 4.0, Precision.TF32: 4.0, Precision.AMP_FP16: 2.4, Precision.AMP_BF16: 2.4,
    Precision.FP16: 2.0, Precision.BF16: 2.0, Precision.FP8: 1.5, Precision.INT8: 1.0,
}  # fmt: skip
STATE_BYTES = {
    Optimizer.SGD: 0.0, Optimizer.SGD_MOMENTUM: 4.0, Optimizer.ADAM: 8.0, Optimizer.ADAMW: 8.0, Optimizer.RMSPROP: 4.0,
    Optimizer.ADAGRAD: 4.0, Optimizer.ADAFACTOR: 0.1, Optimizer.LION: 4.0, Optimizer.ADAM8BIT: 2.1,
}  # fmt: skip
_QUANTIZED_BYTES = {Quantization.INT8: 1.05, Quantization.INT4: 0.55, Quantization.NF4: 0.55}

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
_INFERENCE_SHARE = 0.1
# The share of the base's weights that LoRA of rank r trains, per unit of rank: rank 16 trains about half a percent.
_LORA_SHARE_PER_RANK = 0.0003
_SUMMARY_FRAGMENTATION = 0.05
_KV_TENSORS = 2


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


def optimizer_states(optimizer: Optimizer) -> int:
    """Tensors of a parameter's size that the optimizer keeps."""
    return round(STATE_BYTES[optimizer] / 4.0)


def summary_prior(task: Task, product: Product) -> Prior:
    """From totals alone."""
    parameters, activations = task.parameters or 0, task.activations or 0
    parts = [*_model_parts(task, parameters), _activation_part(task, activations * ACTIVATION_BYTES[task.precision])]
    tensors_bytes = sum(part.size_bytes for part in parts)
    parts.append(Part("fragmentation", round(tensors_bytes * _SUMMARY_FRAGMENTATION), "blocks of the allocator"))
    parts.append(_context_part(product, cudnn=task.architecture != "mlp", norms=False))
    total = float(sum(part.size_bytes for part in parts))
    return Prior(total, tuple(part for part in parts if part.size_bytes))


def described_prior(network: Description, task: Task, product: Product) -> Prior:
    """From layers: replayed where the graph is known and the run is a plain one, else the curve."""
    layered = _layered(network)
    plain = (
        task.kind is not Kind.INFERENCE and not task.gradient_checkpointing and task.lora_rank is None
        and task.zero_stage == 0 and WEIGHT_BYTES[task.precision] == ACTIVATION_BYTES[task.precision] == 4.0
    )  # fmt: skip
    if network.replayable and plain:
        return _replayed(network, task, product, layered)
    return _from_curve(network, task, product, layered)


def forget() -> None:
    """Of networks that were met before, nothing is remembered: for measuring what one forecast takes."""
    for remembering in (_layered, _recorded, _replayed_bytes):
        remembering.cache_clear()


# A task is forecast for every product of a cluster, and a sweep asks for one network at many batch sizes: what does not
# hang on the product, or not even on the batch, is computed once.
@lru_cache(maxsize=128)
def _layered(network: Description) -> Layered:
    table = layer_table(network.ops)
    saved = saved_bytes(network, table)
    return Layered(table, saved, _curve(table, saved))


@lru_cache(maxsize=128)
def _recorded(network: Description, states: int) -> Recording:
    return record(network, states)


@lru_cache(maxsize=2048)
def _replayed_bytes(
    network: Description, batches: tuple[int, ...], states: int, convolves: bool
) -> Mapping[str, float]:
    """Reserved bytes by assumption about cuDNN, and the bytes of tensors at their peak."""
    program = _recorded(network, states).program(batches, _WARM_UP_BATCH)
    bare = program.run(NO_WORKSPACE)
    figures = {"bare": float(bare.reserved_bytes), "active": float(bare.peak_active_bytes)}
    if convolves:
        # Workspaces are large: they leave the small blocks as they were.
        large = program.large_only()
        for name, workspace in _WORKSPACES.items():
            figures[name] = float(large.run(workspace, bare).reserved_bytes)
    return figures


def _curve(table: LayerTable, saved: Saved) -> Array:
    fused_share = 1.0 - saved.fused_attention_bytes / max(saved.per_sample_bytes, 1.0)
    return np.asarray(
        np.cumsum(saved.per_layer_bytes) * fused_share + 4.0 * (table.in_elements + table.out_elements),
        dtype=np.float64,
    )


def _replayed(network: Description, task: Task, product: Product, layered: Layered) -> Prior:
    batch, states = task.batch_size, optimizer_states(task.optimizer)
    rest = _EPOCH_SAMPLES % batch
    batches = [batch, batch, *([rest] if rest else []), batch]
    norms = layered.convolves and bool((layered.table.kind == OpKind.BATCH_NORM).any())
    figures = _replayed_bytes(network, tuple(batches), states, layered.convolves)
    chosen = figures["backward" if layered.convolves else "bare"]
    context = _context_part(product, cudnn=layered.convolves, norms=norms)
    model = _model_parts(task, network.parameters)
    model_bytes = sum(part.size_bytes for part in model)
    step_bytes = max(0, round(figures["bare"]) - model_bytes)
    parts = (
        *model,
        Part("activations and blocks", step_bytes, f"steps of {batches} replayed on the caching allocator"),
        Part("workspaces", round(chosen - figures["bare"]), "cuDNN: copies with channels last, in eights"),
        context,
    )
    total = context.size_bytes + chosen
    return Prior(total, tuple(p for p in parts if p.size_bytes), figures, layered)


_WORKSPACES = {
    "everywhere": Workspaces(1, forward=True),
    "backward": Workspaces(1),
    "twice": Workspaces(2),
}


def _from_curve(network: Description, task: Task, product: Product, layered: Layered) -> Prior:
    saved, curve = layered.saved, layered.curve_bytes
    kept = saved.per_sample_bytes - saved.fused_attention_bytes
    logits = 0.0
    if network.sequence_length and network.largest_saved_bytes_per_sample:
        logits = _LOGIT_COPIES * network.largest_saved_bytes_per_sample
    scale = ACTIVATION_BYTES[task.precision] / 4.0
    peak = max(kept + logits, float(curve.max(initial=0.0))) * scale
    parts = [
        *_model_parts(task, network.parameters),
        Part("buffers", round(4.0 * network.buffers), f"{network.buffers:,} x 4 B"),
        _activation_part(task, peak),
        Part("kept whatever the batch", round(saved.static_bytes), "position tables, standardized weights"),
        Part("input", 8 * task.batch_size * network.input_elements, "this batch and the next"),
        *_kv_cache(network, task),
        _context_part(product, cudnn=layered.convolves, norms=False),
    ]
    total = float(sum(part.size_bytes for part in parts))
    figures = {"logits": logits * task.batch_size}
    return Prior(total, tuple(p for p in parts if p.size_bytes), figures, layered)


def _kv_cache(network: Description, task: Task) -> Iterator[Part]:
    """Generating keeps keys and values of every projected token."""
    if task.kind is not Kind.INFERENCE or not network.sequence_length:
        return
    width_bytes = sum(op.in_elements for op in network.ops if op.type == "Linear" and op.channels_out == op.channels_in)
    size = round(_KV_TENSORS / 4 * width_bytes * WEIGHT_BYTES[task.precision] * task.batch_size)
    yield Part("keys and values", size, f"{network.sequence_length} tokens x batch {task.batch_size}")


def _model_parts(task: Task, parameters: int) -> list[Part]:
    trained = parameters
    if task.lora_rank is not None:
        trained = min(parameters, round(parameters * _LORA_SHARE_PER_RANK * task.lora_rank))
    weight_bytes = _QUANTIZED_BYTES.get(task.quantization, WEIGHT_BYTES[task.precision])
    shards = {stage: task.data_parallel_size if task.zero_stage >= stage else 1 for stage in (1, 2, 3)}
    parts = [_part("weights", parameters, weight_bytes, shards[3])]
    if task.kind is not Kind.INFERENCE:
        parts.append(_part("gradients", trained, WEIGHT_BYTES[task.precision], shards[2]))
        parts.append(_part(f"{task.optimizer} states", trained, STATE_BYTES[task.optimizer], shards[1]))
    return parts


def _part(name: str, elements: int, element_bytes: float, shards: int) -> Part:
    sharded = f" / {shards} GPUs" if shards > 1 else ""
    return Part(name, round(elements * element_bytes / shards), f"{elements:,} x {element_bytes:g} B{sharded}")


def _activation_part(task: Task, sample_bytes: float) -> Part:
    share, why = 1.0, ""
    if task.kind is Kind.INFERENCE:
        share, why = _INFERENCE_SHARE, ", freed as the pass goes on"
    elif task.gradient_checkpointing:
        share, why = _CHECKPOINTED_SHARE, ", most recomputed"
    size_bytes = round(sample_bytes * task.batch_size * share)
    return Part("activations", size_bytes, f"{sample_bytes / MIB:,.1f} MiB x batch {task.batch_size}{why}")


def _context_part(product: Product, *, cudnn: bool, norms: bool) -> Part:
    unmeasured = context_mib(product) if product in PRODUCTS else max(_MEASURED_CONTEXT_MIB.values())
    mib = _MEASURED_CONTEXT_MIB.get(product, unmeasured)
    if cudnn and (product in _CUDNN_APART or product not in _MEASURED_CONTEXT_MIB):
        mib += _CUDNN_MIB
    return Part("CUDA context", (mib + (_CUDNN_NORM_MIB if norms else 0)) * MIB, f"one process on {product}")
