"""Every alert links to a runbook, and every runbook has its alert and queries that work."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import yaml

from tests.docs.pages import blocks
from tests.rules.promtool import ALERTS, promtool

REPOSITORY = Path(__file__).parents[2]
RUNBOOKS = {page.name: page for page in sorted(REPOSITORY.glob("docs/runbooks/*.md"))}
RULES = {rule["alert"]: rule for group in yaml.safe_load(ALERTS.read_text())["groups"] for rule in group["rules"]}
BASE = "https://vramcast.dev/docs/runbooks"
SECTIONS = ["Which pods", "Likely causes", "Remedies", "When to silence"]
# They fire on a forecast that is wrong, so their pages compare the pods with their median and bound.
ABOUT_FORECASTS = {"VramcastCoverageLow", "VramcastOoms", "VramcastOverReservation", "VramcastDrift"}


def page_name(alert: str) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", "-", alert).lower() + ".md"


def test_every_alert_has_a_runbook_and_every_runbook_an_alert() -> None:
    assert set(RUNBOOKS) == {page_name(alert) for alert in RULES}


@pytest.mark.parametrize("alert", RULES)
def test_the_alert_links_to_its_runbook(alert: str) -> None:
    assert RULES[alert]["annotations"]["runbook_url"] == f"{BASE}/{page_name(alert)}"
    assert RUNBOOKS[page_name(alert)].read_text().startswith(f"# {alert}\n")


@pytest.mark.parametrize("alert", RULES)
def test_the_runbook_names_pods_causes_and_remedies(alert: str) -> None:
    page = RUNBOOKS[page_name(alert)]
    headings = re.findall(r"^## (.+)$", page.read_text(), re.MULTILINE)
    wanted = [SECTIONS[0], "Median and bound", *SECTIONS[1:]] if alert in ABOUT_FORECASTS else SECTIONS
    assert headings == wanted
    assert blocks(page, "promql") or blocks(page, "sh")


def test_operations_lists_every_runbook_once() -> None:
    linked = re.findall(r"\(runbooks/(\S+\.md)\)", (REPOSITORY / "docs/operations.md").read_text())
    assert sorted(linked) == sorted(RUNBOOKS)


def test_the_chart_replaces_the_address_that_the_alerts_have() -> None:
    values = yaml.safe_load((REPOSITORY / "helm/vramcast/values.yaml").read_text())
    assert values["metrics"]["prometheusRule"]["runbookBaseUrl"] == BASE
    assert f'replace "{BASE}"' in (REPOSITORY / "helm/vramcast/templates/monitors.yaml").read_text()


@pytest.mark.e2e
def test_prometheus_parses_every_query(tmp_path: Path) -> None:
    queries = [query for page in RUNBOOKS.values() for query in blocks(page, "promql")]
    rules = [{"record": f"runbook:query{number}", "expr": query} for number, query in enumerate(queries)]
    (tmp_path / "rules.json").write_text(json.dumps({"groups": [{"name": "runbooks", "rules": rules}]}))
    promtool("check", "rules", "rules.json", directory=tmp_path)


def test_queries_use_metrics_that_exist() -> None:
    known = (REPOSITORY / "docs/metrics.md").read_text()
    for page in RUNBOOKS.values():
        for name in re.findall(r"\bvramcast_\w+", page.read_text()):
            plain = re.sub(r"_(bucket|count|sum)$", "", name)
            assert f"`{name}`" in known or f"`{plain}`" in known, f"{page.name}: {name}"
