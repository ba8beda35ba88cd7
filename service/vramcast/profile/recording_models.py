"""Records models of the catalog in every variant, and collects the recordings in one file.

Recording a language model costs time per block, so a few blocks are recorded and stretched to the model's depth. Of
each class of networks a deeper one is recorded at one point to show that stretching gives its very tape. Where it does
not, all blocks are recorded, as they are for other networks.

Each recording is a file of its own as soon as it is made, so an interrupted call can resume and several processes can
share the work.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
import transformers
from numpy.typing import NDArray
from torch import nn

from vramcast.errors import InvalidInput
from vramcast.forecast.recording import ADAPTERS, NARROW, Recording, Span
from vramcast.forecast.recordings import key_of, read_recordings, write_recordings
from vramcast.forecast.sizes import Point, Variable
from vramcast.forecast.storage import pack, unpack
from vramcast.forecast.tape import Tape
from vramcast.forecast.variants import (
    DENOISER_VARIANTS,
    FREQUENT_VARIANTS,
    LANGUAGE_VARIANTS,
    PLAIN_VARIANTS,
    VARIANTS,
)
from vramcast.profile.inputs import Inputs
from vramcast.profile.popular import POPULAR, family_place
from vramcast.profile.profiling import quiet
from vramcast.profile.recording.errors import Unrecordable, explained
from vramcast.profile.recording.initialization import on_device
from vramcast.profile.recording.network import (
    Build,
    denoiser_tape,
    network_info,
    record_denoiser,
    record_language_model,
    record_network,
    settings_of,
    tape_at,
)
from vramcast.profile.recording.settings import RunSettings
from vramcast.profile.sources import Depth, Latents, ModelSource
from vramcast.profile.stretch import FEWEST_BLOCKS, NotAlike, stretch, stretch_recording
from vramcast.task.task import parse_task
from vramcast.task.vocabulary import PREFIX, Architecture, Attention

Say = Callable[[str], None]
_FAILED = ".failed"
# Longer ones follow from the polynomials.
_LONGEST_RECORDED = 8192
_SHORTEST_RECORDED = 128
# Kinds of blocks alternate with a period of up to six.
_BLOCKS_TO_COMPARE = FEWEST_BLOCKS + 3
_COMPARED_AT: Point = {Variable.BATCH: 3, Variable.LENGTH: 256}
_COMPARED_RANK = 5
_MODELS_A_VARIANT = 8
# Networks that are not on the list come between those that are, from this place on, so many to each place.
_OTHERS_FROM = 30
_OTHERS_A_PLACE = 12


@dataclass(frozen=True, slots=True)
class Job:
    source: ModelSource
    variant: str

    @property
    def key(self) -> str:
        return key_of(self.source.name, self.variant)


@dataclass(frozen=True, slots=True)
class Made:
    """What a call left: recordings in the file, those still to make, and those that cannot be made."""

    recordings: int
    models: int
    missing: int
    failed: tuple[str, ...]


def jobs_of(sources: Iterable[ModelSource]) -> list[Job]:
    """Of all models. What most people run comes first.

    A rare setting of a popular model comes behind a frequent setting of the models that follow it. The rare ones of
    other language models are not recorded.
    """
    order = {name: place for place, name in enumerate(POPULAR)}
    jobs: list[tuple[float, Job]] = []
    others: list[ModelSource] = []
    for source in sources:
        if source.depth is None and source.name not in order:
            others.append(source)
            continue
        first = order.get(source.name, len(order))
        texts = LANGUAGE_VARIANTS if source.name in order else FREQUENT_VARIANTS
        variants = texts if source.depth is not None else _other_variants(source)
        jobs += [(first + _MODELS_A_VARIANT * at, Job(source, variant)) for at, variant in enumerate(variants)]
    for place, source in enumerate(sorted(others, key=lambda source: family_place(source.name))):
        jobs += [
            (_OTHERS_FROM + place / _OTHERS_A_PLACE + later * len(order), Job(source, variant))
            for later, variant in enumerate(_other_variants(source))
        ]
    return [job for _, job in sorted(jobs, key=lambda pair: pair[0])]


def _other_variants(source: ModelSource) -> tuple[str, ...]:
    return DENOISER_VARIANTS if source.name.startswith("diffusers/") else PLAIN_VARIANTS


def record_models(out: Path, jobs: Sequence[Job], work: Iterable[Job], say: Say, *, again: bool = False) -> Made:
    """Records the jobs in `work` that neither the file nor a part has; `again`: all of them."""
    parts = _Parts(out.with_suffix(".parts"), out)
    for job in work:
        if again or not parts.has(job):
            parts.make(job, say)
    packed = {job.key: blob for job in jobs if (blob := parts.packed(job)) is not None}
    if packed:
        half = out.with_suffix(f".{os.getpid()}")
        write_recordings(half, packed)
        half.replace(out)
    failed = tuple(job.key for job in jobs if job.key not in packed and parts.failed(job))
    models = {job.source.name for job in jobs if job.key in packed}
    return Made(len(packed), len(models), len(jobs) - len(packed) - len(failed), failed)


class _Parts:
    """Each recording: a file of its own, or else what the file that is to be replaced has."""

    def __init__(self, folder: Path, out: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._known = read_recordings(out) if out.exists() else None

    def has(self, job: Job) -> bool:
        return self._path(job).exists() or self.failed(job) or (self._known is not None and job.key in self._known)

    def failed(self, job: Job) -> bool:
        return self._path(job).with_suffix(_FAILED).exists()

    def make(self, job: Job, say: Say) -> None:
        path = self._path(job)
        try:
            blob = pack(record_job(job))
            unpack(blob)  # what is too large to be read is of no use
        except InvalidInput as error:
            first = str(error).split("\n", maxsplit=1)[0]
            say(f"skipping {job.key}: {first}")
            path.with_suffix(_FAILED).write_text(first)
            return
        half = path.with_suffix(f".{os.getpid()}")
        half.write_bytes(blob)
        half.replace(path)
        path.with_suffix(_FAILED).unlink(missing_ok=True)

    def packed(self, job: Job) -> bytes | None:
        path = self._path(job)
        if path.exists():
            return path.read_bytes()
        return self._known.packed(job.key) if self._known is not None and job.key in self._known else None

    def _path(self, job: Job) -> Path:
        return self._folder / f"{job.key.replace('/', '@').replace(' ', '_')}~.bin"


def record_job(job: Job) -> Recording:
    """Raises Unrecordable, and InvalidInput for a recording that is too large."""
    if job.source.depth is not None:
        return record_variant(job.source.depth, job.variant)
    if job.source.latents is not None:
        return record_denoiser_variant(job.source.latents, job.source, job.variant)
    source, inputs = job.source, job.source.inputs(job.source.base)

    def build() -> nn.Module:
        try:
            return source.make(source.base)
        except (NotImplementedError, RuntimeError):
            # Some networks compute their widths with tensors, which need values.
            with torch.device("cpu"):
                return source.make(source.base).to("meta")

    with quiet():
        settings, info = settings_of_variant(job.variant), _info(build)
        if settings.attention is Attention.EAGER and not _can_be_eager(build, source.name, info["family"]):
            raise Unrecordable("attention eager: the network computes none, or not as it is told")
        return record_network(build, inputs, settings, {**info, **_usual(inputs)})


def _can_be_eager(build: Build, name: str, family: str) -> bool:
    """timm's transformers without a switch never had another attention."""
    with explained(), on_device("meta"):
        model = build()
    switched = any(hasattr(module, "fused_attn") for module in model.modules())
    return (
        switched
        or hasattr(model, "set_attn_implementation")
        or (name.startswith("timm/") and family == Architecture.TRANSFORMER)
    )


