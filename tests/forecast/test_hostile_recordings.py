"""A pod's annotation may hold any recording: every forecast of it ends, with a figure or with a reason."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.forecast.recordings import B
from tests.forecast.tapes import random_tapes, tape_of
from tests.forecast.test_storage import packed, with_header
from vramcast.errors import InvalidInput, InvalidTask
from vramcast.forecast.accumulation import accumulated
from vramcast.forecast.forecaster import PhysicsForecaster
from vramcast.forecast.peaks import peaks
from vramcast.forecast.rank_view import Plan, Scheme
from vramcast.forecast.sharding import shard
from vramcast.forecast.storage import encode
from vramcast.forecast.tape import MOST_TAPE_EVENTS, Mark, Moment, Role, Tape
from vramcast.forecast.update import with_update
from vramcast.names import PodUid, Product
from vramcast.profile.solving import solve
from vramcast.task.pod import ContainerDevices, PodRecord, read_pod
from vramcast.task.vocabulary import PREFIX, Optimizer

A100 = Product("NVIDIA-A100-SXM4-40GB")
MIB = 1 << 20


@st.composite
def any_tapes(draw: st.DrawFn) -> Tape:
    """Any events with any roles, units and marks."""
    tape = draw(random_tapes())
    places = sorted(draw(st.lists(st.integers(0, len(tape.events)), max_size=20)))
    marks = tuple(Mark(at, draw(st.sampled_from(Moment)), draw(st.integers(0, 3))) for at in places)
    units = draw(st.lists(st.integers(-1, 3), min_size=len(tape.sizes), max_size=len(tape.sizes)))
    return tape_of(tape.sizes, tape.events, marks, tape.roles.tolist(), units=units)


@settings(deadline=None)
@given(
    any_tapes(), st.sampled_from(Scheme), st.sampled_from(Optimizer), st.integers(1, 3), st.booleans(), st.booleans()
)
def test_any_tape_is_transformed_and_replayed_or_refused(
    tape: Tape, scheme: Scheme, optimizer: Optimizer, ranks: int, masters: bool, offload: bool
) -> None:
    try:
        whole = accumulated(tape, ranks)
    except InvalidInput:
        whole = tape
    try:
        view = shard(whole, Plan(scheme, ranks, masters=masters, offload=offload), ahead=masters)
        found = peaks(with_update(view, optimizer, sharded=scheme is not Scheme.DDP))
    except InvalidInput:
        return
    assert found.active_bytes <= found.reserved_bytes


def many_updates(weights: int, updates: int) -> Tape:
    marks = (Mark(0, Moment.STEP), *(Mark(2 * weights, Moment.UPDATE) for _ in range(updates)))
    roles = [Role.WEIGHT] * weights + [Role.GRADIENT] * weights
    return tape_of([4096] * 2 * weights, range(2 * weights), marks, roles, units=[0] * 2 * weights)


def test_updates_do_not_multiply_without_end() -> None:
    with pytest.raises(InvalidInput, match=f"more than {MOST_TAPE_EVENTS:,} allocations and frees"):
        with_update(many_updates(1_000, 16_000), Optimizer.ADAMW)


def test_gathering_does_not_multiply_without_end() -> None:
    """Each pass gathers all weights again."""
    passes = (Mark(1_000, moment) for _ in range(4_000) for moment in (Moment.FORWARD, Moment.UPDATE))
    marks = (Mark(0, Moment.STEP), *passes)
    tape = tape_of([4096] * 1_000, range(1_000), marks, [Role.WEIGHT] * 1_000, units=[0] * 1_000)
    with pytest.raises(InvalidInput, match="allocations and frees"):
        shard(tape, Plan(Scheme.ZERO_3, 8))


def pod(profile: str) -> PodRecord:
    annotations = {PREFIX + "profile": profile, PREFIX + "batch-size": "3"}
    return read_pod(PodUid("1"), "lab", "train", annotations, [ContainerDevices({"nvidia.com/gpu": 1})])


def refusal(profile: str) -> str:
    record = pod(profile)
    if record.invalid is not None:
        return str(record.invalid)
    assert record.task is not None
    with pytest.raises(InvalidTask) as refused:
        PhysicsForecaster(0.05).forecast(record.task, A100)
    return str(refused.value)


HOSTILE = {
    "a zip bomb": packed(b"\0" * (100 << 20)),
    "negative sizes": with_header(rows=[[1, [[0, -512]]]]),
    "billions of events": with_header(events=10**9),
    "more marks than any step": with_header(marks=200_000),
    "a huge table of sizes": with_header(rows=[[1, []]] * 60_000, monomials=[[]] * 250),
    "truncated": encode(solve([({B: 3}, tape_of([MIB], [0]))]))[:-12],
    "another version": "v3:" + "A" * 100,
    "terabytes": with_header(rows=[[1, [[0, 1 << 50]]]]),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_a_pod_with_a_hostile_recording_gets_a_reason_in_little_memory(kind: str) -> None:
    tracemalloc.start()
    try:
        reason = refusal(HOSTILE[kind])
        _, most_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert reason.startswith(f"{PREFIX}profile")
    assert len(reason) < 600
    assert most_bytes < 64 * MIB


def test_very_many_weights_are_forecast_or_refused() -> None:
    record = pod(encode(solve([({B: 3}, many_updates(99_000, 3))])))
    assert record.task is not None
    forecaster = PhysicsForecaster(0.05)
    found = forecaster.forecast(replace(record.task, optimizer=Optimizer.ADAMW), A100)
    assert found.median_bytes > 99_000 * 16_384
    with pytest.raises(InvalidTask, match="allocations and frees"):
        forecaster.forecast(replace(record.task, optimizer=Optimizer.ADAFACTOR), A100)
