"""The tables that are made from the code: `python -m tests.docs.tables` writes them, a test holds them to it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from tests.docs.accuracy import accuracy_table, summary_table
from vramcast.cli.annotations import markdown_rules, markdown_table, schema_text
from vramcast.settings import ENV_PREFIX, Settings

REPOSITORY = Path(__file__).parents[2]
CHART = REPOSITORY / "helm/vramcast"


def settings_page() -> str:
    rows = "\n".join(_setting_row(name) for name in Settings.model_fields)
    return f"""# Settings

From a YAML file (`vramcast serve --config FILE`), from the environment (`{ENV_PREFIX}PORT=9000`), or, for some, as
flags (`--port 9000`). Flags win over the environment, the environment over the file. In the chart: `settings.NAME`.
Every mistake is reported at once, with where it stands.

| setting | default | what it does |
|---|---|---|
{rows}
"""


def _setting_row(name: str) -> str:
    field = Settings.model_fields[name]
    return f"| `{name}` | {_shown(field.default)} | {field.description} |"


def _shown(value: Any) -> str:
    if value is None or value == "":
        return "none"
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"


def chart_page() -> str:
    rows = "\n".join(f"| `{path}` | {default} | {text} |" for path, default, text in chart_values())
    return f"""# The chart

{yaml.safe_load((CHART / "Chart.yaml").read_text())["description"]}. How to install it, by mode:
[docs/install.md](../../docs/install.md); in ten minutes: [docs/quick-start.md](../../docs/quick-start.md).

| value | default | what it does |
|---|---|---|
{rows}
"""


def chart_values() -> Iterator[tuple[str, str, str]]:
    """(path, default, description) for every `# --` of values.yaml."""
    lines = (CHART / "values.yaml").read_text().splitlines()
    values = yaml.safe_load("\n".join(lines))
    path: list[str] = []
    text = ""
    for line in lines:
        stripped = line.strip()
        if stripped.startswith("# -- "):
            text = stripped.removeprefix("# -- ")
        elif stripped and not stripped.startswith(("#", "-")):
            depth = (len(line) - len(line.lstrip())) // 2
            path = [*path[:depth], stripped.partition(":")[0]]
            if text:
                yield ".".join(path), _default(values, path), text
                text = ""


def _default(values: Any, path: list[str]) -> str:
    for key in path:
        values = values[key]
    if values in ("", None):
        return "none"
    shown = yaml.safe_dump(values, default_flow_style=True, width=10_000).strip().removesuffix("...").strip()
    return f"`{shown}`"


_MADE = re.compile(r"(<!-- made: (\S+) -->\n).*?(<!-- /made -->)", re.DOTALL)


def filled(page: Path) -> str:
    """A page that people write, with the parts between `<!-- made: ... -->` marks made anew."""

    def make(match: re.Match[str]) -> str:
        name = match[2]
        made = _TABLES.get(name, partial(_example, name))()
        return f"{match[1]}{made}{match[3]}"

    return _MADE.sub(make, page.read_text())


def _example(name: str) -> str:
    return f"```yaml\n{(REPOSITORY / name).read_text()}```\n"


_TABLES = {
    "annotations": markdown_table,
    "rules": markdown_rules,
    "accuracy": accuracy_table,
    "summary-accuracy": summary_table,
}
FORECAST = REPOSITORY / "docs/forecast.md"
README, ANNOTATIONS = REPOSITORY / "README.md", REPOSITORY / "docs/annotations.md"
PAGES = {
    REPOSITORY / "docs/settings.md": settings_page,
    CHART / "README.md": chart_page,
    README: partial(filled, README),
    ANNOTATIONS: partial(filled, ANNOTATIONS),
    FORECAST: partial(filled, FORECAST),
    REPOSITORY / "docs/annotations.schema.json": schema_text,
}

if __name__ == "__main__":
    for page, make in PAGES.items():
        page.write_text(make())
