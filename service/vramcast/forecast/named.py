"""Which recording describes a task: its own profile, or one of the catalog's if it names a model."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from vramcast.errors import InvalidTask
from vramcast.forecast.catalog import CatalogUnusable, Line, builtin_catalog, image_size
from vramcast.forecast.features import unfamiliar_settings
from vramcast.forecast.latents import counted, shown_size
from vramcast.forecast.recorded import is_recording
from vramcast.forecast.recording import Recording
from vramcast.forecast.recordings import Recordings, RecordingsUnusable, builtin_recordings, key_of
from vramcast.forecast.sizes import Variable
from vramcast.forecast.variants import shown_settings, stand_ins, variant_of
from vramcast.forecast.warnings import warn
from vramcast.task.task import Task
from vramcast.task.vocabulary import Architecture, Attention, Level, LoraTargets

# Plain fp32 training is what the learned correction knows. Of a larger network it cannot have seen a run: weights,
# gradients and Adam's states would not have fitted the 40 GB of the measured GPUs.
_MEASURED_PARAMETERS = 2_500_000_000
_UPCASTS = "upcast true: norms, embeddings and head in fp32, as PEFT's prepare_model_for_kbit_training makes them"
# Those that have some all the same are recorded with eager attention too.
_WITHOUT_ATTENTION = frozenset({Architecture.CNN, Architecture.MLP})
_DENOISERS = "diffusers/"
_CLOSER = "`vramcast profile` records the job's own steps, which is closer"


@dataclass(frozen=True, slots=True)
class KnownSteps:
    """`key` is what `recorded.py` finds the recording by; the task is complete."""

    key: str
    task: Task


@dataclass(frozen=True, slots=True)
class NoSteps:
    """`why` is told with the forecast; empty where recordings are not needed."""

    why: str = ""


def lower_level(task: Task) -> str:
    """What a network without a recording is forecast from: its layers tell plain fp32 training only."""
    return "a summary" if unfamiliar_settings(task) else "the layers"


def steps_of(task: Task) -> KnownSteps | NoSteps:
    """Never raises: a name that the catalog lacks is for the next level to refuse."""
    if task.level is Level.PROFILE and task.profile is not None and is_recording(task.profile):
        return KnownSteps(task.profile, task)
    if task.level is not Level.NAME or task.model is None:
        return NoSteps()
    try:
        line = builtin_catalog().find(task.model)
    except CatalogUnusable:
        line = None
    return NoSteps() if line is None else named_steps(line, task, builtin_recordings())


def named_steps(line: Line, task: Task, recordings: Recordings) -> KnownSteps | NoSteps:
    """Plain fp32 training of a network of the measured sizes needs no recording."""
    reads_tokens = line.sequence_length is not None
    keeps_scores = reads_tokens and task.attention is Attention.EAGER
    large = reads_tokens and line.parameters >= _MEASURED_PARAMETERS
    if not (unfamiliar_settings(task) or keeps_scores or large):
        return NoSteps()
    if not recordings.has_model(line.name):
        return NoSteps(
            f"forecast from {lower_level(task)} of {line.name}, whose steps are not in the catalog; {_CLOSER}"
        )
    for nearest in _told(line, task):
        variant = variant_of(nearest)
        if variant is not None and (key := key_of(line.name, variant)) in recordings:
            return _sized_steps(line, nearest, recordings, key)
    return NoSteps(
        f"forecast from {lower_level(task)} of {line.name}, whose steps were not recorded with "
        f"{shown_settings(task)}; {_CLOSER}"
    )


def _told(line: Line, task: Task) -> Iterator[Task]:
    """The task and what may stand in for it, with what nobody said about it."""
    if line.name.startswith(_DENOISERS):
        task = _as_denoisers_are_trained(task)
    if task.upcasts and task.upcast is None:
        task = replace(task, assumptions=(*task.assumptions, _UPCASTS))
    yield from stand_ins(task)
    if task.attention is Attention.EAGER and line.family in _WITHOUT_ATTENTION:
        yield from stand_ins(replace(task, attention=None))


def _as_denoisers_are_trained(task: Task) -> Task:
    """Diffusers' scripts adapt the attention unless they are told otherwise, and nobody upcasts the rest."""
    told, meant = (f"lora-targets {targets}" for targets in (LoraTargets.ALL_LINEAR, LoraTargets.ATTENTION))
    if task.lora_rank is not None and told in task.assumptions:
        assumptions = tuple(meant if note == told else note for note in task.assumptions)
        task = replace(task, lora_targets=LoraTargets.ATTENTION, assumptions=assumptions)
    return replace(task, upcast=False) if task.upcast is None else task


def _sized_steps(line: Line, task: Task, recordings: Recordings, key: str) -> KnownSteps | NoSteps:
    try:
        recording = recordings.read(key)
        complete = _completed(line, task)
    except RecordingsUnusable as error:
        warn("a recording of the catalog cannot be read, and the next level is used", reason=str(error))
        return NoSteps(f"forecast from {lower_level(task)} of {line.name}: {error}")
    except InvalidTask:
        return NoSteps()  # the next level says what is wrong with the size
    if recorded := _recorded_sizes(recording, complete):
        below = lower_level(task)
        return NoSteps(f"forecast from {below} of {line.name}, whose steps were recorded for {recorded}; {_CLOSER}")
    return KnownSteps(key, complete)


def _completed(line: Line, task: Task) -> Task:
    """With the sizes that nobody said, and a denoiser's latents in place of pixels. Raises InvalidTask."""
    if line.sequence_length is None:
        size, notes = image_size(line, task.input_size, task.sequence_length)
        return replace(task, input_size=size, assumptions=(*task.assumptions, *notes))
    if task.sequence_length is not None:
        return task
    assumptions = (*task.assumptions, f"sequence-length {line.sequence_length}")
    return replace(task, sequence_length=line.sequence_length, assumptions=assumptions)


def _recorded_sizes(recording: Recording, task: Task) -> str:
    """Empty if the recording answers the task's sizes, else those that it answers."""
    length, size = task.sequence_length, task.input_size
    if recording.counts_latents and size is not None:
        low, high = recording.limits(Variable.LENGTH)
        return "" if counted(size) <= high else f"up to {high} latents"
    if length is not None and Variable.LENGTH in recording.variables:
        low, high = recording.limits(Variable.LENGTH)
        if not low <= length <= high:
            return f"{low} to {high} tokens"
    usual = recording.info.get("input-size")
    if size is None or usual is None:
        return ""
    if Variable.SIDE not in recording.variables:
        return "" if shown_size(size) == usual else f"input-size {usual} only"
    low, high = recording.limits(Variable.SIDE)
    *channels, height, width = size
    *recorded_channels, _, _ = (int(part) for part in usual.split("x"))
    if channels == recorded_channels and height == width and low <= width <= high:
        return ""
    smallest, largest = (shown_size((*recorded_channels, side, side)) for side in (low, high))
    return f"square images from {smallest} to {largest}"
