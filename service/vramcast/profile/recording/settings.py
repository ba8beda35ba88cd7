"""What a run is: every field has the meaning of the annotation of that name."""

from __future__ import annotations

from dataclasses import dataclass

from vramcast.task.vocabulary import Attention, Kernels, LoraTargets, Optimizer, Precision, Quantization

_AUTOCAST = {Precision.AMP_FP16: Precision.FP16, Precision.AMP_BF16: Precision.BF16}


@dataclass(frozen=True, slots=True)
class RunSettings:
    precision: Precision = Precision.FP32
    autocast: bool = False  # of 16-bit weights too, as the Hugging Face Trainer does with bf16=True
    attention: Attention = Attention.SDPA
    repeated_heads: bool = False  # flash attention of Mistral in transformers before 4.48
    gradient_checkpointing: bool = False
    reentrant: bool = False  # checkpointing calls autograd again, as in transformers before 5
    lora_rank: int | None = None
    lora_targets: str = LoraTargets.ATTENTION  # a word, or names of modules separated by commas
    lora_dropout: float = 0.05
    wide_adapters: bool = True  # LoRA's matrices are in fp32 beside 16-bit weights, as PEFT's get_peft_model makes them
    quantization: Quantization = Quantization.NONE
    weight_only: bool = False  # int8 weights are multiplied in 16 bits, as torchao and quanto do it
    upcast: bool = False  # PEFT's prepare_model_for_kbit_training: embeddings, norms and head in fp32
    kernels: Kernels = Kernels.NONE
    fused_activations: bool = True  # with Liger's kernels: gate and product in one
    optimizer: Optimizer | None = None  # None leaves the update open, for `forecast/update.py`
    fused_optimizer: bool = False
    accumulation: int = 1  # micro-batches in a step
    inference: bool = False  # forward passes without gradients

    @property
    def weights(self) -> Precision:
        """The number format of the weights."""
        return Precision.FP32 if self.precision in _AUTOCAST else self.precision

    @property
    def computes(self) -> Precision | None:
        """The 16-bit format of autocast."""
        return _AUTOCAST.get(self.precision, self.precision if self.autocast else None)
