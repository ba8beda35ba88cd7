"""The command that says what a cluster's GPUs are wasted on."""

# ruff: noqa: PLC0415 - a command imports what it needs when it runs

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer


def recommend(
    prometheus: Annotated[str, typer.Option(metavar="URL", help="A Prometheus, or what answers like one.")],
    since: Annotated[str, typer.Option(metavar="30d", help="How far back to look.")] = "30d",
    namespace: Annotated[list[str] | None, typer.Option(metavar="NAME", help="Only this one. Repeatable.")] = None,
    risk: Annotated[float, typer.Option(min=0.0001, max=0.5, help="Of a run that needs more than its need.")] = 0.05,
    output: Annotated[str, typer.Option("--output", "-o", help="table, json, csv, markdown or html.")] = "table",
    patch: Annotated[Path | None, typer.Option(metavar="DIR", help="Write patches for kubectl here.")] = None,
    step: Annotated[str, typer.Option(metavar="5m", help="How finely to tell pods apart in time.")] = "5m",
    selector: Annotated[str, typer.Option(metavar="MATCHERS", help="For every series: 'cluster=\"a\"'.")] = "",
    header: Annotated[list[str] | None, typer.Option(metavar="'NAME: VALUE'", help="Sent along. Repeatable.")] = None,
    token_file: Annotated[Path | None, typer.Option(metavar="FILE", help="A bearer token.")] = None,
    ca_file: Annotated[Path | None, typer.Option(metavar="FILE", help="For https: its CA.")] = None,
    timeout: Annotated[float, typer.Option(min=1.0, metavar="SECONDS", help="Of one query.")] = 60.0,
    fresh: Annotated[bool, typer.Option("--fresh", help="Do not use what an earlier run has read.")] = False,
) -> None:
    """Find out from Prometheus what each workload needs, and how many GPUs that would free.

    Needs dcgm-exporter's metrics, and kube-state-metrics for the workloads' names.
    Nothing is installed. If it is interrupted, run it again: it goes on where it stopped.
    For basic authentication set PROMETHEUS_USERNAME and PROMETHEUS_PASSWORD.

    [dim]vramcast recommend --prometheus http://127.0.0.1:9090 -o html > report.html[/dim]
    """
    from vramcast.cli.recommend.command import Access, run_recommend, seconds_of_step
    from vramcast.cli.recommend.reading import Scope

    scope = Scope(tuple(namespace or ()), selector, seconds_of_step(step))
    access = Access(prometheus, token_file, ca_file, tuple(header or ()), timeout)
    code = run_recommend(access, scope, since, risk, output, patch, fresh=fresh, environ=os.environ)
    raise typer.Exit(code)
