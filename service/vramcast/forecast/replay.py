"""Training steps replayed on the allocator: every tensor is made and freed in PyTorch's order.

For each operation we know what the forward pass allocates, what autograd saves, and what the backward pass allocates
and frees. Two steps are enough to fill the caches. The last, partial batch of an epoch is replayed too: its odd sizes
fragment cached blocks, which costs memory that a sum over tensors does not show.

The order does not depend on the batch. So a network's steps are recorded once, with sizes as a per-sample term and a
fixed term. From the second step on, each step is the previous one with new tensor numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from vramcast.forecast.allocator import GRAIN
from vramcast.forecast.description import CONVOLUTIONS, Description, Op, OpKind
from vramcast.forecast.peaks import MOST_BYTES, replayed
from vramcast.forecast.tape import tape_of_tensors
from vramcast.task.quantity import MIB

_FLOAT_BYTES = 4
_LABEL_BYTES = 8
_CUBLAS_WORKSPACE_BYTES = 8_519_680  # the default CUBLAS_WORKSPACE_CONFIG: 2 x 4 MiB and 8 x 16 KiB
_CUBLASLT_WORKSPACE_BYTES = MIB
_KEEPS_INPUT = frozenset({OpKind.KEEPS_INPUT, OpKind.BATCH_NORM, OpKind.LINEAR, *CONVOLUTIONS})
_KEEPS_OUTPUT = frozenset({OpKind.KEEPS_OUTPUT, OpKind.SOFTMAX})


@dataclass(frozen=True, slots=True)
class Replay:
    reserved_bytes: int
    peak_active_bytes: int


@dataclass(frozen=True, slots=True)
class Workspaces:
    """How many copies of input and output cuDNN keeps, and whether it does so in the forward pass too."""

    copies: int
    forward: bool = False


NO_WORKSPACE = Workspaces(0)


# Columns of a recorded event: bytes per sample, fixed bytes, and the tensor. A positive tensor is made, a negative one
# freed. 0 is a workspace; then the second column is 1 in the forward pass.
_COLUMNS = 3
Events = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class RecordedSteps:
    """A network's training steps, for any batch size."""

    placed: Events
    warm_up: Events
    first: Events
    again: Events  # the second step; later steps derive from it
    tensors_before: int  # made before the second step
    tensors_made: int  # in the second step
    successors: Events  # by tensor that the second step frees: the tensor that the third step frees instead

    def program(self, batches: Sequence[int], warm_up_batch: int) -> Program:
        """One step per batch; `warm_up_batch` sizes a forward pass before training, 0 for none."""
        parts = [(self.placed, 1)]
        if warm_up_batch:
            parts.append((self.warm_up, warm_up_batch))
        parts += [(self._step(number), batch) for number, batch in enumerate(batches)]
        sizes = [
            np.where(part[:, 2] == 0, part[:, 0] * batch, part[:, 0] * batch + part[:, 1]) for part, batch in parts
        ]
        events = np.concatenate([part for part, _ in parts])
        return Program(np.concatenate(sizes), events[:, 2], (events[:, 2] == 0) & (events[:, 1] > 0))

    def _step(self, number: int) -> Events:
        if number < 2:
            return (self.first, self.again)[number]
        later = self.again.copy()
        tensor = np.abs(later[:, 2])
        shift = (number - 1) * self.tensors_made
        old = (tensor > 0) & (tensor <= self.tensors_before)
        moved = np.where(old, self.successors[np.where(old, tensor, 0)] + shift - self.tensors_made, tensor + shift)
        later[:, 2] = np.sign(later[:, 2]) * moved
        return later


