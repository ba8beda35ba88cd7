"""The chart on a real API server: every case installs, with no more rights than documented, and uninstalls cleanly."""

from __future__ import annotations

import shlex
from typing import Any

import pytest

from tests.chart.conftest import NAMESPACE
from tests.chart.helm import CHART, REPOSITORY, Helm
from tests.chart.matrix import CASES, Values
from tests.controlplane import Api, ApiError, ControlPlane, eventually
from tests.docs.pages import commands

pytestmark = pytest.mark.e2e

Json = dict[str, Any]


def everything(api: Api) -> set[str]:
    """The path of every object in the cluster."""
    return {path for group in _groups(api) for path in _objects_of(api, group)}


def _groups(api: Api) -> list[str]:
    groups = api.get("/apis")["groups"]
    return ["/api/v1", *(f"/apis/{group['preferredVersion']['groupVersion']}" for group in groups)]


def _objects_of(api: Api, group: str) -> list[str]:
    found = []
    for resource in api.get(group)["resources"]:
        name = resource["name"]
        if "list" not in resource["verbs"] or "/" in name or name == "componentstatuses":
            continue
        for item in api.get(f"{group}/{name}")["items"]:
            metadata = item["metadata"]
            # Events expire, and the API servers renew leases of their own.
            if name != "events" and (name != "leases" or metadata["namespace"] == NAMESPACE):
                found.append(f"{group}/{name}/{metadata.get('namespace', '')}/{metadata['name']}")
    return found


def test_every_case_installs_and_leaves_nothing_but_the_learned_state(plane: ControlPlane, helm: Helm) -> None:
    before = everything(plane.api)
    for case, values in CASES.items():
        release = f"try-{case}"
        helm.run("install", release, str(CHART), f"--namespace={NAMESPACE}", "--no-hooks", values=values)
        manifest = helm.run("get", "manifest", release, f"--namespace={NAMESPACE}")
        plane.kubectl(
            "apply", "--server-side", "--force-conflicts", "--dry-run=server", "--filename=-", input_text=manifest
        )
        helm.run("uninstall", release, f"--namespace={NAMESPACE}")
    # No garbage collector runs here, so Helm itself removed everything that is gone.
    learned = f"/api/v1/configmaps/{NAMESPACE}/"
    left = everything(plane.api) - before
    assert {path for path in left if not (path.startswith(learned) and path.endswith("-learned"))} == set()
    for path in left:
        plane.api.request("DELETE", f"/api/v1/namespaces/{NAMESPACE}/configmaps/{path.removeprefix(learned)}")
    assert everything(plane.api) == before


def test_the_learned_state_survives_upgrades_and_even_an_uninstall(plane: ControlPlane, helm: Helm) -> None:
    path = f"/api/v1/namespaces/{NAMESPACE}/configmaps/kept-vramcast-learned"
    options = ("kept", str(CHART), f"--namespace={NAMESPACE}")
    learned = {"version": "1", "calibration.json": "{}"}
    helm.run("install", *options)
    try:
        assert "data" not in plane.api.get(path)
        plane.api.patch(path, {"data": learned})
        helm.run("upgrade", *options, values={"settings": {"undescribed": "reject"}, "commonLabels": {"team": "gpu"}})
        assert plane.api.get(path)["data"] == learned
        helm.run("rollback", "kept", f"--namespace={NAMESPACE}")
        assert plane.api.get(path)["data"] == learned
        helm.run("uninstall", "kept", f"--namespace={NAMESPACE}")
        assert plane.api.get(path)["data"] == learned
        helm.run("install", *options)
        assert plane.api.get(path)["data"] == learned
        plane.api.request("DELETE", path)
        helm.run("upgrade", *options)
        assert "data" not in plane.api.get(path), "an upgrade creates it again"
    finally:
        helm.run("uninstall", "kept", f"--namespace={NAMESPACE}", "--ignore-not-found")
        plane.api.request("DELETE", path)


def pods_of(helm: Helm, values: Json) -> list[Json]:
    documents = helm.template(values, namespace=NAMESPACE)
    pods = [
        {"metadata": {"name": "try", **d["spec"]["template"]["metadata"]}, "spec": d["spec"]["template"]["spec"]}
        for d in documents
        if d["kind"] == "Deployment"
    ]
    return pods + [d for d in documents if d["kind"] == "Pod"]


def create(plane: ControlPlane, pod: Json) -> Json:
    return plane.api.request("POST", f"/api/v1/namespaces/{NAMESPACE}/pods", pod, query={"dryRun": "All"})


@pytest.mark.parametrize("case", CASES)
def test_restricted_pod_security_admits_the_pods(plane: ControlPlane, helm: Helm, case: str) -> None:
    pods = pods_of(helm, CASES[case])
    assert pods
    for pod in pods:
        create(plane, pod)


def test_restricted_pod_security_is_really_on(plane: ControlPlane, helm: Helm) -> None:
    pod = pods_of(helm, {})[0]
    pod["spec"]["containers"][0]["securityContext"]["allowPrivilegeEscalation"] = True
    with pytest.raises(ApiError, match="violates PodSecurity"):
        create(plane, pod)


