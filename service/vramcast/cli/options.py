"""Flags that several commands have."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from vramcast.settings import Settings


def setting(name: str, **more: Any) -> Any:
    """A flag for a setting, with the setting's own description."""
    field = Settings.model_fields[name]
    default = f" Default: {field.default}." if field.default is not None else ""
    text = str(field.description)
    return typer.Option(help=f"{text[0].upper()}{text[1:]}.{default}", show_default=False, **more)


Files = Annotated[
    list[Path],
    typer.Option("--file", "-f", metavar="FILE.yaml", help="A manifest; - is standard input. Repeatable."),
]
Host = Annotated[str | None, setting("host")]
Port = Annotated[int | None, setting("port")]
Artifact = Annotated[str, typer.Option(help="The trained model: builtin, a directory, or physics (no trained model).")]
Output = Annotated[str, typer.Option("--output", "-o", help="table or json.")]
Risk = Annotated[float, typer.Option(min=0.0001, max=0.5, help="OOM risk for pods without max-oom-risk.")]
Data = Annotated[
    Path, typer.Option(metavar="DIR", help="A directory of measured runs: measurements.csv, profiles/, xmem.csv.")
]
