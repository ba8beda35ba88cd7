"""What a run holds whatever its batch: weights, gradients and optimizer states, by precision and what is trained."""

from __future__ import annotations

from vramcast.forecast.description import Description, OpKind
from vramcast.forecast.forecast import Part
from vramcast.task.task import Task
from vramcast.task.vocabulary import Kind, Optimizer, Precision, Quantization

WEIGHT_BYTES = {
    Precision.FP32: 4.0, Precision.TF32: 4.0, Precision.AMP_FP16: 4.0, Precision.AMP_BF16: 4.0,
    Precision.FP16: 2.0, Precision.BF16: 2.0, Precision.FP8: 2.0, Precision.INT8: 1.0,
}  # fmt: skip
STATE_BYTES = {
    Optimizer.SGD: 0.0, Optimizer.SGD_MOMENTUM: 4.0, Optimizer.ADAM: 8.0, Optimizer.ADAMW: 8.0, Optimizer.RMSPROP: 4.0,
    Optimizer.ADAGRAD: 4.0, Optimizer.ADAFACTOR: 0.1, Optimizer.LION: 4.0, Optimizer.ADAM8BIT: 2.1,
}  # fmt: skip
_MASTER_BYTES = 4.0
# PyTorch makes a state like its parameter: a model cast to 16 bits has states of 16 bits.
_CAST = frozenset({Precision.FP16, Precision.BF16})
_STATES_LIKE_WEIGHTS = frozenset({
    Optimizer.SGD_MOMENTUM, Optimizer.ADAM, Optimizer.ADAMW, Optimizer.RMSPROP, Optimizer.ADAGRAD, Optimizer.LION,
})  # fmt: skip
_QUANTIZED_BYTES = {Quantization.INT8: 1.05, Quantization.INT4: 0.55, Quantization.NF4: 0.55}
# Embeddings, norms and the head stay as they were: about a seventh of a model of some billions.
_UNQUANTIZED_SHARE = 0.15
_UNQUANTIZED_BYTES = 2.0
# PEFT keeps adapters in fp32 beside a base of fewer bits.
_ADAPTER_BYTES = 4.0
# The share of the base's weights that LoRA of rank r trains, per unit of rank: rank 16 trains about half a percent.
_LORA_SHARE_PER_RANK = 0.0003


def weight_bytes(task: Task) -> float:
    """Of one parameter as it lies on the GPU, on the average over the model."""
    quantized = _QUANTIZED_BYTES.get(task.quantization)
    if quantized is None:
        return WEIGHT_BYTES[task.precision]
    return (1.0 - _UNQUANTIZED_SHARE) * quantized + _UNQUANTIZED_SHARE * _UNQUANTIZED_BYTES


def optimizer_states(optimizer: Optimizer) -> int:
    """Tensors of a parameter's size that the optimizer keeps."""
    return round(STATE_BYTES[optimizer] / 4.0)


def trained_parameters(task: Task, parameters: int, network: Description | None = None) -> int:
    """All, or LoRA's adapters: two thin matrices beside each linear layer, where the layers are known."""
    if task.lora_rank is None:
        return parameters
    adapters = round(parameters * _LORA_SHARE_PER_RANK * task.lora_rank)
    if network is not None:
        linear = [op for op in network.ops if op.kind is OpKind.LINEAR][:-1]  # the last is the head
        adapters = task.lora_rank * sum(op.channels_in + op.channels_out for op in linear) or adapters
    return min(parameters, adapters)


def model_parts(task: Task, parameters: int, network: Description | None = None) -> list[Part]:
    trained = trained_parameters(task, parameters, network)
    shards = {stage: task.data_parallel_size if task.zero_stage >= stage else 1 for stage in (1, 2, 3)}
    parts = [_part("weights", parameters, weight_bytes(task), shards[3])]
    if task.kind is Kind.INFERENCE:
        return parts
    trained_bytes = WEIGHT_BYTES[task.precision]
    if task.lora_rank is not None:
        trained_bytes = _ADAPTER_BYTES
        parts.append(_part("adapters", trained, trained_bytes, shards[3]))
    parts.append(_part("gradients", trained, trained_bytes, shards[2]))
    parts.append(_part(f"{task.optimizer} states", trained, _state_bytes(task), shards[1]))
    if _has_master(task):
        parts.append(_part("fp32 master weights", trained, _MASTER_BYTES, shards[1]))
    return parts


def update_bytes(task: Task, parameters: int) -> float:
    """What the update of a cast model holds for a moment, once activations are gone: a copy of what is trained.

    In fp32 it is in what was measured, so the learned part knows it.
    """
    lists = optimizer_states(task.optimizer) > 1 and task.kind is not Kind.INFERENCE
    if task.precision not in _CAST or not lists or task.zero_stage or task.lora_rank is not None:
        return 0.0
    return parameters * WEIGHT_BYTES[task.precision]


def _state_bytes(task: Task) -> float:
    full = STATE_BYTES[task.optimizer]
    cast = task.precision in _CAST and task.optimizer in _STATES_LIKE_WEIGHTS
    cast = cast and task.lora_rank is None and not _has_master(task)
    return full * WEIGHT_BYTES[task.precision] / 4.0 if cast else full


def _has_master(task: Task) -> bool:
    """DeepSpeed updates a copy in fp32, whatever the model is cast to."""
    return task.zero_stage > 0 and task.precision in _CAST and task.lora_rank is None


def _part(name: str, elements: int, element_bytes: float, shards: int) -> Part:
    sharded = f" / {shards} GPUs" if shards > 1 else ""
    return Part(name, round(elements * element_bytes / shards), f"{elements:,} x {element_bytes:.3g} B{sharded}")
