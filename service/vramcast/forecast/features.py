"""A task as numbers, for training and serving alike: facts about the whole network, and a short sequence of tokens.

Sizes are shares of the prior (the model learns a ratio to it) or logarithms. Facts that a sparse description lacks are
zero; the regime flags tell the model which ones. `VERSION` names this layout: an artifact trained on another layout is
refused.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from vramcast.forecast.description import CONVOLUTIONS, IS_CONVOLUTION, Description, OpKind, among
from vramcast.forecast.physics import Layered, Prior, described_prior, summary_prior
from vramcast.forecast.rules import held_share, optimizer_states, weight_bytes
from vramcast.forecast.saved import Array, LayerTable
from vramcast.forecast.summary import summarized
from vramcast.hardware.products import PRODUCTS, GpuSpec
from vramcast.names import Product
from vramcast.task.quantity import MIB
from vramcast.task.task import Task
from vramcast.task.vocabulary import Architecture, Attention, Kind, Optimizer, Precision, Quantization

VERSION = "features-3"


class Regime(IntEnum):
    """How much is known, and so what is left to learn."""

    REPLAYED = 0  # the whole graph, no convolutions
    REPLAYED_CONV = 1  # the whole graph, but not cuDNN's choice of kernels
    TRACED = 2  # leaf modules and the bytes that autograd saves
    SUMMARY = 3  # totals


GPU_FACTS = ("gpu_memory", "gpu_sms", "gpu_bandwidth", "gpu_capability")
_FIGURES = ("reserved", "active", "logits")
_QUANTILES = (10, 25, 50, 75, 90)
_CURVE_POINTS = 7
_QUANTILE_PLACES = np.array(_QUANTILES) / 100.0
_KINDS = tuple(OpKind)
_KIND_NAMES = tuple(kind.name.lower() for kind in OpKind)
_REGIME_FACTS = tuple(f"regime_{regime.name.lower()}" for regime in Regime)
_FAMILIES = (Architecture.MLP, Architecture.CNN, Architecture.TRANSFORMER)
_MEASURED_PRECISIONS = frozenset({Precision.FP32, Precision.TF32})
_WEIGHTED = (*CONVOLUTIONS, OpKind.LINEAR)
_HAS_WEIGHTS = among(*_WEIGHTED)
_COPIED = among(OpKind.CONV, OpKind.POINTWISE, OpKind.GROUPED)
_DEFAULT_SPEC = GpuSpec(Product(""), 40960, 500, 430, 84, 900, 8.0)

TOKENS = 32
_TOKEN_HEADS = among(*_WEIGHTED, OpKind.POOL)
_NORMS = among(OpKind.BATCH_NORM, OpKind.LAYER_NORM)
_ACTIVATIONS = among(OpKind.KEEPS_INPUT, OpKind.KEEPS_OUTPUT)
# Columns: three sizes, weights, kernel, groups, stride, channels in and out, saved and traffic shares, norms,
# activations, dropouts, layers in the token, repeats, position, and the share saved so far.
TOKEN_WIDTH = 18


@dataclass(frozen=True, slots=True)
class Features:
    facts: NDArray[np.float32]  # (facts,)
    tokens: NDArray[np.float32]  # (TOKENS, TOKEN_WIDTH)
    kinds: NDArray[np.int64]  # (TOKENS,), 0 is padding
    prior: Prior
    regime: Regime
    unfamiliar: int  # settings that no measured run had


def describe(network: Description | None, task: Task, product: Product) -> Features:
    """Features of a task on a product; without a network, or in settings that layers do not tell, from a summary."""
    unfamiliar = unfamiliar_settings(task)
    if network and unfamiliar:
        task = summarized(task, network)  # layers tell plain fp32 training only
        network = None
    prior = described_prior(network, task, product) if network and network.ops else summary_prior(task, product)
    layered = prior.layered
    if network is None or layered is None:
        facts = _common(task, product, prior, Regime.SUMMARY, task.parameters or 0) | _summary_facts(task, prior)
        facts |= _optimizer_facts(_reference_optimizer(task, None))
        tokens, kinds = np.zeros((TOKENS, TOKEN_WIDTH), np.float32), np.zeros(TOKENS, np.int64)
        return Features(_vector(facts), tokens, kinds, prior, Regime.SUMMARY, unfamiliar)
    regime = _regime(prior, layered)
    facts = _common(task, product, prior, regime, network.parameters) | _network_facts(network, task, prior, layered)
    facts |= _optimizer_facts(_reference_optimizer(task, network))
    tokens, kinds = make_tokens(layered, task.batch_size, prior.total_bytes)
    return Features(_vector(facts), tokens, kinds, prior, regime, unfamiliar)


def unfamiliar_settings(task: Task) -> int:
    """Only physics covers these settings, so each one reduces the weight of the learned correction."""
    return sum((
        task.precision not in _MEASURED_PRECISIONS, task.kind is Kind.INFERENCE, task.gradient_checkpointing,
        task.lora_rank is not None, task.quantization is not Quantization.NONE, task.zero_stage > 0,
        task.attention is Attention.EAGER and task.sequence_length is not None,
    ))  # fmt: skip


def _regime(prior: Prior, layered: Layered) -> Regime:
    if "reserved" not in prior.figures:
        return Regime.TRACED
    return Regime.REPLAYED_CONV if layered.convolves else Regime.REPLAYED


def _common(task: Task, product: Product, prior: Prior, regime: Regime, parameters: int) -> dict[str, float]:
    spec = PRODUCTS.get(product, _DEFAULT_SPEC)
    facts = dict.fromkeys(_REGIME_FACTS, 0.0) | {_REGIME_FACTS[regime]: 1.0}
    facts |= {
        "log_prior": math.log(prior.total_bytes / MIB),
        "log_batch": math.log2(task.batch_size),
        "log_parameters": math.log(4.0 * parameters + 1),
        "parameters_share": weight_bytes(task) * parameters / prior.total_bytes,
        "gpu_memory": math.log(spec.memory_mib),
        "gpu_sms": math.log(spec.sms),
        "gpu_bandwidth": math.log(spec.bandwidth_gb_per_second),
        "gpu_capability": spec.compute_capability,
        "prior_over_gpu": prior.total_bytes / MIB / spec.memory_mib,
        "epoch_rest": (4096 % task.batch_size) / task.batch_size,
    }
    return facts


def _optimizer_facts(optimizer: Optimizer) -> dict[str, float]:
    return {"states": float(optimizer_states(optimizer)), "plain_sgd": float(optimizer is Optimizer.SGD)}


def _reference_optimizer(task: Task, network: Description | None) -> Optimizer:
    """The optimizer shown to the model. The prior already accounts for the run's own optimizer.

    Each kind of network was measured with one optimizer, so the model takes the optimizer for the kind: a ResNet with
    Adam would look like a synthetic network. Only language models were measured with several optimizers.
    """
    if network is not None and network.sequence_length:
        return task.optimizer
    synthetic = network.replayable if network else task.architecture == Architecture.MLP
    return Optimizer.ADAM if synthetic else Optimizer.SGD_MOMENTUM


def _summary_facts(task: Task, prior: Prior) -> dict[str, float]:
    activations = 4.0 * (task.activations or 0)
    facts = {f"family_{family}": float(task.architecture == family) for family in _FAMILIES}
    return facts | {
        "log_activations": math.log(activations + 1),
        "activations_share": activations * task.batch_size * held_share(task) / prior.total_bytes,
        "operations": math.log1p(task.layers or 0),
        "activations_per_layer": math.log1p(activations / task.layers) if task.layers else 0.0,
        "activations_per_parameter": math.log((activations + 1.0) / (4.0 * (task.parameters or 0) + 1.0)),
    }


def without_optional(facts: NDArray[np.float32]) -> NDArray[np.float32]:
    """Summaries, (rows, facts), without the optional annotations: no layers, no architecture.

    MLPs keep their architecture: a pod without one is assumed to load cuDNN.
    """
    terse = facts.copy()
    terse[:, [_POSITION["operations"], _POSITION["activations_per_layer"]]] = 0.0
    unnamed = terse[:, _POSITION["family_mlp"]] == 0.0
    for family in _FAMILIES:
        terse[unnamed, _POSITION[f"family_{family}"]] = 0.0
    return terse


def _network_facts(network: Description, task: Task, prior: Prior, layered: Layered) -> dict[str, float]:
    table, saved, curve = layered.table, layered.saved, layered.curve_bytes
    batch, total = task.batch_size, prior.total_bytes
    facts = {f"family_{family}": float(network.family == family) for family in _FAMILIES}
    facts |= {f"figure_{name}": prior.figures.get(name, 0.0) / total for name in _FIGURES}
    kept = (saved.per_sample_bytes - saved.fused_attention_bytes) * batch
    later_gradients = 4.0 * np.cumsum(table.parameters[::-1])[::-1]
    facts |= {
        "log_activations": math.log(saved.per_sample_bytes + 1),
        "activations_share": kept / total,
        "operations": math.log1p(len(network.ops)),
        "activations_per_layer": math.log1p(saved.per_sample_bytes / len(network.ops)),
        "activations_per_parameter": math.log((saved.per_sample_bytes + 1.0) / (4.0 * network.parameters + 1.0)),
        "curve_peak": float(curve.max()) * batch / total,
        "curve_peak_at": float(np.argmax(curve)) / len(curve),
        "curve_peak_gradients": float((curve * batch + later_gradients).max()) / total,
        "attention_fused": saved.fused_attention_bytes * batch / total,
        "attention_unfused": saved.unfused_attention_bytes * batch / total,
        "static": saved.static_bytes / total,
        "trace_over_rules": saved.trace_over_rules,
        "input": 4.0 * batch * network.input_elements / total,
        "log_input": math.log(network.input_elements + 1),
        "log_input_batch": math.log(network.input_elements + 1) + math.log(task.batch_size),
        "largest_saved": (network.largest_saved_bytes_per_sample or float(saved.per_layer_bytes.max())) * batch / total,
        "last_output": 4.0 * batch * float(table.out_elements[-1]) / total,
        "in_place": float(table.out_elements[table.in_place].sum() / max(1.0, table.out_elements.sum())),
        "buffers": 4.0 * network.buffers / total,
    }
    facts |= _kind_facts(table, saved.per_layer_bytes, batch, total)
    facts |= _convolution_facts(table, curve, batch, total)
    return facts | _work_facts(table, saved.per_layer_bytes, task.batch_size)


def _kind_facts(table: LayerTable, saved: Array, batch: float, total: float) -> dict[str, float]:
    """Per kind: the count, the outputs' sum and its three largest, what is saved, and the weights."""
    facts: dict[str, float] = {}
    share = 4.0 * batch / total
    counts = np.bincount(table.kind, minlength=len(_KINDS))
    sums = np.bincount(table.kind, table.out_elements, len(_KINDS)) * share
    kept = np.bincount(table.kind, saved, len(_KINDS)) * (batch / total)
    weights = np.bincount(table.kind, table.parameters, len(_KINDS)) * (4.0 / total)
    for kind in np.flatnonzero(counts).tolist():
        name = _KIND_NAMES[kind]
        facts[f"{name}_count"] = float(counts[kind])
        facts[f"{name}_sum"] = float(sums[kind])
        largest = np.sort(table.out_elements[table.kind == kind])[:-4:-1] * share
        for rank, value in enumerate(largest.tolist()):
            facts[f"{name}_largest{rank}"] = value
        facts[f"{name}_saved"] = float(kept[kind])
        if _HAS_WEIGHTS[kind]:
            facts[f"{name}_weights"] = float(weights[kind])
    return facts


