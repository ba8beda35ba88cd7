"""A forecast from a recording: its steps at the task's batch and length, with the task's optimizer and sharding,
replayed on the allocator."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

from vramcast.errors import FieldError, InvalidInput, InvalidTask
from vramcast.forecast.accumulation import accumulated
from vramcast.forecast.counters import CounterForecast
from vramcast.forecast.forecast import Forecast, Source
from vramcast.forecast.lengths import drawn
from vramcast.forecast.many_batches import ManyBatches, between, many_batches
from vramcast.forecast.older import Older, older_libraries
from vramcast.forecast.peak_parts import peak_parts
from vramcast.forecast.peaks import AllocatorSettings, Peaks, peaks
from vramcast.forecast.physics import context_part
from vramcast.forecast.prepared import Prepared, prepared
from vramcast.forecast.rank_view import Plan, Scheme
from vramcast.forecast.recorded_bounds import UNCALIBRATED, Figure, RecordedCalibration
from vramcast.forecast.recorded_task import assumptions_of, optimizer_of, refuse_contradictions, sizes_of
from vramcast.forecast.recording import ADAPTERS, NARROW, Recording
from vramcast.forecast.recordings import builtin_recordings
from vramcast.forecast.run_kind import run_kind
from vramcast.forecast.sharding import shard
from vramcast.forecast.sizes import Point, Variable
from vramcast.forecast.storage import MARK, decode
from vramcast.forecast.tape import Tape
from vramcast.forecast.update import with_update
from vramcast.hardware.products import memory_mib, reserve_mib
from vramcast.names import Product
from vramcast.task.framework import FSDP, runs_with
from vramcast.task.quantity import MIB
from vramcast.task.task import Task
from vramcast.task.vocabulary import PREFIX, Allocator, Length, Offload, Optimizer, Precision

VERSION = "recording-2"
_CAST = frozenset({Precision.FP16, Precision.BF16})
_SCHEMES = {1: Scheme.ZERO_1, 2: Scheme.ZERO_2, 3: Scheme.ZERO_3}
_FSDP_SCHEMES = {2: Scheme.FSDP_GRADIENTS, 3: Scheme.FSDP}


def is_recording(profile: str | None) -> bool:
    return profile is not None and profile.startswith(MARK)


# Small caches: a hostile recording takes megabytes, and its text 128 KiB.
@lru_cache(maxsize=16)
def decode_recording(text: str) -> Recording:
    """Raises InvalidTask, which names the annotation."""
    try:
        return decode(text)
    except InvalidInput as error:
        expected = f"expected the output of `vramcast profile` ({MARK}…): {error}; or set {PREFIX}gpu-memory"
        raise InvalidTask([FieldError(f"{PREFIX}profile", text, expected)]) from error


def load_recording(key: str) -> Recording:
    """By a profile's text, or by the key of a recording in the catalog. Raises InvalidTask."""
    return decode_recording(key) if is_recording(key) else builtin_recordings().read(key)


def clear_caches() -> None:
    """For benchmarks that measure an uncached forecast."""
    clear_measured()
    _prepared.cache_clear()
    _batches.cache_clear()


def clear_measured() -> None:
    """For benchmarks: forgets the results, and not what they were computed from."""
    _measured.cache_clear()


def forecast_recording(
    key: str, task: Task, product: Product, risk: float, calibration: RecordedCalibration = UNCALIBRATED
) -> Forecast:
    """Raises InvalidTask where the task contradicts the recording, or asks for what it does not answer."""
    recording = load_recording(key)
    run = _run(recording, key, task)
    found, notes = _steady(run)
    info, communicates = recording.info, run.ranks > 1
    context = context_part(
        product, cudnn="cudnn" in info, norms="norms" in info, communicates=communicates, framework=task.framework
    )
    room = None if task.share else _room_bytes(product, context.size_bytes)
    if room is not None and room < found.reserved_bytes and _holds(found, run, room):
        found, notes = _measured(run, room)[0], (*notes, f"the allocator gives cached memory back to fit {product}")
    bounds = calibration.bounds(run_kind(recording, task), product)
    median = found.reserved_bytes + context.size_bytes
    bound = bounds.bound_bytes(Figure.DEVICE, median, risk)
    if room is not None and (whole := room + context.size_bytes) < bound:
        capacity = bounds.tensors_capacity_bytes(room, risk)
        if median <= whole and _holds(found, run, capacity):
            bound, notes = whole, (*notes, f"the bound is all of {product}: the allocator gives cached memory back")
    return Forecast(
        product=product,
        median_bytes=median,
        bound_bytes=bound,
        risk=risk,
        source=Source.RECORDING,
        model_version=VERSION,
        parts=(*peak_parts(found, run.point(recording), run.optimizer), context),
        assumptions=(*assumptions_of(recording, task), *notes),
        family=recording.info.get("family", ""),
        allocated=CounterForecast(found.active_bytes, bounds.bound_bytes(Figure.TENSORS, found.active_bytes, risk)),
        reserved=CounterForecast(median - context.size_bytes, bound - context.size_bytes),
    )


