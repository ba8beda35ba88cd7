"""The admission webhook of a real service, registered with a real API server."""

from __future__ import annotations

import base64
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from tests.chart.helm import Helm
from tests.controlplane import Api, ApiError, ControlPlane, Process, environment_as_in_the_image, free_port
from tests.e2e.conftest import RULES, RunningService
from tests.serve.identities import Identity, make_identity

Json = dict[str, Any]
# As the chart grants it with `settings.resource_slices`.
SLICES: Json = {
    "kind": "ClusterRole",
    "metadata": {"name": "vramcast-slices"},
    "rules": [{"apiGroups": ["resource.k8s.io"], "resources": ["resourceslices"], "verbs": ["list", "watch"]}],
}
_CONFIGURATIONS = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations"


@contextmanager
def admitting_service(plane: ControlPlane, directory: Path, **settings: Any) -> Iterator[RunningService]:
    """A service with its webhook for the namespaces with the label `admitted-by: NAME`, NAME that of the directory."""
    directory.mkdir(parents=True, exist_ok=True)
    authority = make_identity(directory, "authority")
    identity = make_identity(directory, "webhook", authority)
    port, webhook_port = free_port(), free_port()
    config = directory / "vramcast.yaml"
    given = {
        "webhook_port": webhook_port,
        "webhook_cert_file": str(identity.cert),
        "webhook_key_file": str(identity.key),
    }
    config.write_text(yaml.safe_dump({"port": port, **given, **settings}))
    kubeconfig = plane.kubeconfig_for(directory.name, [*yaml.safe_load_all(RULES.read_text()), SLICES])
    environment = {"KUBECONFIG": str(kubeconfig), **environment_as_in_the_image()}
    command = [sys.executable, "-m", "vramcast", "serve", "--config", str(config)]
    process = Process("vramcast", command, directory / "vramcast.log", environment)
    running = RunningService(process, f"http://127.0.0.1:{port}")
    running.start()
    try:
        _register(plane, directory.name, webhook_port, authority)
        yield running
    finally:
        plane.api.request("DELETE", f"{_CONFIGURATIONS}/{directory.name}")
        running.process.terminate()


def _register(plane: ControlPlane, name: str, port: int, authority: Identity) -> None:
    """The chart's webhooks, for other namespaces, and with the patience of a test."""
    trust = base64.b64encode(authority.cert.read_bytes()).decode()
    documents = Helm(plane.binaries.helm).template({"webhook": {"enabled": True, "dialects": ["dra"]}})
    (chart,) = (document for document in documents if document["kind"] == "MutatingWebhookConfiguration")
    changed = {
        "clientConfig": {"url": f"https://127.0.0.1:{port}/admit", "caBundle": trust},
        "namespaceSelector": {"matchLabels": {"admitted-by": name}},
        "failurePolicy": "Fail",
        "timeoutSeconds": 30,
    }
    webhooks = [webhook | changed for webhook in chart["webhooks"] if not webhook["name"].startswith("unshared")]
    plane.api.request("POST", _CONFIGURATIONS, {"metadata": {"name": name}, "webhooks": webhooks})


def create_namespace(api: Api, name: str, admitted_by: str) -> None:
    api.request("POST", "/api/v1/namespaces", {"metadata": {"name": name, "labels": {"admitted-by": admitted_by}}})


def paths(namespace: str, kinds: Sequence[str] = ("ResourceClaim", "ResourceClaimTemplate", "ResourceQuota")) -> Json:
    groups = {kind: "/api/v1" if kind == "ResourceQuota" else "/apis/resource.k8s.io/v1" for kind in kinds}
    return {kind: f"{group}/namespaces/{namespace}/{kind.lower()}s" for kind, group in groups.items()}


def is_registered(api: Api, namespace: str) -> bool:
    """The API server learns of a new webhook by a watch. Until then it creates objects as they are."""
    pod = {
        "metadata": {"name": "probe", "annotations": {"vramcast.dev/gpu-memory": "1Gi"}},
        "spec": {"containers": [{"name": "a", "image": "a", "resources": {"limits": {"nvidia.com/gpu": "1"}}}]},
    }
    try:
        made = api.request("POST", f"/api/v1/namespaces/{namespace}/pods", pod, query={"dryRun": "All"})
    except ApiError as error:
        if error.status >= 500:
            return False
        raise
    return "vramcast.dev/injected" in made["metadata"]["annotations"]
