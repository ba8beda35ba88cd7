"""Records a user's own training loop: what it does is what is recorded."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, fields, is_dataclass
from inspect import Parameter, iscoroutine, isgenerator, signature
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from vramcast.forecast.storage import MOST_EVENTS
from vramcast.forecast.tape import Moment, Tape
from vramcast.profile.profiling import quiet, without_weights
from vramcast.profile.recording.emulation import collect, collecting_at_steps, like_cuda
from vramcast.profile.recording.errors import Unrecordable, explained
from vramcast.profile.recording.optimizers import optimizers_of
from vramcast.profile.recording.patching import patched
from vramcast.profile.recording.record import STEPS, assign_gradients, assign_states, note_load
from vramcast.profile.recording.tracking import Tracker
from vramcast.profile.recording.units import UnitMarks, find_units, unit_numbers
from vramcast.profile.recording.without_gpu import OnRecordedDevice, pretended_gpu


@dataclass(frozen=True, slots=True)
class Loop:
    model: nn.Module
    optimizer: Any  # one, several, or None
    step: Callable[[], Any]  # runs one iteration


_FORM = "expected a module, or (model, optimizer, step) where step() runs one iteration"


def made_without_gpu(make: Callable[[], Any]) -> Any:
    """What the user's function returns. Raises Unrecordable."""
    with like_cuda("meta"), pretended_gpu(), quiet(), explained():
        return _made(make, OnRecordedDevice(Tracker()), "meta")


def record_loop(
    make: Callable[[], Any], steps: int = STEPS, device: str = "meta", max_events: int = MOST_EVENTS
) -> Tape:
    """`make` runs with `device` as the default device, and returns model, optimizer and step. Raises Unrecordable.

    `max_events` is what a profile may hold.
    """
    tracker = Tracker(device, max_events)
    mode = OnRecordedDevice(tracker)
    with like_cuda(device), pretended_gpu(), collecting_at_steps(), explained():
        loop = loop_of(_made(make, mode, device))
        return _Recorder(tracker, mode, loop).record(steps)


def _made(make: Callable[[], Any], mode: OnRecordedDevice, device: str) -> Any:
    with without_weights(), mode, torch.device(device):
        return make()


def looks_like_loop(made: Any) -> bool:
    """Anything that has several things in it. A network or its configuration is one thing."""
    if isinstance(made, nn.Module) or hasattr(made, "model_type"):
        return False
    return isinstance(made, tuple | list | Mapping) or is_dataclass(made)


def loop_of(made: Any) -> Loop:
    """Raises Unrecordable."""
    if not isinstance(made, tuple | list):
        raise Unrecordable(f"the loop's function returned {_shown(made)}: {_FORM}")
    if len(made) != 3 or not isinstance(made[0], nn.Module) or not callable(made[2]) or isinstance(made[2], nn.Module):
        raise Unrecordable(f"the loop's function returned ({', '.join(map(_kind, made))}): {_FORM}")
    loop = Loop(*made)
    needed = [name for name, one in signature(loop.step).parameters.items() if _is_needed(one)]
    if needed:
        raise Unrecordable(
            f"the loop's step takes {', '.join(needed)}: it must take nothing, and make or keep its own batch"
        )
    return loop


def _is_needed(parameter: Parameter) -> bool:
    variadic = parameter.kind in {Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD}
    return parameter.default is Parameter.empty and not variadic


def _shown(made: Any) -> str:
    if isinstance(made, Mapping):
        return f"a {_kind(made)} of {', '.join(map(str, made))}"
    if is_dataclass(made):
        return f"a {_kind(made)} with {', '.join(one.name for one in fields(made))}"
    return f"a {_kind(made)}"


def _kind(value: Any) -> str:
    return type(value).__name__


class _Recorder:
    def __init__(self, tracker: Tracker, mode: OnRecordedDevice, loop: Loop) -> None:
        self._tracker = tracker
        self._mode = mode
        self._model = loop.model
        self._optimizers = optimizers_of(loop.optimizer)
        self._step = loop.step
        units = find_units(loop.model)
        self._numbers = unit_numbers(loop.model, units)
        self._units = UnitMarks(tracker, units)
        self._depth = 0
        self._phase = Moment.STEP

    def record(self, steps: int) -> Tape:
        models = [self._model, *_other_models(self._model)]
        for model in models:
            note_load(self._tracker, model, self._numbers)
        for optimizer in self._optimizers:
            self._note_states(optimizer)
        self._mode.begin(_other_tensors(models))
        self._trained = [weight for weight in self._model.parameters() if weight.requires_grad]
        with self._tracker, self._watched(), self._mode:
            for _ in range(steps):
                collect()
                self._enter(Moment.STEP)
                _check_ran(self._step())
            self._enter(Moment.END)
        if not any(mark.moment is Moment.BACKWARD for mark in self._tracker.marks):
            raise Unrecordable(
                "the loop's step runs no backward pass: it must train. For inference, return the module alone and use "
                "--set task=inference"
            )
        return self._tracker.tape()

    def _enter(self, moment: Moment) -> None:
        self._phase = moment
        self._tracker.mark(moment)

    def _note_states(self, optimizer: Any) -> None:
        for state in getattr(optimizer, "state", {}).values():
            for value in state.values() if isinstance(state, dict) else ():
                if isinstance(value, Tensor) and value.dim():  # counters are in the host's memory
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


def _check_ran(result: Any) -> None:
    if isgenerator(result) or iscoroutine(result):
        raise Unrecordable(f"the loop's step returned a {_kind(result)}, which runs nothing: step() must run the step")


def _other_models(model: nn.Module) -> list[nn.Module]:
    """Networks beside the trained one, such as the reference of a DPO run: they take memory too."""
    made = [found for found in gc.get_objects() if isinstance(found, nn.Module)]
    inside = {id(part) for found in made for part in found.children()} | {id(part) for part in model.modules()}
    return [found for found in made if id(found) not in inside and any(True for _ in found.parameters())]


def _other_tensors(models: Iterable[nn.Module]) -> list[Tensor]:
    placed = {id(tensor) for model in models for tensor in (*model.parameters(), *model.buffers())}
    return [found for found in gc.get_objects() if isinstance(found, Tensor) and id(found) not in placed]
