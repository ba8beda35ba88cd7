"""What Helm makes of the chart: valid for every Kubernetes that it claims, and plain about what it refuses."""

from __future__ import annotations

import re
from typing import Any

import pytest
import yaml
from kubernetes_validate import ValidationError, validate

from tests.chart.helm import CHART, Helm, HelmError, Json, named, offline_helm
from tests.chart.matrix import CASES, Values

pytestmark = pytest.mark.e2e

KUBERNETES = [f"1.{minor}" for minor in range(29, 37)]
# Of kinds that Kubernetes itself does not know: the API server tries them, with their CRDs, in test_install.py.
FOREIGN = {"PodMonitor", "ServiceMonitor", "PrometheusRule", "Certificate", "Issuer"}


@pytest.fixture(scope="module")
def helm() -> Helm:
    return offline_helm()


def test_the_chart_lints_strictly(helm: Helm) -> None:
    assert "0 chart(s) failed" in helm.run("lint", "--strict", str(CHART))


@pytest.mark.parametrize("version", KUBERNETES)
def test_every_case_is_valid_for_the_version(helm: Helm, version: str) -> None:
    tried: list[Json] = []
    for case, values in CASES.items():
        # The newest tries all of them; what the version itself changes shows in the fullest ones.
        if version != KUBERNETES[-1] and "everything" not in case:
            continue
        for document in helm.template(values, f"v{version}.2"):
            if document["kind"] in FOREIGN or document in tried:
                continue
            tried.append(document)
            try:
                validate(document, version, strict=True)
            except ValidationError as error:
                pytest.fail(f"{case}: {document['kind']} {document['metadata']['name']}: {error.message}")


def test_a_model_from_an_image_needs_kubernetes_that_mounts_images(helm: Helm) -> None:
    values = {"model": {"source": "oci", "name": "example.com/model:1"}}
    for document in helm.template(values, "v1.36.0"):
        validate(document, "1.36", strict=True)
    with pytest.raises(HelmError, match=r"model.source oci needs Kubernetes 1.33 or newer, this is v1.32.1"):
        helm.template(values, "v1.32.1")


def test_a_candidate_is_mounted_as_a_whole_so_that_a_new_one_is_seen(helm: Helm) -> None:
    values: Values = {"candidate": {"source": "configMap", "name": "next", "path": "v3"}}
    pod = named(helm.template(values, "v1.36.0"), "Deployment")["spec"]["template"]["spec"]
    (container,) = [c for c in pod["containers"] if c["name"] == "vramcast"]
    assert {"name": "VRAMCAST_CANDIDATE_ARTIFACT", "value": "/candidate/v3"} in container["env"]
    assert {"name": "candidate", "mountPath": "/candidate", "readOnly": True} in container["volumeMounts"]
    # Pods start without it: it may come later.
    assert {"name": "candidate", "configMap": {"name": "next", "optional": True}} in pod["volumes"]


@pytest.mark.parametrize(
    ("version", "tag"),
    [
        ("v1.29.0", "v1.29.0"),
        ("v1.31.4-eks-2d5f260", "v1.31.4"),
        ("v1.32.2-gke.1182003", "v1.32.2"),
        ("v1.30.6+rke2r1", "v1.30.6"),
        ("v1.36.3", "v1.36.3"),
    ],
)
def test_the_kube_scheduler_follows_the_clusters_version(helm: Helm, version: str, tag: str) -> None:
    containers = named(helm.template({}, version), "Deployment")["spec"]["template"]["spec"]["containers"]
    assert [c["image"] for c in containers if c["name"] == "kube-scheduler"] == [
        f"registry.k8s.io/kube-scheduler:{tag}"
    ]