def _convolution_facts(table: LayerTable, curve: Array, batch: float, total: float) -> dict[str, float]:
    """The convolution with the most traffic, and what drives cuDNN's choice of kernels."""
    at = np.flatnonzero(IS_CONVOLUTION[table.kind])
    if not at.size:
        return {}
    traffic = 4.0 * (table.in_elements[at] + table.out_elements[at])
    big = at[int(np.argmax(traffic))]
    eights = (table.channels_in[at] % 8 == 0) & (table.channels_out[at] % 8 == 0)
    columns = table.channels_in[at] * table.kernel[at] ** 2 / table.groups[at] * table.positions[at]
    copies = np.sort(_channels_last_bytes(table)[at] * (table.groups[at] <= table.channels_in[at] / 2))[::-1] * batch
    weight = traffic / traffic.sum()
    facts = {f"copies{rank}": float(copies[rank]) / total for rank in range(min(3, copies.size))}
    return facts | {
        "big_channels_in": float(table.channels_in[big]),
        "big_channels_out": float(table.channels_out[big]),
        "big_positions": math.log1p(float(table.positions[big])),
        "big_work": math.log1p(float(table.positions[big]) * batch),
        "big_kernel": float(table.kernel[big]),
        "big_groups": math.log(float(table.groups[big])),
        "big_traffic": float(traffic.max()) * batch / total,
        "big_at": float(big) / len(table.kind),
        "big_weights": math.log1p(4.0 * float(table.parameters[big])),
        "peak_copies": float((curve + _channels_last_bytes(table)).max()) * batch / total,
        "mean_kernel": float((table.kernel[at] * weight).sum()),
        "in_eights": float((eights * weight).sum()),
        "fewest_channels": float(table.channels_in[at][1:].min(initial=10_000.0)),
        "most_channels": float(table.channels_out[at].max()),
        "columns": 4.0 * float(columns.max()) * batch / total,
        "columns_of_one": 4.0 * float(columns.max()) / total,
        "largest_weights": 4.0 * float(table.parameters[at].max()) / total,
        "wide_kernels": float((table.kernel[at] >= 5).sum()),
        "strided": float((table.stride[at] > 1).sum()),
    }


