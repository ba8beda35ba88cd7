"""The lines that carry out a proposal: in plain PyTorch, in the Hugging Face Trainer, and as annotations."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from vramcast.task.task import Task
from vramcast.task.vocabulary import (
    PREFIX,
    Attention,
    LoraTargets,
    Offload,
    Optimizer,
    Precision,
    Quantization,
)
from vramcast.task.words import field_of, word

# An annotation that only counts together with another one.
_TOGETHER = {"zero-stage": "data-parallel-size", "batch-size": "gradient-accumulation"}
_ENVIRONMENT = "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"


@dataclass(frozen=True, slots=True)
class Lines:
    """`trainer`: arguments of TrainingArguments, and what has to be done beside them."""

    pytorch: tuple[str, ...]
    trainer: tuple[str, ...]


def changed_annotations(task: Task, changed: frozenset[str]) -> dict[str, str]:
    """Of the pod, with the prefix: what is different."""
    names = changed | {_TOGETHER[name] for name in changed & _TOGETHER.keys()}
    values = {name: getattr(task, field_of(name)) for name in sorted(names)}
    return {PREFIX + name: word(value) for name, value in values.items() if not _is_unsaid(name, value)}


def _is_unsaid(name: str, value: object) -> bool:
    return name == "gradient-accumulation" and value == 1


def lines(task: Task, changed: frozenset[str]) -> Lines:
    found = list(_found(task, changed))
    return Lines(
        tuple(line for pytorch, _ in found for line in pytorch), tuple(line for _, trainer in found for line in trainer)
    )


# Lines in PyTorch, and for the Trainer.
_Both = tuple[tuple[str, ...], tuple[str, ...]]


def _found(task: Task, changed: frozenset[str]) -> Iterator[_Both]:
    if "allocator" in changed:
        yield ((f"# in the environment: {_ENVIRONMENT}",),) * 2
    if "quantization" in changed:
        yield _quantization(task)
    if "attention" in changed:
        yield _attention(task.attention)
    if "precision" in changed:
        yield _precision(task.precision)
    if "lora-rank" in changed:
        yield _adapters(task)
    if "gradient-checkpointing" in changed:
        yield ("model.gradient_checkpointing_enable()",), ("gradient_checkpointing=True",)
    if "kernels" in changed:
        yield (
            ("liger_kernel.transformers.apply_liger_kernel_to_llama()  # or your model's",),
            ("use_liger_kernel=True",),
        )
    if "optimizer" in changed:
        yield _optimizer(task.optimizer)
    if "batch-size" in changed:
        yield _batch(task)
    if "zero-stage" in changed:
        yield _sharding(task)


def _attention(attention: Attention | None) -> _Both:
    line = f'model = AutoModel.from_pretrained(name, attn_implementation="{attention or Attention.SDPA}")'
    return ("y = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)",), (line,)


def _precision(precision: Precision) -> _Both:
    if precision is Precision.BF16:
        return ("model = model.to(torch.bfloat16)",), ("model = model.to(torch.bfloat16)", "bf16=False")
    if precision is Precision.AMP_FP16:
        scaled = (
            "scaler = torch.amp.GradScaler()",
            "scaler.scale(loss).backward(); scaler.step(optimizer); scaler.update()",
        )
        return ('with torch.autocast("cuda", dtype=torch.float16): loss = step(batch)', *scaled), ("fp16=True",)
    return ('with torch.autocast("cuda", dtype=torch.bfloat16): loss = step(batch)',), ("bf16=True",)


def _optimizer(optimizer: Optimizer) -> _Both:
    made = {
        Optimizer.ADAM8BIT: ("bitsandbytes.optim.AdamW8bit", "adamw_bnb_8bit"),
        Optimizer.ADAFACTOR: ("torch.optim.Adafactor", "adafactor"),
    }.get(optimizer, ("torch.optim.SGD", "sgd"))
    return (f"optimizer = {made[0]}(model.parameters(), lr=lr)",), (f'optim="{made[1]}"',)


def _batch(task: Task) -> _Both:
    batch, steps = task.batch_size, task.gradient_accumulation
    loader, size = f"loader = DataLoader(dataset, batch_size={batch})", f"per_device_train_batch_size={batch}"
    if steps == 1:
        return (loader,), (size,)
    if task.zero_stage:  # DeepSpeed counts the steps by itself
        return (loader,), (size, f"gradient_accumulation_steps={steps}")
    update = f"if number % {steps} == {steps - 1}: optimizer.step(); optimizer.zero_grad()"
    return (loader, f"(loss / {steps}).backward()", update), (size, f"gradient_accumulation_steps={steps}")


def _adapters(task: Task) -> _Both:
    attention = '["q_proj", "k_proj", "v_proj", "o_proj"]'
    modules = attention if task.lora_targets == LoraTargets.ATTENTION else '"all-linear"'
    config = f"peft.LoraConfig(r={task.lora_rank}, target_modules={modules})"
    line = f"model = peft.get_peft_model(model, {config})"
    return (line,), (line,)


def _quantization(task: Task) -> _Both:
    config = "transformers.BitsAndBytesConfig(load_in_8bit=True)"
    if task.quantization is Quantization.NF4:
        config = (
            'transformers.BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4", '
            "bnb_4bit_compute_dtype=torch.bfloat16)"
        )
    line = f"model = AutoModelForCausalLM.from_pretrained(name, quantization_config={config})"
    return (line,), (line,)


def _sharding(task: Task) -> _Both:
    """DeepSpeed in both: the forecast counts the fp32 weights that it keeps."""
    offload = ', "offload_optimizer": {"device": "cpu"}' if task.offload is Offload.OPTIMIZER else ""
    zero = f'{{"zero_optimization": {{"stage": {task.zero_stage}{offload}}}'
    sizes = (
        f'"train_micro_batch_size_per_gpu": {task.batch_size}, '
        f'"gradient_accumulation_steps": {task.gradient_accumulation}'
    )
    made = "model, optimizer, _, _ = deepspeed.initialize"
    call = f"{made}(model=model, model_parameters=model.parameters(), config={zero}, {sizes}}})"
    launch = f"# start it with: deepspeed --num_gpus {task.data_parallel_size} train.py"
    automatic = '"train_micro_batch_size_per_gpu": "auto", "gradient_accumulation_steps": "auto"'
    train = "model.backward(loss); model.step()"
    return (call, train, launch), (f"deepspeed={zero}, {automatic}}}", launch)
