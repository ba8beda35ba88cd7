"""Frozen linear layers in few bits: stand-ins with the bytes and temporaries of bitsandbytes and AutoGPTQ."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from vramcast.task.vocabulary import Quantization

_NF4_BLOCK = 64  # weights that share a scale
_NF4_NESTED_BLOCK = 256  # scales that share a scale
_GPTQ_GROUP = 128
_HALF = (torch.float16, torch.bfloat16)


class Quantized(nn.Module):
    """A linear layer whose weights are stored in `kind`. `dtype` is what it computes in."""

    kind: Quantization

    def __init__(self, base: nn.Linear) -> None:
        super().__init__()
        self.in_features, self.out_features = base.in_features, base.out_features
        self.dtype = base.weight.dtype if base.weight.dtype in _HALF else torch.float16
        self.bias = base.bias

    def stored(self, *shape: int, dtype: torch.dtype) -> nn.Parameter:
        return nn.Parameter(torch.empty(*shape, dtype=dtype), requires_grad=False)

    def forward(self, given: Tensor) -> Tensor:
        """The result has the input's number format."""
        output: Tensor = self.product(given.to(self.dtype))
        return output.to(given.dtype)

    def product(self, given: Tensor) -> Tensor:
        raise NotImplementedError


class Nf4(Quantized):
    """bitsandbytes, four bits with nested scales: the 16-bit weight appears in forward and again in backward."""

    kind = Quantization.NF4

    def __init__(self, base: nn.Linear) -> None:
        super().__init__(base)
        weights = base.weight.numel()
        scales = -(-weights // _NF4_BLOCK)
        self.weight = self.stored(-(-weights // 2), 1, dtype=torch.uint8)
        self.absmax = self.stored(scales, dtype=torch.uint8)
        self.nested_absmax = self.stored(-(-scales // _NF4_NESTED_BLOCK), dtype=torch.float32)
        self.nested_code = self.stored(256, dtype=torch.float32)
        self.code = self.stored(16, dtype=torch.float32)
        self.offset = self.stored(1, dtype=torch.float32)

    def dequantized(self) -> Tensor:
        scales = torch.empty(self.absmax.shape, dtype=torch.float32, device=self.absmax.device)
        del scales  # lives as long as the kernel that reads it, which writes the weight
        return torch.empty(self.out_features, self.in_features, dtype=self.dtype, device=self.weight.device)

    def product(self, given: Tensor) -> Tensor:
        return _Dequantizing.apply(given, self)  # type: ignore[no-any-return]


class _Dequantizing(torch.autograd.Function):
    """Keeps no copy of its input: the weight is frozen."""

    @staticmethod
    def forward(ctx: Any, given: Tensor, layer: Nf4) -> Tensor:
        ctx.layer = layer
        return torch.nn.functional.linear(given, layer.dequantized(), layer.bias)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        return torch.matmul(gradients[0], ctx.layer.dequantized().to(gradients[0].dtype)), None


class Int8(Quantized):
    """LLM.int8(): the input is quantized row by row, and the product is summed in 32-bit integers."""

    kind = Quantization.INT8

    def __init__(self, base: nn.Linear) -> None:
        super().__init__(base)
        self.weight = self.stored(self.out_features, self.in_features, dtype=torch.int8)
        self.scales = self.stored(self.out_features, dtype=torch.float32)

    def product(self, given: Tensor) -> Tensor:
        return _Int8Product.apply(given, self)  # type: ignore[no-any-return]


class _Int8Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, given: Tensor, layer: Int8) -> Tensor:
        ctx.layer = layer
        ctx.save_for_backward(given)
        half = given.to(torch.float16)
        rows = half.reshape(-1, layer.in_features)
        quantized = torch.empty_like(rows, dtype=torch.int8)
        row_scales = torch.empty(rows.shape[0], dtype=torch.float32, device=rows.device)
        summed = torch.empty(rows.shape[0], layer.out_features, dtype=torch.int32, device=rows.device)
        output = torch.empty_like(summed, dtype=torch.float16)
        del quantized, row_scales, summed
        if layer.bias is not None:
            output = output.add_(layer.bias)
        return output.to(given.dtype).view(*given.shape[:-1], layer.out_features)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        (given,) = ctx.saved_tensors
        weight = torch.empty_like(ctx.layer.weight, dtype=given.dtype)
        return torch.matmul(gradients[0].to(given.dtype), weight), None


class WeightOnlyInt8(Quantized):
    """torchao's and quanto's: the weight becomes a 16-bit copy for each product, and the result is scaled."""

    kind = Quantization.INT8

    def __init__(self, base: nn.Linear) -> None:
        super().__init__(base)
        self.weight = self.stored(self.out_features, self.in_features, dtype=torch.int8)
        self.scales = self.stored(self.out_features, dtype=self.dtype)

    def product(self, given: Tensor) -> Tensor:
        output: Tensor = _WeightOnlyProduct.apply(given, self)
        return output if self.bias is None else output + self.bias


class _WeightOnlyProduct(torch.autograd.Function):
    """Keeps no copy of its input: the weight is frozen."""

    @staticmethod
    def forward(ctx: Any, given: Tensor, layer: WeightOnlyInt8) -> Tensor:
        ctx.layer = layer
        output = torch.nn.functional.linear(given, layer.weight.to(given.dtype))
        return output * layer.scales

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        scaled = gradients[0] * ctx.layer.scales
        return torch.matmul(scaled, ctx.layer.weight.to(scaled.dtype)), None


class Gptq(Quantized):
    """AutoGPTQ's Triton kernels unpack the weight in registers: no 16-bit copy in either direction."""

    kind = Quantization.INT4

    def __init__(self, base: nn.Linear) -> None:
        super().__init__(base)
        groups = -(-self.in_features // _GPTQ_GROUP)
        self.weight = self.stored(self.in_features // 8, self.out_features, dtype=torch.int32)
        self.zeros = self.stored(groups, self.out_features // 8, dtype=torch.int32)
        self.scales = self.stored(groups, self.out_features, dtype=torch.float16)
        self.group_of = self.stored(self.in_features, dtype=torch.int32)

    def product(self, given: Tensor) -> Tensor:
        output: Tensor = _GptqProduct.apply(given, self)
        return output if self.bias is None else output + self.bias


class _GptqProduct(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, given: Tensor, layer: Gptq) -> Tensor:
        ctx.layer = layer
        return given.new_empty(*given.shape[:-1], layer.out_features)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        return gradients[0].new_empty(*gradients[0].shape[:-1], ctx.layer.in_features), None


_KINDS: dict[Quantization, type[Quantized]] = {
    Quantization.NF4: Nf4,
    Quantization.INT8: Int8,
    Quantization.INT4: Gptq,
}


def quantize(model: nn.Module, kind: Quantization, kept: nn.Module | None, *, weight_only: bool = False) -> None:
    """Replaces every linear layer but `kept`, the head."""
    stand_in = WeightOnlyInt8 if weight_only and kind is Quantization.INT8 else _KINDS[kind]
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if type(child) is nn.Linear and child is not kept:
                setattr(parent, name, stand_in(child))


def upcast_rest(model: nn.Module) -> None:
    """PEFT's prepare_model_for_kbit_training: embeddings, norms and head in fp32, and so is what they return."""
    for weight in model.parameters():
        if weight.dtype in _HALF:
            weight.data = weight.data.to(torch.float32)
