"""`kubectl vramcast` as people have it: the archive of `make dist`, a real kubectl, the chart's Service and role."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.chart.helm import REPOSITORY, Helm
from tests.chart.webhook import own_address
from tests.controlplane import PATIENCE_SECONDS, Api, ApiError, ControlPlane

Json = dict[str, Any]
NAMESPACE = "vramcast-system"
SERVICE = "vramcast-view"
ROLE = "vramcast-viewer"


@dataclass(frozen=True, slots=True)
class Printed:
    code: int
    output: str
    errors: str

    def row(self, first: str) -> str:
        """The line of a table that starts with this word, with single spaces."""
        (found,) = (line for line in self.output.splitlines() if line.split()[:1] == [first])
        return re.sub(r" +", " ", found)


@dataclass(frozen=True, slots=True)
class Plugin:
    """`directory` has the unpacked archive; kubectl finds the plugin because it is on PATH."""

    directory: Path
    kubectl: Path
    kubeconfig: Path

    def run(self, *arguments: str, manifest: str | None = None, path: str | None = None) -> Printed:
        # The Python of the tests, and what the archive's first line needs to find it.
        found = f"{self.directory}:{self.kubectl.parent}:{Path(sys.executable).parent}:/usr/bin:/bin"
        environment = {**os.environ, "PATH": path or found, "KUBECONFIG": str(self.kubeconfig)}
        environment.pop("PYTHONPATH", None)
        done = subprocess.run(
            [str(self.kubectl), "vramcast", *arguments], input=manifest, env=environment, capture_output=True,
            text=True, timeout=PATIENCE_SECONDS, check=False,
        )  # fmt: skip
        return Printed(done.returncode, done.stdout, done.stderr)

    def out(self, *arguments: str, **more: Any) -> Printed:
        printed = self.run(*arguments, **more)
        assert printed.code == 0, printed.errors
        assert printed.errors == ""
        return printed

    def trouble(self, *arguments: str, **more: Any) -> str:
        printed = self.run(*arguments, **more)
        assert printed.code == 1, printed.output
        assert "Traceback" not in printed.errors
        return printed.errors


def unpack_plugin(directory: Path) -> Path:
    """Builds the archive, and unpacks it as krew does."""
    command = [sys.executable, "service/build_plugin.py", "--out", str(directory), "--releases", "https://example.com"]
    subprocess.run(command, cwd=REPOSITORY, check=True)
    (archive,) = directory.glob("*.tar.gz")
    with tarfile.open(archive) as tar:
        tar.extractall(directory / "plugin", filter="data")
    return directory / "plugin"


def install_view(plane: ControlPlane) -> None:
    """What the chart installs for the view."""
    chart = Helm(plane.binaries.helm).template({"view": {"enabled": True}}, namespace=NAMESPACE)
    create(plane.api, "/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})
    for document in chart:
        kind, name = document["kind"], document["metadata"]["name"]
        if (kind, name) == ("Service", SERVICE):
            create(plane.api, f"/api/v1/namespaces/{NAMESPACE}/services", document)
        if (kind, name) == ("ClusterRole", ROLE):
            create(plane.api, "/apis/rbac.authorization.k8s.io/v1/clusterroles", document)


def create(api: Api, path: str, body: Json) -> None:
    try:
        api.request("POST", path, body)
    except ApiError as error:
        if error.reason != "AlreadyExists":
            raise


def point_view_at(api: Api, *ports: int) -> None:
    """What the endpoint controller does for each ready pod. The API server checks that an endpoint is a pod's."""
    namespaced, address = f"/api/v1/namespaces/{NAMESPACE}", own_address()
    replica = {"metadata": {"name": "vramcast-0"}, "spec": {"containers": [{"name": "vramcast", "image": "vramcast"}]}}
    create(api, f"{namespaced}/pods", replica)
    api.patch_pod_status("vramcast-0", {"status": {"podIP": address, "podIPs": [{"ip": address}]}}, NAMESPACE)
    target = {"kind": "Pod", "namespace": NAMESPACE, "name": "vramcast-0"}
    subsets = [
        {"addresses": [{"ip": address, "targetRef": target}], "ports": [{"name": "view", "port": port}]}
        for port in ports
    ]
    body = {"metadata": {"name": SERVICE}, "subsets": subsets}
    create(api, f"{namespaced}/endpoints", body)
    api.request("PUT", f"{namespaced}/endpoints/{SERVICE}", body)


@contextmanager
def second_install(api: Api) -> Iterator[None]:
    path = "/api/v1/namespaces/default/services"
    labels = {"vramcast.dev/service": "view"}
    body = {"metadata": {"name": "other-view", "labels": labels}, "spec": {"ports": [{"name": "view", "port": 8890}]}}
    api.request("POST", path, body)
    try:
        yield
    finally:
        api.request("DELETE", f"{path}/other-view")
