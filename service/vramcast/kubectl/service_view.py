"""The Service in front of vramcast's view: where it is, how to ask it, and what its errors mean for the user."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from vramcast import __version__
from vramcast.kubectl.api_server import ApiAnswer, ApiServer
from vramcast.kubectl.errors import NotKnown, Outdated, Trouble

LABEL = "vramcast.dev/service=view"
DEFAULT = "vramcast-system/vramcast-view"
SUFFIX = "-view"
# The API server picks a replica at random. With two, twenty requests all miss the leader once in a million times.
_MOST_REPLICAS_ASKED = 20


@dataclass(frozen=True)
class ServicePlace:
    """`guessed`: by its default name, because the user may not list Services."""

    namespace: str
    name: str
    guessed: bool = False

    @property
    def path(self) -> str:
        return f"/api/v1/namespaces/{self.namespace}/services/{self.name}:view/proxy"

    @property
    def role(self) -> str:
        """The chart's ClusterRole for readers."""
        return f"{self.name[: -len(SUFFIX)] if self.name.endswith(SUFFIX) else self.name}-viewer"

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


def find_service(api: ApiServer, wanted: str | None) -> ServicePlace:
    if wanted is not None:
        namespace, slash, name = wanted.partition("/")
        if not (namespace and slash and name):
            raise Trouble(f"--service {wanted!r}: expected NAMESPACE/NAME, such as {DEFAULT}")
        return ServicePlace(namespace, name)
    answer = api.get("/api/v1/services", {"labelSelector": LABEL})
    if answer.status == 403:
        namespace, _, name = DEFAULT.partition("/")
        return ServicePlace(namespace, name, guessed=True)
    if answer.status != 200:
        raise Trouble(f"the Services cannot be listed: {answer.message}")
    found = [ServicePlace(item["metadata"]["namespace"], item["metadata"]["name"]) for item in answer.json()["items"]]
    if len(found) > 1:
        raise Trouble(f"vramcast is installed {len(found)} times: choose one with --service: {_listed(found)}")
    if not found:
        raise Trouble(_nothing_found(api))
    return found[0]


def _listed(places: list[ServicePlace]) -> str:
    return ", ".join(sorted(map(str, places)))


def _nothing_found(api: ApiServer) -> str:
    """Is there a release without a view, or none at all?"""
    answer = api.get("/apis/apps/v1/deployments", {"labelSelector": "app.kubernetes.io/part-of=vramcast"})
    releases = [item["metadata"] for item in answer.json()["items"]] if answer.status == 200 else []
    if not releases:
        return f"vramcast is not installed in this cluster: no Service has the label {LABEL}"
    namespace = releases[0]["namespace"]
    release = releases[0].get("labels", {}).get("app.kubernetes.io/instance", "vramcast")
    return (
        f"vramcast is installed in namespace {namespace}, but its view is off. An admin turns it on with:\n"
        f"  helm upgrade {release} helm/vramcast --namespace {namespace} --reuse-values --set view.enabled=true"
    )


class ServiceView:
    """Asks the replica that leads: another one knows no holds and has counted no outcomes."""

    def __init__(self, api: ApiServer, place: ServicePlace) -> None:
        self._api = api
        self._place = place
        self.version = ""

    def get(self, path: str, **query: object) -> Any:
        for _ in range(_MOST_REPLICAS_ASKED):
            content = self._content(self._api.get(self._place.path + path, query))
            status = content.get("status", {})
            self.version = status.get("version", self.version)
            if status.get("leading", True):
                return content
        raise Trouble(
            f"no replica of vramcast in namespace {self._place.namespace} leads: see its Lease, and "
            "docs/runbooks/vramcast-no-leader.md"
        )

    def pages(self, path: str, key: str, limit: int | None = None, **query: object) -> Iterator[Any]:
        """Every answer of a request that comes in windows of 100 lines, until `limit` lines are there."""
        offset = 0
        while True:
            content = self.get(path, offset=offset, limit=100, **query)
            yield content
            offset += len(content[key])
            if not content[key] or offset >= content["matching"] or (limit is not None and offset >= limit):
                return

    def post(self, path: str, body: bytes) -> Any:
        return self._content(self._api.post(self._place.path + path, body))

    def _content(self, answer: ApiAnswer) -> Any:
        if answer.status == 403:
            raise Trouble(self._forbidden(answer.message))
        if answer.from_kubernetes:
            raise Trouble(self._unreachable(answer))
        content = answer.json()
        if answer.status == 404:
            # An address that does not exist, or a pod.
            raise (Outdated if "see /docs" in answer.message else NotKnown)(answer.message)
        if answer.status != 200 or not isinstance(content, dict):
            raise Trouble(f"vramcast answers {answer.status}: {answer.message}")
        return content

    def _unreachable(self, answer: ApiAnswer) -> str:
        place = self._place
        if answer.status == 404:
            hint = (
                f"you may not list Services, so it was looked for by its default name {DEFAULT}. Name it with "
                "--service NAMESPACE/NAME"
                if place.guessed
                else "is its view on (view.enabled in the chart)?"
            )
            return f"there is no Service {place}: {hint}"
        if answer.status == 503:
            return (
                f"vramcast does not answer behind the Service {place}: {answer.message}\n"
                f"Is a pod ready? kubectl get pods --namespace {place.namespace} "
                "--selector app.kubernetes.io/part-of=vramcast"
            )
        return f"the API server answers {answer.status} for the Service {place}: {answer.message}"

    def _forbidden(self, message: str) -> str:
        place = self._place
        answer = self._api.post("/apis/authentication.k8s.io/v1/selfsubjectreviews", b"{}")
        content = answer.json() if answer.status == 201 else {}
        user = content.get("status", {}).get("userInfo", {}).get("username", "")
        verb = match[1] if (match := re.search(r"cannot (\w+) resource", message)) else "get"
        account = re.fullmatch(r"system:serviceaccount:([^:]+):([^:]+)", user)
        subject = f"--serviceaccount={account[1]}:{account[2]}" if account else f"--user={user or 'NAME'}"
        name = re.sub(r"[^a-z0-9.-]+", "-", (account[2] if account else user or "name").lower()).strip("-.")
        return (
            f"you may not read vramcast: {user or 'your user'} lacks the right to {verb} services/proxy "
            f"{place.name}:view in namespace {place.namespace}. An admin grants it with:\n"
            f"  kubectl create rolebinding {place.role}-{name} --namespace={place.namespace} "
            f"--clusterrole={place.role} {subject}"
        )


def outdated(error: Exception, view: ServiceView) -> Trouble:
    """A service and a plugin that do not understand each other."""
    service = view.version or "an unknown version"
    return Trouble(
        f"vramcast in the cluster ({service}) does not give what this plugin ({__version__}) asks for: {error}\n"
        "Upgrade the older of the two."
    )