def allowed(plane: ControlPlane, account: str, verb: str, resource: str, namespace: str = "", name: str = "") -> bool:
    group, _, plain = resource.rpartition("/") if "." in resource else ("", "", resource)
    plain, _, subresource = plain.partition("/")
    attributes = {"verb": verb, "group": group, "resource": plain, "namespace": namespace, "name": name}
    if subresource:
        attributes["subresource"] = subresource
    review = {"spec": {"user": f"system:serviceaccount:{NAMESPACE}:{account}", "resourceAttributes": attributes}}
    answer = plane.api.request("POST", "/apis/authorization.k8s.io/v1/subjectaccessreviews", review)
    return bool(answer["status"].get("allowed"))


CALLS = [
    ("list", "nodes"),
    ("watch", "nodes"),
    ("list", "pods"),
    ("watch", "pods"),
    ("get", "pods"),
    ("create", "events"),
]
WRITES = [("create", "pods/binding"), ("patch", "pods/status")]
NEVER = [
    ("get", "secrets"), ("list", "secrets"), ("create", "pods"), ("patch", "pods"), ("update", "pods"),
    ("patch", "nodes"), ("update", "nodes"), ("delete", "nodes"), ("create", "pods/exec"), ("list", "configmaps"),
    ("update", "configmaps"), ("escalate", "rbac.authorization.k8s.io/clusterroles"),
    ("create", "rbac.authorization.k8s.io/clusterrolebindings"), ("create", "apps/deployments"),
    ("impersonate", "users"), ("create", "serviceaccounts/token"),
]  # fmt: skip


@pytest.mark.parametrize("mode", ["scheduler", "extender", "observe"])
def test_the_account_may_do_what_is_called_and_nothing_else(plane: ControlPlane, helm: Helm, mode: str) -> None:
    helm.run("install", "rights", str(CHART), f"--namespace={NAMESPACE}", values={"mode": mode})
    try:
        account = "rights-vramcast"
        for verb, resource in CALLS:
            assert allowed(plane, account, verb, resource), f"{verb} {resource}"
        for verb, resource in WRITES:
            assert allowed(plane, account, verb, resource) is (mode != "observe"), f"{verb} {resource}"
        for verb, resource in NEVER:
            assert not allowed(plane, account, verb, resource), f"{verb} {resource}"
        lease = "coordination.k8s.io/leases"
        leads = mode == "scheduler"
        for verb in ("get", "update"):
            assert allowed(plane, account, verb, lease, NAMESPACE, account) is leads
            assert not allowed(plane, account, verb, lease, NAMESPACE, "somebody-elses")
        for verb in ("get", "patch"):
            assert allowed(plane, account, verb, "configmaps", NAMESPACE, f"{account}-learned")
            assert not allowed(plane, account, verb, "configmaps", NAMESPACE, "somebody-elses")
        assert not allowed(plane, account, "create", "configmaps", NAMESPACE)
        # Only the kube-scheduler evicts, in the mode that runs one.
        assert allowed(plane, account, "delete", "pods") is leads
    finally:
        helm.run("uninstall", "rights", f"--namespace={NAMESPACE}")


def test_certificates_made_by_helm_survive_an_upgrade(plane: ControlPlane, helm: Helm) -> None:
    def secrets() -> dict[str, Any]:
        items = plane.api.get(f"/api/v1/namespaces/{NAMESPACE}/secrets", labelSelector="app.kubernetes.io/instance=tls")
        return {item["metadata"]["name"]: item["data"] for item in items["items"]}

    def trusted() -> set[str]:
        """By the API server, when it calls the webhook."""
        path = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/tls-vramcast-webhook"
        return {one["clientConfig"]["caBundle"] for one in plane.api.get(path)["webhooks"]}

    options = ("tls", str(CHART), f"--namespace={NAMESPACE}")
    values: Values = {"mode": "extender", "webhook": {"enabled": True}}
    helm.run("install", *options, values=values)
    try:
        before = secrets()
        assert set(before) == {"tls-vramcast-server-tls", "tls-vramcast-client-tls", "tls-vramcast-webhook-tls"}
        assert trusted() == {before["tls-vramcast-webhook-tls"]["ca.crt"]}
        helm.run("upgrade", *options, values={**values, "settings": {"undescribed": "reject"}})
        assert secrets() == before
        assert trusted() == {before["tls-vramcast-webhook-tls"]["ca.crt"]}
    finally:
        helm.run("uninstall", "tls", f"--namespace={NAMESPACE}")


def created(api: Api, manifest: Json) -> bool:
    try:
        api.create_pod(manifest)
    except ApiError as error:
        if error.status not in (403, 422):  # a policy answers with the reason that it names
            raise
        return False
    return True


def test_the_runbooks_command_lists_the_median_and_the_bound_of_pods(plane: ControlPlane, api: Api) -> None:
    (command,) = [
        command
        for command in commands(REPOSITORY / "docs/runbooks/vramcast-ooms.md")
        if command.startswith("kubectl get pods")
    ]
    given = {"vramcast.dev/forecast-memory": "11Gi", "vramcast.dev/reserved-memory": "13Gi"}
    manifest = {
        "metadata": {"name": "task", "annotations": given},
        "spec": {"containers": [{"name": "a", "image": "a"}]},
    }
    # Only vramcast may write these while its policy is installed, and the API server takes a second to forget one.
    eventually(lambda: created(api, manifest), what="the policies of earlier releases to be gone")
    rows = plane.kubectl(*shlex.split(command)[1:]).splitlines()
    assert ["default", "task", "<none>", "11Gi", "13Gi"] in [row.split() for row in rows]
