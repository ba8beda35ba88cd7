"""Reads measured runs (`measurements.csv`, `xmem.csv`) and joins them with their profiles (`profiles/`)."""

from __future__ import annotations

import csv
import gzip
import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

from vramcast.errors import InvalidInput, InvalidTask
from vramcast.forecast.description import Description, parse_profile
from vramcast.forecast.forecaster import described_network
from vramcast.forecast.summary import summarize
from vramcast.names import Product
from vramcast.task.quantity import MIB
from vramcast.task.task import Task, parse_task
from vramcast.task.vocabulary import PREFIX, Architecture, Level, Optimizer, Precision
from vramcast.train.synthetic_cnn import is_synthetic_cnn, rebuild

NAN = float("nan")
TARGETS = ("gpu_util", "sm_active", "sm_occupancy")
# xMem measured one process on an otherwise empty GPU. GPUMemNet's device also ran services that take a GiB, and that
# product's context includes them. So xMem's runs are assigned to the same chip on another board.
_EMPTY_DEVICE = {"NVIDIA-A100-SXM4-40GB": "NVIDIA-A100-PCIE-40GB"}


class RecordOutcome(StrEnum):
    OK = "ok"
    OOM = "oom"  # needs at least the GPU's memory
    FLOOR = "floor"  # needs at least what was measured: the run was stopped, or killed on a shared GPU
    SUSPECT = "suspect"  # contradicts what the run must hold: excluded from training and from error figures


@dataclass(frozen=True, slots=True)
class Record:
    """One run; `group` is never on both sides of a split."""

    source: str
    profile: str
    group: str
    family: str
    task: Task
    product: Product
    network: Description | None  # None if only its summary is known
    measured_mib: float
    outcome: RecordOutcome
    utilization: tuple[float, ...]  # TARGETS; NaN if not recorded
    others_mib: dict[str, float]  # estimates of the same run by published tools


def read_records(data: Path, *, needed: bool = True) -> list[Record]:
    """Every row of both tables. Either may be missing, but not both if any is `needed`."""
    profiles = _read_profiles(data)
    networks: dict[str, Description] = {}
    tables = [(data / "measurements.csv", _measurement), (data / "xmem.csv", _xmem)]
    found = [(path, read) for path, read in tables if path.exists()]
    if not found and needed:
        raise InvalidInput(f"{data} has neither measurements.csv nor xmem.csv")
    records = []
    for path, read in found:
        for number, row in enumerate(_rows(path), start=2):
            profile = profiles.get(row["profile"]) if row["profile"] else {}
            if profile is None:
                raise InvalidInput(f"{path}:{number}: no profile {row['profile']!r} under {data / 'profiles'}")
            network = networks.get(row["profile"])
            if network is None and profile:
                network = networks[row["profile"]] = describe_network(profile)
            try:
                records.append(read(row, profile, network))
            except (ValueError, KeyError, InvalidTask) as error:
                raise InvalidInput(f"{path}:{number}: {error}") from error
    return records


def describe_network(profile: dict[str, Any]) -> Description:
    return rebuild(profile) if is_synthetic_cnn(profile) else parse_profile(profile)


def _read_profiles(data: Path) -> dict[str, dict[str, Any]]:
    profiles: dict[str, dict[str, Any]] = {}
    for path in sorted((data / "profiles").glob("*.jsonl.gz")):
        with gzip.open(path, "rt", encoding="utf-8") as lines:
            for line in lines:
                profile = json.loads(line)
                profiles[profile["id"]] = profile
    return profiles


def _rows(path: Path) -> Iterator[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        yield from csv.DictReader(file)


def _measurement(row: dict[str, str], profile: dict[str, Any], network: Description | None) -> Record:
    by_architecture = row["source"].startswith("timm")
    if row.get("task"):
        network, task = _annotated(json.loads(row["task"]), network)
    elif network is None:
        raise ValueError("neither a profile nor a task")
    else:
        task = make_task(network, int(row["batch_size"]), row["optimizer"], row["precision"])
    return Record(
        source=row["source"],
        profile=row["profile"],
        group=str(profile["group"]) if by_architecture else row["profile"] or _summary_group(task),
        family=network.family if network else str(task.architecture or ""),
        task=task,
        product=Product(row["gpu"]),
        network=network,
        measured_mib=float(row["memory_mib"]),
        outcome=RecordOutcome(row["outcome"]),
        utilization=tuple(float(row[target]) if row.get(target) else NAN for target in TARGETS),
        others_mib={},
    )


def _annotated(values: dict[str, str], network: Description | None) -> tuple[Description | None, Task]:
    """A run from its pod's annotations, with layers if a profile or a model name provides them."""
    annotations = {PREFIX + name: text for name, text in values.items()}
    if network is not None:
        annotations[f"{PREFIX}profile"] = "in profiles/"
    task = parse_task(annotations)
    if task is None:
        raise ValueError("task contains no annotations")
    if network is None:
        network = described_network(task).network
    if network is None:
        return None, task
    family = network.family if network.family in set(Architecture) else None
    summary = summarize(network)
    return network, replace(
        task,
        level=Level.PROFILE,
        profile=None,
        architecture=Architecture(family) if family else task.architecture,
        parameters=summary.parameters,
        layers=summary.layers,
        activations=summary.activations,
    )


def _summary_group(task: Task) -> str:
    """The same for all batch sizes of a network."""
    return f"{task.architecture}-{task.parameters}-{task.activations}-{task.layers}"


def _xmem(row: dict[str, str], _profile: dict[str, Any], network: Description | None) -> Record:
    if network is None:
        raise ValueError("no profile")
    others = {name: row.get(f"{name}_bytes") or "" for name in ("xmem", "dnnmem", "schedtune", "llmem")}
    return Record(
        source="xmem",
        profile=row["profile"],
        group=row["profile"],
        family=network.family,
        task=make_task(network, int(row["batch"]), row["optimizer"], row["precision"]),
        product=Product(_EMPTY_DEVICE.get(row["gpu"], row["gpu"])),
        network=network,
        measured_mib=int(row["ground_nvml_bytes"]) / MIB,
        outcome=RecordOutcome.OOM if row["ground_oom"] == "1" else RecordOutcome.OK,
        utilization=(NAN,) * len(TARGETS),
        others_mib={name: float(value) / MIB for name, value in others.items() if value},
    )


def make_task(network: Description, batch: int, optimizer: str, precision: str) -> Task:
    summary = summarize(network)
    return Task(
        level=Level.PROFILE,
        architecture=Architecture(summary.architecture),
        parameters=summary.parameters,
        layers=summary.layers,
        activations=summary.activations,
        batch_size=batch,
        optimizer=Optimizer(optimizer),
        precision=Precision(precision),
    )
