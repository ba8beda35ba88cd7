"""`vramcast agent`."""

# ruff: noqa: PLC0415 - as in its neighbours

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from vramcast.observe.logs import configure_logs
from vramcast.settings import LogFormat, LogLevel


def agent(
    node: Annotated[
        str, typer.Option(envvar="NODE_NAME", metavar="NAME", help="The Kubernetes name of the node that it runs on.")
    ],
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "0.0.0.0",  # noqa: S104 - Prometheus comes from elsewhere
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port of /metrics and /healthz.")] = 9092,
    proc: Annotated[
        Path, typer.Option(metavar="DIR", help="The host's /proc: the pod needs hostPID, or a mount of it.")
    ] = Path("/proc"),
    log_format: Annotated[LogFormat, typer.Option(help="How to log.")] = LogFormat.AUTO,
    log_level: Annotated[LogLevel, typer.Option(help="What to log.")] = LogLevel.INFO,
) -> None:
    """Export GPU memory by pod, on a GPU node. Needs the extra vramcast\\[agent].

    Reads the memory of every process from the driver (NVML) and its pod from
    /proc, and serves both to Prometheus. The chart runs it as a DaemonSet
    ([bold]agent.enabled[/bold]). docs/agent.md explains the metrics.

    [dim]vramcast agent --node "$(hostname)"[/dim]
    """
    from vramcast.agent.run import run_agent  # the binding of NVML is an extra

    configure_logs(log_format, log_level)
    run_agent(node, host, port, proc)
