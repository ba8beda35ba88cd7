"""The chart's ClusterRole grants exactly what the service needs."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import yaml

RULES = Path(__file__).parents[2] / "helm" / "vramcast" / "files" / "rules.yaml"

# test_kubernetes_e2e.py proves on a real API server that these are enough.
NEEDED = {
    ("list", "nodes"),
    ("watch", "nodes"),
    ("get", "pods"),
    ("list", "pods"),
    ("watch", "pods"),
    ("create", "pods/binding"),
    ("patch", "pods/status"),
    ("create", "events"),
}


def test_the_role_grants_exactly_what_is_needed() -> None:
    role = yaml.safe_load(RULES.read_text())
    assert (role["kind"], role["metadata"]["name"]) == ("ClusterRole", "vramcast-extender")
    assert all(rule["apiGroups"] == [""] for rule in role["rules"])
    granted = [pair for rule in role["rules"] for pair in product(rule["verbs"], rule["resources"])]
    assert sorted(granted) == sorted(NEEDED)
