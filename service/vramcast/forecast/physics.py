"""The physics prior: what a training step must hold, as a sum of parts that people can check.

There are three ways to get it, from most to least known:
- the whole graph: the step is replayed on the caching allocator, and the prior is what that reserves;
- leaf modules: the peak is the highest point of a curve. At each layer of the backward pass the curve adds what is
  still saved to the gradients around that layer;
- totals: each part is one multiplication.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import pairwise
from math import log

import numpy as np

from vramcast.forecast.description import IS_CONVOLUTION, Description, OpKind
from vramcast.forecast.forecast import CONTEXT_PART, Part
from vramcast.forecast.replay import NO_WORKSPACE, RecordedSteps, Replay, Workspaces, record
from vramcast.forecast.saved import Array, LayerTable, Saved, layer_table, saved_bytes
from vramcast.hardware.products import PRODUCTS
from vramcast.names import Product
from vramcast.task.quantity import MIB
from vramcast.task.task import Task
from vramcast.task.vocabulary import Kind, Optimizer, Precision, Quantization

VERSION = "physics-3"

_WEIGHT_BYTES = {
    Precision.FP32: 4.0, Precision.TF32: 4.0, Precision.AMP_FP16: 4.0, Precision.AMP_BF16: 4.0,
    Precision.FP16: 2.0, Precision.BF16: 2.0, Precision.FP8: 2.0, Precision.INT8: 1.0,
}  # fmt: skip
# Mixed precision saves activations in 16 bits, but norms and losses still save fp32.
_ACTIVATION_BYTES = {
    Precision.FP32: 4.0, Precision.TF32: 4.0, Precision.AMP_FP16: 2.4, Precision.AMP_BF16: 2.4,
    Precision.FP16: 2.0, Precision.BF16: 2.0, Precision.FP8: 1.5, Precision.INT8: 1.0,
}  # fmt: skip
_STATE_BYTES = {
    Optimizer.SGD: 0.0, Optimizer.SGD_MOMENTUM: 4.0, Optimizer.ADAM: 8.0, Optimizer.ADAMW: 8.0, Optimizer.RMSPROP: 4.0,
    Optimizer.ADAGRAD: 4.0, Optimizer.ADAFACTOR: 0.1, Optimizer.LION: 4.0, Optimizer.ADAM8BIT: 2.1,
}  # fmt: skip
_MASTER_BYTES = 4.0
# PyTorch gives a state the type of its parameter, so a model cast to 16 bits has 16-bit states.
_CAST = frozenset({Precision.FP16, Precision.BF16})
_STATES_LIKE_WEIGHTS = frozenset({
    Optimizer.SGD_MOMENTUM, Optimizer.ADAM, Optimizer.ADAMW, Optimizer.RMSPROP, Optimizer.ADAGRAD, Optimizer.LION,
})  # fmt: skip
_QUANTIZED_BYTES = {Quantization.INT8: 1.05, Quantization.INT4: 0.55, Quantization.NF4: 0.55}
# Embeddings, norms and the head are not quantized: about a seventh of a model with a few billion parameters.
_UNQUANTIZED_SHARE = 0.15
_UNQUANTIZED_BYTES = 2.0
# PEFT keeps adapters in fp32 even when the base model has fewer bits.
_ADAPTER_BYTES = 4.0
# Share of the base weights that LoRA trains per unit of rank: rank 16 trains about half a percent.
_LORA_SHARE_PER_RANK = 0.0003

# Memory that a device shows as used before the first tensor, where we have measurements: the context, the libraries,
# and what the driver and its services keep. cuDNN and its batch norm load more kernels on top.
_MEASURED_CONTEXT_MIB = {"NVIDIA-A100-SXM4-40GB": 1429, "NVIDIA-GeForce-RTX-3060": 200, "NVIDIA-GeForce-RTX-4060": 200}
_CUDNN_MIB = 250
_CUDNN_NORM_MIB = 40
# On the other measured products every run loaded cuDNN, so the figure already includes it.
_MEASURED_WITHOUT_CUDNN = frozenset({"NVIDIA-A100-SXM4-40GB"})

# A data loader that keeps the last, partial batch of an epoch feeds it too. The replay assumes 4096 samples per epoch.
_EPOCH_SAMPLES = 4096
_WARM_UP_BATCH = 2
# At the loss the logits, their log-softmax and two gradients are live.
_LOGIT_COPIES = 3.0
# Checkpointing keeps about the square root of the layers. One eighth is typical for the networks it is used on.
_CHECKPOINTED_SHARE = 0.125
# A layer that repeats this many times less than the most frequent one is not in every block.
_RARE = 8
_INFERENCE_SHARE = 0.1
_KV_TENSORS = 2
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


def held_share(task: Task) -> float:
    """Share of the fp32 bytes saved by a plain training step that this run holds at its peak."""
    share = _ACTIVATION_BYTES[task.precision] / 4.0
    if task.kind is Kind.INFERENCE:
        return share * _INFERENCE_SHARE
    return share * (_CHECKPOINTED_SHARE if task.gradient_checkpointing else 1.0)


def summary_prior(task: Task, product: Product) -> Prior:
    """From totals alone."""
    parameters, activations = task.parameters or 0, task.activations or 0
    model = _model_parts(task, parameters)
    parts = [
        *model,
        *_step_parts(task, 4.0 * activations, _update_bytes(task, parameters)),
        context_part(product, cudnn=task.architecture != "mlp", norms=False),
    ]
    return Prior(float(_size_bytes(parts)), tuple(part for part in parts if part.size_bytes), _size_bytes(model))


def described_prior(network: Description, task: Task, product: Product) -> Prior:
    """From layers: a replay if the graph is known and the run is plain fp32 training, else the curve."""
    layered = _layered(network)
    plain = (
        task.kind is not Kind.INFERENCE and not task.gradient_checkpointing and task.lora_rank is None
        and task.zero_stage == 0 and _WEIGHT_BYTES[task.precision] == _ACTIVATION_BYTES[task.precision] == 4.0
    )  # fmt: skip
    if network.replayable and plain:
        return _from_replay(network, task, product, layered)
    return _from_curve(network, task, product, layered)


def clear_caches() -> None:
    """For benchmarks that measure an uncached forecast."""
    for cached in (_layered, _recorded, _replayed, _blocks):
        cached.cache_clear()


# A task is forecast for every product in the cluster, and a sweep asks for one network at many batch sizes. So results
# that do not depend on the product, or not even on the batch, are cached.
@lru_cache(maxsize=128)
def _layered(network: Description) -> Layered:
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
    model = _model_parts(task, network.parameters)
    held_bytes = _size_bytes(model)
    step_bytes = max(0, replayed.reserved_bytes - held_bytes)
    how = f"steps of {list(batches)} replayed on the caching allocator"
    how += ", with cuDNN's copies in channels-last layout" if layered.convolves else ""
    context = context_part(product, cudnn=layered.convolves, norms=norms)
    parts = (*model, Part("activations and blocks", step_bytes, how), context)
    figures = {"reserved": float(replayed.reserved_bytes), "active": float(replayed.peak_active_bytes)}
    total = float(context.size_bytes + replayed.reserved_bytes)
    return Prior(total, tuple(p for p in parts if p.size_bytes), held_bytes, figures, layered)


def sample_peak_bytes(network: Description) -> float:
    """Peak live bytes of one sample in fp32: what autograd saves, plus the gradients or logits at that point."""
    layered = _layered(network)
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
    model = _model_parts(task, network.parameters, network)
    parts = [
        *model,
        Part("buffers", round(4.0 * network.buffers), f"{network.buffers:,} x 4 B"),
        *_step_parts(task, sample_peak_bytes(network), _update_bytes(task, network.parameters), network),
        Part("batch-independent tensors", round(saved.static_bytes), "position tables, standardized weights"),
        Part("input", 8 * task.batch_size * network.input_elements, "this batch and the next"),
        *_kv_cache(network, task),
        context_part(product, cudnn=layered.convolves, norms=False),
    ]
    total = float(_size_bytes(parts))
    figures = {"logits": _logits_bytes(network) * task.batch_size}
    return Prior(total, tuple(p for p in parts if p.size_bytes), _size_bytes(model), figures, layered)


def _size_bytes(parts: Iterable[Part]) -> int:
    return sum(part.size_bytes for part in parts)


def _kv_cache(network: Description, task: Task) -> Iterator[Part]:
    if task.kind is not Kind.INFERENCE or not network.sequence_length:
        return
    width_bytes = sum(op.in_elements for op in network.ops if op.type == "Linear" and op.channels_out == op.channels_in)
    size = round(_KV_TENSORS / 4 * width_bytes * _WEIGHT_BYTES[task.precision] * task.batch_size)
    yield Part("keys and values", size, f"{network.sequence_length} tokens x batch {task.batch_size}")


def _step_parts(task: Task, fp32_bytes: float, update: float, network: Description | None = None) -> Iterator[Part]:
    """A step's activations, from one sample's fp32 peak; and the update's copies, as far as they exceed those."""
    logits = _logits_bytes(network) if network else 0.0
    body, why = _held_bytes(task, max(0.0, fp32_bytes - logits), network)
    sample_bytes = _ACTIVATION_BYTES[task.precision] / 4.0 * body + _at_loss_bytes(task, logits)
    size_bytes = round(sample_bytes * task.batch_size)
    yield Part("activations", size_bytes, f"{sample_bytes / MIB:,.1f} MiB x batch {task.batch_size}{why}")
    copied = max(0, round(update) - size_bytes)
    yield Part("update", copied, "the optimizer copies all trained weights after the activations are freed")


