"""A thin API client for tests: raw JSON over a few keep-alive connections, fast enough for thousands of objects.

The tests do not use the service's client, because both would share its mistakes.
"""

from __future__ import annotations

import base64
import ssl
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlencode

import orjson
import urllib3
import yaml

from .eventually import PATIENCE_SECONDS

Json = dict[str, Any]
T = TypeVar("T")
R = TypeVar("R")

MERGE_PATCH = "application/merge-patch+json"
JSON = "application/json"


class ApiError(RuntimeError):
    """The API server refused; `status` is the HTTP code and `reason` the one in the response."""

    def __init__(self, method: str, path: str, status: int, body: bytes) -> None:
        try:
            answer = orjson.loads(body)
        except orjson.JSONDecodeError:
            answer = {}
        self.status = status
        self.reason = str(answer.get("reason", ""))
        super().__init__(f"{method} {path}: {status} {answer.get('message') or body[:300]!r}")


class Api:
    """Requests as one user. Thread-safe. Close it when done."""

    def __init__(self, url: str, token: str, ca_pem: str, connections: int = 8) -> None:
        self.url = url
        self._headers = {"Authorization": f"Bearer {token}", "Accept": JSON}
        self._tls = ssl.create_default_context(cadata=ca_pem)
        self._connections = connections
        self._pool = self.new_pool(connections)
        self._workers = ThreadPoolExecutor(connections, thread_name_prefix="api")

    @classmethod
    def from_kubeconfig(cls, path: Path, connections: int = 8) -> Api:
        config = yaml.safe_load(path.read_text())
        cluster, user = config["clusters"][0]["cluster"], config["users"][0]["user"]
        ca_pem = base64.b64decode(cluster["certificate-authority-data"]).decode()
        return cls(cluster["server"], user["token"], ca_pem, connections)

    def new_pool(self, connections: int) -> urllib3.PoolManager:
        """A separate pool with the same TLS settings, so that a watch does not occupy a connection for requests."""
        return urllib3.PoolManager(
            maxsize=connections, block=True, ssl_context=self._tls, headers=self._headers, retries=False
        )

    def close(self) -> None:
        self._workers.shutdown()
        self._pool.clear()

    def __enter__(self) -> Api:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- any resource

    def request(
        self,
        method: str,
        path: str,
        body: object = None,
        *,
        query: Mapping[str, str | int] | None = None,
        content_type: str = JSON,
        timeout_seconds: float = PATIENCE_SECONDS,
    ) -> Json:
        target = f"{self.url}{path}" + (f"?{urlencode(query)}" if query else "")
        response = self._pool.request(
            method,
            target,
            body=None if body is None else orjson.dumps(body),
            headers={**self._headers, "Content-Type": content_type},
            timeout=timeout_seconds,
        )
        if not 200 <= response.status < 300:
            raise ApiError(method, path, response.status, response.data)
        found: Json = orjson.loads(response.data)
        return found

    def get(self, path: str, **query: str | int) -> Json:
        return self.request("GET", path, query=query)

    def patch(self, path: str, body: object) -> Json:
        return self.request("PATCH", path, body, content_type=MERGE_PATCH)

    def ready(self) -> bool:
        """Whether the server has finished starting."""
        try:
            return bool(self._pool.request("GET", f"{self.url}/readyz", timeout=10.0).status == 200)
        except urllib3.exceptions.HTTPError:
            return False

    def in_parallel(self, function: Callable[[T], R], items: Iterable[T]) -> list[R]:
        """The results in the order of the items. Raises the first failure."""
        return list(self._workers.map(function, items))

    # --- nodes

    def create_nodes(self, nodes: Iterable[Json]) -> list[Json]:
        return self.in_parallel(lambda node: self.request("POST", "/api/v1/nodes", node), nodes)

    def nodes(self) -> list[Json]:
        return self._items("/api/v1/nodes")

    def node(self, name: str) -> Json:
        return self.get(f"/api/v1/nodes/{name}")

    def patch_node(self, name: str, patch: Json) -> Json:
        return self.patch(f"/api/v1/nodes/{name}", patch)

    def patch_node_status(self, name: str, patch: Json) -> Json:
        return self.patch(f"/api/v1/nodes/{name}/status", patch)

    def delete_node(self, name: str) -> None:
        self.request("DELETE", f"/api/v1/nodes/{name}")

    # --- pods

    def create_pod(self, pod: Json) -> Json:
        return self.request("POST", _pods_path(pod["metadata"].get("namespace", "default")), pod)

    def create_pods(self, pods: Iterable[Json]) -> list[Json]:
        return self.in_parallel(self.create_pod, pods)

    def pods(self, namespace: str | None = None, labels: str = "") -> list[Json]:
        path = "/api/v1/pods" if namespace is None else _pods_path(namespace)
        return self._items(path, labelSelector=labels)

    def pod(self, name: str, namespace: str = "default") -> Json:
        return self.get(f"{_pods_path(namespace)}/{name}")

    def patch_pod(self, name: str, patch: Json, namespace: str = "default") -> Json:
        return self.patch(f"{_pods_path(namespace)}/{name}", patch)

    def patch_pod_status(self, name: str, patch: Json, namespace: str = "default") -> Json:
        return self.patch(f"{_pods_path(namespace)}/{name}/status", patch)

    def finish_pod(self, name: str, phase: str = "Succeeded", namespace: str = "default") -> Json:
        """Ends the pod as if its containers had exited: the object remains and holds no resources."""
        return self.patch_pod_status(name, {"status": {"phase": phase}}, namespace)

    def delete_pod(self, name: str, namespace: str = "default", grace_seconds: int = 0) -> None:
        path = f"{_pods_path(namespace)}/{name}"
        self.request("DELETE", path, query={"gracePeriodSeconds": grace_seconds})

    def delete_pods(self, names: Sequence[str], namespace: str = "default", grace_seconds: int = 0) -> None:
        self.in_parallel(lambda name: self.delete_pod(name, namespace, grace_seconds), names)

    def bind(
        self, name: str, node: str, annotations: Mapping[str, str] | None = None, namespace: str = "default"
    ) -> None:
        """Binds as a scheduler does. For tests that play the scheduler or an unmanaged process."""
        binding = {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": {"name": name, "annotations": dict(annotations or {})},
            "target": {"apiVersion": "v1", "kind": "Node", "name": node},
        }
        self.request("POST", f"{_pods_path(namespace)}/{name}/binding", binding)

    def clear(self) -> None:
        """Deletes every pod and node, so that many tests can share one control plane."""
        self.in_parallel(lambda pod: self._delete(_pod_path(pod)), self.pods())
        self.in_parallel(lambda node: self._delete(f"/api/v1/nodes/{node['metadata']['name']}"), self.nodes())

    # --- events

    def events(self, namespace: str = "default", about: str | None = None) -> list[Json]:
        """Core events; with `about`, only those of that object."""
        selector = f"involvedObject.name={about}" if about else ""
        return self._items(f"/api/v1/namespaces/{namespace}/events", fieldSelector=selector)

    def _items(self, path: str, **query: str | int) -> list[Json]:
        items: list[Json] = self.get(path, **query)["items"]
        return items

    def _delete(self, path: str) -> None:
        try:
            self.request("DELETE", path, query={"gracePeriodSeconds": 0})
        except ApiError as error:
            if error.status != 404:
                raise


def _pods_path(namespace: str) -> str:
    return f"/api/v1/namespaces/{namespace}/pods"


def _pod_path(pod: Json) -> str:
    return f"{_pods_path(pod['metadata']['namespace'])}/{pod['metadata']['name']}"
