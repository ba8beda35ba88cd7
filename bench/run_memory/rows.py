"""Measured runs as vramcast would see them: a task, what it took, and what ships says without any memory."""

from __future__ import annotations

import csv
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from statistics import median

from vramcast.errors import InvalidTask
from vramcast.forecast.forecaster import CachingForecaster
from vramcast.forecast.model import BUILTIN, choose_forecaster
from vramcast.forecast.physics import described_prior
from vramcast.names import Product
from vramcast.task.quantity import MIB
from vramcast.task.task import Task, parse_task
from vramcast.task.vocabulary import PREFIX, Level
from vramcast.train.records import Record, RecordOutcome, read_records

RISK = 0.05
NAMESPACE = "bench"
GIB_MIB = 1024.0
A100 = Product("NVIDIA-A100-SXM4-80GB")
RTX_3090 = Product("NVIDIA-GeForce-RTX-3090")
# What makes two rows of a table the same task.
_SAME_TASK = (
    "model_ref", "gpu", "n_gpus", "batch_per_gpu", "grad_accum", "seq_len", "precision", "method", "lora_rank",
    "lora_targets", "quant", "checkpointing", "attention", "parallelism", "zero_stage", "kernels", "framework", "task",
)  # fmt: skip
_SIZES = ("seq_len", "batch_per_gpu")
_QUANTIZATIONS = {"": "none", "bnb-nf4": "nf4", "gptq-4bit": "int4"}
# GPTQ checkpoints are the same networks.
_BASES = {
    "TheBloke/Mistral-7B-v0.1-GPTQ": "mistralai/Mistral-7B-v0.1",
    "TheBloke/Mixtral-8x7B-Instruct-v0.1-GPTQ": "mistralai/Mixtral-8x7B-Instruct-v0.1",
    "TheBloke/Llama-2-70B-GPTQ": "NousResearch/Llama-2-70b-hf",
}
_FILE_DATE = re.compile(r"file date (\d{4}-\d\d-\d\d)")

Row = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Shipped:
    """The forecast that ships, without memory."""

    median_mib: float
    bound_mib: float


@dataclass(frozen=True, slots=True)
class Measured:
    """`prior_mib`: what memory may shift. `model`: margins are chosen on whole ones. `shipped` None: without a name."""

    task: Task
    mib: float
    prior_mib: float
    model: str
    at: float = 0.0  # seconds since the epoch
    kind: str = ""
    shipped: Shipped | None = None


def read_rows(path: Path) -> Iterator[Row]:
    with path.open(newline="", encoding="utf-8") as file:
        yield from csv.DictReader(file)


# ------------------------------------------------------------------ fms-acceleration: the same task again


def fms_repeats(data: Path) -> list[list[Measured]]:
    """Each task's runs by date. The median of a date counts once."""
    dated: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    first: dict[str, Row] = {}
    for row in read_rows(data / "runs/fms_acceleration.csv"):
        found = _FILE_DATE.search(row["note"])
        if row["outcome"] == "ok" and row["mem_gib"] and found:
            key = "|".join(row[name] for name in _SAME_TASK)
            dated[key][found[1]].append(float(row["mem_gib"]) * GIB_MIB)
            first.setdefault(key, row)
    repeats = []
    for key, runs in dated.items():
        row = first[key]
        task = Task(Level.NAME, model=key, namespace=NAMESPACE)
        shipped = shipped_forecast(_fms_settings(row), A100)
        figures = [(median(values), _seconds(date)) for date, values in sorted(runs.items())]
        repeats.append(
            [Measured(task, mib, figures[0][0], row["model_ref"], at, _kind(row), shipped) for mib, at in figures]
        )
    return [runs for runs in repeats if len(runs) > 1]


def _seconds(date: str) -> float:
    return datetime.fromisoformat(date).replace(tzinfo=UTC).timestamp()


def _kind(row: Row) -> str:
    method = "4-bit LoRA" if row["quant"] else "LoRA" if row["lora_rank"] else "full"
    return f"{method}, {'one GPU' if row['n_gpus'] == '1' else 'FSDP'}"