def _held_bytes(task: Task, body: float, network: Description | None) -> tuple[float, str]:
    """How much of a sample's fp32 activations is live at once, and why."""
    if task.kind is Kind.INFERENCE:
        return body * _INFERENCE_SHARE, ", freed layer by layer"
    if not task.gradient_checkpointing:
        return body, ""
    norms = [op.out_elements for op in network.ops if op.kind is OpKind.LAYER_NORM] if network else []
    if network is None or not network.sequence_length or not norms:
        return body * _CHECKPOINTED_SHARE, ", most recomputed"
    blocks = _blocks(network)
    kept = min(body, blocks * 4.0 * max(norms) + body / blocks)
    return kept, f", the inputs of {blocks} blocks and one recomputed block"


@lru_cache(maxsize=128)
def _blocks(network: Description) -> int:
    """Every block has a layer that it has once, so the layer that repeats least tells how many blocks there are."""
    weighted = Counter((op.type, op.in_elements, op.out_elements, op.parameters) for op in network.ops if op.parameters)
    most = max(weighted.values(), default=1)
    return min((times for times in weighted.values() if times > 1 and times * _RARE >= most), default=1)


def _at_loss_bytes(task: Task, logits: float) -> float:
    """The loss is computed in fp32 while the logits and their gradient exist in the run's precision."""
    if task.kind is Kind.INFERENCE:
        return logits / _LOGIT_COPIES
    scale = _ACTIVATION_BYTES[task.precision] / 4.0
    return logits if scale == 1.0 else logits * (1.0 + 2.0 * scale / _LOGIT_COPIES)


