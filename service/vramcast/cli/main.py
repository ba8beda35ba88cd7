"""The command line: one program, `vramcast`."""

from __future__ import annotations

import os
import sys
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import structlog
import typer
import typer.core
from rich.console import Console
from rich.markup import escape

from vramcast import __version__
from vramcast.errors import VramcastError
from vramcast.observe.logs import configure_logs
from vramcast.settings import LogFormat, LogLevel, Settings, load_settings, unknown_variables
from vramcast.task.vocabulary import KEYS

# In `vramcast --help`, what a new user needs comes first.
_FIRST = ("annotations", "profile", "catalog", "annotate", "forecast", "demo", "serve")


class _InOrder(typer.core.TyperGroup):
    def list_commands(self, ctx: Any) -> list[str]:
        names = super().list_commands(ctx)
        return sorted(names, key=lambda name: _FIRST.index(name) if name in _FIRST else len(_FIRST))


app = typer.Typer(
    name="vramcast",
    cls=_InOrder,
    help="""GPU scheduling that knows what a training job needs before it runs.

    New here? [bold]vramcast demo[/bold] plays a day of it. For a job of your own:
    [dim]vramcast annotate -f job.yaml --set KEY=VALUE --in-place[/dim] describes it,
    [dim]vramcast forecast -f job.yaml[/dim] tells what it needs, and with
    [dim]--sweep batch-size=8..256[/dim] how large its batch may be.
    """,
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
)
errors = Console(stderr=True)

# The panels of `vramcast --help`, in the order in which a new user needs them.
DESCRIBE = "Describe a task, and know what it needs"
RUN = "Run"
LEARN = "Learn from measured runs"

Files = Annotated[
    list[Path],
    typer.Option("--file", "-f", metavar="FILE.yaml", help="Manifests, - for standard input; may be repeated."),
]

Host = Annotated[str | None, typer.Option(help="Address to listen on. Default 127.0.0.1.", show_default=False)]
Port = Annotated[int | None, typer.Option(help="Port to listen on. Default 8888.", show_default=False)]


@app.command(rich_help_panel=RUN)
def serve(
    host: Host = None,
    port: Port = None,
    cluster: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Serve a static cluster file instead of Kubernetes.")
    ] = None,
    config: Annotated[Path | None, typer.Option(metavar="FILE", help="Settings as a YAML file.")] = None,
    log_format: Annotated[LogFormat | None, typer.Option(help="How to log.", show_default=False)] = None,
    log_level: Annotated[LogLevel | None, typer.Option(help="How much to log.", show_default=False)] = None,
) -> None:
    """Run the scheduler extender.

    Talks to the cluster of [bold]KUBECONFIG[/bold], or of the service account inside a pod, or plays the cluster of
    [bold]--cluster FILE[/bold]. Every setting can come from a file ([bold]--config[/bold]) or from the environment
    ([bold]VRAMCAST_PORT=9000[/bold]); flags win over the environment, the environment over the file.

    [dim]vramcast serve --port 8888[/dim]
    [dim]vramcast serve --cluster my-cluster.yaml[/dim]
    """
    flags = {
        "host": host, "port": port, "cluster": cluster, "config": config,
        "log_format": log_format, "log_level": log_level,
    }  # fmt: skip
    settings = load_settings(flags)
    configure_logs(settings.log_format, settings.log_level)
    for name in unknown_variables(dict(os.environ)):
        structlog.get_logger("vramcast").warning("looks like a setting and is none", variable=name)
    # Late, because each pulls in what the other must not need: the Kubernetes client, or the file's parser.
    from vramcast.app import run  # noqa: PLC0415

    run(settings, _cluster(settings))


def _cluster(settings: Settings) -> Any:
    if settings.cluster is not None:
        from vramcast.cluster.static import StaticCluster  # noqa: PLC0415

        return StaticCluster.from_file(settings.cluster)
    from vramcast.cluster.kubernetes import KubernetesCluster  # noqa: PLC0415

    return KubernetesCluster.from_environment(bind_deadline_seconds=settings.bind_deadline_seconds)


Data = Annotated[Path, typer.Option(metavar="DIR", help="Measured runs: measurements.csv, profiles/, xmem.csv.")]


