"""Rules of thumb for the settings of a run, for tasks of which only totals are known.

Nobody measured these factors one by one. A recording needs none of them: it has every tensor of the run.
"""

from __future__ import annotations

from collections.abc import Iterator

from vramcast.forecast.forecast import Part
from vramcast.task.quantity import MIB
from vramcast.task.task import Task
from vramcast.task.vocabulary import Kind, Optimizer, Precision, Quantization

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
_QUANTIZED_LEAST = {Quantization.INT8: 1.0, Quantization.INT4: 0.5, Quantization.NF4: 0.5}
# Embeddings, norms and the head are not quantized: about a seventh of a model with a few billion parameters.
_UNQUANTIZED_SHARE = 0.15
_UNQUANTIZED_BYTES = 2.0
# PEFT keeps adapters in fp32 even when the base model has fewer bits.
_ADAPTER_BYTES = 4.0
# Share of the base weights that LoRA trains per unit of rank: rank 16 trains about half a percent.
_LORA_SHARE_PER_RANK = 0.0003
# Checkpointing keeps about the square root of the layers. One eighth is typical for the networks it is used on.
_CHECKPOINTED_SHARE = 0.125
_INFERENCE_SHARE = 0.1


def weight_bytes(task: Task) -> float:
    """Average bytes per parameter on the GPU."""
    quantized = _QUANTIZED_BYTES.get(task.quantization)
    if quantized is None:
        return _WEIGHT_BYTES[task.precision]
    return (1.0 - _UNQUANTIZED_SHARE) * quantized + _UNQUANTIZED_SHARE * _UNQUANTIZED_BYTES


def optimizer_states(optimizer: Optimizer) -> int:
    """How many tensors of a parameter's size the optimizer keeps."""
    return round(_STATE_BYTES[optimizer] / 4.0)


def held_share(task: Task) -> float:
    """Share of the fp32 bytes saved by a plain training step that this run holds at its peak."""
    share = _ACTIVATION_BYTES[task.precision] / 4.0
    if task.kind is Kind.INFERENCE:
        return share * _INFERENCE_SHARE
    return share * (_CHECKPOINTED_SHARE if task.gradient_checkpointing else 1.0)


def has_master(task: Task) -> bool:
    """DeepSpeed updates an fp32 copy of a model that is cast to 16 bits, FSDP does not."""
    return task.master_weights and task.zero_stage > 0 and task.precision in _CAST and task.lora_rank is None


def model_parts(task: Task, parameters: int) -> list[Part]:
    """Weights, gradients and states: no run needs less."""
    trained = _trained_parameters(task, parameters)
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


def least_bytes(task: Task) -> float:
    """What is sure to be held, whatever was learned: adapters and the rest of quantized weights are guesses."""
    parameters = task.parameters or 0
    parts = model_parts(task, parameters)
    if task.quantization is not Quantization.NONE:
        shards = task.data_parallel_size if task.zero_stage == 3 else 1
        return _QUANTIZED_LEAST[task.quantization] * parameters / shards
    held = parts if task.lora_rank is None else parts[:1]
    return float(sum(part.size_bytes for part in held))


def step_parts(task: Task, parameters: int, fp32_bytes: float) -> Iterator[Part]:
    """A step's activations, from one sample's fp32 peak; and the update's copies, as far as they exceed those."""
    sample_bytes = held_share(task) * fp32_bytes
    size_bytes = round(sample_bytes * task.batch_size)
    yield Part("activations", size_bytes, f"{sample_bytes / MIB:,.1f} MiB x batch {task.batch_size}{_why(task)}")
    copied = max(0, round(_update_bytes(task, parameters)) - size_bytes)
    yield Part("update", copied, "the optimizer copies all trained weights after the activations are freed")


def _why(task: Task) -> str:
    if task.kind is Kind.INFERENCE:
        return ", freed layer by layer"
    return ", most recomputed" if task.gradient_checkpointing else ""


def _trained_parameters(task: Task, parameters: int) -> int:
    """All of them, or LoRA's adapters."""
    if task.lora_rank is None:
        return parameters
    return min(parameters, round(parameters * _LORA_SHARE_PER_RANK * task.lora_rank))


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


def _part(name: str, elements: int, element_bytes: float, shards: int) -> Part:
    sharded = f" / {shards} GPUs" if shards > 1 else ""
    return Part(name, round(elements * element_bytes / shards), f"{elements:,} x {element_bytes:.3g} B{sharded}")
