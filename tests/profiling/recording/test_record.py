"""A recording holds what a training step must hold, in the order of a real loop."""

from __future__ import annotations

import gc

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from tests.profiling.recording.networks import LAYERS, Tower, llama, sequences, tokens
from tests.profiling.recording.reading import bytes_of, live_bytes, made_between, marked, steps
from vramcast.forecast.tape import Moment, Role, Tape
from vramcast.profile.recording.errors import NeedsGpu, NeedsValues, TooManyEvents, Unrecordable
from vramcast.profile.recording.record import record_model
from vramcast.profile.recording.settings import RunSettings
from vramcast.profile.recording.tracking import Tracker
from vramcast.task.vocabulary import Optimizer, Precision


def parameters(model: nn.Module) -> int:
    return sum(weight.numel() for weight in model.parameters())


@pytest.fixture(scope="module")
def tape() -> Tape:
    return record_model(llama, tokens(), RunSettings(optimizer=Optimizer.ADAMW))


@pytest.mark.parametrize(("precision", "size"), [(Precision.FP32, 4), (Precision.BF16, 2), (Precision.AMP_BF16, 4)])
def test_weights_gradients_and_states_have_the_bytes_that_their_counts_say(precision: Precision, size: int) -> None:
    tape = record_model(llama, tokens(), RunSettings(precision=precision, optimizer=Optimizer.ADAMW))
    expected = size * parameters(llama())
    assert bytes_of(tape, Role.WEIGHT) == expected
    assert bytes_of(tape, Role.GRADIENT) == 3 * expected  # made anew in each of the three steps
    assert bytes_of(tape, Role.STATE) == 2 * expected


def test_the_batch_is_the_only_input(tape: Tape) -> None:
    assert bytes_of(tape, Role.INPUT) == 3 * 2 * (4 * 32) * 8


def test_the_second_and_third_step_are_equal(tape: Tape) -> None:
    first, second, third = steps(tape)
    assert second == third
    assert len(first) != len(second)


def test_what_remains_after_the_last_step_is_what_a_loop_keeps(tape: Tape) -> None:
    kept = {Role.WEIGHT, Role.BUFFER, Role.GRADIENT, Role.STATE, Role.WORKSPACE}
    freed = {int(~event) for event in tape.events if event < 0}
    left = {Role(tape.roles[number]) for number in range(len(tape.sizes)) if number not in freed}
    assert left == kept
    assert live_bytes(tape)[-1] == sum(
        tape.sizes[number] for number in range(len(tape.sizes)) if number not in freed
    )  # fmt: skip


def test_two_recordings_of_the_same_network_are_equal(tape: Tape) -> None:
    again = record_model(llama, tokens(), RunSettings(optimizer=Optimizer.ADAMW))
    assert np.array_equal(again.events, tape.events)
    assert np.array_equal(again.sizes, tape.sizes)
    assert np.array_equal(again.roles, tape.roles)
    assert again.marks == tape.marks


def test_garbage_collection_is_on_again_after_a_recording(tape: Tape) -> None:
    assert gc.isenabled()


def test_every_step_passes_through_its_moments_in_order(tape: Tape) -> None:
    seen = [mark.moment for mark in tape.marks if mark.moment <= Moment.END]
    assert seen == 3 * [Moment.STEP, Moment.FORWARD, Moment.BACKWARD, Moment.UPDATE] + [Moment.END]


def test_every_block_is_entered_and_left_once_in_each_direction(tape: Tape) -> None:
    for moment, units in (
        (Moment.ENTER, [1, 2, 3]),
        (Moment.LEAVE, [1, 2, 3]),
        (Moment.ENTER_BACKWARD, [3, 2, 1]),
        (Moment.LEAVE_BACKWARD, [3, 2, 1]),
    ):
        assert [mark.unit for mark in tape.marks if mark.moment is moment] == 3 * units, moment


def test_a_block_has_its_gradients_when_its_backward_is_left(tape: Tape) -> None:
    last = [mark for mark in tape.marks if mark.moment is Moment.LEAVE_BACKWARD][-LAYERS:]
    for mark in last:
        gradients = [n for n in range(len(tape.sizes)) if tape.roles[n] == Role.GRADIENT and tape.units[n] == mark.unit]
        made = [int(np.flatnonzero(tape.events == number)[0]) for number in gradients]
        assert max(made) < mark.event


