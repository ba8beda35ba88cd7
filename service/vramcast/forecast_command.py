"""`vramcast forecast`: what a pod needs and why, before anything is scheduled."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import yaml
from rich import box
from rich.console import Console
from rich.table import Table

from vramcast.cluster.manifest import manifest_record
from vramcast.core.errors import InvalidInput, InvalidRequest
from vramcast.core.forecast import Forecaster
from vramcast.core.names import Product
from vramcast.core.pod import PodRecord
from vramcast.core.quantity import GIB
from vramcast.core.task import describe
from vramcast.forecast.report import COMMON_PRODUCTS, ProductReport, report, report_json

_PIPE_WIDTH = 100


def run_forecast(path: Path, gpu: str | None, output: str, forecaster: Forecaster) -> None:
    if output not in ("table", "json"):
        raise InvalidInput(f"--output {output!r}: expected table or json")
    products = (Product(gpu),) if gpu else COMMON_PRODUCTS
    pods = _read_pods(path)
    reports = [(pod, report(forecaster, pod.task, products)) for pod in pods if pod.task is not None]
    console = Console()
    console = Console(width=None if console.is_terminal else _PIPE_WIDTH)
    if output == "json":
        console.print_json(msgspec.json.encode([_json(pod, given) for pod, given in reports]).decode())
        return
    for pod, given in reports:
        _print(console, pod, given)


def _read_pods(path: Path) -> list[PodRecord]:
    """Every Pod of a file. Raises InvalidInput with the file's name and all that is wrong."""
    try:
        documents = [document for document in yaml.safe_load_all(path.read_text()) if document]
    except (OSError, yaml.YAMLError) as error:
        raise InvalidInput(f"{path}: {error}") from None
    if not documents:
        raise InvalidInput(f"{path}: no pod in it")
    pods, wrong = [], []
    for number, document in enumerate(documents, 1):
        try:
            pod = manifest_record(document)
        except InvalidRequest as error:
            wrong.append(f"document {number}: {error}")
            continue
        if pod.invalid is not None:
            wrong.append(f"{pod.key}: {pod.invalid}")
        elif pod.task is None:
            wrong.append(f"{pod.key}: metadata.annotations: no vramcast.dev/ annotation describes a task")
        pods.append(pod)
    if wrong:
        raise InvalidInput("\n".join(f"{path}: {line}" for line in wrong))
    return pods


def _print(console: Console, pod: PodRecord, given: list[ProductReport]) -> None:
    first = given[0].forecast
    assert pod.task is not None  # noqa: S101 - _read_pods lets no other through
    console.print(f"[bold]{pod.key}[/bold]  {describe(pod.task)}  [dim]({first.source}, {first.model_version})[/dim]")
    console.print(_products_table(given))
    console.print(_parts_table(given))
    for assumption in first.assumptions:
        console.print(f"  [dim]assumed:[/dim] {assumption}")
    console.print()


def _products_table(given: list[ProductReport]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("GPU")
    table.add_column("usable GiB", justify="right")
    table.add_column("median", justify="right")
    for risk in given[0].bounds_bytes:
        table.add_column(f"risk {risk:g}", justify="right")
    table.add_column(f"holds it at {given[0].forecast.risk:g}")
    for line in given:
        holds = {True: "[green]yes[/green]", False: "[red]no[/red]", None: "?"}[line.holds_it]
        usable = "?" if line.usable_mib is None else f"{line.usable_mib / 1024:.1f}"
        bounds = (_gib(size) for size in line.bounds_bytes.values())
        table.add_row(line.forecast.product, usable, _gib(line.forecast.median_bytes), *bounds, holds)
    return table


def _parts_table(given: list[ProductReport]) -> Table:
    """Of one product: most parts are the same on all."""
    forecast = given[0].forecast
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, title=f"on {forecast.product}", title_justify="left")
    table.add_column("part")
    table.add_column("GiB", justify="right")
    table.add_column("because")
    for part in forecast.parts:
        table.add_row(part.name, _gib(part.size_bytes), part.because)
    return table


def _gib(size_bytes: int) -> str:
    return f"{size_bytes / GIB:.2f}"


def _json(pod: PodRecord, given: list[ProductReport]) -> dict[str, Any]:
    return {"pod": pod.key, "level": pod.task.level if pod.task else None, "forecasts": [report_json(g) for g in given]}
