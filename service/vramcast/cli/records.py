"""`vramcast export-records`: saves the runs that a service measured, in the format that `vramcast train` reads.

Runs that are already in the directory are kept, so a nightly export collects more than the service keeps in memory.
"""

from __future__ import annotations

import csv
import gzip
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import urllib3

from vramcast.errors import InvalidInput, WorldUnavailable
from vramcast.forecast.description import unpack_profile
from vramcast.forecast.recorded import is_recording
from vramcast.hardware.utilization import FORECAST_COUNTERS
from vramcast.task.quantity import MIB
from vramcast.task.run_status import Ending

TABLE = "measurements.csv"
SOURCE = "observed"
COLUMNS = (
    "source", "run", "profile", "task", "gpu", "batch_size", "precision", "optimizer", "memory_mib", "memory_kind",
    "outcome", "gpu_util", "sm_active", "sm_occupancy", "ending", "ended_at", "model_version", "pod",
)  # fmt: skip
_TIMEOUT_SECONDS = 60.0
_PROFILES = "observed-*.jsonl.gz"


class RecordsUnavailable(WorldUnavailable):
    """The service does not answer, or answers without records."""


@dataclass(frozen=True, slots=True)
class Credentials:
    """Files for a service with TLS."""

    ca_file: Path | None = None
    cert_file: Path | None = None
    key_file: Path | None = None


@dataclass(frozen=True, slots=True)
class Exported:
    """Numbers of runs: new in the directory, already in it, and left out because training cannot read recordings."""

    added: int
    known: int
    left_out: int = 0


def fetch_records(url: str, credentials: Credentials, *, named: bool) -> dict[str, Any]:
    address = f"{url.rstrip('/')}/records{'?names=true' if named else ''}"
    files: dict[str, Any] = {
        name: str(path)
        for name, path in (
            ("ca_certs", credentials.ca_file),
            ("cert_file", credentials.cert_file),
            ("key_file", credentials.key_file),
        )
        if path is not None
    }
    try:
        with urllib3.PoolManager(retries=False, timeout=_TIMEOUT_SECONDS, **files) as pool:
            answer = pool.request("GET", address)
        document = json.loads(answer.data) if answer.status == 200 else None
    except (urllib3.exceptions.HTTPError, OSError, ValueError) as error:
        raise RecordsUnavailable(f"{address}: {error}; is it the address of a running vramcast?") from error
    if not isinstance(document, dict) or not isinstance(document.get("runs"), list):
        raise RecordsUnavailable(f"{address} answers {answer.status} without records: is it an older vramcast?")
    return document


def write_records(document: Mapping[str, Any], out: Path) -> Exported:
    """Each file is replaced atomically. Profiles first, so that every row's profile exists."""
    rows = _read_rows(out / TABLE)
    known = {row["run"] for row in rows}
    recordings = {key for key, text in document["profiles"].items() if is_recording(text)}
    runs = [run for run in document["runs"] if run["profile"] not in recordings]
    new = {run["run"]: run for run in runs if run["run"] not in known and run["peak_bytes"] > 0}
    if new:
        (out / "profiles").mkdir(parents=True, exist_ok=True)
        _write_profiles(out / "profiles", document["profiles"], {run["profile"] for run in new.values()} - {""})
        _write_rows(out / TABLE, [*rows, *map(_row, new.values())])
    return Exported(len(new), len(runs) - len(new), len(document["runs"]) - len(runs))


def _read_rows(path: Path) -> list[dict[str, str]]:
    if not path.exists():
        return []
    with path.open(newline="", encoding="utf-8") as file:
        reader = csv.DictReader(file)
        if tuple(reader.fieldnames or ()) != COLUMNS:
            raise InvalidInput(f"{path} is not an export: its columns differ; give --out a directory of its own")
        return list(reader)


def _write_rows(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    partial = path.with_suffix(".partial")
    with partial.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, COLUMNS)
        writer.writeheader()
        writer.writerows(rows)
    partial.replace(path)


def _row(run: Mapping[str, Any]) -> dict[str, Any]:
    task = run["task"]
    return {
        "source": SOURCE,
        "run": run["run"],
        "profile": run["profile"],
        "task": json.dumps(task, sort_keys=True),
        "gpu": run["product"],
        "batch_size": task.get("batch-size", "1"),
        "precision": task.get("precision", "fp32"),
        "optimizer": task.get("optimizer", "adamw"),
        "memory_mib": round(run["peak_bytes"] / MIB),
        "memory_kind": "dcgm-device",
        "outcome": _outcome(run["ending"], shared=run["shared"]),
        **{counter.value: _share(run.get(counter.value)) for counter in FORECAST_COUNTERS},
        "ending": run["ending"],
        "ended_at": round(run["ended_at"]),
        "model_version": run["model_version"],
        "pod": run.get("pod", ""),
    }


def _share(value: float | None) -> str:
    return "" if value is None else f"{value:.4f}"


def _outcome(ending: str, *, shared: bool) -> str:
    """A run that did not finish might have used more: its peak is a floor. An OOM alone on a GPU used all of it."""
    if ending == Ending.SUCCEEDED:
        return "ok"
    return "oom" if ending == Ending.OOM and not shared else "floor"


def _write_profiles(directory: Path, profiles: Mapping[str, str], wanted: set[str]) -> None:
    missing = sorted(wanted - _known_profiles(directory))
    if not missing:
        return
    number = len(list(directory.glob(_PROFILES)))
    path = directory / _PROFILES.replace("*", f"{number:04d}-{missing[0]}")
    partial = path.with_suffix(".partial")
    with gzip.open(partial, "wt", encoding="utf-8") as file:
        for key in missing:
            profile = unpack_profile(profiles[key]) | {"id": key, "group": key}
            file.write(json.dumps(profile, separators=(",", ":")) + "\n")
    partial.replace(path)


def _known_profiles(directory: Path) -> set[str]:
    known: set[str] = set()
    for path in directory.glob(_PROFILES):
        with gzip.open(path, "rt", encoding="utf-8") as lines:
            known.update(json.loads(line)["id"] for line in lines)
    return known