def _channels_last_bytes(table: LayerTable) -> Array:
    """Per sample, cuDNN's channels-last copies of input and output, padded to a multiple of 8 channels."""

    def padded(elements: Array, channels: Array) -> Array:
        grown = np.ceil(channels / 8.0) * 8.0 / np.maximum(channels, 1.0)
        return np.asarray(elements * grown, dtype=np.float64)

    copies = 4.0 * (padded(table.in_elements, table.channels_in) + padded(table.out_elements, table.channels_out))
    return np.where(_COPIED[table.kind], copies, 0.0)


def _work_facts(table: LayerTable, saved: Array, batch: int) -> dict[str, float]:
    """Arithmetic and memory traffic, which drive utilization, and the network's profile from front to back."""
    flops = 2.0 * table.positions * table.parameters * _HAS_WEIGHTS[table.kind]
    count = len(table.kind)
    facts = {
        "log_flops": math.log1p(float(flops.sum()) * batch),
        "log_flops_per_layer": math.log1p(float(flops.sum()) * batch / count),
        "log_largest_flops": math.log1p(float(flops.max()) * batch),
        "log_traffic": math.log1p(float((table.in_elements + table.out_elements).sum()) * batch),
    }
    ordered = np.sort(table.out_elements)
    outputs = np.interp(_QUANTILE_PLACES, np.linspace(0.0, 1.0, count), ordered) if count > 1 else ordered.repeat(5)
    facts |= {f"output_q{q}": math.log1p(float(value)) for q, value in zip(_QUANTILES, outputs, strict=True)}
    running = np.cumsum(saved)
    where = np.linspace(0.0, 1.0, _CURVE_POINTS + 2)[1:-1]
    shares = np.interp(where, np.linspace(0.0, 1.0, count), running / max(float(running[-1]), 1.0))
    return facts | {f"saved_by{index}": float(value) for index, value in enumerate(shares)}


