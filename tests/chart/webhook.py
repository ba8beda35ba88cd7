"""The webhook of a release without kube-proxy and endpoint controller: its Service, pointed at a process by hand."""

from __future__ import annotations

import base64
import http.server
import json
import re
import shutil
import socket
import ssl
import subprocess
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from tests.chart.conftest import NAMESPACE
from tests.controlplane import PATIENCE_SECONDS, Api, ApiError, ControlPlane
from tests.rules.promtool import ALERTS, promtool
from tests.serve.identities import make_identity

Json = dict[str, Any]
SLICES = f"/apis/discovery.k8s.io/v1/namespaces/{NAMESPACE}/endpointslices"
SERVICE = "vramcast-webhook"


def own_address() -> str:
    """An address of this machine that is not loopback, which Kubernetes does not accept as an endpoint."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(("192.0.2.1", 9))  # sends nothing
        address: str = probe.getsockname()[0]
        return address


def point_service_at(api: Api, port: int) -> None:
    """What the endpoint controller does when a pod becomes ready."""
    endpoints = {
        "metadata": {"name": SERVICE, "labels": {"kubernetes.io/service-name": SERVICE}},
        "addressType": "IPv4",
        "endpoints": [{"addresses": [own_address()], "conditions": {"ready": True}}],
        "ports": [{"name": "webhook", "port": port, "protocol": "TCP"}],
    }
    try:
        api.request("POST", SLICES, endpoints)
    except ApiError as error:
        if error.reason != "AlreadyExists":
            raise
        api.patch(f"{SLICES}/{SERVICE}", {"ports": endpoints["ports"]})


@dataclass(frozen=True, slots=True)
class Told:
    """What kubectl printed."""

    output: str
    warnings: list[str]


def kubectl(plane: ControlPlane, *arguments: str, manifest: str | None = None) -> Told:
    command = [str(plane.binaries.kubectl), f"--kubeconfig={plane.kubeconfig}", *arguments]
    done = subprocess.run(
        command, input=manifest, capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False
    )
    if done.returncode:
        raise RuntimeError(done.stderr)
    return Told(done.stdout, re.findall(r"^Warning: (.*)$", done.stderr, re.MULTILINE))


def failed_open(plane: ControlPlane) -> dict[str, float]:
    """How often the API server let an object pass because a webhook of ours did not answer, by series."""
    series = r'^(apiserver_admission_webhook_fail_open_count\{name="[^"]*vramcast\.dev".*\}) (\S+)$'
    found = re.findall(series, plane.kubectl("get", "--raw=/metrics"), re.MULTILINE)
    return {name: float(value) for name, value in found}


def fires(alert: str, before: dict[str, float], after: dict[str, float], directory: Path) -> bool:
    """Whether Prometheus raises the alert where these series go from one value to the other."""
    shutil.copy(ALERTS, directory)
    series = [
        {"series": name, "values": f"{before[name]:g}x20 {value:g}x5" if name in before else f"_x20 {value:g}x5"}
        for name, value in after.items()
    ]
    query = f'count(ALERTS{{alertname="{alert}", alertstate="firing"}})'
    expected = {"expr": query, "eval_time": "24m", "exp_samples": [{"labels": "{}", "value": 1}]}
    case = {"interval": "1m", "input_series": series, "promql_expr_test": [expected]}
    rules = {"rule_files": [ALERTS.name], "evaluation_interval": "1m", "tests": [case]}
    (directory / "case.yaml").write_text(yaml.safe_dump(rules))
    return "SUCCESS" in promtool("test", "rules", "case.yaml", directory=directory)


class OtherWebhook:
    """Adds a sidecar to every pod that it is asked about and that has none, over TLS on loopback."""

    def __init__(self, directory: Path) -> None:
        authority = make_identity(directory, "other-ca")
        identity = make_identity(directory, "other", signed_by=authority)
        self.ca_bundle = base64.b64encode(authority.cert.read_bytes()).decode()
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(identity.cert, identity.key)
        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _AddSidecar)
        self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        self._thread = threading.Thread(target=self._server.serve_forever)

    @property
    def url(self) -> str:
        return f"https://127.0.0.1:{self._server.server_address[1]}/"

    def __enter__(self) -> OtherWebhook:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


class _AddSidecar(http.server.BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        review = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        response: Json = {"uid": review["request"]["uid"], "allowed": True}
        if len(review["request"]["object"]["spec"]["containers"]) == 1:
            sidecar = {"name": "sidecar", "image": "proxy"}
            patch = json.dumps([{"op": "add", "path": "/spec/containers/-", "value": sidecar}])
            response |= {"patchType": "JSONPatch", "patch": base64.b64encode(patch.encode()).decode()}
        answer = json.dumps({"apiVersion": review["apiVersion"], "kind": "AdmissionReview", "response": response})
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.end_headers()
        self.wfile.write(answer.encode())

    def log_message(self, *_: object) -> None: ...
