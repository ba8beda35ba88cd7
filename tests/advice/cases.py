"""Twenty tasks that do not fit, or just about: from the docs and examples, and like runs that others published.

`measured`: what a run with the settings of the first proposal was measured to take, in GiB. Where the proposal
accumulates gradients and the run did not, the difference is the gradients of adapters, or none: plain training keeps
them from one step to the next anyway.
"""

from __future__ import annotations

from dataclasses import dataclass

MISTRAL = {"model": "mistralai/Mistral-7B-v0.1", "sequence-length": "4096", "precision": "bf16"}
LLAMA = {"model": "meta-llama/Llama-3.1-8B", "sequence-length": "4096", "precision": "bf16"}
CHECKPOINTED = {"gradient-checkpointing": "true"}
ATTENTION_LORA = {"lora-rank": "16", "lora-targets": "attention"}
IMAGES = {"optimizer": "sgd-momentum"}


@dataclass(frozen=True)
class Case:
    task: dict[str, str]
    gpu: str
    keep: str = ""
    measured: float | None = None
    source: str = ""


CASES = {
    # From the docs and examples.
    "README's Llama, on an L40S": Case({**LLAMA, **CHECKPOINTED, "batch-size": "4", "lora-rank": "16"}, "L40S"),
    "README's Llama, on an A10": Case({**LLAMA, "batch-size": "4", "lora-rank": "16"}, "A10"),
    "all of README's Llama": Case({**LLAMA, "batch-size": "4"}, "a100-80"),
    "README's ResNet, larger": Case({"model": "timm/resnet50", "batch-size": "256"}, "T4"),
    "examples/job.yaml, larger": Case(
        {"model": "timm/resnet50", "batch-size": "512", "precision": "amp-fp16", "max-oom-risk": "0.01", **IMAGES}, "T4"
    ),
    "examples/hf-trainer.yaml, larger": Case(
        {"model": "hf/bert-base-uncased", "batch-size": "128", "sequence-length": "512", "precision": "amp-bf16"}, "L4"
    ),
    "nothing fits": Case({**LLAMA, "batch-size": "1", "sequence-length": "8192"}, "P4"),
    "a number": Case({"gpu-memory": "65Gi"}, "L40S"),
    "a summary": Case({"parameters": "300M", "activations": "500M", "batch-size": "16"}, "T4"),
    "inference": Case({**LLAMA, "batch-size": "8", "task": "inference"}, "A10"),
    # Like runs that others published.
    "Mistral, all weights": Case({**MISTRAL, **CHECKPOINTED, "batch-size": "4"}, "L40S"),
    "Mistral, all weights, on one A10": Case({**MISTRAL, "batch-size": "8"}, "A10"),
    "gpt2 on a desktop": Case({"model": "gpt2", "batch-size": "16", "sequence-length": "1024"}, "3060"),
    "Llama-3 on eight GPUs": Case(
        {"model": "meta-llama/Meta-Llama-3-8B", "precision": "fp16", "batch-size": "8", "sequence-length": "2048",
         "data-parallel-size": "8", **CHECKPOINTED}, "a100-80", keep="batch-size,optimizer",
    ),
    "BERT with eager attention": Case(
        {"model": "bert-large-uncased", "batch-size": "4", "sequence-length": "512", "attention": "eager"}, "3080"
    ),
    # The first proposal is a run that was measured.
    "Mistral, adapters": Case(
        {**MISTRAL, **CHECKPOINTED, **ATTENTION_LORA, "batch-size": "8"}, "5090",
        measured=28.9, source="fms-acceleration, A100-80GB: batch 4; nvidia-smi, less what was used before",
    ),
    "Mistral, adapters without checkpointing": Case(
        {**MISTRAL, **ATTENTION_LORA, "batch-size": "8"}, "L40S", keep="batch-size",
        measured=42.2, source="fms-acceleration, A100-80GB: batch 8 with checkpointing",
    ),
    "BEiT": Case(
        {"model": "timm/beit_large_patch16_224", "batch-size": "128", **IMAGES}, "a100-40", keep="precision",
        measured=26.4, source="GPUMemNet, A100-40GB: batch 64; batch 128 ran out of memory",
    ),
    "CaiT": Case(
        {"model": "timm/cait_s24_384", "batch-size": "32", **IMAGES}, "a100-40", keep="precision",
        measured=23.9, source="GPUMemNet, A100-40GB: batch 16; batch 32 ran out of memory",
    ),
    "T5": Case(
        {"model": "hf/t5-small", "batch-size": "110", "sequence-length": "128", "optimizer": "sgd"}, "3060",
        keep="precision", measured=9.97, source="xMem, RTX 3060: batch 55",
    ),
}  # fmt: skip