def context_part(product: Product, *, cudnn: bool, norms: bool) -> Part:
    unmeasured = PRODUCTS[product].context_mib if product in PRODUCTS else max(_MEASURED_CONTEXT_MIB.values())
    mib = _MEASURED_CONTEXT_MIB.get(product, unmeasured)
    if cudnn and (product in _MEASURED_WITHOUT_CUDNN or product not in _MEASURED_CONTEXT_MIB):
        mib += _CUDNN_MIB
    return Part(CONTEXT_PART, (mib + (_CUDNN_NORM_MIB if norms else 0)) * MIB, f"one process on {product}")


def least_context_mib(product: Product) -> int:
    """What a process surely takes besides its tensors: of several figures, the smallest."""
    known = (_MEASURED_CONTEXT_MIB.get(product), PRODUCTS[product].context_mib if product in PRODUCTS else None)
    return min((mib for mib in known if mib is not None), default=min(_MEASURED_CONTEXT_MIB.values()))


# ---------------------------------------------------------------------- weights, gradients, optimizer states


def weight_bytes(task: Task) -> float:
    """Average bytes per parameter on the GPU."""
    quantized = _QUANTIZED_BYTES.get(task.quantization)
    if quantized is None:
        return _WEIGHT_BYTES[task.precision]
    return (1.0 - _UNQUANTIZED_SHARE) * quantized + _UNQUANTIZED_SHARE * _UNQUANTIZED_BYTES


