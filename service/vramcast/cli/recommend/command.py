"""Wires the parts of `vramcast recommend` together."""

from __future__ import annotations

import base64
import json
import re
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from vramcast.cli.recommend.asking import PatientApi
from vramcast.cli.recommend.collecting import collect, server_clock, span
from vramcast.cli.recommend.page import to_html
from vramcast.cli.recommend.patches import write_patches
from vramcast.cli.recommend.reading import Scope
from vramcast.cli.recommend.rows import as_data
from vramcast.cli.recommend.store import WindowStore, cache_root
from vramcast.cli.recommend.text import print_table, to_csv, to_markdown
from vramcast.cluster.prometheus import PrometheusApi
from vramcast.cluster.telemetry import HttpReader
from vramcast.errors import FieldError, InvalidInput
from vramcast.recommend.report import Report, make_report

FORMATS: Final = ("table", "json", "csv", "markdown", "html")
USERNAME, PASSWORD = "PROMETHEUS_USERNAME", "PROMETHEUS_PASSWORD"
_UNITS: Final = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0, "w": 604_800.0}
_LEAST_STEP_SECONDS, _MOST_STEP_SECONDS = 15.0, 3600.0
_INTERRUPTED: Final = 130


@dataclass(frozen=True, slots=True)
class Access:
    """How to reach Prometheus."""

    url: str
    token_file: Path | None = None
    ca_file: Path | None = None
    headers: tuple[str, ...] = ()
    timeout_seconds: float = 60.0


def run_recommend(
    access: Access, scope: Scope, since: str, risk: float, output: str, patch: Path | None, *, fresh: bool,
    environ: Mapping[str, str],
) -> int:  # fmt: skip
    """The exit code. Everything but the report goes to standard error."""
    if output not in FORMATS:
        raise InvalidInput(str(FieldError("--output", output, f"expected one of {', '.join(FORMATS)}")))
    errors = Console(stderr=True, soft_wrap=True, highlight=False)
    api = PatientApi(PrometheusApi(_http(access, environ), access.url))
    since_seconds = seconds(since, "--since")
    store = WindowStore(cache_root(), access.url, scope)
    if fresh:
        store.clear()
    try:
        now, notes = server_clock(api, time.time)
        with _Shown(errors) as shown:
            history = collect(api, scope, span(now, since_seconds), store, shown)
    except KeyboardInterrupt:
        errors.print(
            f"interrupted: finished windows are kept in {store.directory}; the same command goes on from there"
        )
        return _INTERRUPTED
    report = make_report(history, risk, notes)
    _print(report, output)
    if patch is not None:
        written, without = write_patches(report, patch)
        errors.print(
            f"{written} patches in {patch}; {without} workloads have none (`vramcast annotate` edits manifests)"
        )
    return 0


def _print(report: Report, output: str) -> None:
    match output:
        case "json":
            sys.stdout.write(json.dumps(as_data(report), indent=2) + "\n")
        case "csv":
            sys.stdout.write(to_csv(report))
        case "markdown":
            sys.stdout.write(to_markdown(report))
        case "html":
            sys.stdout.write(to_html(report))
        case _:
            print_table(report, Console())


class _Shown:
    """Progress on standard error: a bar in a terminal, a line for every quarter elsewhere."""

    def __init__(self, console: Console) -> None:
        columns = (
            TextColumn("reading history"), BarColumn(), MofNCompleteColumn(),
            TextColumn("windows{task.fields[stored]}"), TimeRemainingColumn(),
        )  # fmt: skip
        self._progress = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
        self._task = self._progress.add_task("", total=None, stored="")
        self._console = console
        self._quarter = -1

    def __enter__(self) -> _Shown:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def windows(self, done: int, total: int, *, stored: int) -> None:
        text = f" ({stored} from the last run)" if stored else ""
        self._progress.update(self._task, completed=done, total=total, stored=text)
        if not self._console.is_terminal and total and done * 4 // total > self._quarter:
            self._quarter = done * 4 // total
            self._console.print(f"reading history: {done} of {total} windows{text}")


def seconds(text: str, flag: str) -> float:
    """`30d`, `12h`, `90m`."""
    found = re.fullmatch(r"([0-9]{1,6}(?:\.[0-9]+)?)([smhdw])", text.strip())
    value = float(found[1]) * _UNITS[found[2]] if found else 0.0
    if value <= 0:
        raise InvalidInput(str(FieldError(flag, text, "expected a number and s, m, h, d or w, such as 30d")))
    return value


def seconds_of_step(text: str) -> float:
    value = seconds(text, "--step")
    # Whole steps fill a window of six hours, so that windows join without a gap.
    if not _LEAST_STEP_SECONDS <= value <= _MOST_STEP_SECONDS or 6 * 3600 % value:
        raise InvalidInput(str(FieldError("--step", text, "expected 15s to 1h that divides 6h, such as 1m, 5m or 30m")))
    return value


def _http(access: Access, environ: Mapping[str, str]) -> HttpReader:
    if not access.url.startswith(("http://", "https://")):
        raise InvalidInput(str(FieldError("--prometheus", access.url, "expected a URL, such as http://127.0.0.1:9090")))
    headers = _headers(access.headers)
    if environ.get(USERNAME):
        pair = f"{environ[USERNAME]}:{environ.get(PASSWORD, '')}".encode()
        headers["Authorization"] = f"Basic {base64.b64encode(pair).decode()}"
    for flag, file in (("--token-file", access.token_file), ("--ca-file", access.ca_file)):
        if file is not None and not file.is_file():
            raise InvalidInput(str(FieldError(flag, str(file), "there is no such file")))
    hint = f"give --token-file, --header, or {USERNAME} and {PASSWORD} in the environment"
    return HttpReader(access.timeout_seconds, access.ca_file, access.token_file, headers, hint)


def _headers(lines: Sequence[str]) -> dict[str, str]:
    headers = {}
    for line in lines:
        name, colon, value = line.partition(":")
        if not colon or not re.fullmatch(r"[A-Za-z0-9-]+", name.strip()) or not value.strip():
            raise InvalidInput(str(FieldError("--header", line, "expected 'Name: value', such as 'X-Scope-OrgID: a'")))
        headers[name.strip()] = value.strip()
    return headers
