"""A user's own loop is recorded as it runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from tests.profiling.recording.networks import WIDTH, Tower, llama, sequences
from tests.profiling.recording.reading import bytes_of, marked, steps
from vramcast.forecast.peaks import peaks
from vramcast.forecast.tape import Moment, Role, Tape
from vramcast.profile.recording.errors import NeedsValues, Unrecordable
from vramcast.profile.recording.loop import record_loop
from vramcast.profile.recording.record import record_model
from vramcast.profile.recording.settings import RunSettings
from vramcast.task.vocabulary import Optimizer

WEIGHTS = 4 * sum(weight.numel() for weight in Tower().parameters())


def make_plain() -> Any:
    """As tutorials write it, with a data set in the host's memory and the loss printed."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = Tower().to(device)
    optimizer = torch.optim.AdamW(model.parameters())
    images, labels = torch.zeros(4, 32, WIDTH), torch.zeros(4, dtype=torch.long)
    losses = []

    def step() -> None:
        given, wanted = images.to(device, non_blocking=True), labels.cuda()
        optimizer.zero_grad(set_to_none=True)
        loss = functional.cross_entropy(model(given), wanted)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())

    return model, optimizer, step


def make_with_early_states() -> Any:
    model, _, _ = make_plain()
    optimizer = torch.optim.Adagrad(model.parameters())

    def step() -> None:
        optimizer.zero_grad()
        model(torch.zeros(4, 32, WIDTH, device="cuda")).sum().backward()
        optimizer.step()

    return model, optimizer, step


@pytest.fixture(scope="module")
def plain() -> Tape:
    return record_loop(make_plain)


def test_a_plain_loop_is_recorded_like_the_same_run_by_settings(plain: Tape) -> None:
    expected = record_model(Tower, sequences(), RunSettings(optimizer=Optimizer.ADAMW))
    for role in (Role.WEIGHT, Role.GRADIENT, Role.STATE, Role.INPUT):
        assert bytes_of(plain, role) == bytes_of(expected, role), role
    assert sorted(steps(plain)[2]) == sorted(steps(expected)[2])


def test_a_data_set_in_the_hosts_memory_takes_no_memory_of_the_gpu(plain: Tape) -> None:
    expected = record_model(Tower, sequences(), RunSettings(optimizer=Optimizer.ADAMW))
    assert peaks(plain).active_bytes == peaks(expected).active_bytes


def test_states_that_are_made_with_the_optimizer_are_recorded() -> None:
    assert bytes_of(record_loop(make_with_early_states), Role.STATE) == WEIGHTS


def test_a_loop_passes_through_the_same_moments(plain: Tape) -> None:
    seen = [mark.moment for mark in plain.marks if mark.moment <= Moment.END]
    assert seen == 3 * [Moment.STEP, Moment.FORWARD, Moment.BACKWARD, Moment.UPDATE] + [Moment.END]
    assert [mark.unit for mark in plain.marks if mark.moment is Moment.ENTER_BACKWARD] == 3 * [3, 2, 1]


def make_two_models() -> Any:
    """A preference loss needs a frozen reference."""
    model, reference = Tower().cuda(), Tower().cuda().requires_grad_(False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step() -> None:
        given = torch.zeros(4, 32, WIDTH, device="cuda")
        optimizer.zero_grad()
        with torch.no_grad():
            wanted = reference(given)
        functional.mse_loss(model(given), wanted).backward()
        optimizer.step()

    return model, optimizer, step


def test_a_second_model_takes_memory_too() -> None:
    tape = record_loop(make_two_models)
    assert bytes_of(tape, Role.WEIGHT) == WEIGHTS
    assert bytes_of(tape, Role.FROZEN) == WEIGHTS
    assert bytes_of(tape, Role.INPUT) == 3 * 4 * 32 * WIDTH * 4


def make_accumulating() -> Any:
    model = Tower().cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step() -> None:
        for _ in range(2):
            model(torch.zeros(4, 32, WIDTH, device="cuda")).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    return model, optimizer, step


def test_accumulation_has_several_backward_passes_in_a_step() -> None:
    tape = record_loop(make_accumulating)
    assert len(marked(tape, Moment.BACKWARD)) == 6
    assert bytes_of(tape, Role.GRADIENT) == 3 * WEIGHTS


def make_mixed() -> Any:
    model = llama()
    model.cuda()
    model.gradient_checkpointing_enable()  # type: ignore[operator]
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    scaler = torch.amp.GradScaler("cuda")
    tokens = torch.zeros(4, 32, dtype=torch.long)

    def step() -> None:
        given = tokens.to("cuda")
        with torch.autocast("cuda", dtype=torch.float16):
            loss = model(input_ids=given, labels=given).loss
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        assert not torch.isnan(norm)

    return model, optimizer, step


def test_a_loop_with_scaler_clipping_checkpointing_and_a_fused_optimizer_is_recorded() -> None:
    tape = record_loop(make_mixed)
    weights = bytes_of(tape, Role.WEIGHT)
    assert bytes_of(tape, Role.GRADIENT) == 3 * weights
    assert 2 * weights <= bytes_of(tape, Role.STATE) < 2.1 * weights  # and a step count a tensor
    assert [mark.unit for mark in tape.marks if mark.moment is Moment.ENTER] == 3 * [1, 2, 3, 3, 2, 1]


class Choosing(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, given: Tensor) -> Tensor:
        hidden: Tensor = self.linear(given)
        return hidden[: max(1, int((hidden.sum() > 0).item()))]


def make_choosing() -> Any:
    model = Choosing()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step() -> None:
        optimizer.zero_grad()
        model(torch.zeros(4, 8, device="cuda")).sum().backward()
        optimizer.step()

    return model, optimizer, step


def test_a_network_that_looks_at_values_is_refused_without_them_and_recorded_on_the_cpu() -> None:
    with pytest.raises(NeedsValues, match="pad to fixed shapes"):
        record_loop(make_choosing)
    tape = record_loop(make_choosing, device="cpu")
    assert bytes_of(tape, Role.WEIGHT) == (8 * 8 + 8) * 4
    assert bytes_of(tape, Role.GRADIENT) == 3 * (8 * 8 + 8) * 4


def make_without_backward() -> Any:
    model = Tower()
    return model, None, lambda: model(torch.zeros(4, 32, WIDTH, device="cuda"))


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (make_without_backward, "no backward pass"),
        (Tower, "returned a Tower: expected a module, or"),
        (lambda: (Tower(), None), r"returned \(Tower, NoneType\): expected a module, or"),
    ],
)
def test_what_is_no_training_loop_is_refused(make: Callable[[], Any], told: str) -> None:
    with pytest.raises(Unrecordable, match=told):
        record_loop(make)


def test_the_cpu_records_the_same_bytes_as_the_meta_device() -> None:
    meta = record_loop(make_plain)
    real = record_loop(make_plain, device="cpu")
    for role in (Role.WEIGHT, Role.GRADIENT):
        assert bytes_of(real, role) == bytes_of(meta, role)
    saved = bytes_of(meta, Role.SAVED)
    assert abs(bytes_of(real, Role.SAVED) - saved) < 0.05 * saved
