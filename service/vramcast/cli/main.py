"""The command line. Each command imports what it needs when it runs, so that `vramcast --help` is fast."""

from __future__ import annotations

import sys
from collections.abc import Callable

import typer
from rich.console import Console
from rich.markup import escape

from vramcast.cli.agent import agent
from vramcast.cli.describing import annotate, catalog, forecast, list_annotations, profile
from vramcast.cli.learning import evaluate, export_records, train, train_speed
from vramcast.cli.recommending import recommend
from vramcast.cli.running import demo, serve, version
from vramcast.errors import VramcastError

app = typer.Typer(
    name="vramcast",
    help="""Forecast the GPU memory of training jobs, and schedule them where they fit.

    See it work, without Kubernetes:

    [dim]vramcast demo[/dim]

    Describe your own job, forecast its memory, and find its largest batch size:

    [dim]vramcast annotate -f job.yaml --set model=timm/resnet50 --set batch-size=64 -i[/dim]
    [dim]vramcast forecast -f job.yaml[/dim]
    [dim]vramcast forecast -f job.yaml --sweep batch-size=8..256[/dim]
    """,
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
)
errors = Console(stderr=True)

# By the panels of `vramcast --help`, in its order.
_COMMANDS: dict[str, dict[str, Callable[..., None]]] = {
    "Describe a task and forecast it": {
        "annotations": list_annotations, "profile": profile, "catalog": catalog, "annotate": annotate,
        "forecast": forecast,
    },
    "See what GPUs are wasted on": {"recommend": recommend},
    "Run": {"demo": demo, "serve": serve, "agent": agent, "version": version},
    "Learn from measured runs": {
        "train": train, "train-speed": train_speed, "evaluate": evaluate, "export-records": export_records,
    },
}  # fmt: skip
for panel, commands in _COMMANDS.items():
    for name, command in commands.items():
        app.command(name, rich_help_panel=panel)(command)


def main() -> None:
    """Our own errors are printed as one message. Anything else is a bug and shows its traceback."""
    try:
        app()
    except VramcastError as error:
        # Escaped because it may quote markup; not wrapped, so that it can be found with grep.
        errors.print("[red]error:[/red]", escape(str(error)), highlight=False, soft_wrap=True)
        sys.exit(2)
