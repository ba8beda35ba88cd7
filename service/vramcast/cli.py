"""The command line: one program, `vramcast`."""

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
from vramcast.core.errors import VramcastError
from vramcast.observe.logs import configure_logs
from vramcast.settings import LogFormat, LogLevel, Settings, load_settings, unknown_variables

app = typer.Typer(
    name="vramcast",
    help="GPU scheduling that knows what a training job needs before it runs.",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
)
errors = Console(stderr=True)

Host = Annotated[str | None, typer.Option(help="Address to listen on. Default 127.0.0.1.", show_default=False)]
Port = Annotated[int | None, typer.Option(help="Port to listen on. Default 8888.", show_default=False)]


@app.command()
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


@app.command()
def train(
    data: Data,
    out: Annotated[Path, typer.Option(metavar="DIR", help="Where the artifact goes; work in progress is kept there.")],
    seeds: Annotated[int, typer.Option(help="Networks per fold; the ensemble has five times as many.")] = 1,
    quiet: Annotated[bool, typer.Option(help="No progress bars.")] = False,
) -> None:
    """Train the forecast on measured runs. A second call with the same data goes on where the first stopped.

    [dim]vramcast train --data runs/ --out model_artifacts/[/dim]
    """
    from vramcast.train.commands import run_train  # noqa: PLC0415  # torch is an extra

    run_train(data, out, seeds, quiet=quiet)


@app.command()
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


@app.command()
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


@app.command()
def forecast(
    file: Annotated[Path, typer.Option("--file", "-f", metavar="POD.yaml", help="Pod manifests; several are fine.")],
    gpu: Annotated[
        str | None, typer.Option(metavar="PRODUCT", help="One product, as GPU Feature Discovery names it.")
    ] = None,
    output: Annotated[str, typer.Option("--output", "-o", help="table or json")] = "table",
    artifact: Annotated[str, typer.Option(help="builtin, a directory, or physics")] = "builtin",
    risk: Annotated[float, typer.Option(min=0.0001, max=0.5, help="For pods that name none.")] = 0.05,
) -> None:
    """Tell what a pod will need on each GPU, and why: its parts, its bounds by risk, the products that hold it.

    [dim]vramcast forecast -f pod.yaml[/dim]
    [dim]vramcast forecast -f pod.yaml --gpu NVIDIA-L40S -o json[/dim]
    """
    from vramcast.forecast.model import choose_forecaster  # noqa: PLC0415
    from vramcast.forecast_command import run_forecast  # noqa: PLC0415

    run_forecast(file, gpu, output, choose_forecaster(artifact, risk, physics_if_unusable=False))


@app.command()
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
    from vramcast.profile.arguments import Asked, need_torch, run_settings  # noqa: PLC0415

    need_torch()
    from vramcast.profile.commands import run_profile  # noqa: PLC0415  # torch is an extra

    settings = run_settings({"batch-size": batch_size, "optimizer": optimizer, "precision": precision}, more or [])
    asked = Asked(target, tuple(shapes or ()), sequence_length, inputs, args, settings, gpu, measure)
    run_profile(asked, output, choose_forecaster(artifact, risk, physics_if_unusable=False))


@app.command()
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
    from vramcast.catalog_command import run_build, run_catalog  # noqa: PLC0415

    if build is not None:
        run_build(build, search, shard)
    else:
        run_catalog(search, output)


@app.command()
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