def test_a_buffer_belongs_to_its_block() -> None:
    def build() -> nn.Module:
        model = Tower()
        for number, block in enumerate(model.blocks, start=1):
            block.register_buffer("scales", torch.zeros(number))
        return model

    tape = record_model(build, sequences(), RunSettings())
    buffers = tape.roles == Role.BUFFER
    assert tape.units[buffers].tolist() == list(range(1, LAYERS + 1))
    assert tape.sizes[buffers].tolist() == [4 * number for number in range(1, LAYERS + 1)]


def test_blocks_own_equal_shares_of_the_weights_and_the_root_owns_the_rest(tape: Tape) -> None:
    weights = tape.roles == Role.WEIGHT
    shares = [int(tape.sizes[weights & (tape.units == unit)].sum()) for unit in range(LAYERS + 1)]
    assert shares[1] == shares[2] == shares[3]
    assert sum(shares) == bytes_of(tape, Role.WEIGHT)


def test_the_update_is_left_open_without_an_optimizer() -> None:
    tape = record_model(Tower, sequences(), RunSettings())
    ends = [*marked(tape, Moment.STEP)[1:], *marked(tape, Moment.END)]
    for update, end in zip(marked(tape, Moment.UPDATE), ends, strict=True):
        assert not made_between(tape, update, end)
    assert not bytes_of(tape, Role.STATE)


def test_accumulating_adds_gradients_in_place() -> None:
    once = record_model(Tower, sequences(), RunSettings())
    thrice = record_model(Tower, sequences(), RunSettings(accumulation=3))
    assert bytes_of(thrice, Role.GRADIENT) == bytes_of(once, Role.GRADIENT)
    assert len(marked(thrice, Moment.BACKWARD)) == 9


def test_inference_keeps_nothing_for_backward() -> None:
    tape = record_model(Tower, sequences(), RunSettings(inference=True))
    assert not bytes_of(tape, Role.SAVED)
    assert not bytes_of(tape, Role.GRADIENT)
    assert bytes_of(tape, Role.FROZEN) == 4 * parameters(Tower())


def test_gradients_of_a_tensor_used_twice_are_summed_in_place() -> None:
    """A dispatch mode would make the engine allocate the sum."""

    class Forked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(8, 8)

        def forward(self, given: Tensor) -> Tensor:
            hidden = self.linear(given)
            return hidden.relu() + hidden.tanh()  # type: ignore[no-any-return]

    def batch() -> object:
        return torch.zeros(1024, 8), lambda model, given: model(given).sum()

    tape = record_model(Forked, batch, RunSettings(), steps=1)
    backward = made_between(tape, marked(tape, Moment.BACKWARD)[0], marked(tape, Moment.UPDATE)[0])
    assert backward.count(1024 * 8 * 4) == 2  # one gradient through each branch


class Careless(nn.Module):
    def __init__(self, sin: str) -> None:
        super().__init__()
        self.linear, self.sin = nn.Linear(8, 8), sin

    def forward(self, given: Tensor) -> Tensor:
        hidden: Tensor = self.linear(given)
        if self.sin == "item" and hidden.sum().item() > 0:
            return hidden
        if self.sin == "kernel":
            raise NotImplementedError("this Triton kernel runs on a GPU only")
        if self.sin == "detached":
            return hidden.detach()
        raise ValueError("the wrong shape")


@pytest.mark.parametrize(
    ("sin", "error", "told"),
    [
        ("item", NeedsValues, "pad to fixed shapes"),
        ("kernel", NeedsGpu, "measure one run and set gpu-memory"),
        ("detached", Unrecordable, "no backward pass"),
        ("other", Unrecordable, "the wrong shape"),
    ],
)
def test_what_cannot_be_recorded_is_refused_with_the_next_level(sin: str, error: type[Exception], told: str) -> None:
    def batch() -> object:
        return torch.zeros(4, 8), lambda model, given: functional.mse_loss(model(given), given)

    with pytest.raises(error, match=told):
        record_model(lambda: Careless(sin), batch, RunSettings())
    assert gc.isenabled()


def test_a_step_with_too_many_allocations_is_refused() -> None:
    def endless() -> None:
        with Tracker(max_events=100):
            while True:
                torch.empty(1, device="meta")

    with pytest.raises(TooManyEvents, match="make and free tensors more than 100 times"):
        endless()