def _holds(found: Peaks, run: _Run, capacity_bytes: int) -> bool:
    """Whether the run does with so little, given that the allocator frees what it caches before it fails."""
    return found.active_bytes <= capacity_bytes and _measured(run, capacity_bytes)[0].out_of_memory is None


def task_tape(key: str, task: Task) -> Tape:
    """The steps of the task, for a picture of them. Raises InvalidTask."""
    recording = load_recording(key)
    run = _run(recording, key, task)
    return _steps(run)[0]


@dataclass(frozen=True, slots=True)
class _Run:
    """All that the replay depends on. The same for every product and risk, so its result is cached."""

    key: str
    batch: int
    length: int | None
    side: int | None
    rank: int | None
    cast: bool  # the weights have 16 bits
    optimizer: Optimizer | None  # None: it is in the recording
    accumulation: int
    zero_stage: int
    ranks: int
    masters: bool
    offload: Offload
    allocator: Allocator
    fsdp: bool  # else stages are DeepSpeed's
    older: Older | None
    varies: bool  # samples differ in length, up to this one

    @property
    def shards(self) -> bool:
        return self.zero_stage > 0 or self.ranks > 1

    @property
    def scheme(self) -> Scheme:
        stages = {**_SCHEMES, **_FSDP_SCHEMES} if self.fsdp else _SCHEMES
        return stages.get(self.zero_stage, Scheme.DDP)

    def point(self, recording: Recording) -> Point:
        values = {Variable.BATCH: self.batch, Variable.LENGTH: self.length, Variable.SIDE: self.side,
                  Variable.RANK: self.rank}  # fmt: skip
        return {variable: values[variable] or 0 for variable in recording.variables}


def _run(recording: Recording, key: str, task: Task) -> _Run:
    refuse_contradictions(recording, task)
    cast = recording.info.get("precision", task.precision) in _CAST
    # Only FSDP has no masters.
    fsdp = runs_with(task.framework, FSDP) or not task.master_weights
    return _Run(key, *sizes_of(recording, task), cast, optimizer_of(recording, task), task.gradient_accumulation,
                task.zero_stage, task.data_parallel_size, task.master_weights, task.offload,
                task.allocator, fsdp, older_libraries(recording, task),
                task.length is not Length.FIXED and not recording.counts_latents)  # fmt: skip


@lru_cache(maxsize=512)
def _measured(run: _Run, capacity_bytes: int | None) -> tuple[Peaks, tuple[str, ...]]:
    try:
        tape, notes = _many_lengths(run) if run.varies else _steps(run)
        expandable = run.allocator is Allocator.EXPANDABLE_SEGMENTS
        return peaks(tape, AllocatorSettings(capacity_bytes, expandable)), notes
    except InvalidInput as error:
        raise InvalidTask(
            [FieldError(f"{PREFIX}{'profile' if is_recording(run.key) else 'model'}", run.key, str(error))]
        ) from error


def _steady(run: _Run) -> tuple[Peaks, tuple[str, ...]]:
    """Without the allocator's jumps: one more sample may fit cached blocks better and reserve less, but no run can
    count on that. Between powers of two the reserved memory lies on a line, so it rises with the batch.
    """
    found, notes = _measured(run, None)
    if run.batch & (run.batch - 1) == 0:
        return found, notes
    below = 1 << (run.batch.bit_length() - 1)
    try:
        low, high = (_measured(replace(run, batch=batch), None)[0].reserved_bytes for batch in (below, 2 * below))
    except InvalidTask:
        return found, notes  # the recording ends in between
    line = low + (high - low) * (run.batch - below) // below
    return replace(found, reserved_bytes=max(found.active_bytes, line)), notes


