"""Reads `runs/*.csv`: measured runs of many sources, described as a pod would describe them.

Every row that cannot be compared is left out for a reason, and the reasons are counted. Repeats of one configuration
over library versions become one run with the median of each figure.
"""

from __future__ import annotations

import csv
import re
from collections import Counter as Tally
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from statistics import median
from typing import Any

from vramcast.errors import InvalidTask
from vramcast.forecast.catalog import Line, builtin_catalog
from vramcast.forecast.counters import Counter
from vramcast.hardware.products import memory_mib
from vramcast.names import Product
from vramcast.task.task import Task, parse_task
from vramcast.task.vocabulary import PREFIX, Length
from vramcast.train.runs import extra, trainers, words, zoo
from vramcast.train.runs.figures import check_room, figures, is_percentile
from vramcast.train.runs.words import LeftOut

Row = dict[str, str]
# Sources whose licence forbids to train on them what ships.
_EVALUATE_ONLY = ("agpl", "non-commercial", "noncommercial", "cc-by-nc")
_PREFIXES = ("torchvision ", "timm ")
_MOVED = {"decapoda-research/llama-7b-hf": "llama-7b", "decapoda-research/llama-13b-hf": "llama-13b"}
_PIXEL_CHANNELS = 3
_DENOISERS_TRAINERS = ("diffusers", "finetrainers")
# timm builds resnext101_32x8d for all of these.
_MISNAMED = re.compile(r"ig_resnext101_32x(?:16|32|48)d")
# Families of networks that have next to no attention, so nothing depends on how it is computed.
_WITHOUT_ATTENTION = frozenset({"cnn", "mlp"})


# What is read. A file may have more columns, and lacks nothing by leaving out those that it has no words for.
_COLUMNS = (
    "licence", "model", "model_ref", "gpu", "n_gpus", "batch_per_gpu", "grad_accum", "seq_len", "image_size",
    "precision", "optimizer", "method", "lora_rank", "lora_targets", "quant", "checkpointing", "attention",
    "parallelism", "framework", "kernels", "mem_gib", "mem_kind", "mem_gib_2", "mem_kind_2", "outcome", "trust", "note",
    "fail_batch", "task", "mem_raw", "mem_unit",
)  # fmt: skip


class RunEnding(StrEnum):
    MEASURED = "measured"
    OUT_OF_MEMORY = "out of memory"  # needs at least what the GPU has
    FITTED = "fitted"  # needs at most what the GPU has
    INTERVAL = "interval"  # this batch fitted, `fail_batch` did not


@dataclass(frozen=True, slots=True)
class MeasuredRun:
    """One configuration. `network` is never on both sides of a split."""

    source: str  # the file's name
    network: str
    task: Task
    product: Product
    ending: RunEnding
    gib: dict[Counter, float] = field(default_factory=dict)  # where it was measured
    primary: Counter = Counter.DEVICE  # the counter of the source's own figure
    fail_batch: int = 0
    method: str = "full"
    gpus: int = 1
    varies: bool = False  # samples differ in length
    evaluate_only: bool = False
    repeats: int = 1
    peak: bool = True  # False: its figures are not the most that it held, so they judge bounds and do not teach them


@dataclass(slots=True)
class Runs:
    runs: list[MeasuredRun] = field(default_factory=list)
    left_out: Tally[tuple[str, str]] = field(default_factory=Tally)  # by source and reason
    rows: Tally[str] = field(default_factory=Tally)


def read_runs(data: Path) -> Runs:
    """Of `runs` and `extra`; empty if there are no such directories."""
    found = Runs()
    for path in sorted((data / "runs").glob("*.csv")):
        with path.open(newline="", encoding="utf-8") as file:
            _read(path.stem, csv.DictReader(file), found)
    for source, rows in extra.READERS.items():
        if (path := data / "extra" / f"{source}.csv").exists():
            _read(source, rows(path), found)
    return found


def _read(source: str, rows: Iterable[Mapping[Any, Any]], found: Runs) -> None:
    read: list[MeasuredRun] = []
    for cells in rows:
        found.rows[source] += 1
        row = dict.fromkeys(_COLUMNS, "") | {name: text for name, text in cells.items() if name and text}
        try:
            read.append(_run(source, row))
        except LeftOut as reason:
            found.left_out[source, str(reason)] += 1
    found.runs += _collapsed(read)


