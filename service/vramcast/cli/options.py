"""Flags that several commands have."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Files = Annotated[
    list[Path],
    typer.Option("--file", "-f", metavar="FILE.yaml", help="A manifest; - is standard input. Repeatable."),
]
Artifact = Annotated[str, typer.Option(metavar="DIR", help="Trained model: builtin, a directory, or physics (none).")]
Output = Annotated[str, typer.Option("--output", "-o", help="table or json.")]
Risk = Annotated[float, typer.Option(metavar="RISK", min=0.0001, max=0.5, help="OOM risk without max-oom-risk.")]
Data = Annotated[
    Path, typer.Option(metavar="DIR", help="A directory of measured runs: measurements.csv, profiles/, xmem.csv.")
]
