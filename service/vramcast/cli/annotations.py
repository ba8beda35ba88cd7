"""`vramcast annotations`: prints the vocabulary as a table, as Markdown for the docs, or as a JSON Schema."""

from __future__ import annotations

import json
import sys

from rich import box
from rich.console import Console
from rich.table import Table

from vramcast.cli.yaml_edits import scalar
from vramcast.errors import InvalidInput
from vramcast.task.schema import annotations_schema
from vramcast.task.task import DESCRIBES_NOTHING
from vramcast.task.vocabulary import ENOUGH, KEYS, PREFIX, RULES, Condition, Key, Rule

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
    """The table in docs/annotations.md."""
    rows = (
        f"| `{key.name}` | {key.meaning} | {_values(key)} | {_default(key)} | {belongs(key)} |" for key in KEYS.values()
    )
    return "\n".join(("| annotation | meaning | values | default | belongs to |", "|---|---|---|---|---|", *rows, ""))


def markdown_rules() -> str:
    """The table of contradictions in docs/annotations.md."""
    return "\n".join(("| where | then |", "|---|---|", *(_rule_row(rule) for rule in RULES), ""))


def _rule_row(rule: Rule) -> str:
    where = _condition(rule.when) + (f", unless {_condition(rule.unless)}" if rule.unless else "")
    forbidden = f"no {' and no '.join(f'`{name}`' for name in rule.forbids)}" if rule.forbids else ""
    needed = f"also {', '.join(f'`{name}`' for name in rule.needs)}" if rule.needs else ""
    return f"| {where} | {forbidden or needed} |"


def _condition(condition: Condition) -> str:
    return ", ".join(
        f"`{name}` is {', '.join(f'`{value}`' for value in values)}" if values else f"`{name}` is given"
        for name, values in condition.items()
    )


def _values(key: Key) -> str:
    return ", ".join(f"`{value}`" for value in _written(key))


def _written(key: Key) -> list[str]:
    """As written in YAML: quoted where YAML would not read a string."""
    return [scalar(choice) for choice in key.form.choices] or [key.example]


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
        table.add_row(key.name, key.meaning, ", ".join(_written(key)), key.default, belongs(key))
    console.print(f"Prefix them with [bold]{PREFIX}[/bold] and put them in the annotations of the pod (template).")
    console.print(table)
    console.print("Each of these is enough for a forecast:")
    for level, names in ENOUGH.items():
        console.print(f"  [dim]{level:8}[/dim] {', '.join(names)}")
    console.print("\n[dim]vramcast annotate -f job.yaml --set KEY=VALUE[/dim] puts them in the right place.")
