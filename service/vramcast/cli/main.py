"""The command line. Each command imports what it needs when it runs, so that `vramcast --help` is fast."""

# ruff: noqa: PLC0415

from __future__ import annotations

import os
import sys
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import structlog
import typer
from rich.console import Console
from rich.markup import escape

from vramcast import __version__
from vramcast.errors import VramcastError
from vramcast.observe.logs import configure_logs
from vramcast.settings import LogFormat, LogLevel, Settings, load_settings, unknown_variables
from vramcast.task.vocabulary import KEYS

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

# The panels of `vramcast --help`; commands appear in the order of this file.
DESCRIBE = "Describe a task and forecast it"
RUN = "Run"
LEARN = "Learn from measured runs"


def _setting(name: str, **more: Any) -> Any:
    """A flag for a setting, with the setting's own description."""
    field = Settings.model_fields[name]
    default = f" Default: {field.default}." if field.default is not None else ""
    text = str(field.description)
    return typer.Option(help=f"{text[0].upper()}{text[1:]}.{default}", show_default=False, **more)


Files = Annotated[
    list[Path],
    typer.Option("--file", "-f", metavar="FILE.yaml", help="A manifest; - is standard input. Repeatable."),
]
Host = Annotated[str | None, _setting("host")]
Port = Annotated[int | None, _setting("port")]
Artifact = Annotated[str, typer.Option(help="The trained model: builtin, a directory, or physics (no trained model).")]
Output = Annotated[str, typer.Option("--output", "-o", help="table or json.")]
Risk = Annotated[float, typer.Option(min=0.0001, max=0.5, help="OOM risk for pods without max-oom-risk.")]
Data = Annotated[
    Path, typer.Option(metavar="DIR", help="A directory of measured runs: measurements.csv, profiles/, xmem.csv.")
]


@app.command("annotations", rich_help_panel=DESCRIBE)
def list_annotations(
    output: Annotated[str, typer.Option("--output", "-o", help="table, markdown or json-schema.")] = "table",
) -> None:
    """List the annotations that describe a task, with their values and defaults.

    [dim]vramcast annotations[/dim]
    [dim]vramcast annotations -o json-schema > annotations.schema.json[/dim]
    """
    from vramcast.cli.annotations import run_annotations

    run_annotations(output)


@app.command(rich_help_panel=DESCRIBE)
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
    [dim]vramcast profile my_project.models:build_model --input 3x224x224 --batch-size 64[/dim]
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


@app.command(rich_help_panel=DESCRIBE)
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


@app.command(rich_help_panel=DESCRIBE)
def annotate(
    file: Files,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help=f"Set an annotation. Repeatable. Keys: {', '.join(KEYS)}."),
    ] = None,
    unset: Annotated[list[str] | None, typer.Option(metavar="KEY", help="Remove an annotation. Repeatable.")] = None,
    template: Annotated[
        list[str] | None,
        typer.Option(
            metavar="ROLE",
            help="The pod template to annotate if there are several: worker, head, or the name of a task or workload. "
            "Default: those that request GPUs. Repeatable.",
        ),
    ] = None,
    scheduler: Annotated[bool, typer.Option("--scheduler", help="Set schedulerName to vramcast-scheduler.")] = False,
    scheduler_name: Annotated[str | None, typer.Option(metavar="NAME", help="Set schedulerName to this.")] = None,
    move: Annotated[
        bool, typer.Option("--move", help="Move misplaced annotations, such as those on a Job, to the pod template.")
    ] = False,
    in_place: Annotated[bool, typer.Option("--in-place", "-i", help="Edit the file.")] = False,
    diff: Annotated[bool, typer.Option("--diff", help="Print a diff.")] = False,
    check: Annotated[
        bool, typer.Option("--check", help="Change nothing; exit with 1 if there are mistakes. For CI.")
    ] = False,
) -> None:
    """Describe a task in a manifest, or check its description.

    Annotations work only on pods, so they belong in the pod template. This command
    finds it in a Job, CronJob, Deployment, StatefulSet, JobSet, PyTorchJob, TrainJob,
    RayJob, RayCluster, Volcano Job and others, and keeps comments and layout.
    [bold]vramcast annotations[/bold] explains the keys.

    [dim]vramcast annotate -f job.yaml --set model=timm/resnet50 --set batch-size=64 --diff[/dim]
    [dim]vramcast annotate -f rayjob.yaml --set gpu-memory=20Gi --template worker -i[/dim]
    [dim]vramcast annotate -f job.yaml --check[/dim]
    """
    from vramcast.cli.annotate import SCHEDULER_NAME, AnnotateOptions, parse_names, parse_settings, run_annotate

    name = scheduler_name or (SCHEDULER_NAME if scheduler else None)
    options = AnnotateOptions(parse_settings(set_ or ()), tuple(template or ()), name, move, parse_names(unset or ()))
    raise typer.Exit(run_annotate(file, options, in_place=in_place, check=check, diff=diff))