def test_an_old_kubernetes_is_refused(helm: Helm) -> None:
    with pytest.raises(HelmError, match=r"requires kubeVersion: >=1\.29\.0-0"):
        helm.template({}, "v1.28.9")


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"mode": "sidecar"}, "'/mode': value must be one of 'scheduler', 'extender', 'observe'"),
        ({"sheduler": {}}, "additional properties 'sheduler' not allowed"),
        ({"extender": {"port": "http"}}, "'/extender/port': got string, want integer"),
        ({"extender": {"port": 80}}, "'/extender/port': minimum: got 80, want 1,024"),
        ({"scheduler": {"name": "default-scheduler"}}, "'/scheduler/name'"),
        ({"scheduler": {"leaderElection": {"leaseDuration": "15"}}}, "'/scheduler/leaderElection/leaseDuration'"),
        ({"tls": {"source": "vault"}}, "'/tls/source': value must be one of 'helm', 'cert-manager', 'secret'"),
        ({"tests": {"gpuMemory": "1 GB"}}, "'/tests/gpuMemory'"),
        ({"mode": "extender", "replicas": 2}, "would promise the same GPU twice"),
        ({"mode": "extender", "tls": {"source": "secret"}}, "tls.source secret needs tls.secretName"),
        ({"model": {"source": "claim"}}, "model.source claim needs model.name"),
        ({"settings": {"port": 1}}, "settings.port cannot be set: the chart sets it"),
        ({"settings": {"undescribed": ["reject"]}}, "'/settings/undescribed'"),
    ],
)
def test_wrong_values_are_refused_with_a_sentence_that_helps(helm: Helm, values: Values, sentence: str) -> None:
    with pytest.raises(HelmError, match=re.escape(sentence)):
        helm.template(values)


def containers(documents: list[Json]) -> list[Json]:
    pods = [d["spec"]["template"]["spec"] for d in documents if d["kind"] == "Deployment"]
    pods += [d["spec"] for d in documents if d["kind"] == "Pod"]
    return [container for pod in pods for container in pod["containers"]]


@pytest.mark.parametrize("case", CASES)
def test_no_container_can_write_its_root_or_gain_rights(helm: Helm, case: str) -> None:
    for container in containers(helm.template(CASES[case])):
        security = container["securityContext"]
        assert security["readOnlyRootFilesystem"] is True
        assert security["allowPrivilegeEscalation"] is False
        assert security["capabilities"] == {"drop": ["ALL"]}


def checksum(documents: list[Json]) -> str:
    annotations: dict[str, str] = named(documents, "Deployment")["spec"]["template"]["metadata"]["annotations"]
    return annotations["checksum/config"]


def test_a_changed_setting_restarts_the_pods_and_nothing_else_does(helm: Helm) -> None:
    before = checksum(helm.template({}))
    assert checksum(helm.template({})) == before
    assert checksum(helm.template({"settings": {"default_oom_risk": 0.01}})) != before
    assert checksum(helm.template({"scheduler": {"name": "other"}})) != before


def test_the_verbs_are_on_loopback_unless_they_ask_for_a_certificate(helm: Helm) -> None:
    def settings(mode: str) -> Any:
        return yaml.safe_load(named(helm.template({"mode": mode}), "ConfigMap")["data"]["vramcast.yaml"])

    assert settings("scheduler")["host"] == settings("observe")["host"] == "127.0.0.1"
    assert settings("extender")["host"] == "0.0.0.0"
    assert settings("extender")["tls_client_ca_file"] == "/etc/vramcast-tls/ca.crt"


def test_what_was_learned_is_kept_where_the_account_may_keep_it(helm: Helm) -> None:
    documents = helm.template({}, release="one")
    settings = yaml.safe_load(named(documents, "ConfigMap")["data"]["vramcast.yaml"])
    namespace, name = settings["calibration_config_map"].split("/")
    roles = [document for document in documents if document["kind"] == "Role"]
    (role,) = [role for role in roles if role["metadata"]["name"] == name]
    assert role["metadata"]["namespace"] == namespace
    assert [rule.get("resourceNames") for rule in role["rules"]] == [None, [name]]
    elsewhere = helm.template({"settings": {"calibration_config_map": "ml/mine"}})
    assert "ml/mine" in named(elsewhere, "ConfigMap")["data"]["vramcast.yaml"]


def test_two_releases_share_no_object(helm: Helm) -> None:
    def names(release: str) -> set[tuple[str, str, str]]:
        documents = helm.template({}, release=release)
        return {(d["kind"], d["metadata"].get("namespace", ""), d["metadata"]["name"]) for d in documents}

    assert not names("one") & names("two")


def test_to_observe_nothing_may_be_written_but_events(helm: Helm) -> None:
    rules = named(helm.template({"mode": "observe"}), "ClusterRole")["rules"]
    writes = {(r, verb) for rule in rules for r in rule["resources"] for verb in rule["verbs"]}
    assert {(r, v) for r, v in writes if v not in ("get", "list", "watch")} == {("events", "create")}
