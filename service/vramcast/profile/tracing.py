"""Traces one forward pass: the leaf modules in order, and every tensor that autograd saves.

On the meta device tensors have shapes but no memory, so a laptop can trace a network of any size. Saved tensors are
counted by storage: views of one tensor count once, weights and buffers not at all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn import functional

from vramcast.errors import InvalidInput
from vramcast.profile.counting import count_work

# The largest network that was tried makes and frees tensors 14,000 times in a step.
MOST_SAVED = 50_000

Layer = list[Any]  # in a profile's format, see forecast/description.py


@dataclass(frozen=True, slots=True)
class Trace:
    """Bytes of the whole pass; the layers' sizes are per sample."""

    layers: list[Layer]
    samples: int
    saved_bytes: int  # attention matrices included
    largest_saved_bytes: int  # attention matrices not included
    fused_attention_bytes: int  # the part of the saved bytes that a fused attention kernel does not keep
    work: list[int] | None = None  # None: not counted


@dataclass(slots=True)
class _Kept:
    """Storages that autograd saves, by address. Holding a reference prevents reuse of the address."""

    ours: set[int]
    saved: dict[int, int] = field(default_factory=dict)
    inside_attention: set[int] = field(default_factory=set)
    fused_needs: dict[int, int] = field(default_factory=dict)
    references: list[Any] = field(default_factory=list)
    attending: bool = False

    def pack(self, tensor: Tensor) -> Any:
        self._note(tensor, self.saved)
        if self.attending:
            self.inside_attention.add(tensor.untyped_storage()._cdata)
        else:
            self.inside_attention.discard(tensor.untyped_storage()._cdata)
        return tensor if tensor.is_meta else None

    def need(self, tensor: Tensor) -> None:
        """Notes a tensor that a fused kernel keeps: an argument or the result."""
        self._note(tensor, self.fused_needs)

    def _note(self, tensor: Tensor, sizes: dict[int, int]) -> None:
        storage = tensor.untyped_storage()
        if storage._cdata in self.ours:
            return
        if storage._cdata not in sizes:
            if len(self.references) >= MOST_SAVED:
                raise InvalidInput(
                    f"the forward pass saves more than {MOST_SAVED:,} tensors: trace fewer iterations or layers, or "
                    "describe the task by parameters and activations"
                )
            self.references.append(storage if tensor.is_meta else StorageWeakRef(storage))
        sizes[storage._cdata] = storage.nbytes()

    def fused_attention_bytes(self) -> int:
        matrices = self.inside_attention - self.fused_needs.keys()
        avoided = sum(self.saved[at] for at in matrices if at in self.saved)
        added = sum(size for at, size in self.fused_needs.items() if at not in self.saved)
        return max(0, avoided - added)

    def largest(self) -> int:
        matrices = self.inside_attention - self.fused_needs.keys()
        return max((size for at, size in self.saved.items() if at not in matrices), default=0)


def trace(model: nn.Module, call: Callable[[nn.Module], object], samples: int) -> Trace:
    """Passes on whatever `call` raises."""
    layers: list[Layer] = []
    kept = _Kept({t.untyped_storage()._cdata for t in [*model.parameters(), *model.buffers()]})
    with ExitStack() as stack:
        for module in leaves(model):
            handle = module.register_forward_hook(_layer_hook(layers, samples), with_kwargs=True)
            stack.callback(handle.remove)
        stack.enter_context(_watched_attention(kept))
        stack.enter_context(torch.autograd.graph.saved_tensors_hooks(kept.pack, _unpack))
        call(model)
    return Trace(
        layers=layers,
        samples=samples,
        saved_bytes=sum(kept.saved.values()),
        largest_saved_bytes=kept.largest(),
        fused_attention_bytes=kept.fused_attention_bytes(),
        # Real arithmetic takes seconds, and is not done twice.
        work=count_work(model, call, samples) if _on_meta(model) else None,
    )


def _on_meta(model: nn.Module) -> bool:
    return all(weight.is_meta for weight in model.parameters())


def _unpack(packed: Any) -> Tensor:
    if packed is None:
        raise RuntimeError("a trace has no backward pass")
    return packed  # type: ignore[no-any-return]


def leaves(model: nn.Module) -> Iterator[nn.Module]:
    """Modules without children, and MultiheadAttention, which computes its projections itself."""
    inside: set[nn.Module] = set()
    for module in model.modules():
        if module in inside:
            continue
        if isinstance(module, nn.MultiheadAttention):
            inside.update(module.modules())
            yield module
        elif not any(True for _ in module.children()):
            yield module


@contextmanager
def _watched_attention(kept: _Kept) -> Iterator[None]:
    """On the meta device PyTorch's attention writes its matrices; on a GPU a fused kernel does not."""
    original = functional.scaled_dot_product_attention

    def watched(query: Tensor, key: Tensor, value: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        kept.attending = True
        try:
            result: Tensor = original(query, key, value, *args, **kwargs)
        finally:
            kept.attending = False
        for tensor in (query, key, value, result):
            kept.need(tensor)
        return result

    functional.scaled_dot_product_attention = watched
    try:
        yield
    finally:
        functional.scaled_dot_product_attention = original


def _layer_hook(layers: list[Layer], samples: int) -> Callable[..., None]:
    def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        result, given = first_tensor(output), first_tensor((args, kwargs))
        if result is None:
            return
        if isinstance(module, nn.MultiheadAttention):
            layers.extend(_attention_layers(module, result, samples))
        else:
            layers.append(_layer(module, result, given, samples))

    return hook


def _layer(module: nn.Module, result: Tensor, given: Tensor | None, samples: int) -> Layer:
    return [
        type(module).__name__,
        result.numel() // samples,
        sum(weight.numel() for weight in module.parameters()),
        _sizes(getattr(module, "kernel_size", None)),
        _whole(getattr(module, "groups", None)),
        bool(getattr(module, "inplace", False)),
        given.numel() // samples if given is not None else 0,
        list(result.shape[1:]),
        _sizes(getattr(module, "stride", None)),
    ]


def _attention_layers(module: nn.MultiheadAttention, result: Tensor, samples: int) -> list[Layer]:
    """Two projections, as the module computes."""
    width = module.embed_dim
    tokens = result.numel() // samples // width
    inner = sum(weight.numel() for name, weight in module.named_parameters() if not name.startswith("out_proj"))
    outer = sum(weight.numel() for weight in module.out_proj.parameters())
    return [
        ["Linear", 3 * tokens * width, inner, None, None, False, tokens * width, [tokens, 3 * width], None],
        ["Linear", tokens * width, outer, None, None, False, tokens * width, [tokens, width], None],
    ]


def first_tensor(value: Any) -> Tensor | None:
    if isinstance(value, Tensor):
        return value
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()
    return next((found for part in parts if (found := first_tensor(part)) is not None), None)


def _sizes(value: Any) -> list[int] | None:
    if isinstance(value, int):
        return [value]
    if isinstance(value, list | tuple) and value and all(isinstance(size, int) for size in value):
        return list(value)
    return None


def _whole(value: Any) -> int | None:
    return value if isinstance(value, int) else None