def record_denoiser_variant(latents: Latents, source: ModelSource, variant: str) -> Recording:
    """Raises Unrecordable, and InvalidInput for a recording that is too large."""
    settings = denoiser_settings(variant)

    def record(blocks: int) -> Recording:
        def build() -> nn.Module:
            return source.make(source.base) if latents.depth is None else latents.depth.make(blocks)

        adapters = {ADAPTERS: NARROW} if settings.lora_rank is not None else {}
        info = {**_info(build), **_usual(source.inputs(source.base)), **adapters}
        return record_denoiser(build, latents, settings, info)

    with quiet():
        if latents.depth is not None and _denoiser_stretches(latents, latents.depth, settings):
            try:
                return stretch_recording(record(FEWEST_BLOCKS), latents.depth.blocks)
            except NotAlike:
                pass
        return record(latents.depth.blocks if latents.depth is not None else 0)


def denoiser_settings(variant: str) -> RunSettings:
    """As diffusers' training scripts run it: with adapters in the base's number format, and steps under autocast."""
    settings = settings_of_variant(variant)
    if settings.lora_rank is None:
        return settings
    return replace(settings, autocast=True, wide_adapters=False, lora_dropout=0.0, weight_only=True)


def _denoiser_stretches(latents: Latents, depth: Depth, settings: RunSettings) -> bool:
    if depth.blocks <= _BLOCKS_TO_COMPARE:
        return False
    point: Point = {Variable.BATCH: 3, Variable.LENGTH: latents.low + latents.step}
    point = point if settings.lora_rank is None else {**point, Variable.RANK: _COMPARED_RANK}

    def tape(blocks: int) -> Tape:
        return denoiser_tape(_builder(depth, blocks), latents, settings, point)

    with explained(), on_device("meta"):
        shown = (type(depth.make(FEWEST_BLOCKS)), settings)
    if shown not in _STRETCHES:
        _STRETCHES[shown] = _same_stretched(tape(FEWEST_BLOCKS), tape(_BLOCKS_TO_COMPARE))
    return _STRETCHES[shown]