def _collapsed(runs: Iterable[MeasuredRun]) -> list[MeasuredRun]:
    """Repeats of one configuration, told apart by how they ended. They have the versions that most of them had."""
    groups: dict[tuple[object, ...], list[MeasuredRun]] = {}
    for run in runs:
        task = replace(run.task, framework="")
        key = (run.network, task, run.product, run.ending, run.fail_batch, run.varies, frozenset(run.gib))
        groups.setdefault(key, []).append(run)
    return [_middle(same) for same in groups.values()]


def _middle(same: Sequence[MeasuredRun]) -> MeasuredRun:
    versions = Tally(run.task.framework for run in same)
    task = replace(same[0].task, framework=min(versions, key=lambda text: (-versions[text], text)))
    gib = {counter: median(run.gib[counter] for run in same) for counter in same[0].gib}
    return replace(same[0], task=task, gib=gib, repeats=len(same))


def _run(source: str, row: Row) -> MeasuredRun:
    """Raises LeftOut."""
    if row["trust"] == "low":
        raise LeftOut("trust low")
    ending = _ending(row)
    if "resident" in row["task"]:
        raise LeftOut("other networks stay on the GPU")
    name, task = _described(row)
    found = figures(row) if ending is RunEnding.MEASURED else {}
    primary = next(iter(found), Counter.DEVICE)
    product = words.product(row["gpu"], context_counts=primary is Counter.DEVICE)
    check_room(found, row["gpu"])
    if ending is not RunEnding.MEASURED and memory_mib(product) is None:
        raise LeftOut("memory of the GPU not known")
    varies = task.length is not Length.FIXED
    return MeasuredRun(
        source, name, task, product, ending, found, primary, int(_whole(row["fail_batch"]) or 0),
        method=_method(row), gpus=int(_whole(row["n_gpus"]) or 1), varies=varies,
        evaluate_only=any(word in row["licence"].lower() for word in _EVALUATE_ONLY),
        peak=not (varies and is_percentile(row)),
    )  # fmt: skip


def _described(row: Row) -> tuple[str, Task]:
    """The name under which a network is kept on one side of a split, and the task."""
    if zoo.is_zoo(row):
        found = zoo.network(row, words.sides(row["image_size"]))
        summary = {
            "parameters": str(found.parameters), "activations": str(found.activations),
            "architecture": found.architecture,
        }  # fmt: skip
        return f"openmmlab/{found.decoder}", _task(row, summary, sequences=False, attention=False)
    line = _network(row)
    known = {"model": line.name, **_size(row, line)}
    attention = line.family not in _WITHOUT_ATTENTION
    return line.name, _task(row, known, sequences=line.sequence_length is not None, attention=attention)


def _whole(text: str) -> str:
    """Empty if it is no whole number."""
    return text if text.isdecimal() else ""


_ENDINGS = {
    "ok": RunEnding.MEASURED,
    "oom": RunEnding.OUT_OF_MEMORY,
    "fits": RunEnding.FITTED,
    "interval": RunEnding.INTERVAL,
}


def _ending(row: Row) -> RunEnding:
    ending = _ENDINGS.get(row["outcome"])
    if ending is None:
        raise LeftOut(f"outcome {row['outcome']}")
    return ending


def _network(row: Row) -> Line:
    reference = row["model_ref"].split("@")[0].strip()
    if _MISNAMED.search(reference):
        raise LeftOut("a name that timm gives to another network")
    for prefix in _PREFIXES:
        reference = reference.replace(prefix, f"{prefix.strip()}/") if reference.startswith(prefix) else reference
    reference = _MOVED.get(reference, reference)
    for name in (trainers.catalog_name(reference, row["model"]), reference, row["model"]):
        line = builtin_catalog().find(name) if name else None
        if line is not None:
            return line
    raise LeftOut("a network that the catalog does not know")


def _method(row: Row) -> str:
    return row["method"].split(" (")[0] or "full"


