"""`vramcast annotate --check`: what is wrong with the descriptions in files, and what needs more memory than it may.

For people, as JSON, or as the annotations of GitHub.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec
from rich.console import Console
from rich.text import Text

from vramcast.cli.manifests import FoundTemplate, Manifest, notes, read_text, undescribed
from vramcast.cli.yaml_edits import find_line
from vramcast.errors import InvalidInput, InvalidTask
from vramcast.forecast.forecast import Forecast, Forecaster
from vramcast.forecast.forecaster import PhysicsForecaster
from vramcast.forecast.report import usable_mib
from vramcast.hardware.short_names import find_product
from vramcast.names import Product
from vramcast.task.quantity import MIB, ceil_mib, human_mib, parse_quantity
from vramcast.task.task import Task
from vramcast.task.vocabulary import PREFIX, Level

OUTPUTS = ("text", "json", "github")
# The bound differs by a few hundred MiB from product to product: what the driver and its libraries take.
DEFAULT_PRODUCT = Product("NVIDIA-A100-SXM4-40GB")
_PARTS_NAMED = 3
_KEY = re.compile(rf"{re.escape(PREFIX)}[\w-]+")

Read = Callable[[str, str], Manifest]


@dataclass(frozen=True, slots=True)
class NeedLimit:
    """The most that a pod may need on each of its GPUs, and on which product that is forecast."""

    memory_mib: int
    product: Product
    forecaster: Forecaster
    said: str  # as the message names it


class Finding(msgspec.Struct, frozen=True, omit_defaults=True):
    """`kind`: ok, note, mistake, over (the limit), or error: the file could not be checked."""

    kind: str
    file: str
    message: str
    line: int = 1
    template: str = ""
    product: str | None = None
    need_mib: int | None = None
    limit_mib: int | None = None
    median_bytes: int | None = None
    risk: float | None = None
    parts_bytes: dict[str, int] | None = None
    largest_batch_size: int | None = None


def parse_limit(max_memory: str | None, gpu: str | None, new_forecaster: Callable[[], Forecaster]) -> NeedLimit | None:
    """Raises InvalidInput."""
    if max_memory is None and gpu is None:
        return None
    product = find_product(gpu) if gpu is not None else DEFAULT_PRODUCT
    if max_memory is None:
        usable = usable_mib(product) or 0
        return NeedLimit(usable, product, new_forecaster(), f"the {human_mib(usable)} that it has")
    try:
        limit_mib = int(parse_quantity(max_memory) // MIB)
    except ValueError as error:
        raise InvalidInput(f"--max-memory {max_memory!r}: expected {error}") from None
    if limit_mib < 1:
        raise InvalidInput(f"--max-memory {max_memory!r}: expected at least 1Mi")
    return NeedLimit(limit_mib, product, new_forecaster(), f"the limit of {human_mib(limit_mib)} (--max-memory)")


@dataclass(frozen=True, slots=True)
class CheckOptions:
    """`skip_undescribed`: files without any annotation of vramcast are in order."""

    limit: NeedLimit | None = None
    output: str = "text"
    skip_undescribed: bool = False


def check_files(paths: Iterable[Path], read: Read, options: CheckOptions) -> int:
    """The exit code: 1 if a description has a mistake or needs too much, 2 if a file cannot be read."""
    if options.output not in OUTPUTS:
        raise InvalidInput(f"--output {options.output!r}: expected {', '.join(OUTPUTS)}")
    findings = [finding for path in paths for finding in _check(path, read, options)]
    _write(findings, options.output)
    kinds = {finding.kind for finding in findings}
    return 2 if "error" in kinds else 1 if kinds & {"mistake", "over"} else 0


def _check(path: Path, read: Read, options: CheckOptions) -> Iterator[Finding]:
    file = str(path)
    try:
        text = read_text(path)
    except InvalidInput as error:
        yield Finding("error", file, _without_file(file, str(error)))
        return
    if options.skip_undescribed and PREFIX not in text:
        return
    try:
        manifest = read(text, file)
    except InvalidInput as error:
        yield from (Finding("mistake", file, _without_file(file, line)) for line in str(error).splitlines())
        return
    wrong = [_placed(manifest, "mistake", line) for line in mistakes(manifest)]
    if not wrong and not any(found.described for found in manifest.found):
        wrong = [Finding("mistake", file, undescribed(path))]
    yield from wrong
    if wrong:
        return
    for found in manifest.found:
        yield from (_placed(manifest, "note", f"{found.template.label}: {note}") for note in notes(found))
    yield from _fitting(manifest, options.limit) if options.limit else [Finding("ok", file, _described(manifest))]


def _described(manifest: Manifest) -> str:
    count = sum(found.described for found in manifest.found)
    return f"{count} described pod template{'s' * (count != 1)}"


def mistakes(manifest: Manifest) -> list[str]:
    """One line for each, and those that only a forecast finds: an unknown model, a damaged profile."""
    return [*manifest.mistakes(), *(f"{manifest.source}: {line}" for line in _not_forecast(manifest))]


def _not_forecast(manifest: Manifest) -> list[str]:
    lines = []
    for found in manifest.found:
        if found.record is not None and found.record.task is not None:
            try:
                PhysicsForecaster(0.05).forecast(found.record.task, DEFAULT_PRODUCT)
            except InvalidTask as error:
                lines += [f"{found.template.label}: {mistake}" for mistake in error.errors]
    return lines


def _placed(manifest: Manifest, kind: str, line: str) -> Finding:
    """With the line of the annotation that it names, or of the template."""
    message = _without_file(manifest.source, line)
    by_label = sorted(manifest.found, key=lambda found: -len(found.template.label))
    about = next((found for found in by_label if message.startswith(found.template.label)), None)
    if about is None:
        return Finding(kind, manifest.source, message)
    return Finding(kind, manifest.source, message, _line(manifest, about, message), about.template.label)


def _without_file(source: str, line: str) -> str:
    return line.removeprefix(f"{source}: ")


def _line(manifest: Manifest, found: FoundTemplate, message: str = "") -> int:
    place = found.template.annotations_place
    named = next((key for key in _KEY.findall(message) if key in found.template.annotations), None)
    return find_line(manifest.text, found.document, (*place, named) if named else place)


def _fitting(manifest: Manifest, limit: NeedLimit) -> Iterator[Finding]:
    for found in manifest.found:
        task = found.record.task if found.record else None
        if task is None:
            continue
        label = found.template.label
        try:
            forecast = limit.forecaster.forecast(task, limit.product)
        except InvalidTask as error:
            yield Finding("mistake", manifest.source, f"{label}: {error}", _line(manifest, found), label)
            continue
        over_mib = forecast.need_mib - limit.memory_mib
        batch = _largest_batch(task, limit) if over_mib > 0 else None
        parts = {part.name: part.size_bytes for part in forecast.parts}
        yield Finding(
            kind="over" if over_mib > 0 else "ok",
            file=manifest.source,
            message=f"{label} {_verdict(forecast, limit, over_mib, batch)}",
            line=_line(manifest, found),
            template=label,
            product=forecast.product,
            need_mib=forecast.need_mib,
            limit_mib=limit.memory_mib,
            median_bytes=forecast.median_bytes,
            risk=forecast.risk,
            parts_bytes=parts or None,
            largest_batch_size=batch,
        )


def _verdict(forecast: Forecast, limit: NeedLimit, over_mib: int, batch: int | None) -> str:
    need = f"needs {human_mib(forecast.need_mib)} on {forecast.product} at risk {forecast.risk:g}"
    if over_mib <= 0:
        return f"{need}, within {limit.said}"
    largest = sorted(forecast.parts, key=lambda part: -part.size_bytes)[:_PARTS_NAMED]
    parts = ", ".join(f"{part.name} {human_mib(ceil_mib(part.size_bytes))}" for part in largest if part.size_bytes > 0)
    return "".join((
        f"{need}, {human_mib(over_mib)} over {limit.said}",
        f"; half of its runs need less than {human_mib(ceil_mib(forecast.median_bytes))}",
        f"; largest parts: {parts}" if parts else "",
        f"; batch-size {batch} would fit" if batch else "",
    ))  # fmt: skip


def _largest_batch(task: Task, limit: NeedLimit) -> int | None:
    """None if not even 1 fits, or if the batch does not matter."""
    if task.level is Level.GIVEN:
        return None
    low, high = 0, task.batch_size - 1
    while low < high:
        middle = (low + high + 1) // 2
        smaller = limit.forecaster.forecast(replace(task, batch_size=middle), limit.product)
        low, high = (middle, high) if smaller.need_mib <= limit.memory_mib else (low, middle - 1)
    return low or None


def _write(findings: Sequence[Finding], output: str) -> None:
    if output == "json":
        sys.stdout.write(msgspec.json.format(msgspec.json.encode(findings), indent=2).decode() + "\n")
        return
    if output == "github":
        sys.stdout.writelines(f"{_workflow_command(finding)}\n" for finding in findings)
        return
    console = Console(stderr=True, soft_wrap=True, highlight=False)
    styles = {"ok": ("ok: ", "green"), "note": ("note: ", "yellow")}
    for finding in findings:
        style = styles.get(finding.kind, ("error: ", "red"))
        console.print(Text.assemble(style, f"{finding.file}: {finding.message}"))


def _workflow_command(finding: Finding) -> str:
    """GitHub shows it next to the line. What is in order is only printed."""
    if finding.kind == "ok":
        return f"ok: {finding.file}: {finding.message}"
    level = "notice" if finding.kind == "note" else "error"
    title = "GPU memory over the limit" if finding.kind == "over" else "vramcast"
    place = f"file={_escaped(finding.file, ':,')},line={finding.line},title={title}"
    return f"::{level} {place}::{_escaped(finding.message)}"


def _escaped(text: str, more: str = "") -> str:
    for letter in f"%\r\n{more}":
        text = text.replace(letter, f"%{ord(letter):02X}")
    return text