@app.command(rich_help_panel=LEARN)
def train(
    data: Data,
    out: Annotated[Path, typer.Option(metavar="DIR", help="Where the artifact goes; work in progress is kept there.")],
    base: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Fine-tune this artifact instead of starting from nothing.")
    ] = None,
    seeds: Annotated[int, typer.Option(help="Networks per fold; the ensemble has five times as many.")] = 2,
    quiet: Annotated[bool, typer.Option(help="No progress bars.")] = False,
) -> None:
    """Train the forecast on measured runs. A second call with the same data goes on where the first stopped.

    [dim]vramcast train --data runs/ --out model_artifacts/[/dim]
    [dim]vramcast train --data observed/ --base model_artifacts/ --out candidate/[/dim]
    """
    from vramcast.train.commands import run_finetune, run_train  # noqa: PLC0415  # torch is an extra

    if base is not None:
        run_finetune(data, base, out, quiet=quiet)
    else:
        run_train(data, out, seeds, quiet=quiet)


@app.command(rich_help_panel=LEARN)
def evaluate(
    data: Data,
    artifact: Annotated[Path, typer.Option(metavar="DIR", help="The artifact.")] = Path("model_artifacts"),
    output: Annotated[str, typer.Option("-o", "--output", help="table or json.")] = "table",
) -> None:
    """Accuracy, bounds and latency of an artifact on measured runs, by slice.

    [dim]vramcast evaluate --data runs/ -o json[/dim]
    """
    from vramcast.train.commands import run_evaluate  # noqa: PLC0415  # not needed to serve

    run_evaluate(data, artifact, output)


@app.command("export-records", rich_help_panel=LEARN)
def export_records(
    out: Annotated[Path, typer.Option(metavar="DIR", help="Where the records go; runs that are there stay.")],
    url: Annotated[str, typer.Option(help="The service.")] = "http://127.0.0.1:8888",
    pod_names: Annotated[bool, typer.Option("--pod-names", help="Also write whose runs they were.")] = False,
    ca_file: Annotated[Path | None, typer.Option(metavar="FILE", help="For https: the CA of the service.")] = None,
    cert_file: Annotated[Path | None, typer.Option(metavar="FILE", help="And a client certificate.")] = None,
    key_file: Annotated[Path | None, typer.Option(metavar="FILE", help="And its key.")] = None,
) -> None:
    """Collect what a running service observed, as records that [bold]vramcast train[/bold] reads.

    Runs are told apart by a hash of their pod's UID. A second export to the same directory adds what is new.

    [dim]kubectl --namespace vramcast-system port-forward deployment/vramcast 8888 &[/dim]
    [dim]vramcast export-records --out observed/[/dim]
    """
    from vramcast.cli.records import Credentials, fetch_records, write_records  # noqa: PLC0415

    document = fetch_records(url, Credentials(ca_file, cert_file, key_file), named=pod_names)
    exported = write_records(document, out)
    sys.stdout.write(f"{exported.added} runs added to {out}, {exported.known} were there\n")


@app.command(rich_help_panel=RUN)
def demo(
    host: Host = None,
    port: Port = None,
    speed: Annotated[float, typer.Option(min=0.1, max=1000.0, help="How fast the day goes by.")] = 1.0,
    once: Annotated[bool, typer.Option("--once", help="Stop after the day instead of serving on.")] = False,
) -> None:
    """Play a day of training pods on a made-up cluster of mixed GPUs; no Kubernetes needed.

    The service is the real one, asked through its real HTTP verbs as kube-scheduler would. Afterwards it keeps
    serving, with commands to try.
    """
    from vramcast.app import run  # noqa: PLC0415
    from vramcast.demo.day import CLUSTER_FILE  # noqa: PLC0415
    from vramcast.demo.play import run_demo  # noqa: PLC0415

    settings = load_settings({"host": host, "port": port, "cluster": CLUSTER_FILE, "log_level": LogLevel.WARNING})
    configure_logs(settings.log_format, settings.log_level)
    raise typer.Exit(run_demo(partial(run, settings), speed=speed, once=once))