def _names() -> tuple[str, ...]:
    names = [
        *_REGIME_FACTS,
        "log_prior", "log_batch", "log_parameters", "parameters_share", "states", "plain_sgd", "gpu_memory", "gpu_sms",
        "gpu_bandwidth", "gpu_capability", "prior_over_gpu", "epoch_rest",
    ]  # fmt: skip
    names += [f"family_{family}" for family in _FAMILIES]
    names += [f"figure_{name}" for name in _FIGURES]
    names += [
        "log_activations", "activations_share", "operations", "curve_peak", "curve_peak_at", "curve_peak_gradients",
        "attention_fused", "attention_unfused", "static", "trace_over_rules", "input", "log_input", "log_input_batch",
        "largest_saved", "last_output", "in_place", "buffers", "activations_per_layer", "activations_per_parameter",
    ]  # fmt: skip
    for kind in _KINDS:
        name = kind.name.lower()
        names += [f"{name}_count", f"{name}_sum", *(f"{name}_largest{rank}" for rank in range(3)), f"{name}_saved"]
        names += [f"{name}_weights"] if kind in _WEIGHTED else []
    names += [f"copies{rank}" for rank in range(3)]
    names += [
        "big_channels_in", "big_channels_out", "big_positions", "big_work", "big_kernel", "big_groups", "big_traffic",
        "big_at", "big_weights", "peak_copies", "mean_kernel", "in_eights", "fewest_channels", "most_channels",
        "columns", "columns_of_one", "largest_weights", "wide_kernels", "strided", "log_flops", "log_flops_per_layer",
        "log_largest_flops", "log_traffic",
    ]  # fmt: skip
    names += [f"output_q{q}" for q in _QUANTILES] + [f"saved_by{index}" for index in range(_CURVE_POINTS)]
    return tuple(names)


