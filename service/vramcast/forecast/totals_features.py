"""A task of which only totals are known, as numbers: for the model that learned from recordings what totals leave out.

A step's memory over its size is a floor and a line: what is held while the optimizer updates, and what a forward and
backward pass adds to the weights for each token, or for each sample where the network reads no tokens. So neither the
batch nor the length is a fact: the model learns the floor, where the line begins and how steep it is, and its forecasts
rise with both. Facts of layers are zero, and there are no tokens, where only a summary is known. `VERSION` names this
layout.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from vramcast.forecast.description import IS_CONVOLUTION, Description, OpKind
from vramcast.forecast.features import TOKEN_WIDTH, TOKENS, make_tokens
from vramcast.forecast.physics import layered_of
from vramcast.forecast.rules import held_share, model_parts, optimizer_states, weight_bytes
from vramcast.forecast.totals_blocks import unit_bytes
from vramcast.task.task import Task
from vramcast.task.vocabulary import (
    Architecture,
    Attention,
    Kernels,
    Kind,
    LoraTargets,
    Optimizer,
    Precision,
    Quantization,
)

VERSION = "totals-3"
# DeepSpeed's defaults, in elements: the bucket that gradients are reduced in, and the weights that stay gathered.
_BUCKET = 5e8
_LIVE = 1e9
# Two blocks of thirty are gathered at a time.
_FSDP_UNIT = 0.06
# Layers are shown at this length, so that they say the same whatever the task's is.
_SHOWN_LENGTH = 512
_FAMILIES = (Architecture.CNN, Architecture.TRANSFORMER, Architecture.DIFFUSION)
_AMP = frozenset({Precision.AMP_BF16, Precision.AMP_FP16})
_CAST = frozenset({Precision.BF16, Precision.FP16})
_PLAIN = (
    *(f"family_{family}" for family in _FAMILIES), "log_parameters", "log_activations", "activations_per_parameter",
    "reads_tokens", "layers_told", "log_layers", "parameters_per_layer", "activations_per_layer",
    "activations_per_width",
)  # fmt: skip
_SETTINGS = (
    "amp", "cast", "checkpointed", "lora", "log_rank", "adapts_attention", "nf4", "int8", "int4", "upcast", "fused",
    "liger", "eager", "inference", "states", "state_bytes", "adam8bit", "adafactor", "stage", "stage_3", "ddp",
    "log_gpus", "masters", "accumulates", "weight_bytes", "held_per_parameter", "held_share",
)  # fmt: skip
_LAYERS = ("has_layers", "largest_saved", "embedding_parameters", "largest_parameters", "norm_outputs",
           "convolution_outputs", "linear_outputs", "weighted", "fused_attention", "buffers")  # fmt: skip
FACTS = (*_PLAIN, *_SETTINGS, *_LAYERS)
OF_LAYERS = tuple(FACTS.index(name) for name in _LAYERS)


@dataclass(frozen=True, slots=True)
class RuledTotals:
    """What the rules say, which the learned factors multiply."""

    held_bytes: float  # weights, gradients and states, with what sharding gathers
    unit_bytes: float  # that a token adds, or a sample where there are no tokens
    units: float  # in the task's batch


@dataclass(frozen=True, slots=True)
class TotalsFeatures:
    facts: NDArray[np.float32]  # (facts,)
    tokens: NDArray[np.float32]  # (TOKENS, TOKEN_WIDTH)
    kinds: NDArray[np.int64]  # (TOKENS,)
    totals: RuledTotals


def describe_totals(task: Task, network: Description | None) -> TotalsFeatures:
    """Of a summarized task; `network` has its layers, where they are known."""
    facts = _plain_facts(task) | _setting_facts(task)
    if network is None or not network.ops:
        tokens, kinds = np.zeros((TOKENS, TOKEN_WIDTH), np.float32), np.zeros(TOKENS, np.int64)
    else:
        layers, tokens, kinds = _of_layers(network)
        facts |= layers
    return TotalsFeatures(
        np.array([facts.get(name, 0.0) for name in FACTS], np.float32), tokens, kinds, totals_of(task, network)
    )


def _held_bytes(task: Task) -> float:
    return max(1.0, float(sum(part.size_bytes for part in model_parts(task, task.parameters or 0))))


def totals_of(task: Task, network: Description | None) -> RuledTotals:
    """The task's sizes, and what the rules say of its settings."""
    held_bytes = _held_bytes(task) + gathered_bytes(task)
    units = float(task.batch_size * (task.sequence_length or 1))
    return RuledTotals(max(1.0, held_bytes), max(1.0, unit_bytes(task, network)), units)


