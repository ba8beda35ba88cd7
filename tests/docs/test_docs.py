"""The docs match the code: tables, links, alerts and examples."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from prometheus_client import CollectorRegistry, generate_latest

from tests.docs.pages import DOCUMENTS, README, REPOSITORY, blocks
from tests.docs.tables import CHART, PAGES, chart_values
from tests.fakes import new_fake_service
from vramcast.agent.exporter import Looks
from vramcast.agent.gpus import GpuLook
from vramcast.cli.annotate import AnnotateOptions, run_annotate
from vramcast.cli.check import CheckOptions
from vramcast.cli.manifests import read_manifest
from vramcast.forecast.forecaster import PhysicsForecaster
from vramcast.names import Product
from vramcast.outcomes.runs import Unmeasured
from vramcast.settings import load_settings
from vramcast.task.schema import annotations_schema
from vramcast.task.task import DESCRIBES_NOTHING

EXAMPLES = sorted(REPOSITORY.glob("examples/*.yaml"))
SCHEMA = jsonschema.Draft202012Validator(annotations_schema(DESCRIBES_NOTHING))
LINK = re.compile(r"\]\(([^)\s]+)\)")
FILE = re.compile(r"`((?:bench|docs|examples|experiments|helm|requirements|service|tests)/[\w./-]+\.\w+)`")
# The changelog names what once was.
CURRENT = [page for page in DOCUMENTS if page.name != "CHANGELOG.md"]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(REPOSITORY)))
def test_generated_parts_are_up_to_date(page: Path) -> None:
    assert page.read_text() == PAGES[page](), "run: python -m tests.docs.tables"


def test_every_value_of_the_chart_is_described() -> None:
    def leaves(values: Any, path: str = "") -> Iterator[str]:
        for key, value in values.items():
            yield from leaves(value, f"{path}{key}.") if _has_parts(path + key) else [path + key]

    described = {path for path, _, _ in chart_values()}

    def _has_parts(path: str) -> bool:
        return any(other.startswith(f"{path}.") for other in described)

    assert set(leaves(yaml.safe_load((CHART / "values.yaml").read_text()))) == described


def test_the_schema_has_exactly_the_chart_values() -> None:
    def names(schema: Any, path: str = "") -> Iterator[str]:
        for key, part in schema["properties"].items():
            if "properties" in part:
                yield from names(part, f"{path}{key}.")
            else:
                yield path + key

    schema = json.loads((CHART / "values.schema.json").read_text())
    # Helm's own, and the certificates that the chart generates while it renders.
    made = {"global", "_certificates", "_webhookCertificate"}
    assert set(names(schema)) - made == {path for path, _, _ in chart_values()}


def anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading).lower().replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", DOCUMENTS, ids=lambda page: str(page.relative_to(REPOSITORY)))
def test_links_and_anchors_exist(page: Path) -> None:
    for link in LINK.findall(page.read_text()):
        if link.startswith(("http://", "https://")):
            continue
        file, _, anchor = link.partition("#")
        target = (page.parent / file) if file else page
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link


@pytest.mark.parametrize("page", CURRENT, ids=lambda page: str(page.relative_to(REPOSITORY)))
def test_files_and_metrics_that_a_page_names_exist(page: Path) -> None:
    text = page.read_text()
    assert [file for file in FILE.findall(text) if not (REPOSITORY / file).exists()] == []
    named = set(re.findall(r"\bvramcast_[a-z_]+[a-z]\b(?!\*|_\*|\.)", text))
    assert named <= metric_names()


def agent_metrics() -> str:
    class NoGpus:
        def gpus(self) -> list[GpuLook]:
            return []

    registry = CollectorRegistry()
    registry.register(Looks(NoGpus(), "a", Path("/proc")))
    return generate_latest(registry).decode()


def metric_names() -> set[str]:
    service = new_fake_service(settings=load_settings({"detail_metrics": True}, {}))
    text = service.metrics.render().decode() + agent_metrics()
    families = re.findall(r"^# TYPE (\w+) (\w+)$", text, re.MULTILINE)
    histograms = [name for name, kind in families if kind == "histogram"]
    return {name for name, _ in families} | {f"{name}_{part}" for name in histograms for part in ("bucket", "count")}


def test_alerts_and_dashboard_use_existing_metrics() -> None:
    text = (CHART / "files/alerts.yaml").read_text() + (CHART / "files/dashboard.json").read_text()
    asked = set(re.findall(r"\bvramcast_\w+", text))
    assert asked
    assert asked <= metric_names()


def test_the_dashboard_says_for_every_unmeasured_run_what_to_switch_on() -> None:
    panels = json.loads((CHART / "files/dashboard.json").read_text())["panels"]
    (panel,) = [panel for panel in panels if "what to switch on" in panel["title"]]
    pattern = re.compile(r'vramcast_unmeasured_runs_total\{why="(\w+)"\}')
    texts = {pattern.findall(target["expr"])[0]: target["legendFormat"] for target in panel["targets"]}
    assert texts.keys() == set(Unmeasured)
    assert "agent.enabled" in texts[Unmeasured.UNCLEAR]
    assert "exit reports" in texts[Unmeasured.UNCLEAR]


def test_no_two_panels_of_the_dashboard_overlap() -> None:
    panels = json.loads((CHART / "files/dashboard.json").read_text())["panels"]
    cells = [
        (x, y)
        for at in (panel["gridPos"] for panel in panels)
        for x in range(at["x"], at["x"] + at["w"])
        for y in range(at["y"], at["y"] + at["h"])
    ]
    assert len(cells) == len(set(cells))
    assert len({panel["id"] for panel in panels}) == len(panels)


def check(path: Path) -> int:
    return run_annotate([path], AnnotateOptions({}), in_place=False, check=CheckOptions(), diff=False)


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: str(path.name))
def test_the_examples_are_valid_and_have_a_forecast(example: Path) -> None:
    assert check(example) == 0
    described = [found for found in read_manifest(example).found if found.described]
    assert described
    for found in described:
        record, template = found.record, found.template
        assert record is not None
        assert record.task is not None
        assert SCHEMA.is_valid(dict(template.annotations))
        assert PhysicsForecaster(0.05).forecast(record.task, Product("Tesla-T4")).bound_bytes > 0
        if found.relies_on_webhook:
            continue
        if template.names_scheduler:
            assert template.spec["schedulerName"] == "vramcast-scheduler"
        if record.task.share and record.task.gpu_memory_mib != 900 * 1024:
            variables = {v["name"]: v for v in template.spec["containers"][0]["env"]}
            field = variables["NVIDIA_VISIBLE_DEVICES"]["valueFrom"]["fieldRef"]["fieldPath"]
            assert field == "metadata.annotations['vramcast.dev/gpu-indices']"


def test_every_framework_has_a_worked_example() -> None:
    page = (REPOSITORY / "docs/annotations.md").read_text()
    shown = dict.fromkeys(re.findall(r"^### (.+)$", page, re.MULTILINE), 0)
    for section in re.split(r"^### ", page, flags=re.MULTILINE)[1:]:
        shown[section.splitlines()[0]] = len(re.findall(r"<!-- made: examples/", section))
    assert shown.keys() == {"Plain PyTorch", "Hugging Face Trainer", "Lightning", "Kubeflow", "Ray"}
    assert all(shown.values())


def test_the_manifest_of_the_readme_is_the_shortest_example() -> None:
    """Ten lines, as tests/chart/test_webhook.py runs them."""
    (manifest,) = blocks(README, "yaml")
    comment, _, text = (REPOSITORY / "examples/annotated.yaml").read_text().partition("\n")
    assert comment.startswith("#")
    assert manifest == text
    assert len(manifest.splitlines()) == 10


def test_the_readme_reports_the_measured_accuracy() -> None:
    """Its cross-validated rows; the others are in docs/forecast.md."""
    manifest = json.loads((REPOSITORY / "model_artifacts/manifest.json").read_text())
    timm, cnn, mlp, xmem = (
        next(entry for entry in manifest["accuracy"] if entry["slice"] == name)
        for name in ("timm-a100", "gpumemnet-cnn", "gpumemnet-mlp", "xmem")
    )
    rows = [row.split(" | ")[1:] for row in README.read_text().splitlines() if row.startswith("| fp32 ")]
    assert rows == [
        [f"{timm['rows']:,}", _percent(timm["median_error"], 1), *_bound(timm)],
        [
            f"{cnn['rows'] + mlp['rows']:,}",
            f"{_percent(cnn['median_error'], 1)}, {_percent(mlp['median_error'], 1)}",
            _bound(cnn)[0],
            f"{_percent(cnn['over_reservation']['0.05'])}, {_percent(mlp['over_reservation']['0.05'], 1)} |",
        ],
        [f"{xmem['rows']:,}", _percent(xmem["median_error"], 1), *_bound(xmem)],
    ]


def _bound(entry: dict[str, Any]) -> list[str]:
    return [_percent(entry["coverage"]["0.05"]), f"{_percent(entry['over_reservation']['0.05'])} |"]


def _percent(share: float, digits: int = 0) -> str:
    return f"{100 * share:.{digits}f} %"
