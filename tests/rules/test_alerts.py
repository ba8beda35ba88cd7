"""promtool checks the alert rules and the names of the metrics."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import yaml

from tests.api.client import Client
from tests.fakes import new_fake_service, sharing_node
from tests.rules.promtool import ALERTS, promtool
from tests.test_metrics_contract import outcome
from vramcast.settings import load_settings
from vramcast.task.run_status import Ending

pytestmark = pytest.mark.e2e

CASES = Path(__file__).parent / "alerts_test.yaml"


def test_the_rules_are_valid(tmp_path: Path) -> None:
    shutil.copy(ALERTS, tmp_path)
    promtool("check", "rules", "--lint=all", "--lint-fatal", "alerts.yaml", directory=tmp_path)


def test_each_alert_fires_when_it_should_and_not_before(tmp_path: Path) -> None:
    shutil.copy(ALERTS, tmp_path)
    shutil.copy(CASES, tmp_path)
    promtool("test", "rules", "alerts_test.yaml", directory=tmp_path)


def test_every_alert_has_a_test_case() -> None:
    names = {rule["alert"] for group in yaml.safe_load(ALERTS.read_text())["groups"] for rule in group["rules"]}
    text = CASES.read_text()
    assert {name for name in names if name not in text} == set()


def test_the_metrics_follow_prometheus_conventions(tmp_path: Path) -> None:
    settings = load_settings({"detail_metrics": True}, {})
    service = new_fake_service([sharing_node("a", 1)], settings=settings)
    for ending in Ending:
        service.tracker.accuracy.record(outcome(ending))
    text = Client(service).request("GET", "/metrics").body.decode()
    assert promtool("check", "metrics", directory=tmp_path, text=text) == ""
