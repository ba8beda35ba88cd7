"""The optimizers, as torch and the common libraries run them on CUDA: over lists of tensors, or fused."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from vramcast.profile.recording.patching import Library, patched
from vramcast.task.vocabulary import Optimizer

_BLOCK = 256  # weights that share a scale in an 8-bit state
_SMALL = 4096  # bitsandbytes keeps the states of smaller tensors in fp32
_CODES = 256


def make_optimizer(kind: Optimizer, parameters: Iterable[nn.Parameter], *, fused: bool = False) -> Any:
    trained = [weight for weight in parameters if weight.requires_grad]
    return _MAKERS[kind](trained, fused)


def optimizers_of(given: Any) -> list[Any]:
    """A loop has one, several in a list or dictionary, or none."""
    if given is None:
        return []
    if isinstance(given, Mapping):
        return list(given.values())
    return list(given) if isinstance(given, list | tuple) else [given]


def optimizer_name(given: Any) -> str:
    """As the annotation names it; the class itself if no annotation does."""
    return " and ".join(dict.fromkeys(map(_name, optimizers_of(given)))) or "none"


def _name(optimizer: Any) -> str:
    name = type(optimizer).__name__
    if name == "SGD" and any(group.get("momentum") for group in optimizer.param_groups):
        return Optimizer.SGD_MOMENTUM
    return _NAMES.get(name.lower(), name)


_NAMES = {
    **{str(kind): str(kind) for kind in Optimizer},
    **dict.fromkeys(("adamw8bit", "pagedadam8bit", "pagedadamw8bit"), str(Optimizer.ADAM8BIT)),
}


@contextmanager
def cuda_optimizers(device: str) -> Iterator[None]:
    """torch's optimizers treat tensors of `device` as they treat CUDA's."""
    lists, fused = (f"_get_{kind}_kernels_supported_devices" for kind in ("foreach", "fused"))
    holders = [importlib.import_module(name) for name in ("torch.optim.optimizer", "torch.utils._foreach_utils")]
    patches = [
        (holder, name, _also(getattr(holder, name), device))
        for holder in holders for name in (lists, fused) if hasattr(holder, name)
    ]  # fmt: skip
    with Library() as library, patched(patches):
        for name in ("_fused_adam_", "_fused_adamw_", "_fused_sgd_", "_fused_adagrad_"):
            for overload in ("", ".tensor_lr"):
                library.implement(name + overload, _update_in_place, "Meta")
        for name in ("_amp_foreach_non_finite_check_and_unscale_", "_amp_update_scale_"):
            library.implement(name, _scale_in_place, "Meta")
        yield


def _also(devices: Callable[[], list[str]], device: str) -> Callable[[], list[str]]:
    return lambda: [*devices(), device]


def _update_in_place(*_args: Any, **_named: Any) -> None:
    """A fused kernel writes weights and states and allocates nothing."""


def _scale_in_place(given: Any, *_args: Any) -> Any:
    """What a gradient scaler does to gradients and to its factor."""
    return given if isinstance(given, torch.Tensor) else None


def _adafactor(trained: list[nn.Parameter], _fused: bool) -> Any:
    """As the Hugging Face Trainer does."""
    from transformers.optimization import Adafactor  # noqa: PLC0415  # slow, and optional

    return Adafactor(trained, lr=1e-3, scale_parameter=False, relative_step=False)


def _lion(trained: list[nn.Parameter], _fused: bool) -> Any:
    from timm.optim.lion import Lion  # noqa: PLC0415  # slow, and optional

    return Lion(trained, lr=1e-4, foreach=True)


def _adam8bit(trained: list[nn.Parameter], _fused: bool) -> Any:
    return Adam8bit(trained, lr=1e-3)


class Adam8bit(torch.optim.Optimizer):
    """The states of bitsandbytes, whose kernel updates in place. Paged states are not on the GPU."""

    def __init__(self, parameters: Iterable[nn.Parameter], lr: float, *, paged: bool = False) -> None:
        super().__init__(parameters, {"lr": lr})
        self._paged = paged
        self._codes: list[torch.Tensor] = []

    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            for weight in group["params"]:
                if weight.grad is not None and not self.state[weight]:
                    self._begin(weight)
        return closure() if closure is not None else None

    def _begin(self, weight: nn.Parameter) -> None:
        state = self.state[weight]
        state["step"] = 0
        quantized = weight.numel() >= _SMALL
        if quantized and not self._codes:
            self._codes = [torch.empty(_CODES, device=weight.device) for _ in range(2)]
        for number in (1, 2):
            dtype = torch.uint8 if quantized else torch.float32
            if not (self._paged and quantized):
                state[f"state{number}"] = torch.zeros_like(weight, dtype=dtype)
            if quantized:
                state[f"qmap{number}"] = self._codes[number - 1]
                state[f"absmax{number}"] = torch.zeros(-(-weight.numel() // _BLOCK), device=weight.device)


def _torch(kind: Any, can_fuse: bool, **options: Any) -> Callable[[list[nn.Parameter], bool], Any]:
    def make(trained: list[nn.Parameter], fused: bool) -> Any:
        how = {"fused": True} if fused and can_fuse else {"foreach": True}
        return kind(trained, lr=1e-3, **how, **options)

    return make


_MAKERS: dict[Optimizer, Callable[[list[nn.Parameter], bool], Any]] = {
    Optimizer.SGD: _torch(torch.optim.SGD, True),
    Optimizer.SGD_MOMENTUM: _torch(torch.optim.SGD, True, momentum=0.9),
    Optimizer.ADAM: _torch(torch.optim.Adam, True),
    Optimizer.ADAMW: _torch(torch.optim.AdamW, True),
    Optimizer.RMSPROP: _torch(torch.optim.RMSprop, False),
    Optimizer.ADAGRAD: _torch(torch.optim.Adagrad, False),
    Optimizer.ADAFACTOR: _adafactor,
    Optimizer.LION: _lion,
    Optimizer.ADAM8BIT: _adam8bit,
}
