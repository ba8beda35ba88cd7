"""The generated parts of the docs. `python -m tests.docs.tables` writes them; a test fails if they are stale."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from tests.chart.settings_schema import SCHEMA, values_schema
from tests.docs.accuracy import (
    accuracy_table,
    recorded_intervals_table,
    recorded_pooled_table,
    recorded_sources_table,
    recorded_table,
    summary_table,
)
from tests.docs.pages import REPOSITORY
from tests.docs.remedies import reasons_table
from tests.docs.step_time import coverage_table, gpus_table, networks_table
from tests.docs.totals import measured_totals_table, totals_table
from tests.fakes import new_fake_service
from tests.test_metrics_contract import CLOSED, CONTRACT, DETAIL
from vramcast.cli.annotations import markdown_rules, markdown_table, schema_text
from vramcast.settings import ENV_PREFIX, Settings, load_settings

CHART = REPOSITORY / "helm/vramcast"


def settings_page() -> str:
    rows = "\n".join(_setting_row(name) for name in Settings.model_fields)
    return f"""# Settings

Set them in a YAML file (`vramcast serve --config FILE`), in the environment (`{ENV_PREFIX}PORT=9000`) or, for some, as
flags (`--port 9000`). Flags override the environment, and the environment overrides the file. In the chart:
`settings.NAME`. At startup vramcast reports every invalid setting at once, with the file, variable or flag that set it.

To serve over TLS, set `tls_cert_file` and `tls_key_file`. A kube-scheduler can only authenticate with a client
certificate (`tls_client_ca_file` here, `tlsConfig` there). Without one, listen on loopback only.

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


def metrics_page() -> str:
    labels = {name: (kind, names) for name, kind, names in CONTRACT | DETAIL}
    families = _registered_metrics()
    always = [_metric_row(name, *labels[name], text) for name, text in families if (name, *labels[name]) in CONTRACT]
    detail = [_metric_row(name, *labels[name], text) for name, text in families if (name, *labels[name]) in DETAIL]
    values = (
        f"| `{label}` | {', '.join(f'`{value}`' for value in sorted(CLOSED[label]))} |" for label in sorted(CLOSED)
    )
    title = "| metric | type | labels | meaning |\n|---|---|---|---|"
    return f"""# Metrics

`GET /metrics` in the Prometheus text format, on `port` and, if set, on `metrics_port`. [Accuracy](accuracy.md) explains
how to read the accuracy metrics. Alerts: [operations](operations.md).

{title}
{_lines(always)}

With `detail_metrics: true` there is also a series for each pod and each GPU. That is a lot on a large cluster.

{title}
{_lines(detail)}

## Label values

`product`, `version`, `quantile` and the names of nodes, GPUs and pods come from the cluster. All other labels have a
fixed set of values; a metric may use only some of them.

| label | values |
|---|---|
{_lines(values)}
"""


def _registered_metrics() -> list[tuple[str, str]]:
    """(name as scraped, HELP text), in the order of /metrics."""
    service = new_fake_service(settings=load_settings({"detail_metrics": True}, {}))
    return re.findall(r"^# HELP (\w+) (.*)$", service.metrics.render().decode(), re.MULTILINE)


def _metric_row(name: str, kind: str, labels: tuple[str, ...], text: str) -> str:
    return f"| `{name}` | {kind} | {', '.join(labels)} | {text} |"


def _lines(rows: Iterable[str]) -> str:
    return "\n".join(rows)


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
    """A hand-written page, with the parts between `<!-- made: ... -->` marks regenerated."""

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
    "recorded-accuracy": recorded_table,
    "recorded-pooled": recorded_pooled_table,
    "recorded-sources": recorded_sources_table,
    "recorded-intervals": recorded_intervals_table,
    "totals": totals_table,
    "totals-measured": measured_totals_table,
    "reasons": reasons_table,
    "step-networks": networks_table,
    "step-gpus": gpus_table,
    "step-coverage": coverage_table,
}
_FILLED = [
    REPOSITORY / "docs" / name
    for name in ("annotations.md", "ci-check.md", "forecast.md", "step-time.md", "troubleshooting.md")
]
PAGES: dict[Path, Callable[[], str]] = {
    REPOSITORY / "docs/settings.md": settings_page,
    REPOSITORY / "docs/metrics.md": metrics_page,
    CHART / "README.md": chart_page,
    SCHEMA: values_schema,
    **{page: partial(filled, page) for page in _FILLED},
    REPOSITORY / "docs/annotations.schema.json": schema_text,
}

if __name__ == "__main__":
    for page, make in PAGES.items():
        page.write_text(make())
