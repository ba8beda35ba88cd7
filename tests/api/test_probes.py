"""The port for kubelets and Prometheus is open to the network, so it serves only probes and metrics."""

from __future__ import annotations

import pytest

from tests.api.client import Client
from tests.fakes import new_fake_service, sharing_node
from vramcast.api.http import Surface, new_http_app


@pytest.fixture
def probes() -> Client:
    client = Client(new_fake_service([sharing_node("a", 2)]))
    client.app = new_http_app(client.service, Surface.PROBES)
    return client


@pytest.mark.parametrize("path", ["/healthz", "/readyz", "/metrics"])
def test_probes_and_metrics_are_served(probes: Client, path: str) -> None:
    assert probes.request("GET", path).status == 200


@pytest.mark.parametrize("path", ["/filter", "/prioritize", "/bind", "/preempt", "/forecast", "/explain", "/state"])
def test_every_other_path_is_404(probes: Client, path: str) -> None:
    assert probes.request("POST", path, b"{}").status == 404
