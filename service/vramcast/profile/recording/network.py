"""Records a network at a few points, for every batch, length or image side, and LoRA rank."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from vramcast.forecast.older_cache import CACHE
from vramcast.forecast.older_loss import LOSS, NEXT_TOKEN, NOT_UPCAST
from vramcast.forecast.recording import COUNTS, LATENTS, Recording, Span
from vramcast.forecast.sizes import Point, Variable
from vramcast.forecast.storage import MOST_EVENTS, pack
from vramcast.forecast.tape import Tape
from vramcast.profile.inputs import Arguments, Inputs, arguments
from vramcast.profile.profiling import family
from vramcast.profile.recording.errors import NeedsValues, Unrecordable, explained
from vramcast.profile.recording.initialization import on_device
from vramcast.profile.recording.losses import loss_of
from vramcast.profile.recording.record import record_model
from vramcast.profile.recording.settings import RunSettings
from vramcast.profile.solving import SIDE_STEP, Recorded, points_for, solve
from vramcast.profile.sources import Latents
from vramcast.task.task import Task
from vramcast.task.vocabulary import Attention, Kind, Precision, Quantization

Build = Callable[[], nn.Module]
RecordAt = Callable[[Point], Tape]
_FEWEST_TOKENS = 16
# Lengths and sides are recorded down to an eighth and a half of what the user gave, and answered up to twice as much.
_SHORTEST = 8
_SMALLEST = 2
_BEYOND = 2
_LARGEST_WITH_SIDES = 12 << 10  # 16 kB as text
_HALF = frozenset({Precision.FP16, Precision.BF16})
_CAUSAL = "ForCausalLM"  # what transformers calls the loss of a model that predicts the next token
_CAUSAL_TOO = "LMHeadModel"  # GPT-2's class, whose name does not tell the loss
# Networks whose logits older versions of transformers gave to the loss as they were, in 16 bits.
_NEVER_UPCAST = frozenset({"bloom", "falcon", "gpt2", "gpt_bigcode", "gpt_neox", "mpt", "opt"})
# Those that kept the cache of keys and values while they were checkpointed.
_KEPT_CACHE = frozenset({"gpt_bigcode"})
_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)


def settings_of(task: Task) -> RunSettings:
    """What of a task's description changes the steps. The optimizer and sharding are added when it is forecast."""
    return RunSettings(
        precision=task.precision,
        autocast=_autocasts_16_bits(task),
        attention=task.attention or Attention.SDPA,
        gradient_checkpointing=task.gradient_checkpointing,
        reentrant=task.gradient_checkpointing,  # with FSDP and a frozen base it takes more, otherwise the same
        lora_rank=task.lora_rank,
        lora_targets=task.lora_targets,
        quantization=task.quantization,
        upcast=task.upcasts,
        kernels=task.kernels,
        inference=task.kind is Kind.INFERENCE,
    )


def _autocasts_16_bits(task: Task) -> bool:
    """Quantized networks are trained with the Trainer's `bf16` or `fp16` set: layer norms compute in fp32, and what was
    upcast is cast back where it is multiplied. AMP needs no word here: its precision says it (`RunSettings.computes`).
    """
    quantized = task.quantization is not Quantization.NONE and task.kind is not Kind.INFERENCE
    return quantized and task.precision in _HALF


def recording_info(task: Task, inputs: Inputs, model: nn.Module) -> dict[str, str]:
    """What the recording was made with, named like the annotations; a pod that says otherwise is refused."""
    settings = settings_of(task)
    info = {
        "precision": str(settings.precision),
        "attention": str(settings.attention),
        "gradient-checkpointing": str(settings.gradient_checkpointing).lower(),
        "quantization": str(settings.quantization),
        "kernels": str(settings.kernels),
        "task": str(Kind.INFERENCE if settings.inference else Kind.TRAINING),
        **network_info(model),
    }
    if settings.quantization is not Quantization.NONE:
        info["upcast"] = str(settings.upcast).lower()
    if settings.lora_rank is not None:
        info |= {"lora-rank": str(settings.lora_rank), "lora-targets": str(settings.lora_targets)}
    if inputs.sequence_length:
        info["sequence-length"] = str(inputs.sequence_length)
    elif inputs.shapes:
        info["input-size"] = "x".join(map(str, inputs.shapes[0]))
    return info


