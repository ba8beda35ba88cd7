"""`vramcast catalog`: lists the models that a pod can name, and builds the file that contains them."""

from __future__ import annotations

import sys
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec
from rich import box
from rich.table import Table

from vramcast.errors import InvalidInput
from vramcast.forecast.catalog import Line, builtin_catalog
from vramcast.forecast.report_tables import new_console


def run_catalog(search: str, output: str) -> None:
    """Raises InvalidInput with similar names if nothing matches."""
    if output not in ("table", "json"):
        raise InvalidInput(f"--output {output!r}: expected table or json")
    catalog = builtin_catalog()
    found = list(catalog.lines(search))
    if not found:
        near = catalog.nearest(search)
        hint = f"did you mean {', '.join(near)}?" if near else "`vramcast catalog` lists all"
        raise InvalidInput(f"no model of the catalog has {search!r} in its name; {hint}")
    if output == "json":
        rows = [_json(line) for line in found]
        sys.stdout.write(msgspec.json.format(msgspec.json.encode(rows), indent=1).decode() + "\n")
        return
    new_console().print(_table(found, len(catalog)), highlight=False)


def _table(found: list[Line], known: int) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, caption=f"{len(found)} of {known} models")
    for title in ("model", "family", "parameters", "layers", "input", "activations"):
        table.add_column(title, justify="left" if title in ("model", "family") else "right")
    for line in found:
        totals = (f"{line.parameters / 1e6:,.1f}M", str(line.layers), _input(line), f"{line.activations / 1e6:,.1f}M")
        table.add_row(line.name, line.family, *totals)
    return table


def _input(line: Line) -> str:
    return "x".join(map(str, line.input_shape)) if line.input_shape else f"{line.sequence_length} tokens"


def _json(line: Line) -> dict[str, Any]:
    return {
        "model": line.name,
        "also": line.also,
        "architecture": line.family,
        "parameters": line.parameters,
        "layers": line.layers,
        "activations": line.activations,
        "input_size": line.input_shape,
        "sequence_length": line.sequence_length,
    }


def parse_shard(text: str) -> tuple[int, int]:
    """`2/3` is the second of three parts."""
    number, slash, count = text.partition("/")
    if not slash or not number.isdigit() or not count.isdigit() or not 1 <= int(number) <= int(count):
        raise InvalidInput(f"--shard {text!r}: expected I/N, such as 1/2 and 2/2 for two builds in parallel")
    return int(number) - 1, int(count)


def run_record(out: Path, search: str, shard: str, *, again: bool) -> None:
    """Records the language models whose names contain the words. Continues where an interrupted call stopped."""
    # Imported here, because torch and the model libraries are an extra.
    from vramcast.profile.recording_models import jobs_of, record_models  # noqa: PLC0415
    from vramcast.profile.sources import all_sources  # noqa: PLC0415
    from vramcast.train.progress import Progress  # noqa: PLC0415

    at, count = parse_shard(shard)
    progress = Progress()
    words = search.lower().split()
    jobs = jobs_of(all_sources())
    chosen = [job for job in jobs if all(word in job.source.name.lower() for word in words)]
    mine = list(islice(chosen, at, None, count))
    made = record_models(out, jobs, progress.over(mine, "recording"), progress.say, again=again)
    progress.say(
        f"{out} has {made.recordings} recordings of {made.models} models; {made.missing} are not made yet, "
        f"{len(made.failed)} cannot be"
    )
    if made.failed:
        progress.say(f"why is in {out.with_suffix('.parts')}: {', '.join(made.failed)}")


def run_build(out: Path, search: str, shard: str, *, again: bool) -> None:
    """Traces the models whose names contain the words. Continues where an interrupted call stopped."""
    # Imported here, because torch and the model libraries are an extra.
    from vramcast.profile.building import build_catalog  # noqa: PLC0415
    from vramcast.profile.sources import all_sources  # noqa: PLC0415
    from vramcast.train.progress import Progress  # noqa: PLC0415

    at, count = parse_shard(shard)
    progress = Progress()
    words = search.lower().split()
    sources = list(all_sources())
    chosen = [source for source in sources if all(word in source.name.lower() for word in words)]
    mine = list(islice(chosen, at, None, count))
    built = build_catalog(out, sources, progress.over(mine, "tracing"), progress.say, again=again)
    progress.say(f"{out} has {built.models} models; {built.missing} are not traced yet, {len(built.failed)} cannot be")
    if built.failed:
        progress.say(f"why is in {out.with_suffix('.parts')}: {', '.join(built.failed)}")
