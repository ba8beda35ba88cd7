"""Commands that describe a task."""

# ruff: noqa: PLC0415 - a command imports what it needs when it runs

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from vramcast.cli.options import Artifact, Output, Risk


def list_annotations(
    output: Annotated[str, typer.Option("--output", "-o", help="table, markdown or json-schema.")] = "table",
) -> None:
    """List the annotations that describe a task, with their values and defaults.

    [dim]vramcast annotations[/dim]
    [dim]vramcast annotations -o json-schema > annotations.schema.json[/dim]
    """
    from vramcast.cli.annotations import run_annotations

    run_annotations(output)


def profile(
    target: Annotated[
        str, typer.Argument(metavar="MODULE:CALLABLE", help="A function that makes a network or loop; or config.json.")
    ],
    shapes: Annotated[
        list[str] | None,
        typer.Option("--input", metavar="3x224x224", help="Shape of one sample, without the batch. Repeatable."),
    ] = None,
    sequence_length: Annotated[int | None, typer.Option(min=1, help="Tokens in one sample.")] = None,
    inputs: Annotated[
        str | None, typer.Option(metavar="MODULE:CALLABLE", help="A function that returns the inputs for a batch of n.")
    ] = None,
    args: Annotated[str | None, typer.Option(metavar="JSON", help="Arguments for the callable.")] = None,
    batch_size: Annotated[int | None, typer.Option(min=1, help="Batch size on each GPU.")] = None,
    optimizer: Annotated[str | None, typer.Option(help="Such as adamw.")] = None,
    precision: Annotated[str | None, typer.Option(help="Such as amp-bf16.")] = None,
    more: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Any other annotation. Repeatable.")
    ] = None,
    gpu: Annotated[str | None, typer.Option(metavar="PRODUCT", help="Forecast only for this GPU.")] = None,
    measure: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Run real steps on this machine's GPU; append the record to DIR.")
    ] = None,
    plot: Annotated[Path | None, typer.Option(metavar="PNG", help="Draw one step's memory into this file.")] = None,
    output: Output = "table",
    artifact: Artifact = "builtin",
    risk: Risk = 0.05,
) -> None:
    """Trace your own network or record your own training loop, without weights or GPU, and print the pod's annotations.

    Run it where the code can be imported; it needs torch. The function of a loop returns (model, optimizer, step). If
    it takes batch_size, sequence_length, image_size or lora_rank, the pod may say any value.

    [dim]vramcast profile my_train:make --batch-size 16 --plot step.png[/dim]
    [dim]vramcast profile transformers:GPT2Config --sequence-length 1024 --precision bf16 --plot step.png[/dim]
    [dim]vramcast profile torchvision.models:resnet18 --args '{"num_classes": 10}' --input 3x32x32[/dim]
    """
    from vramcast.forecast.model import choose_forecaster
    from vramcast.profile.arguments import ProfileArguments, need_torch, run_settings

    need_torch()
    from vramcast.profile.commands import run_profile  # torch is an extra

    settings = run_settings({"batch-size": batch_size, "optimizer": optimizer, "precision": precision}, more or [])
    arguments = ProfileArguments(
        target, tuple(shapes or ()), sequence_length, inputs, args, settings, gpu, measure, plot
    )
    run_profile(arguments, output, choose_forecaster(artifact, risk, physics_if_unusable=False))


def catalog(
    search: Annotated[str, typer.Argument(metavar="[SEARCH]", help="Words in the model's name.")] = "",
    build: Annotated[
        Path | None, typer.Option(metavar="OUT", help="Trace the models that OUT lacks and add them (extra: catalog).")
    ] = None,
    record: Annotated[
        Path | None, typer.Option(metavar="OUT", help="Record the language models that OUT lacks (extra: catalog).")
    ] = None,
    again: Annotated[
        bool, typer.Option("--again", help="With --build or --record: also make what OUT already has.")
    ] = False,
    shard: Annotated[str, typer.Option(metavar="I/N", help="With --build or --record: only part I of N.")] = "1/1",
    output: Output = "table",
) -> None:
    """List the models that a pod can name in [bold]vramcast.dev/model[/bold].

    [dim]vramcast catalog[/dim]
    [dim]vramcast catalog "hf/ qwen2.5"[/dim]
    [dim]vramcast catalog --build model_artifacts/catalog.bin[/dim]
    [dim]vramcast catalog --record model_artifacts/recordings.bin "llama-3"[/dim]
    """
    from vramcast.cli.catalog import run_build, run_catalog, run_record

    if build is not None:
        run_build(build, search, shard, again=again)
    if record is not None:
        run_record(record, search, shard, again=again)
    if build is None and record is None:
        run_catalog(search, output)