FACTS = _names()
_POSITION = {name: index for index, name in enumerate(FACTS)}


def _vector(facts: dict[str, float]) -> NDArray[np.float32]:
    vector = np.zeros(len(FACTS), np.float32)
    vector[[_POSITION[name] for name in facts]] = list(facts.values())
    return vector


# ---------------------------------------------------------------------- layer tokens


def make_tokens(layered: Layered, batch: float, total_bytes: float) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """(TOKENS, TOKEN_WIDTH), and the kinds, which start at 1 because 0 is padding.

    A weighted layer and the layers up to the next one share a token.
    """
    table, saved = layered.table, layered.saved
    heads = _TOKEN_HEADS[table.kind]
    heads[0] = True
    starts = np.flatnonzero(heads)
    columns = np.stack([
        table.out_elements, saved.per_layer_bytes, table.in_elements + table.out_elements, table.parameters,
        _NORMS[table.kind].astype(np.float64),
        _ACTIVATIONS[table.kind].astype(np.float64),
        (table.kind == OpKind.DROPOUT).astype(np.float64),
        np.ones(len(table.kind)),
    ])  # fmt: skip
    sums = np.add.reduceat(columns, starts, axis=1)  # (8, tokens)
    first = np.stack([
        table.in_elements, table.out_elements, table.kernel, table.groups, table.stride, table.channels_in,
        table.channels_out,
    ])[:, starts]  # fmt: skip
    kinds = table.kind[starts]
    merged = _merge_repeats(np.concatenate([kinds[None], first, sums]))
    return _fill(_shorten(merged), saved.per_sample_bytes, batch, total_bytes)


def _merge_repeats(columns: NDArray[np.float64]) -> NDArray[np.float64]:
    """Merges runs of equal tokens; the last row counts them."""
    same = np.all(columns[:, 1:] == columns[:, :-1], axis=0)
    starts = np.flatnonzero(np.concatenate([[True], ~same]))
    counts = np.diff(np.append(starts, columns.shape[1])).astype(np.float64)
    kept = columns[:, starts].copy()
    kept[8:] *= counts
    return np.concatenate([kept, counts[None]])


def _shorten(columns: NDArray[np.float64]) -> NDArray[np.float64]:
    """Merges neighbours if there are too many: sums add up, and the layer with the most traffic gives the rest."""
    count = columns.shape[1]
    if count <= TOKENS:
        return columns
    starts = np.unique(np.arange(TOKENS) * count // TOKENS)
    ends = np.append(starts[1:], count)
    traffic = columns[10]
    largest = np.array([low + int(np.argmax(traffic[low:high])) for low, high in zip(starts, ends, strict=True)])
    shortened = columns[:, largest].copy()
    shortened[8:] = np.add.reduceat(columns[8:], starts, axis=1)
    return shortened


def _fill(
    columns: NDArray[np.float64], sample_bytes: float, batch: float, total_bytes: float
) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    count = columns.shape[1]
    kind, in_first, out_first, kernel, groups, stride, channels_in, channels_out = columns[:8]
    outputs, saved, traffic, parameters, norms, activations, dropouts, layers, repeats = columns[8:]
    rows = np.stack([
        np.log1p(4.0 * batch * in_first / MIB), np.log1p(4.0 * batch * out_first / MIB),
        np.log1p(4.0 * batch * outputs / MIB), np.log1p(4.0 * parameters / MIB), kernel / 4.0, np.log(groups) / 4.0,
        stride - 1.0, np.log1p(channels_in) / 4.0, np.log1p(channels_out) / 4.0, 8.0 * saved * batch / total_bytes,
        8.0 * 4.0 * traffic * batch / total_bytes, np.minimum(norms, 4.0) / 2.0, np.minimum(activations, 4.0) / 2.0,
        np.minimum(dropouts, 4.0) / 2.0, np.log1p(layers), np.log(repeats), np.arange(count) / TOKENS,
        np.cumsum(saved) / max(sample_bytes, 1.0),
    ])  # fmt: skip
    tokens = np.zeros((TOKENS, TOKEN_WIDTH), np.float32)
    tokens[:count] = rows.T
    kinds = np.zeros(TOKENS, np.int64)
    kinds[:count] = kind.astype(np.int64) + 1
    return tokens, kinds