@app.command(rich_help_panel=DESCRIBE)
def forecast(
    file: Files,
    gpu: Annotated[
        list[str] | None,
        typer.Option(metavar="PRODUCT", help="Only this product, as GPU Feature Discovery names it; may be repeated."),
    ] = None,
    sweep: Annotated[
        str | None,
        typer.Option(
            metavar="KEY=LOW..HIGH",
            help="Vary batch-size or sequence-length: 8..256 doubles, 8..256:8 goes by eights, 8,24,48 is a list.",
        ),
    ] = None,
    plot: Annotated[
        Path | None, typer.Option(metavar="FILE.png", help="The sweep's plot as a file (PNG, SVG or PDF) too.")
    ] = None,
    output: Annotated[str, typer.Option("--output", "-o", help="table, json or yaml.")] = "table",
    artifact: Annotated[str, typer.Option(help="builtin, a directory, or physics.")] = "builtin",
    risk: Annotated[
        float, typer.Option(min=0.0001, max=0.5, help="Risk of an out-of-memory, for pods that name none.")
    ] = 0.05,
) -> None:
    """Tell what pods will need on each GPU, and why; or how large a batch may be.

    Reads Pods, and the pod templates of Jobs, Deployments, PyTorchJobs, RayJobs
    and others. Shows the parts of the need, its bounds by risk, and the GPUs
    that hold it. [bold]vramcast annotate[/bold] writes the description that it reads.

    [dim]vramcast forecast -f job.yaml[/dim]
    [dim]vramcast forecast -f job.yaml --gpu NVIDIA-L40S -o json[/dim]
    [dim]vramcast forecast -f job.yaml --sweep batch-size=8..256[/dim]
    """
    from vramcast.cli.forecast import run_forecast  # noqa: PLC0415
    from vramcast.forecast.model import choose_forecaster  # noqa: PLC0415
    from vramcast.forecast.sweep import parse_sweep  # noqa: PLC0415

    forecaster = choose_forecaster(artifact, risk, physics_if_unusable=False)
    run_forecast(file, gpu or (), output, forecaster, parse_sweep(sweep) if sweep else None, plot)


@app.command(rich_help_panel=DESCRIBE)
def annotate(
    file: Files,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help=f"An annotation; may be repeated. Keys: {', '.join(KEYS)}."),
    ] = None,
    unset: Annotated[
        list[str] | None, typer.Option(metavar="KEY", help="An annotation to take away; may be repeated.")
    ] = None,
    template: Annotated[
        list[str] | None,
        typer.Option(
            metavar="ROLE",
            help="Of several pod templates the one to annotate: worker, head, a task's or workload's name. "
            "Default: those that ask for GPUs.",
        ),
    ] = None,
    scheduler: Annotated[bool, typer.Option("--scheduler", help="Set schedulerName: vramcast-scheduler.")] = False,
    scheduler_name: Annotated[
        str | None, typer.Option(metavar="NAME", help="Set schedulerName to another name.")
    ] = None,
    move: Annotated[
        bool, typer.Option("--move", help="Move annotations that stand where no pod gets them, such as on the Job.")
    ] = False,
    in_place: Annotated[
        bool, typer.Option("--in-place", "-i", help="Write the file instead of standard output.")
    ] = False,
    diff: Annotated[bool, typer.Option("--diff", help="Show what changes.")] = False,
    check: Annotated[
        bool, typer.Option("--check", help="Write nothing; exit code 0 if all is right and 1 if not, for CI.")
    ] = False,
) -> None:
    """Write a task's description into a manifest, where it belongs; or check the one that is there.

    Annotations work on pods, so they belong to the pod template of a Job,
    CronJob, Deployment, StatefulSet, JobSet, PyTorchJob, TrainJob, RayJob,
    RayCluster, Volcano Job ... This finds it, and leaves comments and layout
    as they are. [bold]vramcast annotations[/bold] explains the keys.

    [dim]vramcast annotate -f job.yaml --set model=timm/resnet50 --set batch-size=64 --diff[/dim]
    [dim]vramcast annotate -f rayjob.yaml --set gpu-memory=20Gi --template worker -i[/dim]
    [dim]vramcast annotate -f job.yaml --check[/dim]
    """
    from vramcast.cli.annotate import (  # noqa: PLC0415
        SCHEDULER_NAME,
        AnnotateOptions,
        parse_names,
        parse_settings,
        run_annotate,
    )

    name = scheduler_name or (SCHEDULER_NAME if scheduler else None)
    options = AnnotateOptions(parse_settings(set_ or ()), tuple(template or ()), name, move, parse_names(unset or ()))
    raise typer.Exit(run_annotate(file, options, in_place=in_place, check=check, diff=diff))


