"""A forecast from totals: the rules' parts, and what recordings taught about how much of them a step holds.

Two things can be wrong with it, and they have nothing to do with each other: totals leave out how the network is built,
and a recording leaves out what libraries take for themselves. So the squares of both margins add up.
"""

from __future__ import annotations

import math
from dataclasses import replace

from vramcast.forecast.catalog import builtin_catalog
from vramcast.forecast.counters import CounterForecast
from vramcast.forecast.description import Description
from vramcast.forecast.forecast import CONTEXT_PART, Forecast, Part, Source
from vramcast.forecast.physics import context_part, summary_prior
from vramcast.forecast.recorded_bounds import Bounds, Figure, Method, RecordedCalibration, RunKind
from vramcast.forecast.rules import least_bytes
from vramcast.forecast.summary import summarized
from vramcast.forecast.totals import RECORDINGS_PART
from vramcast.forecast.totals_model import LearnedTotals, TotalsModel
from vramcast.names import Product
from vramcast.task.task import Task
from vramcast.task.vocabulary import Architecture, Kernels, Kind, Length, Level, Quantization

_ATTENTION = "attention "
_COUNTED = (_ATTENTION, "kernels ", "lora-targets ")


def forecast_learned(
    model: TotalsModel, network: Description | None, task: Task, product: Product, risk: float,
    calibration: RecordedCalibration,
) -> Forecast | None:  # fmt: skip
    """None for kinds of run that were never recorded: the rules alone answer those."""
    run = _summarized(task, network)
    shown = _at_usual_length(task, network)
    found = model.learned(run, _summarized(task, shown), shown)
    if found is None:
        return None
    prior = summary_prior(run, product)
    communicates = run.data_parallel_size > 1
    context = context_part(
        product, cudnn=run.architecture != "mlp", norms=False, communicates=communicates, framework=task.framework
    )
    parts = (*(part for part in prior.parts if part.name != CONTEXT_PART), context)
    least = least_bytes(run)
    reserved = round(max(found.reserved_bytes, least))
    active = min(reserved, round(max(found.active_bytes, least)))
    median = reserved + context.size_bytes
    doubts = calibration.bounds(_run_kind(run), product)
    bound = round(median * math.exp(_margin(found, doubts, Figure.DEVICE, median, risk)))
    tensors = round(active * math.exp(_margin(found, doubts, Figure.TENSORS, active, risk)))
    learned = median - sum(part.size_bytes for part in parts)
    return Forecast(
        product=product,
        median_bytes=median,
        bound_bytes=bound,
        risk=risk,
        source=Source.MODEL,
        model_version=model.version,
        parts=(*parts, Part(RECORDINGS_PART, learned, _because(found, median - learned, median))),
        assumptions=tuple(note for note in task.assumptions if not _is_counted(note, run, network)),
        family=str(run.architecture or ""),
        allocated=CounterForecast(active, max(active, min(tensors, bound - context.size_bytes))),
    )


def _summarized(task: Task, network: Description | None) -> Task:
    if network is None:
        return task
    return replace(summarized(task, network), sequence_length=network.sequence_length or task.sequence_length)


def _at_usual_length(task: Task, network: Description | None) -> Description | None:
    """What is read from a network's layers must not change with the length, or forecasts would not rise with it."""
    if network is None or network.sequence_length is None or task.level is not Level.NAME or task.model is None:
        return network
    return builtin_catalog().describe(task.model, None, None).network


def _is_counted(note: str, run: Task, network: Description | None) -> bool:
    """What the rules do not count, and recordings do. How many scores tokens have is told by layers alone."""
    if note.startswith(_ATTENTION) and network is None and run.sequence_length is not None:
        return False
    return note.endswith(" is not counted") and note.startswith(_COUNTED)


def _because(found: LearnedTotals, rules_bytes: int, median_bytes: int) -> str:
    return f"x {median_bytes / rules_bytes:.3f}, from {found.margins.scores} architectures ({found.cell})"


def _margin(found: LearnedTotals, doubts: Bounds, figure: Figure, median_bytes: int, risk: float) -> float:
    """In logarithms."""
    least = max(median_bytes, 1)
    return math.hypot(found.margin(risk), math.log(doubts.bound_bytes(figure, least, risk) / least))


def _run_kind(task: Task) -> RunKind:
    """As of a run with a recording."""
    inference = task.kind is Kind.INFERENCE
    method = Method.QUANTIZED if task.quantization is not Quantization.NONE else Method.LORA
    trained = method if task.lora_rank is not None else Method.FULL
    return RunKind(
        method=Method.INFERENCE if inference else trained,
        sharded=task.zero_stage > 0,
        replicated=task.zero_stage == 0 and task.data_parallel_size > 1,
        fused=task.kernels is not Kernels.NONE,
        convolves=task.architecture is Architecture.CNN,
        images=task.architecture in (Architecture.CNN, Architecture.DIFFUSION) or task.input_size is not None,
        varies=task.length is not Length.FIXED,
    )