@dataclass(frozen=True, slots=True)
class Program:
    """The allocator calls of some steps, which can be replayed with different workspaces; arrays over events."""

    sizes: Events
    tensors: Events
    forward: NDArray[np.bool_]

    def run(self, workspaces: Workspaces) -> Replay:
        temporary = self.tensors == 0
        sizes = np.where(temporary, self.sizes * workspaces.copies, self.sizes)
        if not workspaces.forward:
            sizes[self.forward] = 0
        wanted = ~temporary | (sizes > 0)
        tape = tape_of_tensors(sizes[wanted], self.tensors[wanted])
        # No device has as much; but a batch may be any number.
        active, _, reserved, *_ = replayed(tape, compiled=sizes.sum(dtype=np.float64) <= MOST_BYTES)
        return Replay(GRAIN * reserved, GRAIN * active)


class _Plan:
    """One operation, with its kind resolved to flags: hashing an enum costs more than the allocation it decides."""

    __slots__ = (
        "convolves", "copies_bytes", "drops", "in_floats", "inputs", "joins", "keeps_input", "keeps_output", "linear",
        "norm_bytes", "out_elements", "out_floats", "parameter_bytes", "prelu", "view",
    )  # fmt: skip

    def __init__(self, op: Op) -> None:
        self.inputs = op.inputs
        self.out_elements = op.out_elements
        self.in_floats = _FLOAT_BYTES * op.in_elements
        self.out_floats = _FLOAT_BYTES * op.out_elements
        self.parameter_bytes = tuple(_FLOAT_BYTES * elements for elements in parameter_sizes(op))
        self.view = op.kind is OpKind.VIEW
        self.linear = op.kind is OpKind.LINEAR
        self.convolves = op.kind in CONVOLUTIONS
        self.copies_bytes = channels_last_bytes(op) if self.convolves else 0
        self.drops = op.kind is OpKind.DROPOUT
        self.keeps_input = op.kind in _KEEPS_INPUT
        self.keeps_output = op.kind in _KEEPS_OUTPUT
        self.norm_bytes = _FLOAT_BYTES * (op.parameters // 2) if op.kind is OpKind.BATCH_NORM else 0
        self.joins = op.type if op.type in ("Add", "Concat") else ""
        self.prelu = op.type == "PReLU"


class _Tensor:
    __slots__ = ("number", "owners", "sample_bytes")

    def __init__(self, number: int, sample_bytes: int) -> None:
        self.number = number
        self.sample_bytes = sample_bytes
        self.owners = 1


def channels_last_bytes(op: Op) -> int:
    """cuDNN's copies of input and output for tensor cores: channels last, padded to a multiple of 8."""
    if op.channels_in < 4:
        return 0
    pixels_in = op.in_elements // max(1, op.channels_in)
    return _FLOAT_BYTES * (pixels_in * _up8(op.channels_in) + op.positions * _up8(op.channels_out))


def _up8(channels: int) -> int:
    return -(-channels // 8) * 8


def record(network: Description, optimizer_states: int) -> RecordedSteps:
    step = _Step(network)
    step.place_parameters()
    placed = step.take()
    step.warm_up()
    warm_up = step.take()
    step.train(optimizer_states)
    first, before, survivors = step.take(), step.made, step.survivors
    step.train(optimizer_states)
    again, successors = step.take(), np.zeros(before + 1, np.int64)
    successors[survivors] = step.survivors
    return RecordedSteps(placed, warm_up, first, again, before, step.made - before, successors)


def replay(
    network: Description, batches: Sequence[int], optimizer_states: int, workspaces: Workspaces, warm_up_batch: int
) -> Replay:
    return record(network, optimizer_states).program(batches, warm_up_batch).run(workspaces)


class _Step:
    def __init__(self, network: Description) -> None:
        self.made = 0
        self._events: list[int] = []
        self._network = network
        self._plans = [_Plan(op) for op in network.ops]
        self._readers = _readers(network.ops)
        self._classes = network.ops[-1].out_elements
        self._cublas: dict[str, _Tensor] = {}
        self._parameters: list[int] = []
        self._states: list[_Tensor] | None = None
        self._kept: list[_Tensor] = []  # held by the training loop's variables from one step to the next
        self._gradients: list[_Tensor] = []
        self._input: list[_Tensor] = []

    def take(self) -> Events:
        """The events since the last call."""
        taken = np.array(self._events, np.int64).reshape(-1, _COLUMNS)
        self._events = []
        return taken

    @property
    def survivors(self) -> list[int]:
        """Tensors that the next step frees, always in the same order."""
        return [tensor.number for tensor in (*self._input, *self._kept, *self._gradients)]

    def _new(self, sample_bytes: int, fixed_bytes: int = 0) -> _Tensor:
        self.made += 1
        self._events += (sample_bytes, fixed_bytes, self.made)
        return _Tensor(self.made, sample_bytes)

    def _drop(self, tensor: _Tensor) -> None:
        tensor.owners -= 1
        if not tensor.owners:
            self._events += (0, 0, -tensor.number)

    def _drop_all(self, tensors: list[_Tensor]) -> None:
        for tensor in tensors:
            self._drop(tensor)
        tensors.clear()

    def _work(self, plan: _Plan, *, forward: bool) -> None:
        if plan.copies_bytes:
            self._events += (plan.copies_bytes, int(forward), 0)

    def place_parameters(self) -> None:
        for plan in self._plans:
            for size_bytes in plan.parameter_bytes:
                self._parameters.append(size_bytes)
                self._new(0, size_bytes)
            if plan.norm_bytes:  # running mean and variance, and the count of batches
                for size_bytes in (plan.norm_bytes, plan.norm_bytes, _FLOAT_BYTES):
                    self._new(0, size_bytes)

    def warm_up(self) -> None:
        network_input = self._new(_FLOAT_BYTES * self._network.input_elements)
        output, tape = self._forward(network_input)
        self._drop(output)
        for saved in tape:
            self._drop_all(saved)
        self._drop(network_input)

    def train(self, optimizer_states: int) -> None:
        # Loading the next batch frees the old input. The old output and loss live until their variables are rebound.
        self._drop_all(self._input)
        self._input = [self._new(_FLOAT_BYTES * self._network.input_elements), self._new(_LABEL_BYTES)]
        self._drop_all(self._gradients)
        output, tape = self._forward(self._input[0])
        kept, self._kept = self._kept, [output]
        if kept:
            self._drop(kept[0])
        logits_bytes = _FLOAT_BYTES * self._classes
        log_softmax, loss = self._new(logits_bytes), self._new(0, 1)
        if kept:
            self._drop(kept[1])
        self._kept.append(loss)
        seed = self._new(0, 1)
        at_loss = self._new(logits_bytes)
        self._drop(seed)
        at_output = self._new(logits_bytes)
        self._drop(at_loss)
        self._drop(log_softmax)
        self._backward(tape, at_output)
        self._optimize(optimizer_states)

    def _optimize(self, optimizer_states: int) -> None:
        if self._states is None:
            self._states = [self._new(0, size) for size in self._parameters for _ in range(optimizer_states)]
        if optimizer_states > 1:
            # The multi-tensor update holds one temporary per parameter, all at once.
            self._drop_all([self._new(0, size) for size in self._parameters])

    def _matrix_workspace(self, thread: str) -> None:
        if thread not in self._cublas:
            self._cublas[thread] = self._new(0, _CUBLAS_WORKSPACE_BYTES)

    def _forward(self, network_input: _Tensor) -> tuple[_Tensor, list[list[_Tensor]]]:
        outputs = {-1: network_input}
        left = dict(self._readers)
        tape: list[list[_Tensor]] = []
        for index, plan in enumerate(self._plans):
            output, saved = self._run(plan, outputs[plan.inputs[0]])
            outputs[index] = output
            tape.append(saved)
            for source in plan.inputs:
                left[source] -= 1
                if not left[source]:
                    self._drop(outputs.pop(source))
        return outputs[len(self._plans) - 1], tape

    def _run(self, plan: _Plan, read: _Tensor) -> tuple[_Tensor, list[_Tensor]]:
        if plan.view:
            read.owners += 1
            return read, []
        if plan.linear:
            self._matrix_workspace("forward")
        output = self._new(plan.out_floats)
        saved: list[_Tensor] = []
        if plan.linear:
            self._drop(self._new(0, _CUBLASLT_WORKSPACE_BYTES))
        elif plan.convolves:
            self._work(plan, forward=True)
        elif plan.drops:
            saved.append(self._new(plan.out_elements))
        if plan.keeps_input:
            read.owners += 1
            saved.append(read)
        if plan.keeps_output:
            output.owners += 1
            saved.append(output)
        if plan.norm_bytes:
            saved += [self._new(0, plan.norm_bytes), self._new(0, plan.norm_bytes)]
        return output, saved

    def _backward(self, tape: list[list[_Tensor]], at_output: _Tensor) -> None:
        pending = {len(self._plans) - 1: at_output}
        for index in range(len(self._plans) - 1, -1, -1):
            plan, gradient = self._plans[index], pending.pop(index)
            if plan.joins or plan.view:
                self._share(plan, gradient, pending)
            else:
                at_input = self._differentiate(plan)
                if plan.inputs[0] >= 0 and at_input is not None:
                    self._accumulate(pending, plan.inputs[0], at_input, at_input.sample_bytes)
                elif at_input is not None:
                    self._drop(at_input)
            self._drop_all(tape[index])
            self._drop(gradient)

    def _share(self, plan: _Plan, gradient: _Tensor, pending: dict[int, _Tensor]) -> None:
        """A sum passes its gradient on; a concatenation passes on views of it."""
        for source in plan.inputs:
            if source < 0:
                continue
            gradient.owners += 1
            floats = self._plans[source].out_floats if plan.joins == "Concat" else plan.out_floats
            self._accumulate(pending, source, gradient, floats)

    def _accumulate(self, pending: dict[int, _Tensor], target: int, gradient: _Tensor, sample_bytes: int) -> None:
        before = pending.get(target)
        if before is None:
            pending[target] = gradient
            return
        pending[target] = self._new(sample_bytes)
        self._drop(before)
        self._drop(gradient)

    def _differentiate(self, plan: _Plan) -> _Tensor | None:
        """The gradient at the input. PyTorch's order of this and the parameters' gradients matters."""
        if plan.convolves:
            self._keep_gradient(plan.parameter_bytes[1])
            at_input = None
            if plan.inputs[0] >= 0:
                at_input = self._new(plan.in_floats)
                self._work(plan, forward=False)
            self._keep_gradient(plan.parameter_bytes[0])
            self._work(plan, forward=False)
            return at_input
        if plan.linear:
            self._matrix_workspace("backward")
        at_input = self._new(plan.in_floats) if plan.inputs[0] >= 0 or not plan.linear else None
        if plan.prelu:
            per_element = self._new(plan.in_floats)
            self._keep_gradient(_FLOAT_BYTES)
            self._drop(per_element)
            return at_input
        for size_bytes in plan.parameter_bytes:
            self._keep_gradient(size_bytes)
        return at_input

    def _keep_gradient(self, size_bytes: int) -> None:
        self._gradients.append(self._new(0, size_bytes))


def parameter_sizes(op: Op) -> tuple[int, ...]:
    """Weight, then bias; a norm has two tensors of the same size."""
    if not op.parameters:
        return ()
    if op.kind is OpKind.LINEAR or op.kind in CONVOLUTIONS:
        return (op.parameters - op.channels_out, op.channels_out)
    if op.kind is OpKind.BATCH_NORM:
        return (op.parameters // 2, op.parameters // 2)
    return (op.parameters,)


def _readers(ops: Sequence[Op]) -> dict[int, int]:
    readers = {-1: 1}  # the training loop also holds the input
    for op in ops:
        for source in op.inputs:
            readers[source] = readers.get(source, 0) + 1
    return readers