@app.command(rich_help_panel=DESCRIBE)
def forecast(
    file: Files,
    gpu: Annotated[list[str] | None, typer.Option(metavar="PRODUCT", help="Only this GPU. Repeatable.")] = None,
    sweep: Annotated[
        str | None,
        typer.Option(
            metavar="KEY=LOW..HIGH",
            help="Vary batch-size or sequence-length: 8..256 doubles, 8..256:8 adds 8, 8,24,48 is a list.",
        ),
    ] = None,
    plot: Annotated[
        Path | None, typer.Option(metavar="FILE.png", help="Also plot the sweep to a PNG, SVG or PDF file.")
    ] = None,
    output: Annotated[str, typer.Option("--output", "-o", help="table, json or yaml.")] = "table",
    artifact: Artifact = "builtin",
    risk: Risk = 0.05,
) -> None:
    """Forecast the memory of a file's pods on each GPU, or their largest batch size.

    Reads Pods and the pod templates of Jobs, Deployments, PyTorchJobs, RayJobs and
    others. Shows the parts of the need, its bounds by risk, and the GPUs that fit.
    Describe the pods first with [bold]vramcast annotate[/bold].

    [dim]vramcast forecast -f job.yaml[/dim]
    [dim]vramcast forecast -f job.yaml --gpu NVIDIA-L40S -o json[/dim]
    [dim]vramcast forecast -f job.yaml --sweep batch-size=8..256[/dim]
    """
    from vramcast.cli.forecast import run_forecast
    from vramcast.forecast.model import choose_forecaster
    from vramcast.forecast.sweep import parse_sweep

    forecaster = choose_forecaster(artifact, risk, physics_if_unusable=False)
    run_forecast(file, gpu or (), output, forecaster, parse_sweep(sweep) if sweep else None, plot)


@app.command(rich_help_panel=RUN)
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


@app.command(rich_help_panel=RUN)
def serve(
    host: Host = None,
    port: Port = None,
    cluster: Annotated[Path | None, _setting("cluster", metavar="FILE")] = None,
    config: Annotated[Path | None, typer.Option(metavar="FILE", help="A YAML file with settings.")] = None,
    log_format: Annotated[LogFormat | None, _setting("log_format")] = None,
    log_level: Annotated[LogLevel | None, _setting("log_level")] = None,
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
        bind_deadline_seconds=settings.bind_deadline_seconds, stale_after_seconds=settings.stale_after_seconds
    )


@app.command(rich_help_panel=RUN)
def version() -> None:
    """Print the version."""
    sys.stdout.write(f"{__version__}\n")


@app.command(rich_help_panel=LEARN)
def train(
    data: Data,
    out: Annotated[Path, typer.Option(metavar="DIR", help="Write the artifact here. Also holds intermediate results.")],
    base: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Fine-tune this artifact instead of training from scratch.")
    ] = None,
    seeds: Annotated[int, typer.Option(help="Networks per fold; the ensemble has five times as many.")] = 2,
    quiet: Annotated[bool, typer.Option(help="No progress bars.")] = False,
) -> None:
    """Train or fine-tune the model on measured runs. Needs the extra vramcast\\[train].

    If it was interrupted, run it again: it continues where it stopped.

    [dim]vramcast train --data runs/ --out model_artifacts/[/dim]
    [dim]vramcast train --data observed/ --base model_artifacts/ --out candidate/[/dim]
    """
    from vramcast.train.commands import run_finetune, run_train  # torch is an extra

    if base is not None:
        run_finetune(data, base, out, quiet=quiet)
    else:
        run_train(data, out, seeds, quiet=quiet)


@app.command(rich_help_panel=LEARN)
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


@app.command("export-records", rich_help_panel=LEARN)
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


def main() -> None:
    """Our own errors are printed as one message. Anything else is a bug and shows its traceback."""
    try:
        app()
    except VramcastError as error:
        # Escaped because it may quote markup; not wrapped, so that it can be found with grep.
        errors.print("[red]error:[/red]", escape(str(error)), highlight=False, soft_wrap=True)
        sys.exit(2)
