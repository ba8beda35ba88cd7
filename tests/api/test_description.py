"""The OpenAPI description: every route is in it, and every answer is as it says."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
import schemathesis
from hypothesis import HealthCheck, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from tests.api.client import Client
from tests.controlplane.eventually import PATIENCE_SECONDS
from tests.fakes import new_fake_service, pod_manifest, shared_pod, sharing_node, whole_node
from vramcast.api import advice_models, models
from vramcast.api.server import new_app
from vramcast.settings import load_settings

# Route, and the models of its body and of its answer.
ROUTES = {
    "POST /filter": ("NodeArgs", "FilterAnswer"),
    "POST /prioritize": ("NodeArgs", "PrioritizeAnswer"),
    "POST /bind": ("BindArgs", "BindAnswer"),
    "POST /preempt": ("PreemptArgs", "PreemptAnswer"),
    "POST /forecast": ("PodManifest", "ForecastAnswer"),
    "POST /advise": ("PodManifest", "AdviseAnswer"),
    "POST /explain": ("PodManifest", "ExplainAnswer"),
    "GET /state": (None, "StateAnswer"),
    "GET /records": (None, "RecordsAnswer"),
    "GET /cluster": (None, "ClusterBars"),
    "GET /pods": (None, "PodsView"),
    "GET /pods/{namespace}/{name}": (None, "PodView"),
    "GET /pods/{namespace}/{name}/nodes": (None, "ExplainAnswer"),
    "GET /models": (None, "ModelsView"),
    "POST /sweep": ("PodManifest", "SweepView"),
    "POST /step": ("PodManifest", "StepView"),
    "GET /accuracy": (None, "AccuracyView"),
    "GET /healthz": (None, None),
    "GET /readyz": (None, None),
    "GET /metrics": (None, None),
}
CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]


def new_client() -> Client:
    made = load_settings({"hold_wait_seconds": 0, "log_level": "error"}, {})
    return Client(new_fake_service([sharing_node("a", 2), whole_node("w")], settings=made))


schema = schemathesis.openapi.from_asgi("/openapi.json", new_app(new_client().service))


@schema.parametrize()
@settings(max_examples=20, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
def test_no_answer_is_outside_its_schema(case: schemathesis.Case) -> None:
    case.call_and_validate(checks=CHECKS, timeout=PATIENCE_SECONDS)


def test_the_description_has_every_route_with_its_models() -> None:
    described = new_client().request("GET", "/openapi.json").json()
    found = {
        f"{method.upper()} {path}": (_model(operation.get("requestBody")), _model(operation["responses"]["200"]))
        for path, operations in described["paths"].items()
        for method, operation in operations.items()
    }
    assert found == ROUTES


def _model(described: dict[str, Any] | None) -> str | None:
    schema = (described or {}).get("content", {}).get("application/json", {}).get("schema", {})
    name: str = schema.get("$ref", "")
    return name.rpartition("/")[2] or None


def test_every_route_has_a_summary_and_every_body_an_example_or_fields_with_examples() -> None:
    described = new_client().request("GET", "/openapi.json").json()
    for operations in described["paths"].values():
        assert all(operation["summary"] for operation in operations.values())
    for name in {body for body, _ in ROUTES.values() if body}:
        body = described["components"]["schemas"][name]
        fields = body["properties"].values()
        assert body.get("examples") or all(field.get("examples") for field in fields), name


def test_the_example_pod_is_forecast_and_placed() -> None:
    client = new_client()
    assert client.feasible(models.EXAMPLE_POD, ["a", "w"]) == ["a"]


@pytest.mark.parametrize(
    ("path", "model", "pod"),
    [
        ("/state", models.StateAnswer, None),
        ("/records?names=true", models.RecordsAnswer, None),
        ("/forecast", models.ForecastAnswer, shared_pod("p")),
        ("/advise", advice_models.AdviseAnswer, pod_manifest("p", {"model": "timm/resnet50", "batch-size": "2048"})),
        ("/advise?gpu=T4", advice_models.AdviseAnswer, shared_pod("p", "60Gi")),
        ("/explain", models.ExplainAnswer, shared_pod("p")),
        ("/explain", models.ExplainAnswer, pod_manifest("p", {"batch-size": "many"})),
    ],
)
def test_an_answer_has_exactly_the_fields_of_its_model(path: str, model: Any, pod: Any) -> None:
    client = new_client()
    tenant = shared_pod("tenant", "4Gi")
    client.feasible(tenant, ["a"])
    client.place(tenant, "a")
    client.feasible(shared_pod("other", "2Gi"), ["a"])
    answer = client.request("POST", path, msgspec.json.encode(pod)) if pod else client.request("GET", path)
    assert answer.status == 200
    model.model_validate_json(answer.body)


@pytest.mark.parametrize("name", ["swagger-ui.css", "swagger-ui-bundle.js", "start.js"])
def test_docs_needs_no_other_host(name: str) -> None:
    client = new_client()
    page = client.request("GET", "/docs").body.decode()
    assert f'"docs/{name}"' in page
    assert "//" not in page.replace("<!doctype html>", "")
    assert client.request("GET", f"/docs/{name}").status == 200
    assert client.request("GET", "/docs/..%2fhttp.py").status == 404
