"""Runs `vramcast train` and `vramcast evaluate`."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from vramcast.errors import InvalidInput
from vramcast.train.evaluation import evaluate
from vramcast.train.progress import Progress

_PIPE_WIDTH = 180


def run_train(data: Path, out: Path, seeds: int, networks: Path | None = None, *, quiet: bool) -> None:
    # Imported late: evaluating needs no torch.
    from vramcast.train.everything import TrainingPlan, train_everything  # noqa: PLC0415

    progress = Progress(quiet=quiet)
    trained = train_everything(data, out, progress, TrainingPlan(seeds=seeds), networks)
    console = _console()
    console.print(table(trained.memory["accuracy"]))
    console.print(totals_table(trained.totals))
    if trained.speed is not None:
        console.print(families_table(trained.speed))
    console.print(stages_table(progress.stage_seconds))


def run_fit_totals(data: Path, out: Path, *, quiet: bool) -> None:
    """Simulates runs of the catalog's recordings and learns from them; measured runs only judge it."""
    from vramcast.train.artifact_parts import name_parts  # noqa: PLC0415
    from vramcast.train.totals import fit_totals  # noqa: PLC0415  # needs LightGBM and timm

    manifest = fit_totals(data, out, Progress(quiet=quiet))
    name_parts(out)
    _console().print(totals_table(manifest))


def run_train_speed(data: Path, out: Path, *, quiet: bool) -> None:
    from vramcast.train.artifact_parts import name_parts  # noqa: PLC0415
    from vramcast.train.speed import train_speed  # noqa: PLC0415  # needs torch

    manifest = train_speed(data, out, Progress(quiet=quiet))
    name_parts(out)
    _console().print(families_table(manifest))


def run_fit_recorded(data: Path, out: Path, *, quiet: bool) -> None:
    """Replaces the calibration of recorded forecasts in the manifest of an artifact; the network stays as it is."""
    from vramcast.forecast.model import load_artifact  # noqa: PLC0415
    from vramcast.train.artifact_parts import write_manifest  # noqa: PLC0415
    from vramcast.train.recorded import fit_recorded  # noqa: PLC0415  # needs scipy

    manifest = load_artifact(out).manifest | fit_recorded(data, Progress(quiet=quiet))
    write_manifest(out, manifest)
    _console().print(recorded_table(manifest["recorded_accuracy"]))


def _console() -> Console:
    """A pipe has no width, and a table must not be cut off."""
    return Console(width=None if sys.stdout.isatty() else _PIPE_WIDTH)


def stages_table(seconds: dict[str, float]) -> Table:
    shown = Table("stage", "minutes")
    for name, taken in [*seconds.items(), ("all", sum(seconds.values()))]:
        shown.add_row(name, f"{taken / 60:.1f}")
    return shown


def totals_table(manifest: dict[str, Any]) -> Table:
    shown = Table(
        "told", "kind", "architectures", "median", "rules", "covers .05", "over .05", "covers .01", "over .01"
    )
    for entry in manifest["accuracy"]:
        names = ("coverage", "over_reservation")
        shares = [entry["median_error"], entry["rules_median_error"],
                  *(entry[name][risk] for risk in ("0.05", "0.01") for name in names)]  # fmt: skip
        shown.add_row(entry["told"], entry["kind"], str(entry["architectures"]), *(f"{share:.1%}" for share in shares))
    return shown


def families_table(manifest: dict[str, Any]) -> Table:
    shown = Table("unseen families", "predictor", "rows", "MAPE", "R²")
    for name, predictors in manifest["unseen_families"].items():
        for predictor, figures in predictors.items():
            shown.add_row(name, predictor, str(figures["rows"]), f"{figures['mape']:.1%}", f"{figures['r2']:.3f}")
    return shown


