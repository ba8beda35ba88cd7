"""The command line. Each command is imported when it is called, so that the others cost it nothing."""

from __future__ import annotations

import sys

import typer

from vramcast.cli.lazy import lazy_group
from vramcast.errors import VramcastError

# By the panels of `vramcast --help`, in its order.
_COMMANDS: dict[str, dict[str, str]] = {
    "Describe tasks and forecast them": {
        "forecast": "vramcast.cli.forecasting:forecast",
        "advise": "vramcast.cli.forecasting:advise",
        "annotate": "vramcast.cli.describing:annotate",
        "annotations": "vramcast.cli.describing:list_annotations",
        "catalog": "vramcast.cli.describing:catalog",
        "profile": "vramcast.cli.describing:profile",
        "recommend": "vramcast.cli.recommending:recommend",
    },
    "Run": {
        "demo": "vramcast.cli.running:demo",
        "serve": "vramcast.cli.running:serve",
        "agent": "vramcast.cli.agent:agent",
        "version": "vramcast.cli.running:version",
    },
    "Learn from measured runs": {
        "train": "vramcast.cli.learning:train",
        "train-speed": "vramcast.cli.learning:train_speed",
        "evaluate": "vramcast.cli.learning:evaluate",
        "export-records": "vramcast.cli.learning:export_records",
    },
}

app = typer.Typer(
    name="vramcast", cls=lazy_group(_COMMANDS), no_args_is_help=True, rich_markup_mode="rich",
    pretty_exceptions_enable=False,
)  # fmt: skip


@app.callback()
def vramcast() -> None:
    """Forecast the GPU memory of training jobs, and schedule them where they fit.

    [dim]vramcast forecast timm/resnet50 --batch-size 256[/dim]
    [dim]vramcast advise timm/resnet50 --batch-size 256 --gpu T4[/dim]
    [dim]vramcast annotate -f job.yaml --set model=timm/resnet50 --set batch-size=64 --in-place[/dim]
    """


def main() -> None:
    """Our own errors are printed as one message. Anything else is a bug and shows its traceback."""
    try:
        app()
    except VramcastError as error:
        from rich.console import Console  # noqa: PLC0415 - only an error needs it
        from rich.markup import escape  # noqa: PLC0415

        # Escaped because it may quote markup; not wrapped, so that it can be found with grep.
        Console(stderr=True).print("[red]error:[/red]", escape(str(error)), highlight=False, soft_wrap=True)
        sys.exit(2)