def _varies(row: Row) -> bool:
    length = words.length(row["seq_len"])
    told = any(word in row["note"] for word in ("padded to longest", "variable length", "length is a cap"))
    return (length is not None and length.varies) or told or "padding-free" in row["kernels"]


def _task(row: Row, network: Mapping[str, str], *, sequences: bool, attention: bool) -> Task:
    quantized = words.quantization(row["quant"])
    said = {
        **network,
        "batch-size": _count(row["batch_per_gpu"], "batch"),
        "precision": words.precision(row["precision"], mixed=_trains_in_fp32(row)),
        "optimizer": words.optimizer(row["optimizer"]),
        "attention": words.attention(row["attention"]) if attention else "",
        "kernels": words.kernels(row["kernels"]),
        "quantization": quantized,
        "gradient-accumulation": _accumulation(row),
        "allocator": "expandable-segments" if "expandable" in row["kernels"] else "",
        "framework": words.framework(f"{row['framework']}; {row['note']}", row["parallelism"]),
    }
    if quantized and "DeepSpeed" in row["parallelism"]:
        raise LeftOut("a quantized network under DeepSpeed, which has no autocast as recordings do")
    said |= words.lora(row["method"], row["lora_rank"], row["lora_targets"], frozen_base=quantized)
    # A zoo's rows say how they were sharded, and sometimes not over how many GPUs: each holds all of it anyway.
    gpus = row["n_gpus"] or ("1" if zoo.is_zoo(row) else "")
    said |= words.sharding(row["parallelism"], gpus, row["optimizer"]).annotations()
    if "FSDP" in row["parallelism"] and int(said.get("zero-stage", "0")) > 1 and _without_masters(row):
        said["master-weights"] = "false"
    if quantized == "nf4" and "accelerated-peft" in row["kernels"]:
        said["upcast"] = "false"  # fms's own loading of quantized networks
    if words.checkpointing(row["checkpointing"], matters=sequences):
        said["gradient-checkpointing"] = "true"
    if said["attention"] == "sdpa":
        del said["attention"]  # the default
    try:
        task = parse_task({PREFIX + name: value for name, value in said.items() if value})
    except InvalidTask as error:
        first = error.errors[0]
        raise LeftOut(f"not a valid task: {first.field.removeprefix(PREFIX)} {first.value}") from error
    assert task is not None  # noqa: S101 - it names a model, or its size
    return task


def _trains_in_fp32(row: Row) -> bool:
    """Trainers of denoisers name the precision of autocast: what they freeze has it, what they train is in fp32."""
    trains_denoisers = row["framework"].startswith(_DENOISERS_TRAINERS)
    return trains_denoisers and _method(row) == "full" and row["parallelism"] in ("", "none")


def _without_masters(row: Row) -> bool:
    """FSDP keeps fp32 copies of what is trained under autocast only; of an adapter they are next to nothing."""
    return "pure" in row["precision"] or _method(row) in ("lora", "qlora")


def _size(row: Row, line: Line) -> dict[str, str]:
    if line.sequence_length is not None:
        length = words.length(row["seq_len"])
        if length is None:
            raise LeftOut("length not stated")
        return {"sequence-length": str(length.tokens), "length": _length_word(row)}
    sides = words.sides(row["image_size"])
    if sides is None:
        return {}
    if line.input_shape is None or len(line.input_shape) != len(sides) + 1:
        raise LeftOut("an image size that the network does not read")
    # A denoiser reads latents, and its image size is that of the pixels.
    channels = _PIXEL_CHANNELS if line.name.startswith("diffusers/") else line.input_shape[0]
    return {"input-size": "x".join(map(str, (channels, *sides)))}


def _length_word(row: Row) -> str:
    """Empty: every sample has this length."""
    if not _varies(row):
        return ""
    if "mean" not in row["seq_len"]:
        return "longest"
    return "packed" if "padding-free" in row["kernels"] else "padded"


def _count(text: str, name: str) -> str:
    if not text.isdecimal() or int(text) < 1:
        raise LeftOut(f"{name} not stated")
    return text


def _accumulation(row: Row) -> str:
    return row["grad_accum"] if row["grad_accum"].isdecimal() and int(row["grad_accum"]) > 1 else ""
