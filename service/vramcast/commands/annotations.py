"""`vramcast annotations`: the vocabulary as a table, as Markdown for the docs, and as a JSON Schema."""

from __future__ import annotations

import json
import sys

from rich import box
from rich.console import Console
from rich.table import Table

from vramcast.core.errors import InvalidInput
from vramcast.core.schema import annotations_schema
from vramcast.core.task import DESCRIBES_NOTHING
from vramcast.core.vocabulary import ENOUGH, KEYS, PREFIX, Key

OUTPUTS = ("table", "markdown", "json-schema")


def run_annotations(output: str) -> None:
    if output not in OUTPUTS:
        raise InvalidInput(f"--output {output!r}: expected {', '.join(OUTPUTS)}")
    if output == "table":
        _print()
    else:
        sys.stdout.write(markdown_table() if output == "markdown" else schema_text())


def schema_text() -> str:
    return json.dumps(annotations_schema(DESCRIBES_NOTHING), indent=2, ensure_ascii=False) + "\n"


def markdown_table() -> str:
    """As README.md and docs/annotations.md have it."""
    rows = (
        f"| `{key.name}` | {key.meaning} | {_values(key)} | {_default(key)} | {belongs(key)} |" for key in KEYS.values()
    )
    return "\n".join(("| annotation | meaning | values | default | belongs to |", "|---|---|---|---|---|", *rows, ""))


def _values(key: Key) -> str:
    choices = ", ".join(f"`{choice}`" for choice in key.form.choices)
    return choices or f"`{key.example}`"


def _default(key: Key) -> str:
    return f"`{key.default}`" if key.default else ""


def belongs(key: Key) -> str:
    return ", ".join(key.levels) or "every pod"


def _print() -> None:
    console = Console()
    console = Console(width=None if console.is_terminal else 110)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("annotation", style="bold", no_wrap=True)
    table.add_column("meaning")
    table.add_column("values")
    table.add_column("default")
    table.add_column("belongs to", style="dim")
    for key in KEYS.values():
        table.add_row(key.name, key.meaning, ", ".join(key.form.choices) or key.example, key.default, belongs(key))
    console.print(f"All start with [bold]{PREFIX}[/bold] and stand among the annotations of the pod (template).")
    console.print(table)
    console.print("Enough for a forecast, each by itself:")
    for level, names in ENOUGH.items():
        console.print(f"  [dim]{level:8}[/dim] {', '.join(names)}")
    console.print("\n[dim]vramcast annotate -f job.yaml --set KEY=VALUE[/dim] writes them where they belong.")
