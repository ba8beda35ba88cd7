"""Steps that were rewritten once for every batch and length are those that a rewriting at each of them gives."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from tests.forecast.recordings import B, L, R, language_recording
from vramcast.forecast.accumulation import accumulated
from vramcast.forecast.prepared import prepared
from vramcast.forecast.rank_view import Plan, Scheme
from vramcast.forecast.recordings import builtin_recordings, key_of
from vramcast.forecast.sharding import shard
from vramcast.forecast.sizes import Point
from vramcast.forecast.tape import Tape
from vramcast.forecast.update import with_update
from vramcast.task.vocabulary import Optimizer

MODEL = "hf/Llama-3.2-1B"
TRAINING = ["16-bit lora checkpointed", "16-bit full", "amp full checkpointed"]
Transform = Callable[[Tape], Tape]


def optimized(optimizer: Optimizer) -> Transform:
    return lambda tape: with_update(tape, optimizer, element_bytes=2)


def sharded(scheme: Scheme, ranks: int = 8) -> Transform:
    def rewrite(tape: Tape) -> Tape:
        return with_update(shard(tape, Plan(scheme, ranks, masters=True), ahead=True), Optimizer.ADAMW, sharded=True)

    return rewrite


TRANSFORMS: dict[str, Transform] = {
    "nothing": lambda tape: tape,
    **{str(optimizer): optimized(optimizer) for optimizer in Optimizer},
    **{str(scheme): sharded(scheme) for scheme in Scheme},
    "accumulation": lambda tape: with_update(accumulated(tape, 4), Optimizer.ADAMW),
}


def same(one: Tape, other: Tape) -> bool:
    arrays = ("sizes", "roles", "units", "events", "streams")
    return one.marks == other.marks and all(np.array_equal(getattr(one, a), getattr(other, a)) for a in arrays)


@pytest.mark.parametrize(
    ("name", "variant"),
    [("nothing", "16-bit inference"), *((name, variant) for name in TRANSFORMS for variant in TRAINING)],
)
def test_a_prepared_tape_is_the_rewritten_tape_at_every_batch_and_length(name: str, variant: str) -> None:
    transform = TRANSFORMS[name]
    recording = builtin_recordings().read(key_of(MODEL, variant))
    rank = {R: 24} if R in recording.variables else {}
    piece = recording.pieces[0]
    ready = prepared(piece, {B: 2, L: 512, **rank}, transform)
    assert ready is not None
    for batch, length in ((2, 512), (7, 4096), (64, 1000)):
        point: Point = {B: batch, L: length, **rank}
        assert same(ready.tape(point), transform(piece.tape(point)))


@pytest.mark.parametrize("share", [2, 8, 4096])
def test_a_rewriting_that_computes_with_activations_cannot_be_prepared(share: int) -> None:
    piece = language_recording().pieces[0]
    point: Point = {B: 2, L: 128, R: 1}
    assert prepared(piece, point, lambda tape: replace(tape, sizes=tape.sizes // share)) is None
    assert prepared(piece, point, lambda tape: replace(tape, sizes=tape.sizes + 1000)) is None


def test_a_rewriting_whose_sums_overflow_cannot_be_prepared() -> None:
    def summed(tape: Tape) -> Tape:
        return replace(tape, sizes=np.array([sum(tape.sizes.tolist()) << 8] * len(tape.sizes), np.int64))

    assert prepared(language_recording().pieces[0], {B: 2, L: 128, R: 1}, summed) is None


def test_weights_of_another_rank_are_other_constants() -> None:
    piece = language_recording().pieces[0]
    for rank in (4, 9):
        point: Point = {B: 3, L: 256, R: rank}
        ready = prepared(piece, {B: 2, L: 128, R: rank}, optimized(Optimizer.ADAMW))
        assert ready is not None
        assert same(ready.tape(point), optimized(Optimizer.ADAMW)(piece.tape(point)))