def annotate(
    files: Annotated[list[Path] | None, typer.Argument(metavar="[FILE.yaml]...", help="Manifests, as with -f.")] = None,
    file: Annotated[
        list[Path] | None,
        typer.Option("--file", "-f", metavar="FILE.yaml", help="A manifest; - is standard input. Repeatable."),
    ] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Set an annotation. Repeatable."),
    ] = None,
    unset: Annotated[list[str] | None, typer.Option(metavar="KEY", help="Remove an annotation. Repeatable.")] = None,
    template: Annotated[
        list[str] | None,
        typer.Option(
            metavar="ROLE",
            help="Of several pod templates: worker, head, ... Default: those that request GPUs. Repeatable.",
        ),
    ] = None,
    scheduler: Annotated[bool, typer.Option("--scheduler", help="Set schedulerName to vramcast-scheduler.")] = False,
    scheduler_name: Annotated[str | None, typer.Option(metavar="NAME", help="Set schedulerName to this.")] = None,
    move: Annotated[bool, typer.Option("--move", help="Move misplaced annotations to the template.")] = False,
    in_place: Annotated[bool, typer.Option("--in-place", "-i", help="Edit the file.")] = False,
    diff: Annotated[bool, typer.Option("--diff", help="Print a diff.")] = False,
    check: Annotated[bool, typer.Option("--check", help="Only check; exit with 1 if there are mistakes.")] = False,
    max_memory: Annotated[
        str | None, typer.Option(metavar="40Gi", help="With --check: the most a pod may need.")
    ] = None,
    gpu: Annotated[
        str | None, typer.Option(metavar="PRODUCT", help="With --check: may need all that this GPU has.")
    ] = None,
    skip_undescribed: Annotated[
        bool, typer.Option("--skip-undescribed", help="With --check: skip files without annotations.")
    ] = False,
    output: Annotated[str, typer.Option("--output", "-o", help="Of --check: text, json or github.")] = "text",
    risk: Risk = 0.05,
) -> None:
    """Describe a task in a manifest, or check its description.

    Annotations work only on pods, so they belong in the pod template. This command
    finds it in a Job, CronJob, Deployment, StatefulSet, JobSet, PyTorchJob, TrainJob,
    RayJob, RayCluster, Volcano Job and others, and keeps comments and layout.
    [bold]vramcast annotations[/bold] explains the keys.

    [dim]vramcast annotate -f job.yaml --set model=timm/resnet50 --set batch-size=64 --diff[/dim]
    [dim]vramcast annotate -f rayjob.yaml --set gpu-memory=20Gi --template worker -i[/dim]
    [dim]vramcast annotate -f job.yaml --check --max-memory 40Gi[/dim]
    """
    from vramcast.cli.annotate import SCHEDULER_NAME, AnnotateOptions, parse_names, parse_settings, run_annotate
    from vramcast.cli.check import CheckOptions, parse_limit
    from vramcast.errors import InvalidInput
    from vramcast.forecast.model import choose_forecaster

    paths = [*(file or ()), *(files or ())]
    if not paths:
        raise InvalidInput("name a manifest: vramcast annotate -f job.yaml ...")
    limit = parse_limit(max_memory, gpu, lambda: choose_forecaster("builtin", risk, physics_if_unusable=False))
    if not check and (limit or skip_undescribed or output != "text"):
        raise InvalidInput("--max-memory, --gpu, --skip-undescribed and --output need --check")
    name = scheduler_name or (SCHEDULER_NAME if scheduler else None)
    options = AnnotateOptions(parse_settings(set_ or ()), tuple(template or ()), name, move, parse_names(unset or ()))
    asked = CheckOptions(limit, output, skip_undescribed) if check else None
    raise typer.Exit(run_annotate(paths, options, in_place=in_place, check=asked, diff=diff))