def gathered_bytes(task: Task) -> float:
    """Of sharded weights and gradients: DeepSpeed's buckets and the weights that it keeps whole, or FSDP's units."""
    if not task.zero_stage:
        return 0.0
    parameters = float(task.parameters or 0)
    if not task.master_weights:
        return weight_bytes(task) * _FSDP_UNIT * parameters
    bucket = 0.0 if task.lora_rank is not None else min(parameters, _BUCKET)
    return weight_bytes(task) * (bucket + (min(parameters, _LIVE) if task.zero_stage == 3 else 0.0))


def _plain_facts(task: Task) -> dict[str, float]:
    parameters = math.log(4.0 * (task.parameters or 0) + 1.0)
    activations = math.log(4.0 * (task.activations or 0) / (task.sequence_length or 1) + 1.0)
    facts = {f"family_{family}": float(task.architecture is family) for family in _FAMILIES}
    facts |= {
        "log_parameters": parameters,
        "log_activations": activations,
        "activations_per_parameter": activations - parameters,
        "reads_tokens": float(task.sequence_length is not None),
    }
    if task.layers:
        layers = math.log(task.layers)
        facts |= {
            "layers_told": 1.0,
            "log_layers": layers,
            "parameters_per_layer": parameters - layers,
            "activations_per_layer": activations - layers,
            "activations_per_width": activations - layers - 0.5 * (parameters - layers),
        }
    return facts


def _setting_facts(task: Task) -> dict[str, float]:
    adam8bit, adafactor = task.optimizer is Optimizer.ADAM8BIT, task.optimizer is Optimizer.ADAFACTOR
    trains = task.kind is not Kind.INFERENCE
    states = optimizer_states(task.optimizer) if trains else 0
    return {
        "amp": float(task.precision in _AMP),
        "cast": float(task.precision in _CAST),
        "checkpointed": float(task.gradient_checkpointing),
        "lora": float(task.lora_rank is not None),
        "log_rank": math.log2(task.lora_rank) if task.lora_rank else 0.0,
        "adapts_attention": float(task.lora_rank is not None and task.lora_targets != LoraTargets.ALL_LINEAR),
        "nf4": float(task.quantization is Quantization.NF4),
        "int8": float(task.quantization is Quantization.INT8),
        "int4": float(task.quantization is Quantization.INT4),
        "upcast": float(task.upcasts),
        "fused": float(task.kernels is not Kernels.NONE),
        "liger": float(task.kernels is Kernels.LIGER),
        "eager": float(task.attention is Attention.EAGER),
        "inference": float(not trains),
        "states": float(states),
        "state_bytes": 2.0 if adam8bit and trains else 4.0 * states,
        "adam8bit": float(adam8bit and trains),
        "adafactor": float(adafactor and trains),
        "stage": float(task.zero_stage),
        "stage_3": float(task.zero_stage == 3),
        "ddp": float(task.data_parallel_size > 1 and not task.zero_stage),
        "log_gpus": math.log2(task.data_parallel_size),
        "masters": float(task.zero_stage > 0 and task.master_weights),
        "accumulates": float(task.gradient_accumulation > 1),
        "weight_bytes": weight_bytes(task),
        "held_per_parameter": _held_bytes(task) / max(1, task.parameters or 0),
        "held_share": held_share(task),
    }


@lru_cache(maxsize=256)
def _of_layers(network: Description) -> tuple[dict[str, float], NDArray[np.float32], NDArray[np.int64]]:
    known = layered_of(network)
    table, saved = known.table, known.saved
    scale = _SHOWN_LENGTH / network.sequence_length if network.sequence_length else 1.0
    kept = max(1.0, saved.per_sample_bytes)
    outputs = 4.0 * table.out_elements / kept
    parameters = max(1.0, float(network.parameters))
    tokens, kinds = make_tokens(known, scale, scale * kept)
    largest = network.largest_saved_bytes_per_sample or float(saved.per_layer_bytes.max(initial=0.0))
    facts = {
        "has_layers": 1.0,
        "largest_saved": largest / kept,
        "embedding_parameters": float(table.parameters[table.kind == OpKind.EMBEDDING].sum()) / parameters,
        "largest_parameters": float(table.parameters.max(initial=0.0)) / parameters,
        "norm_outputs": float(outputs[np.isin(table.kind, (OpKind.BATCH_NORM, OpKind.LAYER_NORM))].sum()),
        "convolution_outputs": float(outputs[IS_CONVOLUTION[table.kind]].sum()),
        "linear_outputs": float(outputs[table.kind == OpKind.LINEAR].sum()),
        "weighted": math.log1p(float((table.parameters > 0).sum())),
        "fused_attention": saved.fused_attention_bytes / kept,
        "buffers": float(network.buffers) / parameters,
    }
    return facts, tokens, kinds
