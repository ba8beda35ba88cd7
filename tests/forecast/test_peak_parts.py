"""What a recorded forecast says about its parts."""

from __future__ import annotations

import numpy as np
import pytest

from tests.forecast.recordings import B, L
from tests.forecast.tapes import tape_of
from vramcast.forecast.peak_parts import peak_parts
from vramcast.forecast.peaks import peaks
from vramcast.forecast.tape import Mark, Moment, Role, Tape
from vramcast.task.vocabulary import Optimizer

KIB, MIB = 1 << 10, 1 << 20
MARKS = (Mark(4, Moment.STEP), Mark(4, Moment.FORWARD), Mark(7, Moment.BACKWARD), Mark(10, Moment.UPDATE))
ROLES = (Role.WEIGHT, Role.WEIGHT, Role.FROZEN, Role.STATE, Role.INPUT, Role.SAVED, Role.SAVED, Role.TEMPORARY,
         Role.GRADIENT)  # fmt: skip


def step() -> Tape:
    """Four tensors are loaded, forward saves two of 8 MiB, and backward begins with a temporary of 16."""
    sizes = [2 * MIB, 2 * MIB, 4 * MIB, 6 * MIB, 4 * KIB, 8 * MIB, 8 * MIB, 16 * MIB, 2 * MIB]
    tape = tape_of(sizes, [0, 1, 2, 3, 4, 5, 6, 7, ~7, 8, ~5, ~6], MARKS)
    return Tape(tape.sizes, np.array(ROLES, np.uint8), tape.units, tape.events, tape.marks)


def said(optimizer: Optimizer | None) -> dict[str, tuple[int, str]]:
    parts = peak_parts(peaks(step()), {B: 4, L: 512}, optimizer)
    return {part.name: (part.size_bytes, part.because) for part in parts}


def test_parts_have_their_tensors_their_purpose_and_the_moment_of_the_peak() -> None:
    moment = "peak: the backward pass of step 1"
    assert said(Optimizer.ADAMW) == {
        "saved activations": (
            16 * MIB, f"2 tensors that the forward pass keeps for the backward pass, at batch 4, length 512; {moment}"),
        "temporaries": (
            16 * MIB, f"1 tensor that only the operations around the peak use, at batch 4, length 512; {moment}"),
        "optimizer states": (6 * MIB, f"1 tensor that adamw keeps; {moment}"),
        "weights": (4 * MIB, f"2 tensors that are trained; {moment}"),
        "frozen weights": (4 * MIB, f"1 tensor that is not trained; {moment}"),
        "input": (4 * KIB, f"1 tensor of the batch, at batch 4, length 512; {moment}"),
        "allocator": (
            peaks(step()).reserved_bytes - 46 * MIB - 4 * KIB,
            "blocks that are cached, or larger than their tensors, beyond 46 MiB in use"),
    }  # fmt: skip


def test_what_the_peak_does_not_hold_is_no_part() -> None:
    assert "gradients" not in said(Optimizer.ADAMW)


def test_an_optimizer_of_the_recorded_loop_has_no_name() -> None:
    assert "1 tensor that the optimizer keeps" in said(None)["optimizer states"][1]


@pytest.mark.parametrize("optimizer", [None, Optimizer.SGD])
def test_parts_add_up_to_what_is_reserved(optimizer: Optimizer | None) -> None:
    assert sum(size for size, _ in said(optimizer).values()) == peaks(step()).reserved_bytes
