"""Records a user's own training loop: what it does is what is recorded."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from vramcast.forecast.tape import Moment, Tape
from vramcast.profile.recording.emulation import collect, collecting_at_steps, like_cuda
from vramcast.profile.recording.errors import Unrecordable, explained
from vramcast.profile.recording.patching import patched
from vramcast.profile.recording.record import STEPS, assign_gradients, assign_states, note_load
from vramcast.profile.recording.tracking import Tracker
from vramcast.profile.recording.units import UnitMarks, find_units, unit_numbers
from vramcast.profile.recording.without_gpu import OnRecordedDevice, pretended_gpu

# Builds what a loop needs. The function that it returns last runs one iteration.
Make = Callable[[], tuple[nn.Module, Any, Callable[[], Any]]]


def record_loop(make: Make, steps: int = STEPS, device: str = "meta") -> Tape:
    """`make` runs with `device` as the default device, and returns model, optimizer and step. Raises Unrecordable."""
    tracker = Tracker(device)
    mode = OnRecordedDevice(tracker)
    with like_cuda(device), pretended_gpu(), collecting_at_steps(), explained():
        with mode, torch.device(device):
            model, optimizer, step = _checked(make())
        return _Loop(tracker, mode, model, optimizer).record(step, steps)


def _checked(made: Any) -> tuple[nn.Module, Any, Callable[[], Any]]:
    if isinstance(made, tuple | list) and len(made) == 3 and isinstance(made[0], nn.Module) and callable(made[2]):
        return made[0], made[1], made[2]
    shown = f"{len(made)} values" if isinstance(made, tuple | list) else type(made).__name__
    raise Unrecordable(
        f"the loop's function returned {shown}: expected a module, or (model, optimizer, step) where step() runs one "
        "iteration"
    )


class _Loop:
    def __init__(self, tracker: Tracker, mode: OnRecordedDevice, model: nn.Module, optimizer: Any) -> None:
        self._tracker = tracker
        self._mode = mode
        self._model = model
        self._optimizer = optimizer
        units = find_units(model)
        self._numbers = unit_numbers(model, units)
        self._units = UnitMarks(tracker, units)
        self._depth = 0
        self._phase = Moment.STEP

    def record(self, step: Callable[[], Any], steps: int) -> Tape:
        models = [self._model, *_other_models(self._model)]
        for model in models:
            note_load(self._tracker, model, self._numbers)
        self._mode.begin(_other_tensors(models))
        self._trained = [weight for weight in self._model.parameters() if weight.requires_grad]
        with self._tracker, self._watched(), self._mode:
            if self._optimizer is not None:
                self._note_states(self._optimizer)
            for _ in range(steps):
                collect()
                self._enter(Moment.STEP)
                step()
            self._enter(Moment.END)
        if not any(mark.moment is Moment.BACKWARD for mark in self._tracker.marks):
            raise Unrecordable(
                "the loop's step runs no backward pass: it must train, or record the network's inference instead"
            )
        return self._tracker.tape()

    def _enter(self, moment: Moment) -> None:
        self._phase = moment
        self._tracker.mark(moment)

    def _note_states(self, optimizer: Any) -> None:
        for state in getattr(optimizer, "state", {}).values():
            for value in state.values() if isinstance(state, dict) else ():
                if isinstance(value, Tensor):
                    self._tracker.note(value)
        assign_states(self._tracker, optimizer)

    @contextmanager
    def _watched(self) -> Iterator[None]:
        with ExitStack() as stack:
            stack.enter_context(self._units.hooked())
            stack.callback(self._model.register_forward_pre_hook(self._forward_begins).remove)
            stack.callback(register_optimizer_step_pre_hook(self._update_begins).remove)
            stack.callback(register_optimizer_step_post_hook(self._update_ends).remove)
            backward = self._backward(torch.autograd.backward)
            stack.enter_context(patched([(torch.autograd, "backward", backward)]))
            yield

    def _forward_begins(self, *_hook: Any) -> None:
        if not self._depth and self._phase is not Moment.FORWARD:
            self._enter(Moment.FORWARD)

    def _update_begins(self, *_hook: Any) -> None:
        if self._phase is not Moment.UPDATE:
            self._enter(Moment.UPDATE)

    def _update_ends(self, optimizer: Any, *_hook: Any) -> None:
        assign_states(self._tracker, optimizer)

    def _backward(self, original: Callable[..., None]) -> Callable[..., None]:
        def backward(*args: Any, **kwargs: Any) -> None:
            outermost = not self._depth  # checkpointing runs autograd inside of autograd
            if outermost:
                self._enter(Moment.BACKWARD)
            self._depth += 1
            try:
                original(*args, **kwargs)
            finally:
                self._depth -= 1
            if outermost:
                self._units.close()
                self._tracker.in_backward = False
                assign_gradients(self._tracker, self._trained, self._numbers)

        return backward


def _other_models(model: nn.Module) -> list[nn.Module]:
    """Networks beside the trained one, such as the reference of a DPO run: they take memory too."""
    made = [found for found in gc.get_objects() if isinstance(found, nn.Module)]
    inside = {id(part) for found in made for part in found.children()} | {id(part) for part in model.modules()}
    return [found for found in made if id(found) not in inside and any(True for _ in found.parameters())]


def _other_tensors(models: Iterable[nn.Module]) -> list[Tensor]:
    placed = {id(tensor) for model in models for tensor in (*model.parameters(), *model.buffers())}
    return [found for found in gc.get_objects() if isinstance(found, Tensor) and id(found) not in placed]