def network_info(model: nn.Module) -> dict[str, str]:
    convolves = any(isinstance(module, _CONVOLUTIONS) for module in model.modules())
    return {
        "family": family(model),
        **({"cudnn": "true"} if convolves else {}),
        **_older_info(model),
    }


def _older_info(model: Any) -> dict[str, str]:
    """What older versions of transformers did otherwise."""
    kind, info = getattr(getattr(model, "config", None), "model_type", ""), {}
    if getattr(model, "loss_type", None) == _CAUSAL or type(model).__name__.endswith(_CAUSAL_TOO):
        info[LOSS] = NOT_UPCAST if kind in _NEVER_UPCAST else NEXT_TOKEN
    projected = getattr(getattr(model.transformer.h[0], "attn", None), "c_attn", None) if kind in _KEPT_CACHE else None
    return info | ({CACHE: str(projected.out_features)} if projected is not None else {})


def record_network(
    build: Build, inputs: Inputs, settings: RunSettings, info: Mapping[str, str] | None = None
) -> Recording:
    """Raises Unrecordable."""
    return solve_network(NetworkSteps(build, inputs, settings).tape, inputs, settings, info or {})


def solve_network(record_at: RecordAt, inputs: Inputs, settings: RunSettings, info: Mapping[str, str]) -> Recording:
    """Raises Unrecordable.

    A network that takes one image size only is recorded at that size. So is one that does something else at every size
    (Swin v2 pads its windows): a recording of all of them would be too large for an annotation.
    """
    spans = _spans(inputs, settings)
    try:
        recording = _solved(record_at, spans, info)
    except NeedsValues:
        raise
    except Unrecordable:
        if Variable.SIDE not in spans:
            raise
        recording = None
    if recording is not None and (Variable.SIDE not in spans or len(pack(recording)) <= _LARGEST_WITH_SIDES):
        return recording
    return _solved(record_at, {name: span for name, span in spans.items() if name is not Variable.SIDE}, info)


def record_language_model(
    build: Build, lengths: Span, longest: int, settings: RunSettings, info: Mapping[str, str]
) -> Recording:
    """Recorded at the lengths of the span; answers 1 to `longest` tokens. Raises Unrecordable."""
    spans = {Variable.BATCH: Span(2, 8), Variable.LENGTH: lengths}
    if settings.lora_rank is not None:
        spans[Variable.RANK] = Span(1, settings.lora_rank)
    steps = NetworkSteps(build, Inputs(sequence_length=lengths.high), settings)
    return _solved(steps.tape, spans, info, {Variable.LENGTH: Span(1, longest)})


def record_denoiser(build: Build, latents: Latents, settings: RunSettings, info: Mapping[str, str]) -> Recording:
    """A denoiser at any number of latents. Raises Unrecordable."""
    spans = {Variable.BATCH: Span(2, 8), Variable.LENGTH: Span(latents.low, latents.high, latents.step)}
    if settings.lora_rank is not None:
        spans[Variable.RANK] = Span(1, settings.lora_rank)
    steps = _denoiser_steps(build, latents, settings)
    limits = {Variable.LENGTH: Span(latents.step, latents.most, latents.step)}
    return _solved(steps.tape, spans, {**info, COUNTS: LATENTS}, limits)


def denoiser_tape(build: Build, latents: Latents, settings: RunSettings, point: Point) -> Tape:
    """A denoiser's steps at one point. Raises Unrecordable."""
    return _denoiser_steps(build, latents, settings).tape(point)


def _denoiser_steps(build: Build, latents: Latents, settings: RunSettings) -> NetworkSteps:
    return NetworkSteps(build, latents.at(latents.low), settings, sized=latents.at)


