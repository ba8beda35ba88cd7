"""`vramcast forecast` and `vramcast advise`, which take the same arguments."""

# ruff: noqa: PLC0415 - a command imports what it needs when it runs

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from vramcast.cli.completion import complete_gpu, complete_key, complete_model
from vramcast.cli.options import Artifact, Risk
from vramcast.cli.task_flags import OTHERS, Flags, with_task_flags

Name = Annotated[
    str | None,
    typer.Argument(
        metavar="NAME", help="A model, or your own: config.json or module:callable (needs torch).",
        autocompletion=complete_model, show_default=False,
    ),
]  # fmt: skip
OptionalFiles = Annotated[
    list[Path] | None,
    typer.Option("--file", "-f", metavar="FILE", help="A manifest; flags override its annotations."),
]
Gpus = Annotated[
    list[str] | None,
    typer.Option("--gpu", metavar="GPU", help="Such as L40S, a100-80, 4090. Repeatable.", autocompletion=complete_gpu),
]
TaskOutput = Annotated[str, typer.Option("--output", "-o", help="table, json or yaml.")]


@with_task_flags
def forecast(
    flags: Flags,
    name: Name = None,
    file: OptionalFiles = None,
    gpu: Gpus = None,
    sweep: Annotated[
        str | None,
        typer.Option(metavar="KEY=LOW..HIGH", help="Vary batch-size or sequence-length; also LOW..HIGH:STEP."),
    ] = None,
    plot: Annotated[Path | None, typer.Option(metavar="FILE.png", help="Also plot the sweep.")] = None,
    output: TaskOutput = "table",
    artifact: Artifact = "builtin",
    risk: Risk = 0.05,
) -> None:
    from vramcast.cli.described import read_tasks
    from vramcast.cli.forecast import run_forecast
    from vramcast.forecast.model import choose_forecaster
    from vramcast.forecast.sweep import parse_sweep

    forecaster = choose_forecaster(artifact, risk, physics_if_unusable=False, when_needed=True)
    tasks = read_tasks(name, file or (), flags, forecaster)
    run_forecast(tasks, gpu or (), output, forecaster, parse_sweep(sweep) if sweep else None, plot)


forecast.__doc__ = f"""Forecast the memory of a task on each GPU, or its largest batch size.

[dim]vramcast forecast meta-llama/Llama-3.1-8B --batch-size 4 --sequence-length 4096 --precision bf16
  --lora-rank 16 --gradient-checkpointing --gpu L40S[/dim]
[dim]vramcast forecast timm/resnet50 --batch-size 64 --sweep batch-size=8..256[/dim]
[dim]vramcast forecast -f job.yaml[/dim]

More flags: {OTHERS}.
"""


@with_task_flags
def advise(
    flags: Flags,
    name: Name = None,
    file: OptionalFiles = None,
    gpu: Gpus = None,
    keep: Annotated[
        list[str] | None,
        typer.Option(metavar="KEYS", help="What must stay, such as batch-size,precision.", autocompletion=complete_key),
    ] = None,
    output: TaskOutput = "table",
    artifact: Artifact = "builtin",
    risk: Risk = 0.05,
) -> None:
    from vramcast.advice.search import parse_keep
    from vramcast.cli.advise import run_advise
    from vramcast.cli.described import read_tasks
    from vramcast.forecast.model import choose_forecaster

    forecaster = choose_forecaster(artifact, risk, physics_if_unusable=False, when_needed=True)
    tasks = read_tasks(name, file or (), flags, forecaster)
    raise typer.Exit(run_advise(tasks, gpu or (), parse_keep(keep or ()), output, forecaster))


advise.__doc__ = f"""Tell what would make a task fit a GPU, the cheapest change first, with the lines to change.

Everything proposed is forecast again and fits. Exits with 1 if nothing makes it fit. docs/advise.md explains the cost.

[dim]vramcast advise meta-llama/Llama-3.1-8B --batch-size 4 --sequence-length 4096 --precision bf16
  --lora-rank 16 --gpu A10[/dim]
[dim]vramcast advise -f job.yaml --gpu T4 --keep batch-size,precision[/dim]

More flags: {OTHERS}.
"""
