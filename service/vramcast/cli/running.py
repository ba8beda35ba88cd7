"""Commands that run the service."""

# ruff: noqa: PLC0415 - a command imports what it needs when it runs

from __future__ import annotations

import os
import sys
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import structlog
import typer

from vramcast import __version__
from vramcast.observe.logs import configure_logs
from vramcast.settings import LogFormat, LogLevel, Settings, load_settings, unknown_variables


def setting(name: str, **more: Any) -> Any:
    """A flag for a setting, with the setting's own description."""
    field = Settings.model_fields[name]
    default = f" Default: {field.default}." if field.default is not None else ""
    text = str(field.description)
    return typer.Option(help=f"{text[0].upper()}{text[1:]}.{default}", show_default=False, **more)


Host = Annotated[str | None, setting("host")]
Port = Annotated[int | None, setting("port")]


def demo(
    host: Host = None,
    port: Port = None,
    speed: Annotated[float, typer.Option(min=0.1, max=1000.0, help="2 is twice as fast.")] = 1.0,
    once: Annotated[bool, typer.Option("--once", help="Exit at the end of the day.")] = False,
) -> None:
    """Schedule a day of training pods on a simulated cluster; no Kubernetes needed.

    Runs the real service and calls it over HTTP as kube-scheduler does. Its page
    shows the cluster. After the day it goes on with nights and days.

    [dim]vramcast demo[/dim]
    [dim]vramcast demo --speed 5 --once[/dim]
    """
    from vramcast.app import run
    from vramcast.demo.day import CLUSTER_FILE
    from vramcast.demo.play import DEMO_SETTINGS, run_demo

    settings = load_settings({**DEMO_SETTINGS, "host": host, "port": port, "cluster": CLUSTER_FILE})
    configure_logs(settings.log_format, settings.log_level)
    raise typer.Exit(run_demo(partial(run, settings), speed=speed, once=once))


def serve(
    host: Host = None,
    port: Port = None,
    cluster: Annotated[Path | None, setting("cluster", metavar="FILE")] = None,
    config: Annotated[Path | None, typer.Option(metavar="FILE", help="A YAML file with settings.")] = None,
    log_format: Annotated[LogFormat | None, setting("log_format")] = None,
    log_level: Annotated[LogLevel | None, setting("log_level")] = None,
) -> None:
    """Run the scheduler extender.

    Connects with [bold]KUBECONFIG[/bold], [bold]~/.kube/config[/bold] or, in a pod, its service account.
    docs/settings.md lists all settings; set them in a file ([bold]--config[/bold]) or in
    the environment. Flags override the environment, which overrides the file.

    [dim]vramcast serve[/dim]
    [dim]vramcast serve --config vramcast.yaml --log-level debug[/dim]
    [dim]VRAMCAST_PORT=9000 vramcast serve --cluster my-cluster.yaml[/dim]
    """
    flags = {
        "host": host, "port": port, "cluster": cluster, "config": config,
        "log_format": log_format, "log_level": log_level,
    }  # fmt: skip
    settings = load_settings(flags)
    configure_logs(settings.log_format, settings.log_level)
    for name in unknown_variables(dict(os.environ)):
        structlog.get_logger("vramcast").warning("unknown setting in the environment", variable=name)
    from vramcast.app import run

    run(settings, _cluster(settings))


def _cluster(settings: Settings) -> Any:
    if settings.cluster is not None:
        from vramcast.cluster.static import StaticCluster

        return StaticCluster.from_file(settings.cluster)
    from vramcast.cluster.kubernetes import KubernetesCluster

    return KubernetesCluster.from_environment(
        bind_deadline_seconds=settings.bind_deadline_seconds,
        stale_after_seconds=settings.stale_after_seconds,
        resource_slices=settings.resource_slices,
    )


def version() -> None:
    """Print the version.

    [dim]vramcast version[/dim]
    """
    sys.stdout.write(f"{__version__}\n")