def optimizer_states(optimizer: Optimizer) -> int:
    """How many tensors of a parameter's size the optimizer keeps."""
    return round(_STATE_BYTES[optimizer] / 4.0)


def _trained_parameters(task: Task, parameters: int, network: Description | None) -> int:
    """All of them, or LoRA's adapters: two thin matrices per linear layer, if the layers are known."""
    if task.lora_rank is None:
        return parameters
    adapters = round(parameters * _LORA_SHARE_PER_RANK * task.lora_rank)
    if network is not None:
        linear = [op for op in network.ops if op.kind is OpKind.LINEAR][:-1]  # the last is the head
        adapters = task.lora_rank * sum(op.channels_in + op.channels_out for op in linear) or adapters
    return min(parameters, adapters)


def _model_parts(task: Task, parameters: int, network: Description | None = None) -> list[Part]:
    trained = _trained_parameters(task, parameters, network)
    shards = {stage: task.data_parallel_size if task.zero_stage >= stage else 1 for stage in (1, 2, 3)}
    parts = [_part("weights", parameters, weight_bytes(task), shards[3])]
    if task.kind is Kind.INFERENCE:
        return parts
    trained_bytes = _WEIGHT_BYTES[task.precision]
    if task.lora_rank is not None:
        trained_bytes = _ADAPTER_BYTES
        parts.append(_part("adapters", trained, trained_bytes, shards[3]))
    parts.append(_part("gradients", trained, trained_bytes, shards[2]))
    if task.data_parallel_size > 1 and not task.zero_stage:
        # DistributedDataParallel's default; with gradient_as_bucket_view=True they are the gradients.
        parts.append(_part("gradient buckets", trained, trained_bytes, 1))
    parts.append(_part(f"{task.optimizer} states", trained, _state_bytes(task), shards[1]))
    if has_master(task):
        parts.append(_part("fp32 master weights", trained, _MASTER_BYTES, shards[1]))
    return parts


def _update_bytes(task: Task, parameters: int) -> float:
    """A cast model's update briefly copies everything that is trained.

    In fp32 the measured runs include this copy, so the learned correction covers it.
    """
    lists = optimizer_states(task.optimizer) > 1 and task.kind is not Kind.INFERENCE
    if task.precision not in _CAST or not lists or task.zero_stage or task.lora_rank is not None:
        return 0.0
    return parameters * _WEIGHT_BYTES[task.precision]


def _state_bytes(task: Task) -> float:
    full = _STATE_BYTES[task.optimizer]
    cast = task.precision in _CAST and task.optimizer in _STATES_LIKE_WEIGHTS
    cast = cast and task.lora_rank is None and not has_master(task)
    return full * _WEIGHT_BYTES[task.precision] / 4.0 if cast else full


def has_master(task: Task) -> bool:
    """DeepSpeed updates an fp32 copy of a model that is cast to 16 bits."""
    return task.zero_stage > 0 and task.precision in _CAST and task.lora_rank is None


def _part(name: str, elements: int, element_bytes: float, shards: int) -> Part:
    sharded = f" / {shards} GPUs" if shards > 1 else ""
    return Part(name, round(elements * element_bytes / shards), f"{elements:,} x {element_bytes:.3g} B{sharded}")
