"""Commands that learn from measured runs."""

# ruff: noqa: PLC0415 - a command imports what it needs when it runs

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from vramcast.cli.options import Data, Output


def train(
    data: Data,
    out: Annotated[Path, typer.Option(metavar="DIR", help="Write the artifact here. Also holds intermediate results.")],
    base: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Fine-tune this artifact instead of training from scratch.")
    ] = None,
    recorded: Annotated[
        bool, typer.Option("--recorded", help="Only fit the bounds of recorded forecasts, in the artifact at --out.")
    ] = False,
    totals: Annotated[
        bool,
        typer.Option("--totals", help="Only learn from recordings what totals leave out, into --out."),
    ] = False,
    networks: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Keep this artifact's networks, and fit trees and bounds to them anew."),
    ] = None,
    seeds: Annotated[int, typer.Option(help="Networks per fold; the ensemble has five times as many.")] = 2,
    quiet: Annotated[bool, typer.Option(help="No progress bars.")] = False,
) -> None:
    """Train or fine-tune the model on measured runs. Needs the extra vramcast\\[train].

    If it was interrupted, run it again: it continues where it stopped.

    [dim]vramcast train --data runs/ --out model_artifacts/[/dim]
    [dim]vramcast train --data observed/ --base model_artifacts/ --out candidate/[/dim]
    [dim]vramcast train --data runs/ --recorded --out model_artifacts/[/dim]
    [dim]vramcast train --data runs/ --totals --out model_artifacts/[/dim]
    """
    from vramcast.train.commands import run_finetune, run_fit_recorded, run_fit_totals, run_train  # torch is an extra

    if totals:
        run_fit_totals(data, out, quiet=quiet)
    elif recorded:
        run_fit_recorded(data, out, quiet=quiet)
    elif base is not None:
        run_finetune(data, base, out, quiet=quiet)
    else:
        run_train(data, out, seeds, networks, quiet=quiet)


def train_speed(
    data: Data,
    out: Annotated[Path, typer.Option(metavar="DIR", help="Write speed.onnx and speed.json here.")],
    quiet: Annotated[bool, typer.Option(help="No progress bars.")] = False,
) -> None:
    """Train the model of step times on published benchmarks. Needs the extras vramcast\\[train,catalog].

    DIR has timm's benchmark files in speed/ and may have Gavel's throughputs in extra/.

    [dim]vramcast train-speed --data benchmarks/ --out model_artifacts/[/dim]
    """
    from vramcast.train.commands import run_train_speed  # torch is an extra

    run_train_speed(data, out, quiet=quiet)


def evaluate(
    data: Data,
    artifact: Annotated[Path, typer.Option(metavar="DIR", help="The artifact.")] = Path("model_artifacts"),
    output: Output = "table",
) -> None:
    """Measure a model's accuracy, coverage and latency on measured runs.

    [dim]vramcast evaluate --data runs/ --artifact candidate/[/dim]
    [dim]vramcast evaluate --data runs/ -o json[/dim]
    """
    from vramcast.train.commands import run_evaluate  # not needed to serve

    run_evaluate(data, artifact, output)


def export_records(
    out: Annotated[Path, typer.Option(metavar="DIR", help="Write the records here; existing runs are kept.")],
    url: Annotated[str, typer.Option(help="URL of the service.")] = "http://127.0.0.1:8888",
    pod_names: Annotated[bool, typer.Option("--pod-names", help="Include the names of the pods.")] = False,
    ca_file: Annotated[Path | None, typer.Option(metavar="FILE", help="For https: the service's CA.")] = None,
    cert_file: Annotated[Path | None, typer.Option(metavar="FILE", help="For https: a client certificate.")] = None,
    key_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="For https: the client certificate's key.")
    ] = None,
) -> None:
    """Save the runs that a service measured, for [bold]vramcast train[/bold].

    Exporting again to the same directory adds the new runs. Without --pod-names,
    a run is identified only by a hash of its pod's UID.

    [dim]kubectl --namespace vramcast-system port-forward deployment/vramcast 8888 &[/dim]
    [dim]vramcast export-records --out observed/[/dim]
    """
    from vramcast.cli.records import Credentials, fetch_records, write_records

    document = fetch_records(url, Credentials(ca_file, cert_file, key_file), named=pod_names)
    exported = write_records(document, out)
    left_out = f", {exported.left_out} of recordings left out" if exported.left_out else ""
    sys.stdout.write(f"{exported.added} runs added to {out}, {exported.known} already present{left_out}\n")