def record_variant(depth: Depth, variant: str) -> Recording:
    """Raises Unrecordable, and InvalidInput for a recording that is too large."""
    settings = settings_of_variant(variant)
    lengths = Span(min(_SHORTEST_RECORDED, depth.longest), min(_LONGEST_RECORDED, depth.longest))

    def record(blocks: int) -> Recording:
        build = _builder(depth, blocks)
        info = {**_info(build), "family": "transformer"}  # embeddings hide what a few blocks are
        return record_language_model(build, lengths, depth.longest, settings, info)

    with quiet():
        if _can_be_stretched(depth, settings):
            try:
                return stretch_recording(record(FEWEST_BLOCKS), depth.blocks)
            except NotAlike:
                pass
        return record(depth.blocks)


def settings_of_variant(variant: str) -> RunSettings:
    task = parse_task({PREFIX + name: value for name, value in {"model": "any", **VARIANTS[variant]}.items()})
    assert task is not None  # noqa: S101 - there are annotations
    return settings_of(task)


def _can_be_stretched(depth: Depth, settings: RunSettings) -> bool:
    """Inference keeps keys and values of all blocks, and frees them block by block in the next pass."""
    if not depth.alike or settings.inference or depth.blocks <= _BLOCKS_TO_COMPARE:
        return False
    few = _builder(depth, FEWEST_BLOCKS)
    with explained(), on_device("meta"):
        shown = (type(few()), settings)
    if shown not in _STRETCHES:
        _STRETCHES[shown] = _stretches(few, _builder(depth, _BLOCKS_TO_COMPARE), settings)
    return _STRETCHES[shown]


# By class of networks and settings. That the blocks of each network are alike is checked when it is stretched.
_STRETCHES: dict[tuple[type[nn.Module], RunSettings], bool] = {}


def _stretches(few: Build, more: Build, settings: RunSettings) -> bool:
    point = _COMPARED_AT if settings.lora_rank is None else {**_COMPARED_AT, Variable.RANK: _COMPARED_RANK}
    short, whole = (tape_at(build, settings, point) for build in (few, more))
    return _same_stretched(short, whole)


def _same_stretched(short: Tape, whole: Tape) -> bool:
    try:
        return same_tape(stretch(short, _BLOCKS_TO_COMPARE), whole)
    except NotAlike:
        return False


def same_tape(one: Tape, other: Tape) -> bool:
    """Storages that are freed at one moment may be freed in any order: it changes nothing that follows."""
    arrays = ("sizes", "roles", "units", "streams")
    if one.marks != other.marks or not all(np.array_equal(getattr(one, a), getattr(other, a)) for a in arrays):
        return False
    return np.array_equal(_frees_in_order(one.events), _frees_in_order(other.events))


def _frees_in_order(events: NDArray[np.int32]) -> NDArray[np.int32]:
    """With the frees between two allocations sorted."""
    moment = np.cumsum(events >= 0)
    return events[np.lexsort((np.where(events >= 0, -1, ~events), moment))]


def _builder(depth: Depth, blocks: int) -> Build:
    return lambda: depth.make(blocks)


def _info(build: Build) -> dict[str, str]:
    """Without the model's name, so that models of one configuration share a recording."""
    with explained(), on_device("meta"):
        model = build()
    libraries = {"torch": str(torch.__version__), "transformers": transformers.__version__}
    return {**network_info(model), **libraries}


def _usual(inputs: Inputs) -> dict[str, str]:
    """What a task that says no size has."""
    usual = {"input-size": "x".join(map(str, inputs.shapes[0]))} if inputs.shapes else {}
    return usual | ({"sequence-length": str(inputs.sequence_length)} if inputs.sequence_length else {})