def _fms_settings(row: Row) -> dict[str, str]:
    settings = {
        "model": _BASES.get(row["model_ref"], row["model_ref"]),
        "batch-size": row["batch_per_gpu"],
        "sequence-length": row["seq_len"],
        "precision": "bf16" if row["precision"].startswith("bfloat16") else "fp16",
        "optimizer": "adamw",
        "attention": "flash",
        "gradient-checkpointing": "true" if row["checkpointing"] == "on" else "false",
        "quantization": _QUANTIZATIONS[row["quant"]],
        "kernels": "liger" if "liger" in row["kernels"] else "fused" if "foak" in row["kernels"] else "none",
    }
    if row["lora_rank"]:
        settings["lora-rank"] = str(int(float(row["lora_rank"])))
    return settings | _sharding(row)


def _sharding(row: Row) -> dict[str, str]:
    return {"zero-stage": row["zero_stage"], "data-parallel-size": row["n_gpus"]} if row["n_gpus"] != "1" else {}


# ------------------------------------------------------------------ DeepSpeed sweeps: other lengths, other batches


def gpjt_sweeps(data: Path) -> list[list[Measured]]:
    """Runs of one sweep differ in length and batch only."""
    sweeps: dict[str, list[Measured]] = defaultdict(list)
    for row in read_rows(data / "runs/gpjt_deepspeed_sweeps.csv"):
        if row["outcome"] != "ok" or not row["mem_gib"] or not row["seq_len"].isdecimal():
            continue
        key = "|".join(row[name] for name in (*_SAME_TASK, "source_path") if name not in _SIZES)
        task = Task(
            Level.NAME, model=key, batch_size=int(row["batch_per_gpu"]), sequence_length=int(row["seq_len"]),
            namespace=NAMESPACE,
        )  # fmt: skip
        shipped = shipped_forecast(_gpjt_settings(row), A100 if "A100" in row["gpu"] else RTX_3090)
        mib = float(row["mem_gib"]) * GIB_MIB
        prior = shipped.median_mib if shipped is not None else mib
        sweeps[key].append(Measured(task, mib, prior, key, shipped=shipped))
    return list(sweeps.values())


def _gpjt_settings(row: Row) -> dict[str, str]:
    return {
        "model": row["model_ref"],
        "batch-size": row["batch_per_gpu"],
        "sequence-length": row["seq_len"],
        "precision": "amp-fp16",
        "optimizer": "adamw",
        "gradient-checkpointing": "true" if row["checkpointing"] == "on" else "false",
        "kernels": "liger" if row["kernels"] == "liger" else "none",
        "offload": "optimizer" if "offloaded" in row["optimizer"] else "none",
        "zero-stage": row["zero_stage"],
        "data-parallel-size": row["n_gpus"],
    }


# ------------------------------------------------------------------ timm: other batches


def timm_networks(data: Path) -> list[list[Measured]]:
    """By network and optimizer, at three batch sizes or more. Physics is the prior: it has seen none of these runs."""
    networks: dict[tuple[str, str], list[Measured]] = defaultdict(list)
    for record in read_records(data):
        if record.source == "timm-a100" and record.outcome is RecordOutcome.OK and record.network is not None:
            networks[record.profile, str(record.task.optimizer)].append(_timm_run(record))
    return [runs for runs in networks.values() if len(runs) > 2]


def _timm_run(record: Record) -> Measured:
    assert record.network is not None
    forecast = _forecaster().forecast(record.task, record.product)
    return Measured(
        replace(record.task, namespace=NAMESPACE),
        record.measured_mib,
        described_prior(record.network, record.task, record.product).total_bytes / MIB,
        record.profile,
        shipped=Shipped(forecast.median_bytes / MIB, forecast.bound_bytes / MIB),
    )


# ------------------------------------------------------------------ what ships


@cache
def _forecaster() -> CachingForecaster:
    return choose_forecaster(BUILTIN, RISK, physics_if_unusable=False)


def shipped_forecast(settings: Mapping[str, str], product: Product) -> Shipped | None:
    """None: the catalog does not know the model, or a setting is none of vramcast's."""
    try:
        task = parse_task({PREFIX + name: value for name, value in settings.items()})
        forecast = _forecaster().forecast(task, product) if task is not None else None
    except InvalidTask:
        return None
    return None if forecast is None else Shipped(forecast.median_bytes / MIB, forecast.bound_bytes / MIB)
