"""Records a named network's training steps, or its inference, in the settings of a run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_leaves, tree_map_only

from vramcast.forecast.repeating import repeated
from vramcast.forecast.tape import Moment, Role, Tape
from vramcast.profile.recording.attention import set_attention
from vramcast.profile.recording.checkpointing import enable_checkpointing
from vramcast.profile.recording.emulation import collect, collecting_at_steps, like_cuda
from vramcast.profile.recording.errors import Unrecordable, explained
from vramcast.profile.recording.experts import separate_experts
from vramcast.profile.recording.fused import chunked_loss, fuse_modules, fused_functions, has_head
from vramcast.profile.recording.initialization import on_device
from vramcast.profile.recording.lora import add_lora, output_layer, require_input_gradients
from vramcast.profile.recording.optimizers import make_optimizer
from vramcast.profile.recording.quantized import quantize, upcast_rest
from vramcast.profile.recording.settings import RunSettings
from vramcast.profile.recording.tracking import MAX_EVENTS, Tracker
from vramcast.profile.recording.units import UnitMarks, Units, find_units, unit_numbers
from vramcast.task.vocabulary import Kernels, Precision, Quantization

STEPS = 3
Batch = Any  # tensors in tuples, lists and dictionaries
# Makes a batch, and says how the network computes its loss from it.
BatchOf = Callable[[], tuple[Batch, Callable[[Any, Batch], Tensor]]]

_DTYPES = {Precision.BF16: torch.bfloat16, Precision.FP16: torch.float16}


def record_model(
    build: Callable[[], nn.Module],
    batch_of: BatchOf,
    settings: RunSettings,
    steps: int = STEPS,
    device: str = "meta",
    max_events: int = MAX_EVENTS,
) -> Tape:
    """`build` and `batch_of` run with `device` as the default device. Raises Unrecordable."""
    with like_cuda(device), collecting_at_steps(), explained():
        with on_device(device):
            model, units = prepared(build(), settings)
        return _Run(model, units, batch_of, settings, Tracker(device, max_events)).record(steps)


def prepared(model: nn.Module, settings: RunSettings) -> tuple[nn.Module, Units]:
    """The network as a run with these settings has it, and its repeated blocks."""
    dtype = _DTYPES.get(settings.precision)
    if dtype is not None:
        model = model.to(dtype)
    set_attention(model, settings.attention, repeated_heads=settings.repeated_heads)
    units = find_units(model)
    if settings.kernels is not Kernels.NONE:
        fuse_modules(model, activations=settings.kernels is Kernels.LIGER and settings.fused_activations)
    if settings.quantization is not Quantization.NONE:
        model.requires_grad_(False)
        separate_experts(model)
        quantize(model, settings.quantization, output_layer(model), weight_only=settings.weight_only)
        if settings.upcast:
            upcast_rest(model)
    if settings.inference:
        return model.eval().requires_grad_(False), units
    if settings.lora_rank is not None:
        add_lora(model, settings.lora_rank, settings.lora_targets, settings.lora_dropout, wide=settings.wide_adapters)
    if settings.gradient_checkpointing:
        if settings.lora_rank is not None:
            require_input_gradients(model)
        enable_checkpointing(model, units, reentrant=settings.reentrant)
    return model.train(), units


class _Run:
    """The names that this object and its methods hold are those that a training loop would hold."""

    def __init__(
        self, model: nn.Module, units: Units, batch_of: BatchOf, settings: RunSettings, tracker: Tracker
    ) -> None:
        self.model = model
        self._batch_of = batch_of
        self._settings = settings
        self._tracker = tracker
        self._numbers = unit_numbers(model, units)
        self._marks = UnitMarks(tracker, units)
        self._optimizer: Any = None

    def record(self, steps: int) -> Tape:
        settings = self._settings
        note_load(self._tracker, self.model, self._numbers)
        trained = [weight for weight in self.model.parameters() if weight.requires_grad]
        with fused_functions(self.model, settings.kernels), self._tracker, self._marks.hooked():
            if settings.optimizer is not None and trained:
                self._optimizer = make_optimizer(settings.optimizer, trained, fused=settings.fused_optimizer)
                assign_states(self._tracker, self._optimizer)
            collect()
            for number in range(1, steps + 1):
                self._tracker.mark(Moment.STEP)
                if settings.inference:
                    self._infer()
                else:
                    self._train(trained)
                self._tracker.mark(Moment.END)
                if number == steps:
                    break
                collect()
                if number == steps - 1 and (longer := repeated(self._tracker.tape())) is not None:
                    return longer
                self._tracker.marks.pop()
        return self._tracker.tape()

    def _train(self, trained: list[nn.Parameter]) -> None:
        for weight in trained:
            weight.grad = None
        for _ in range(self._settings.accumulation):
            batch, loss_of = self._new_batch()
            self._tracker.mark(Moment.FORWARD)
            with self._autocast():
                loss = loss_of(self.model, batch)
            if not loss.requires_grad:
                raise Unrecordable(
                    "the loss does not depend on any trained weight, so there is no backward pass to record: train at "
                    "least one parameter, or record inference"
                )
            self._tracker.mark(Moment.BACKWARD)
            loss.backward()
            self._marks.close()
        assign_gradients(self._tracker, trained, self._numbers)
        self._tracker.mark(Moment.UPDATE)
        if self._optimizer is not None:
            self._optimizer.step()
            assign_states(self._tracker, self._optimizer)

    def _infer(self) -> None:
        batch, run = self._new_batch()
        self._tracker.mark(Moment.FORWARD)
        with torch.no_grad(), self._autocast():
            run(self.model, batch)

    def _new_batch(self) -> tuple[Batch, Callable[[Any, Batch], Tensor]]:
        """Only the batch itself arrives on the GPU, in the network's number format; what makes it runs elsewhere."""
        dtype = _DTYPES.get(self._settings.precision)
        with _disable_current_modes(), torch.device(self._tracker.device):
            batch, loss_of = self._batch_of()
            if dtype is not None:
                batch = tree_map_only(Tensor, lambda leaf: leaf.to(dtype) if leaf.is_floating_point() else leaf, batch)
        for leaf in tree_leaves(batch):
            if isinstance(leaf, Tensor):
                self._tracker.note(leaf, Role.INPUT)
        if self._settings.kernels is Kernels.LIGER and has_head(self.model):
            return batch, chunked_loss
        return batch, loss_of

    def _autocast(self) -> Any:
        computes = self._settings.computes
        return nullcontext() if computes is None else torch.autocast("cuda", dtype=_DTYPES[computes])


def note_load(tracker: Tracker, model: nn.Module, numbers: dict[int, int]) -> None:
    """Weights and buffers, in the order in which `model.to(device)` moves them."""
    for tensor, role in _loaded(model):
        number = numbers.get(id(tensor), 0)
        tracker.note(tensor, role, number if number or role is not Role.BUFFER else -1)


def _loaded(module: nn.Module) -> Iterator[tuple[Tensor, Role]]:
    for child in module.children():
        yield from _loaded(child)
    for weight in module.parameters(recurse=False):
        yield weight, Role.WEIGHT if weight.requires_grad else Role.FROZEN
    for buffer in module.buffers(recurse=False):
        yield buffer, Role.BUFFER


def assign_gradients(tracker: Tracker, trained: list[nn.Parameter], numbers: dict[int, int]) -> None:
    for weight in trained:
        if weight.grad is not None:
            tracker.assign([weight.grad], Role.GRADIENT, numbers.get(id(weight), 0))


def assign_states(tracker: Tracker, optimizer: Any) -> None:
    kept = (leaf for leaf in tree_leaves(dict(optimizer.state)) if isinstance(leaf, Tensor))
    tracker.assign(kept, Role.STATE)
