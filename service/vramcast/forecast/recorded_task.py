"""A task against the recording that answers it: which sizes it asks for, what it contradicts, what it left unsaid."""

from __future__ import annotations

from collections.abc import Iterator

from vramcast.errors import FieldError, InvalidTask
from vramcast.forecast.latents import counted
from vramcast.forecast.recording import ADAPTERS, NARROW, Recording
from vramcast.forecast.run_kind import LOOP
from vramcast.forecast.sizes import Variable
from vramcast.task.task import FIELD_NAMES, Task
from vramcast.task.vocabulary import KEYS, PREFIX, Kind, Optimizer

# Settings that a recording was made with, as its `info` and the annotations name them.
_RECORDED = ("precision", "gradient-checkpointing", "attention", "kernels", "lora-targets", "quantization", "upcast",
             "task", "optimizer", "gradient-accumulation")  # fmt: skip
# A loop decides these too, whether or not its recording says how.
_DECIDED_BY_LOOPS = (*_RECORDED, "zero-stage", "master-weights", "offload", "framework")
ANNOTATIONS = {Variable.BATCH: "batch-size", Variable.LENGTH: "sequence-length", Variable.SIDE: "input-size",
                Variable.RANK: "lora-rank"}  # fmt: skip
_NOT_SAID = "None"


def sizes_of(recording: Recording, task: Task) -> tuple[int, int | None, int | None, int | None]:
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


def refuse_contradictions(recording: Recording, task: Task) -> None:
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


def optimizer_of(recording: Recording, task: Task) -> Optimizer | None:
    return None if "optimizer" in recording.info else task.optimizer


def assumptions_of(recording: Recording, task: Task) -> Iterator[str]:
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