def _steps(run: _Run) -> tuple[Tape, tuple[str, ...]]:
    """The run's tape, and what there is to say about it. Raises InvalidInput."""
    recording = load_recording(run.key)
    point = run.point(recording)
    number, notes = recording.piece_at(point)
    if run.shards:
        notes = (*notes, f"sharding as {run.scheme} does it, seen from one of {run.ranks} GPUs")
    notes += run.older.notes if run.older else ()
    # What older versions did otherwise is found by its sizes, which a prepared tape has no more.
    ready = None if run.older else _prepared(_varied(run), number)
    if ready is not None:
        return ready.tape(point), notes
    return _rewritten(recording.pieces[number].tape(point), run, recording), notes


def _many_lengths(run: _Run) -> tuple[Tape, tuple[str, ...]]:
    """Batches of many lengths; those of the longest alone where steps do not repeat."""
    recording = load_recording(run.key)
    tape, notes = _steps(run)
    if run.length is None or Variable.LENGTH not in recording.variables:
        return tape, notes
    point = run.point(recording)
    number, _ = recording.piece_at(point)
    shortest = recording.pieces[number].spans[Variable.LENGTH].low
    lengths = [max(shortest, length) for length in drawn(run.length)]
    varied = _varied(run)
    ready = None if run.older else _prepared(varied, number)
    try:
        if ready is not None:
            many = _batches(varied, number, len(lengths))
            mixed = many.tape(lengths, lambda length: ready.tape({**point, Variable.LENGTH: length}).sizes)
        else:
            others = [replace(run, length=run.length * part // 4) for part in (3, 2)]
            known = {run.length: tape} | {other.length or 0: _steps(other)[0] for other in others}
            mixed = many_batches(tape, len(lengths)).tape(lengths, between(known))
    except InvalidInput:
        return tape, notes
    return mixed, (*notes, f"batches of many lengths up to {run.length} tokens, whose blocks do not fit each other")


def _varied(run: _Run) -> _Run:
    """The same for all runs that one prepared tape answers."""
    return replace(run, batch=0, length=None, side=None, allocator=Allocator.DEFAULT, varies=False)


# One of an 8B model takes half a megabyte. A sweep needs one or two, a cluster's jobs a few.
@lru_cache(maxsize=8)
def _prepared(run: _Run, number: int) -> Prepared | None:
    """For the runs that differ from this one in batch, length, side and allocator only."""
    recording = load_recording(run.key)
    piece = recording.pieces[number]
    anywhere: Point = {variable: span.low for variable, span in piece.spans.items()}
    if Variable.RANK in anywhere:
        anywhere = {**anywhere, Variable.RANK: run.rank or 0}
    return prepared(piece, anywhere, lambda tape: _rewritten(tape, run, recording))


# A few times as large as the prepared tape that it repeats.
@lru_cache(maxsize=4)
def _batches(run: _Run, number: int, count: int) -> ManyBatches:
    """Of a prepared tape. Raises InvalidInput."""
    ready = _prepared(run, number)
    if ready is None:
        raise InvalidInput("the tape was not prepared")
    return many_batches(ready.template, count)


def _rewritten(tape: Tape, run: _Run, recording: Recording) -> Tape:
    """The tape with the task's loss, accumulation, sharding and optimizer."""
    narrow = recording.info.get(ADAPTERS) == NARROW
    element_bytes = 2 if run.cast and (run.rank is None or narrow) else 4
    if run.older:
        tape = run.older.steps(tape, run.batch, run.length or 1)
    if run.accumulation > 1 and "gradient-accumulation" not in recording.info:
        tape = accumulated(tape, run.accumulation)
    if run.shards:
        masters = run.masters and bool(run.zero_stage) and element_bytes == 2
        offload = run.offload is not Offload.NONE
        unsynced = run.accumulation > 1
        plan = Plan(run.scheme, run.ranks, masters=masters, offload=offload, unsynced=unsynced)
        tape = shard(tape, plan, ahead=True)
        element_bytes = 4 if masters else element_bytes
    if run.optimizer is not None and run.offload is Offload.NONE:
        sharded = bool(run.zero_stage)
        tape = with_update(tape, run.optimizer, element_bytes=element_bytes, sharded=sharded)
    return tape


def _room_bytes(product: Product, context_bytes: int) -> int | None:
    memory = memory_mib(product)
    return None if memory is None else max(0, (memory - reserve_mib(product)) * MIB - context_bytes)
