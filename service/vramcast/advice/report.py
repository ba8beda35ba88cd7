"""Advice as text and as JSON: for the command line, the API, the page, and the Event of an unschedulable pod."""

from __future__ import annotations

from typing import Any

from vramcast.advice.lines import changed_annotations, lines
from vramcast.advice.search import GpuAdvice, Proposal, Room
from vramcast.forecast.forecast import Source
from vramcast.hardware.short_names import short_name
from vramcast.task.quantity import MIB, ceil_mib, human_mib
from vramcast.task.task import Task
from vramcast.task.vocabulary import PREFIX, Offload
from vramcast.task.words import field_of, word

# In this order, and in words that need no prefix.
_SHOWN = (
    "batch-size", "gradient-accumulation", "gradient-checkpointing", "precision", "attention", "kernels", "optimizer",
    "lora-rank", "lora-targets", "quantization", "zero-stage", "offload", "allocator",
)  # fmt: skip


def words(proposal: Proposal) -> str:
    """`batch-size 2 x 4, gradient-checkpointing`; for another GPU its name."""
    if not proposal.changed:
        return f"on {short_name(proposal.room.product)}, as it is"
    return ", ".join(filter(None, (_phrase(proposal.task, name) for name in _SHOWN if name in proposal.changed)))


def _phrase(task: Task, name: str) -> str:
    match name:
        case "batch-size":
            times = task.gradient_accumulation
            return f"batch-size {task.batch_size}" + (f" with gradient-accumulation {times}" if times > 1 else "")
        case "gradient-accumulation":
            return ""
        case "gradient-checkpointing":
            return name
        case "zero-stage":
            gpus = task.data_parallel_size
            return f"zero-stage {task.zero_stage}" + (f" over {gpus} GPUs" if gpus > 1 else "")
        case "offload":
            return "optimizer in the host's memory" if task.offload is Offload.OPTIMIZER else ""
    return f"{name} {word(getattr(task, field_of(name)))}"


def time_change(proposal: Proposal) -> str:
    percent = round(100 * (proposal.cost.step - 1))
    return f"{percent:+d} %" if percent else "same"


def proposal_json(proposal: Proposal) -> dict[str, Any]:
    code = lines(proposal.task, proposal.changed)
    forecast = proposal.forecast
    return {
        "change": words(proposal),
        "product": proposal.room.product,
        "gpus": proposal.cost.gpus,
        "need_mib": forecast.need_mib,
        "median_bytes": forecast.median_bytes,
        "source": forecast.source,
        "room_mib": proposal.room.mib,
        "cost": proposal.cost.points,
        "step_time": round(proposal.cost.step, 3),
        "why": [effect.why for effect in proposal.cost.effects],
        "annotations": changed_annotations(proposal.task, proposal.changed),
        "pytorch": list(code.pytorch),
        "trainer": list(code.trainer),
    }


def advice_json(advice: GpuAdvice) -> dict[str, Any]:
    return {
        "product": advice.room.product,
        "room_mib": advice.room.mib,
        "need_mib": advice.forecast.need_mib,
        "median_bytes": advice.forecast.median_bytes,
        "risk": advice.forecast.risk,
        "fits": advice.fits,
        "fits_at_risk": advice.fits_at_risk,
        "proposals": [proposal_json(proposal) for proposal in advice.proposals],
        "smallest": words(advice.smallest) if advice.smallest.changed else "as it is",
        "smallest_need_mib": advice.smallest.forecast.need_mib,
        "short_mib": advice.short_mib,
        "tried": advice.tried,
        "complete": advice.complete,
    }


def why_and_what(advice: GpuAdvice) -> str:
    """One paragraph for an Event: what the pod needs and how sure that is, and what would help."""
    forecast, room = advice.forecast, advice.room
    needs = f"needs {human_mib(forecast.need_mib)} on {_named(room)}"
    if forecast.source is Source.GIVEN:
        told = f"{needs}, as {PREFIX}gpu-memory says."
    else:
        median = human_mib(ceil_mib(forecast.median_bytes))
        told = f"{needs} at risk {forecast.risk:g} (median {median})."
    return " ".join(filter(None, (told, *_help(advice))))


def _named(room: Room) -> str:
    return f"{short_name(room.product)}, which has room for {human_mib(room.mib)}"


def _help(advice: GpuAdvice) -> list[str]:
    said = []
    if advice.fits_at_risk is not None:
        said.append(f"It fits with {PREFIX}max-oom-risk: {advice.fits_at_risk:g}.")
    if advice.proposals:
        first = advice.proposals[0]
        where = "" if first.room == advice.room else f" ({human_mib(first.room.mib)})"
        needs = f"needs {human_mib(first.forecast.need_mib)}, time per step {time_change(first)}"
        said.append(f"It fits {'' if not first.changed else 'with '}{words(first)}{where}: {needs}.")
    elif advice.forecast.source is not Source.GIVEN:
        short = human_mib(advice.short_mib)
        said.append(f"No setting that was tried makes it fit: the smallest is {short} too large.")
    if advice.forecast.source is not Source.GIVEN:
        said.append(f"If you measured a lower peak, set {PREFIX}gpu-memory.")
    return said


def smallest_text(advice: GpuAdvice) -> str:
    """For "nothing fits"."""
    smallest = advice.smallest
    what = f"with {words(smallest)}" if smallest.changed else "as it is"
    needs = -(-smallest.forecast.bound_bytes // MIB)
    return f"the smallest that was tried, {what}, needs {human_mib(needs)}: {human_mib(advice.short_mib)} too many"