@app.command("annotations", rich_help_panel=DESCRIBE)
def list_annotations(
    output: Annotated[str, typer.Option("--output", "-o", help="table, markdown or json-schema.")] = "table",
) -> None:
    """List the annotations that describe a task: what each means, takes and defaults to.

    [dim]vramcast annotations[/dim]
    [dim]vramcast annotations -o json-schema > annotations.schema.json[/dim]
    """
    from vramcast.cli.annotations import run_annotations  # noqa: PLC0415

    run_annotations(output)


@app.command(rich_help_panel=DESCRIBE)
def profile(
    target: Annotated[str, typer.Argument(metavar="MODULE:CALLABLE", help="Builds the network; or a config.json.")],
    shapes: Annotated[
        list[str] | None, typer.Option("--input", metavar="3x224x224", help="One sample without the batch; repeatable.")
    ] = None,
    sequence_length: Annotated[int | None, typer.Option(min=1, help="Tokens in one sample.")] = None,
    inputs: Annotated[
        str | None, typer.Option(metavar="MODULE:CALLABLE", help="Makes the inputs of a batch of n samples.")
    ] = None,
    args: Annotated[str | None, typer.Option(metavar="JSON", help="Arguments of the callable.")] = None,
    batch_size: Annotated[int | None, typer.Option(min=1, help="Of the run, on each GPU.")] = None,
    optimizer: Annotated[str | None, typer.Option(help="Of the run.")] = None,
    precision: Annotated[str | None, typer.Option(help="Of the run.")] = None,
    more: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Any other annotation; repeatable.")
    ] = None,
    gpu: Annotated[str | None, typer.Option(metavar="PRODUCT", help="Forecast for one product alone.")] = None,
    measure: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Run real steps on this GPU and append the record to DIR.")
    ] = None,
    output: Annotated[str, typer.Option("--output", "-o", help="table or json")] = "table",
    artifact: Annotated[str, typer.Option(help="builtin, a directory, or physics")] = "builtin",
    risk: Annotated[float, typer.Option(min=0.0001, max=0.5, help="Where none is set.")] = 0.05,
) -> None:
    """Trace your own network without weights or GPU, and print the annotations of its pod.

    [dim]vramcast profile my_project.models:build_model --input 3x224x224 --batch-size 64[/dim]
    [dim]vramcast profile transformers:GPT2Config --sequence-length 1024 --optimizer adamw[/dim]
    [dim]vramcast profile torchvision.models:resnet18 --args '{"num_classes": 10}' --input 3x32x32[/dim]
    """
    from vramcast.forecast.model import choose_forecaster  # noqa: PLC0415
    from vramcast.profile.arguments import ProfileArguments, need_torch, run_settings  # noqa: PLC0415

    need_torch()
    from vramcast.profile.commands import run_profile  # noqa: PLC0415  # torch is an extra

    settings = run_settings({"batch-size": batch_size, "optimizer": optimizer, "precision": precision}, more or [])
    arguments = ProfileArguments(target, tuple(shapes or ()), sequence_length, inputs, args, settings, gpu, measure)
    run_profile(arguments, output, choose_forecaster(artifact, risk, physics_if_unusable=False))


@app.command(rich_help_panel=DESCRIBE)
def catalog(
    search: Annotated[str, typer.Argument(metavar="[SEARCH]", help="Words of the name.")] = "",
    build: Annotated[
        Path | None, typer.Option(metavar="OUT", help="Trace the models into a new catalog (extra: catalog).")
    ] = None,
    shard: Annotated[str, typer.Option(metavar="I/N", help="With --build: one of N that share the work.")] = "1/1",
    output: Annotated[str, typer.Option("--output", "-o", help="table or json")] = "table",
) -> None:
    """List the models that a pod may name.

    [dim]vramcast catalog[/dim]
    [dim]vramcast catalog "hf/ qwen2.5"[/dim]
    [dim]vramcast catalog --build model_artifacts/catalog.bin[/dim]
    """
    from vramcast.cli.catalog import run_build, run_catalog  # noqa: PLC0415

    if build is not None:
        run_build(build, search, shard)
    else:
        run_catalog(search, output)


@app.command(rich_help_panel=RUN)
def version() -> None:
    """Print the version."""
    sys.stdout.write(f"{__version__}\n")


def main() -> None:
    """Errors that were foreseen are one message; everything else is a defect and shows its trace."""
    try:
        app()
    except VramcastError as error:
        # What is quoted may look like markup, and a line must stay one for those who search logs.
        errors.print("[red]error:[/red]", escape(str(error)), highlight=False, soft_wrap=True)
        sys.exit(2)