def tape_at(build: Build, settings: RunSettings, point: Point) -> Tape:
    """A language model's steps at one point. Raises Unrecordable."""
    return NetworkSteps(build, Inputs(sequence_length=point[Variable.LENGTH]), settings).tape(point)


def _solved(
    record_at: RecordAt,
    spans: Mapping[Variable, Span],
    info: Mapping[str, str],
    limits: Mapping[Variable, Span] | None = None,
) -> Recording:
    recorded: list[Recorded] = [(point, record_at(point)) for point in different_points(spans)]
    return solve(recorded, beyond(spans) if limits is None else limits, info)


def different_points(spans: Mapping[Variable, Span]) -> list[Point]:
    """Where only the batch varies, some points are the same."""
    return list({tuple(point.items()): point for point in points_for(spans)}.values())


class NetworkSteps:
    """A network's training steps, recorded at one point at a time. `max_events` is what a profile may hold."""

    def __init__(
        self,
        build: Build,
        inputs: Inputs,
        settings: RunSettings,
        max_events: int = MOST_EVENTS,
        sized: Callable[[int], Inputs] | None = None,
    ) -> None:
        """`sized`: the inputs by their length, where these are more than that many tokens."""
        self._build, self._inputs, self._settings, self._max_events = build, inputs, settings, max_events
        self._sized = sized
        # Never run: its signature and configuration tell what a batch is.
        with explained(), on_device("meta"):
            self.example = build()

    def tape(self, point: Point) -> Tape:
        """Raises Unrecordable."""
        there = _inputs_at(self._inputs, point) if self._sized is None else self._sized(point[Variable.LENGTH])
        settings = replace(self._settings, lora_rank=point.get(Variable.RANK))

        def batch_of() -> tuple[Arguments, Callable[[Any, Any], Tensor]]:
            return arguments(self.example, there, point[Variable.BATCH], "meta"), _loss

        return record_model(self._build, batch_of, settings, max_events=self._max_events)


def _loss(model: nn.Module, batch: Arguments) -> Tensor:
    args, kwargs = batch
    outputs: Any = model(*args, **kwargs)
    return loss_of(outputs) if torch.is_grad_enabled() else outputs


def _spans(inputs: Inputs, settings: RunSettings) -> dict[Variable, Span]:
    spans = {Variable.BATCH: Span(2, 8)}
    if inputs.make is None and inputs.sequence_length:
        spans[Variable.LENGTH] = length_span(inputs.sequence_length)
    elif inputs.make is None and (side := _side(inputs)):
        spans[Variable.SIDE] = side
    if settings.lora_rank is not None:
        spans[Variable.RANK] = Span(1, settings.lora_rank)
    return spans


def length_span(length: int) -> Span:
    return Span(min(length, max(_FEWEST_TOKENS, length // _SHORTEST)), length)


def side_span(side: int) -> Span | None:
    """None for a side that is no multiple of what networks halve five times: it is recorded as it is."""
    if side % SIDE_STEP or side <= SIDE_STEP:
        return None
    return Span(max(SIDE_STEP, side // _SMALLEST // SIDE_STEP * SIDE_STEP), side, SIDE_STEP)


def beyond(spans: Mapping[Variable, Span]) -> dict[Variable, Span]:
    """How far a recording of these spans answers."""
    return {
        variable: Span(span.low, _BEYOND * span.high, span.step)
        for variable, span in spans.items()
        if variable in (Variable.LENGTH, Variable.SIDE)
    }


def _side(inputs: Inputs) -> Span | None:
    """Of one image whose sides are equal."""
    if len(inputs.shapes) != 1 or len(inputs.shapes[0]) != 3:
        return None
    *_, height, width = inputs.shapes[0]
    return side_span(height) if height == width else None


def _inputs_at(inputs: Inputs, point: Point) -> Inputs:
    if (length := point.get(Variable.LENGTH)) is not None:
        return replace(inputs, sequence_length=length)
    if (side := point.get(Variable.SIDE)) is not None:
        return replace(inputs, shapes=((*inputs.shapes[0][:-2], side, side),))
    return inputs