def recorded_table(accuracy: list[dict[str, Any]]) -> Table:
    shown = Table("unseen", "slice", "counter", "rows", "median", "covers .05", "over .05", "covers .01", "over .01")
    for entry in accuracy:
        pooled = {"reserved or device": entry["held"]} if "held" in entry else {}
        for counter, found in (entry.get("counters", {}) | pooled).items():
            names = ("coverage", "over_reservation")
            bounds = [f"{found[name][risk]:.1%}" for risk in ("0.05", "0.01") for name in names]
            shown.add_row(entry["unseen"], entry["slice"], counter, str(found["rows"]), f"{found['median_error']:.2%}",
                          *bounds)  # fmt: skip
    return shown


def run_finetune(data: Path, base: Path, out: Path, *, quiet: bool) -> None:
    from vramcast.train.finetune import finetune  # noqa: PLC0415  # needs torch

    if out.resolve() == base.resolve():
        raise InvalidInput(f"--out {out}: this would overwrite the base, use another directory")
    manifest = finetune(data, base, out, Progress(quiet=quiet))
    console = Console()
    console.print(f"{manifest['base']['version']} on these runs", table(manifest["base_accuracy"]))
    console.print(f"{manifest['version']} on the same runs, each held out of training", table(manifest["accuracy"]))


def run_evaluate(data: Path, artifact: Path, output: str) -> None:
    if output not in ("table", "json"):
        raise InvalidInput(f"--output {output!r}: expected table or json")
    report = evaluate(data, artifact, Progress(quiet=output == "json"))
    if output == "json":
        json.dump(report, sys.stdout, indent=1)
        sys.stdout.write("\n")
        return
    console = _console()
    timed = [entry for entry in report["slices"] if "step_mape" in entry]
    console.print(table([entry for entry in report["slices"] if "step_mape" not in entry]))
    if timed:
        console.print(step_table(timed))
    for source, reasons in report["left_out"].items():
        told = ", ".join(f"{reason} ({rows})" for reason, rows in reasons.items())
        console.print(f"runs/{source} left out: {told}", highlight=False)
    if "latency_ms" not in report:
        return
    console.print(f"{report['artifact']}; one forecast takes {report['latency_ms']['p50']} ms (p50)", highlight=False)


def step_table(slices: list[dict[str, Any]]) -> Table:
    shown = Table("time per step", "rows", "MAPE", "median", "R²", "R² of samples/s", "in the range")
    for entry in slices:
        shares = (f"{entry[name]:.1%}" for name in ("step_mape", "step_median_error"))
        fits = (f"{entry[name]:.3f}" for name in ("step_r2", "step_r2_rate"))
        shown.add_row(entry["slice"], str(entry["rows"]), *shares, *fits, f"{entry['step_range_coverage']:.1%}")
    return shown


def table(slices: list[dict[str, Any]]) -> Table:
    columns = (
        "slice", "rows", "median", "mean", "p95", "under", "1 GB", "8 GB", "covers .05", "over .05", "covers .01",
        "over .01", "OOM caught", "sm_active",
    )  # fmt: skip
    shown = Table(*columns)
    for entry in slices:
        shown.add_row(*_cells(entry))
    return shown


def _cells(entry: dict[str, Any]) -> list[str]:
    if "median_error" not in entry:
        return [entry["slice"], str(entry["rows"])]
    caught = entry.get("oom_foreseen", {}).get("0.05")
    known = entry.get("sm_active_class_accuracy")
    return [
        entry["slice"],
        str(entry["rows"]),
        *(f"{entry[name]:.2%}" for name in ("median_error", "mean_error", "p95_error", "under_share")),
        *(f"{entry[name]:.3f}" if name in entry else "" for name in ("bin_accuracy_1gb", "bin_accuracy_8gb")),
        *(f"{entry[name][risk]:.1%}" for risk in ("0.05", "0.01") for name in ("coverage", "over_reservation")),
        "" if caught is None else f"{caught:.1%}",
        "" if known is None else f"{known:.3f}",
    ]
