"""A forecast from a recording: its steps at the task's batch and length, with the task's optimizer and sharding,
replayed on the allocator."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache

from vramcast.errors import FieldError, InvalidInput, InvalidTask
from vramcast.forecast.accumulation import accumulated
from vramcast.forecast.counters import CounterForecast
from vramcast.forecast.forecast import Forecast, Source
from vramcast.forecast.latents import counted
from vramcast.forecast.older import Older, older_libraries
from vramcast.forecast.peak_parts import peak_parts
from vramcast.forecast.peaks import AllocatorSettings, Peaks, peaks
from vramcast.forecast.physics import context_part
from vramcast.forecast.prepared import Prepared, prepared
from vramcast.forecast.rank_view import Plan, Scheme
from vramcast.forecast.recorded_bounds import UNCALIBRATED, Figure, RecordedCalibration
from vramcast.forecast.recording import ADAPTERS, NARROW, Recording
from vramcast.forecast.recordings import builtin_recordings
from vramcast.forecast.run_kind import LOOP, run_kind
from vramcast.forecast.sharding import shard
from vramcast.forecast.sizes import Point, Variable
from vramcast.forecast.storage import MARK, decode
from vramcast.forecast.tape import Tape
from vramcast.forecast.update import with_update
from vramcast.hardware.products import memory_mib, reserve_mib
from vramcast.names import Product
from vramcast.task.framework import FSDP, runs_with
from vramcast.task.quantity import MIB
from vramcast.task.task import FIELD_NAMES, Task
from vramcast.task.vocabulary import KEYS, PREFIX, Allocator, Kind, Offload, Optimizer, Precision

VERSION = "recording-2"
_CAST = frozenset({Precision.FP16, Precision.BF16})
_SCHEMES = {1: Scheme.ZERO_1, 2: Scheme.ZERO_2, 3: Scheme.ZERO_3}
_FSDP_SCHEMES = {2: Scheme.FSDP_GRADIENTS, 3: Scheme.FSDP}
# Settings that a recording was made with, as its `info` and the annotations name them.
_RECORDED = ("precision", "gradient-checkpointing", "attention", "kernels", "lora-targets", "quantization", "upcast",
             "task", "optimizer", "gradient-accumulation")  # fmt: skip
# A loop decides these too, whether or not its recording says how.
_DECIDED_BY_LOOPS = (*_RECORDED, "zero-stage", "master-weights", "offload", "framework")
ANNOTATIONS = {Variable.BATCH: "batch-size", Variable.LENGTH: "sequence-length", Variable.SIDE: "input-size",
                Variable.RANK: "lora-rank"}  # fmt: skip
_NOT_SAID = "None"


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
    context = context_part(product, cudnn="cudnn" in info, norms="norms" in info, communicates=communicates)
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
        assumptions=(*_assumptions(recording, task), *notes),
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
    _refuse_contradictions(recording, task)
    cast = recording.info.get("precision", task.precision) in _CAST
    # Only FSDP has no masters.
    fsdp = runs_with(task.framework, FSDP) or not task.master_weights
    return _Run(key, *_values(recording, task), cast, _optimizer(recording, task), task.gradient_accumulation,
                task.zero_stage, task.data_parallel_size, task.master_weights, task.offload,
                task.allocator, fsdp, older_libraries(recording, task))  # fmt: skip


@lru_cache(maxsize=512)
def _measured(run: _Run, capacity_bytes: int | None) -> tuple[Peaks, tuple[str, ...]]:
    try:
        tape, notes = _steps(run)
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
    varied = replace(run, batch=0, length=None, side=None, allocator=Allocator.DEFAULT)
    ready = None if run.older else _prepared(varied, number)
    if ready is not None:
        return ready.tape(point), notes
    return _rewritten(recording.pieces[number].tape(point), run, recording), notes


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


# ---------------------------------------------------------------------- the task against the recording


def _values(recording: Recording, task: Task) -> tuple[int, int | None, int | None, int | None]:
    """Batch, length, side and rank; what the task does not say is as it was recorded."""
    given = {Variable.BATCH: _batch(recording, task), Variable.LENGTH: _length(recording, task),
             Variable.SIDE: _side(recording, task), Variable.RANK: task.lora_rank}  # fmt: skip
    for variable, said in given.items():
        if variable in recording.variables:
            given[variable] = _inside(recording, variable, _usual(recording, variable) if said is None else said)
        elif said is not None:
            _check_fixed(recording, variable, said)
    batch = given[Variable.BATCH]
    return batch or task.batch_size, given[Variable.LENGTH], given[Variable.SIDE], given[Variable.RANK]


def _batch(recording: Recording, task: Task) -> int | None:
    """None if nobody said one and the recording knows it."""
    knows = Variable.BATCH not in recording.variables or _usual(recording, Variable.BATCH) is not None
    return None if knows and _is_assumed(task, ANNOTATIONS[Variable.BATCH]) else task.batch_size


def _check_fixed(recording: Recording, variable: Variable, said: int) -> None:
    usual = _usual(recording, variable)
    if said == usual:
        return
    if usual is not None:
        why = f"was recorded with {usual} only"
    elif LOOP in recording.info:
        why = f"is a recording of {recording.info[LOOP]}, which does not vary it: leave it out"
    else:
        why = "does not depend on it: leave it out"
    _refuse(variable, said, f"the profile {why}")


def _usual(recording: Recording, variable: Variable) -> int | None:
    """The value that the recorded job had."""
    text = recording.info.get(ANNOTATIONS[variable], "").rpartition("x")[2]
    return int(text) if text.isdecimal() and len(text) < 10 else None


def _inside(recording: Recording, variable: Variable, value: int | None) -> int:
    if value is None:
        _refuse(variable, "", "the profile depends on it: say what the job uses")
    low, high = recording.limits(variable)
    if not low <= (value or 0) <= high:
        _refuse(variable, value, f"the profile was recorded for {low} to {high}")
    return value or 0


def _length(recording: Recording, task: Task) -> int | None:
    """Tokens; for a denoiser the latents, rounded up to what it can be given."""
    if not recording.counts_latents or task.input_size is None:
        return task.sequence_length
    step = min(piece.spans[Variable.LENGTH].step for piece in recording.pieces)
    return -(-counted(task.input_size) // step) * step


def _side(recording: Recording, task: Task) -> int | None:
    if task.input_size is None or recording.counts_latents:
        return None
    if Variable.SIDE in recording.variables and len(set(task.input_size[-2:])) > 1:
        _refuse(Variable.SIDE, "x".join(map(str, task.input_size)), "the profile was recorded for square images")
    return task.input_size[-1]


def _refuse(variable: Variable, value: object, expected: str) -> None:
    advice = f"{expected}; or record it again with `vramcast profile`"
    raise InvalidTask([FieldError(PREFIX + ANNOTATIONS[variable], str(value), advice)])


def _said(task: Task, name: str) -> str:
    value = getattr(task, FIELD_NAMES.get(name, name.replace("-", "_")))
    if value is Kind.FINE_TUNING:
        return Kind.TRAINING  # they run the same steps
    return str(value).lower() if isinstance(value, bool) else str(value)


def _refuse_contradictions(recording: Recording, task: Task) -> None:
    names = _DECIDED_BY_LOOPS if LOOP in recording.info else _RECORDED
    errors = [
        FieldError(PREFIX + name, said, f"the profile {why}: leave it out")
        for name in names
        if (why := _contradiction(recording, name, said := _said(task, name))) and _was_said(task, name)
    ]
    if errors:
        raise InvalidTask(errors)


def _contradiction(recording: Recording, name: str, said: str) -> str:
    recorded = recording.info.get(name)
    if recorded is not None:
        return f"was recorded with {recorded}" if said != recorded else ""
    return f"is a recording of {recording.info[LOOP]}, which decides it" if LOOP in recording.info else ""


def _was_said(task: Task, name: str) -> bool:
    """False for a default that nobody said, or that nobody may have said."""
    key, said = KEYS[name], _said(task, name)
    if name == "lora-targets" and task.lora_rank is None:
        return False
    if said in {key.default, _NOT_SAID}:
        return key.told and not _is_assumed(task, name)
    return True


def _is_assumed(task: Task, name: str) -> bool:
    return f"{name} {_said(task, name)}" in task.assumptions


def _optimizer(recording: Recording, task: Task) -> Optimizer | None:
    return None if "optimizer" in recording.info else task.optimizer


def _assumptions(recording: Recording, task: Task) -> Iterator[str]:
    """The task's, less those that the recording knows; and what was taken from the recording."""
    loop = LOOP in recording.info
    names = _DECIDED_BY_LOOPS if loop else [name for name in _RECORDED if name in recording.info]
    batch = _batch(recording, task)
    known = tuple(f"{name} " for name in (*names, *([ANNOTATIONS[Variable.BATCH]] if batch is None else [])))
    yield from (note for note in task.assumptions if not note.startswith(known))
    if recording.info.get(ADAPTERS) == NARROW:
        yield "adapters in 16 bits and steps under autocast, as diffusers' scripts train them"
    if loop:
        yield f"the steps of {recording.info[LOOP]}, as recorded"
    said = {Variable.BATCH: batch, Variable.LENGTH: _length(recording, task), Variable.SIDE: task.input_size,
            Variable.RANK: task.lora_rank}  # fmt: skip
    for variable, value in said.items():
        if variable in recording.variables and value is None:
            yield f"{ANNOTATIONS[variable]} {_usual(recording, variable)}, as recorded"
