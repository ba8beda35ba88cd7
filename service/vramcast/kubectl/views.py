"""`top`, `runs`, `accuracy` and `forecast`: one request each, as a table or as the service's own JSON."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from vramcast.kubectl.errors import Trouble
from vramcast.kubectl.service_view import ServiceView
from vramcast.kubectl.tables import age, byte_size, plural, share, size, visible, write, write_table

_NODES_SHOWN = 100

Json = dict[str, Any]


def show_top(view: ServiceView, node: str, output: str) -> None:
    limit = None if output in ("wide", "json") else _NODES_SHOWN
    pages = list(view.pages("/cluster", "nodes", limit, q=node))
    first, nodes = pages[0], [each for page in pages for each in page["nodes"]]
    if output == "json":
        write(json.dumps({**first, "nodes": nodes}, indent=2))
        return
    measured = first["status"]["telemetry"]
    titles = ("GPU", "NODES", "GPUS", "SIZE", "PROMISED", "USED", "UNMANAGED")
    write_table(titles, (_product_row(each, measured=measured) for each in first["products"]))
    write()
    _write_gpus(nodes, measured=measured, wide=output == "wide")
    if len(nodes) < first["matching"]:
        write(f"... and {plural(first['matching'] - len(nodes), 'more node')}: name one, or -o wide")
    if not measured:
        write("\nUsed and unmanaged memory need telemetry: setting prometheus_url or exporter_urls.")


def _product_row(sums: Json, *, measured: bool) -> tuple[str, ...]:
    used = [size(sums[key]) if measured else "-" for key in ("used_mib", "unmanaged_mib")]
    counts = (str(sums["nodes"]), str(sums["gpus"]))
    return sums["product"], *counts, size(sums["size_mib"]), size(sums["promised_mib"]), *used


def _write_gpus(nodes: Iterable[Json], *, measured: bool, wide: bool) -> None:
    rows = [
        (node["name"], str(gpu["index"]), pool["product"], size(gpu["size_mib"]), size(gpu["promised_mib"]),
         *(size(gpu[key]) if measured else "-" for key in ("used_mib", "unmanaged_mib")), size(gpu["room_mib"]),
         _holders(gpu, wide=wide))
        for node in nodes for pool in node["pools"] for gpu in pool["gpus"]
    ]  # fmt: skip
    write_table(("NODE", "GPU", "PRODUCT", "SIZE", "PROMISED", "USED", "UNMANAGED", "FREE", "PODS"), rows)
    for node in nodes:
        if node["problem"]:
            write(visible(f"{node['name']}: {node['problem']}"))


def _holders(gpu: Json, *, wide: bool) -> str:
    pods = [holder["pod"] for holder in gpu["holders"]]
    if wide:
        return ", ".join(pods) or "-"
    return ", ".join(pods[:2]) + (f" and {len(pods) - 2} more" if len(pods) > 2 else "") or "-"


def show_runs(view: ServiceView, namespace: str | None, output: str, limit: int) -> None:
    """`namespace` None: all."""
    wanted = f"{namespace}/" if namespace else ""
    lines: list[Json] = []
    status: Json = {}
    for page in view.pages("/pods", "pods", state="done", q=wanted):
        status = page["status"]
        lines += [line for line in page["pods"] if line["pod"].startswith(wanted)]
        if len(lines) >= limit:
            break
    lines = lines[:limit]
    if output == "json":
        write(json.dumps(lines, indent=2))
        return
    if not lines:
        where = f"namespace {namespace}" if namespace else "any namespace"
        write(f"No run has ended in {where} since vramcast started.")
        return
    titles = ("POD", "GPU", "PROMISED", "MEDIAN", "PEAK", "WITHIN", "ENDING", "AGE", *(["TASK"] * (output == "wide")))
    write_table(titles, (_run_row(line, status["now"], wide=output == "wide") for line in lines))


def _run_row(line: Json, now: float, *, wide: bool) -> tuple[str, ...]:
    kept = {True: "yes", False: "no", None: "-"}[line["kept"]]
    ago = None if line["since"] is None else now - line["since"]
    sizes = (size(line[key]) for key in ("need_mib", "median_mib", "peak_mib"))
    row = (line["pod"], line["product"] or "-", *sizes, kept, line["ending"] or "-", age(ago))
    return (*row, line["task"]) if wide else row


def show_accuracy(view: ServiceView, output: str) -> None:
    content = view.get("/accuracy")
    if output == "json":
        write(json.dumps(content, indent=2))
        return
    write(visible(f"Model {content['models'].get('active', '-')}, calibration {content['calibration']}."))
    if not content["groups"]:
        write("No run has been measured yet.")
    else:
        titles = ("KIND", "LEVEL", "GPU", "RUNS", "COVERED", "PROMISED", "OOMS", "USED/FORECAST", "PROMISED/USED")
        write_table(titles, map(_group_row, content["groups"]))
    if content["unmeasured"]:
        counts = ", ".join(f"{why} {count}" for why, count in content["unmeasured"].items() if count)
        write(visible(f"Not measured: {counts or 'none'}."))


def _group_row(group: Json) -> tuple[str, ...]:
    over = group["over_reservation"]
    return (
        group["family"], group["level"], group["product"], str(group["outcomes"]), share(group["coverage"]),
        share(group["promised"]), str(group["ooms"]), f"{group['bias']:.2f}", "-" if over is None else f"{over:.2f}",
    )  # fmt: skip


def show_forecast(view: ServiceView, file: str, output: str) -> None:
    try:
        body = sys.stdin.buffer.read() if file == "-" else Path(file).read_bytes()
    except OSError as error:
        raise Trouble(f"{file}: {error.strerror}") from None
    content = view.post("/forecast", body)
    if output == "json":
        write(json.dumps(content, indent=2))
        return
    write(visible(f"{content['pod']} ({content['level']})"))
    titles = ("GPU", "USABLE", "MEDIAN", "NEED", "RISK", "HOLDS IT")
    write_table(titles, map(_forecast_row, content["forecasts"]))
    if output == "wide":
        for part in content["forecasts"][0]["parts"]:
            write(visible(f"  {part['name']}: {byte_size(part['size_bytes'])} ({part['because']})"))
    for assumption in content["assumptions"]:
        write(visible(f"assumed: {assumption}"))


def _forecast_row(forecast: Json) -> tuple[str, ...]:
    holds = {True: "yes", False: "no", None: "?"}[forecast["holds_it"]]
    sizes = size(forecast["usable_mib"]), byte_size(forecast["median_bytes"]), size(forecast["need_mib"])
    return (forecast["product"], *sizes, f"{forecast['risk']:g}", holds)
