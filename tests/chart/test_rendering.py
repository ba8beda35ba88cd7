"""What Helm renders: valid for every supported version of Kubernetes, with clear errors for invalid values."""

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
# Kinds of CRDs. test_install.py has the API server validate them.
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
        # Only the newest version validates every case. Differences between versions show in the fullest ones.
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
    values = {"model": {"image": "example.com/model:1"}}
    for document in helm.template(values, "v1.36.0"):
        validate(document, "1.36", strict=True)
    with pytest.raises(HelmError, match=r"model.image needs Kubernetes 1.33 or newer, this is v1.32.1"):
        helm.template(values, "v1.32.1")


def test_a_candidate_is_mounted_as_a_directory_so_that_updates_are_seen(helm: Helm) -> None:
    values: Values = {"candidate": {"existingConfigMap": "next", "path": "v3"}}
    pod = named(helm.template(values, "v1.36.0"), "Deployment")["spec"]["template"]["spec"]
    (container,) = [c for c in pod["containers"] if c["name"] == "vramcast"]
    assert {"name": "VRAMCAST_CANDIDATE_ARTIFACT", "value": "/candidate/v3"} in container["env"]
    assert {"name": "candidate", "mountPath": "/candidate", "readOnly": True} in container["volumeMounts"]
    # The pods start without it.
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
        ({"tls": {"source": "vault"}}, "'/tls': additional properties 'source' not allowed"),
        ({"imagePullSecrets": ["registry"]}, "'/imagePullSecrets/0': got string, want object"),
        ({"tests": {"gpuMemory": "1 GB"}}, "'/tests/gpuMemory'"),
        ({"mode": "extender", "replicaCount": 2}, "would promise the same GPU twice"),
        (
            {"mode": "extender", "tls": {"existingSecret": "given", "certManager": {"enabled": True}}},
            "tls.existingSecret and tls.certManager.enabled exclude each other",
        ),
        ({"model": {"existingClaim": "a", "image": "b"}}, "model.existingClaim and model.image exclude each other"),
        ({"settings": {"port": 1}}, "settings.port cannot be set: the chart sets it from the value `extender.port`"),
        ({"settings": {"leader_lease": "a/b"}}, "settings.leader_lease cannot be set: the chart sets it"),
        ({"mode": "observe", "settings": {"requeue_interval_seconds": 1}}, "settings.requeue_interval_seconds cannot"),
        ({"model": {"existingClaim": "a"}, "settings": {"artifact": "builtin"}}, "settings.artifact cannot be set"),
        ({"settings": {"webhook_port": 9443}}, "settings.webhook_port cannot be set: the chart sets it from the value"),
        ({"webhook": {"certificates": "vault"}}, "'/webhook/certificates': value must be one of 'chart'"),
        (
            {"webhook": {"enabled": True, "certificates": "secret", "caBundle": "Q0E="}},
            "webhook.certificates: secret needs webhook.existingSecret",
        ),
        (
            {"webhook": {"enabled": True, "certificates": "secret", "existingSecret": "given"}},
            "webhook.certificates: secret needs webhook.caBundle",
        ),
        ({"settings": {"undescribed": ["reject"]}}, "'/settings/undescribed'"),
        ({"settings": {"default_oom_risk": 5}}, "'/settings/default_oom_risk': maximum: got 5, want 0.5"),
        ({"settings": {"default_oom_risc": 0.01}}, "'/settings': additional properties 'default_oom_risc' not allowed"),
        ({"settings": {"log_level": "loud"}}, "'/settings/log_level': value must be one of 'debug'"),
        (
            {"settings": {"exporter_urls": "exporter:9400"}},
            "'/settings/exporter_urls': 'exporter:9400' does not match pattern",
        ),
        (
            {"settings": {"prometheus_url": "http://p", "exporter_urls": "http://d"}},
            "settings.prometheus_url and settings.exporter_urls exclude each other",
        ),
    ],
)
def test_invalid_values_are_refused_with_a_helpful_message(helm: Helm, values: Values, sentence: str) -> None:
    with pytest.raises(HelmError, match=re.escape(sentence)):
        helm.template(values)


def pods(documents: list[Json]) -> list[Json]:
    deployed = [d["spec"]["template"]["spec"] for d in documents if d["kind"] in ("Deployment", "DaemonSet")]
    return deployed + [d["spec"] for d in documents if d["kind"] == "Pod"]


def containers(documents: list[Json]) -> list[Json]:
    return [container for pod in pods(documents) for container in pod["containers"]]


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
    scheduler, observe, extender = (
        settings(helm.template({"mode": mode})) for mode in ("scheduler", "observe", "extender")
    )
    assert scheduler["host"] == observe["host"] == "127.0.0.1"
    assert extender["host"] == "0.0.0.0"
    assert extender["tls_client_ca_file"] == "/etc/vramcast-tls/ca.crt"


def settings(documents: list[Json], name: str = "vramcast") -> Any:
    return yaml.safe_load(named(documents, "ConfigMap", name)["data"]["vramcast.yaml"])


def test_the_learned_state_has_a_config_map_that_the_account_may_read_and_patch(helm: Helm) -> None:
    documents = helm.template({}, release="one")
    namespace, name = settings(documents, "one-vramcast")["calibration_config_map"].split("/")
    config_map, role = named(documents, "ConfigMap", name), named(documents, "Role", name)
    assert config_map["metadata"]["namespace"] == role["metadata"]["namespace"] == namespace
    assert "data" not in config_map, "Helm would write over what vramcast keeps there"
    assert role["rules"] == [
        {"apiGroups": [""], "resources": ["configmaps"], "resourceNames": [name], "verbs": ["get", "patch"]}
    ]


@pytest.mark.parametrize("given", ["ml/mine", None])
def test_a_config_map_named_in_the_settings_is_left_to_its_owner(helm: Helm, given: str | None) -> None:
    documents = helm.template({"settings": {"calibration_config_map": given}})
    assert settings(documents)["calibration_config_map"] == given
    assert [d["metadata"]["name"] for d in documents if d["kind"] == "ConfigMap"] == ["vramcast"]
    assert "vramcast-learned" not in [d["metadata"]["name"] for d in documents if d["kind"] == "Role"]


@pytest.mark.parametrize("case", CASES)
def test_no_role_may_create_config_maps_or_reach_all_of_them(helm: Helm, case: str) -> None:
    for document in helm.template(CASES[case]):
        for rule in document.get("rules", []):
            if "configmaps" in rule["resources"]:
                assert rule["resourceNames"]
                assert set(rule["verbs"]) == {"get", "patch"}


def admitted(documents: list[Json]) -> dict[str, Any]:
    """port: who may reach it, by the NetworkPolicy; None means any source."""
    rules = named(documents, "NetworkPolicy")["spec"]["ingress"]
    return {port["port"]: rule.get("from") for rule in rules for port in rule["ports"]}


def test_by_default_only_ports_with_a_purpose_are_reachable(helm: Helm) -> None:
    assert admitted(helm.template({})) == {"metrics": None, "scheduler": None}
    assert admitted(helm.template({"mode": "extender"})) == {"metrics": None, "extender": None}
    assert admitted(helm.template({"mode": "observe"})) == {"metrics": None}
    peers = [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}]
    limited = helm.template({"mode": "extender", "networkPolicy": {"metricsFrom": peers}})
    assert admitted(limited) == {"metrics": peers, "extender": None}


@pytest.mark.parametrize("mode", ["scheduler", "extender", "observe"])
def test_the_network_policy_selects_the_pods_and_names_their_ports(helm: Helm, mode: str) -> None:
    documents = helm.template({"mode": mode})
    policy, pod = named(documents, "NetworkPolicy"), named(documents, "Deployment")["spec"]["template"]
    assert policy["spec"]["podSelector"]["matchLabels"].items() <= pod["metadata"]["labels"].items()
    ports = {port["name"] for container in pod["spec"]["containers"] for port in container["ports"]}
    assert set(admitted(documents)) == ports


def test_the_webhook_opens_one_port_and_grants_no_rights(helm: Helm) -> None:
    without, values = helm.template({}), CASES["webhook"]
    documents = helm.template(values)
    assert admitted(documents) == {**admitted(without), "webhook": None}
    assert [d for d in documents if d["kind"].endswith(("Role", "RoleBinding"))] == [
        d for d in without if d["kind"].endswith(("Role", "RoleBinding"))
    ]
    before, after = ({(d["kind"], d["metadata"]["name"]) for d in each} for each in (without, documents))
    assert after - before == {
        ("Secret", "vramcast-webhook-tls"),
        ("Service", "vramcast-webhook"),
        ("MutatingWebhookConfiguration", "vramcast-webhook"),
        ("ValidatingWebhookConfiguration", "vramcast-webhook"),
    }


def test_the_view_opens_one_port_and_brings_a_role_that_reads_it_and_is_bound_to_nobody(helm: Helm) -> None:
    without, documents = helm.template({}), helm.template(CASES["view"])
    peers = CASES["view"]["networkPolicy"]["viewFrom"]
    assert admitted(documents) == {**admitted(without), "view": peers}
    before, after = ({(d["kind"], d["metadata"]["name"]) for d in each} for each in (without, documents))
    assert after - before == {("Service", "vramcast-view"), ("ClusterRole", "vramcast-viewer")}
    assert named(documents, "ClusterRole", "vramcast-viewer")["rules"] == [
        {
            "apiGroups": [""],
            "resources": ["services/proxy"],
            "resourceNames": ["vramcast-view:view", "http:vramcast-view:view"],
            "verbs": ["get", "create"],
        }
    ]
    assert settings(documents).items() >= {"view_host": "0.0.0.0", "view_port": 9999}.items()
    assert "view_port" not in settings(without)


def webhooks(documents: list[Json]) -> list[Json]:
    found = [d["webhooks"] for d in documents if d["kind"].endswith("WebhookConfiguration")]
    return [webhook for each in found for webhook in each]


@pytest.mark.parametrize("case", [case for case in CASES if "webhook" in CASES[case]])
def test_the_api_server_calls_the_webhook_only_where_it_is_wanted(helm: Helm, case: str) -> None:
    documents = helm.template(CASES[case])
    service, pod = named(documents, "Service", "vramcast-webhook"), named(documents, "Deployment")["spec"]["template"]
    assert service["spec"]["selector"].items() <= pod["metadata"]["labels"].items()
    for webhook in webhooks(documents):
        assert webhook["namespaceSelector"]["matchLabels"] == {"vramcast.dev/managed": "true"}
        assert webhook["matchConditions"]
        assert webhook["sideEffects"] == "None"
        assert webhook["clientConfig"]["service"]["name"] == "vramcast-webhook"
        assert webhook["failurePolicy"] == CASES[case]["webhook"].get("failurePolicy", "Ignore")
        assert webhook["timeoutSeconds"] == 2
        assert all(rule["scope"] == "Namespaced" for rule in webhook["rules"])


def test_the_webhook_trusts_what_signed_its_certificate(helm: Helm) -> None:
    made = helm.template(CASES["webhook"])
    assert {one["clientConfig"]["caBundle"] for one in webhooks(made)} == {named(made, "Secret")["data"]["ca.crt"]}
    assert {one["clientConfig"]["caBundle"] for one in webhooks(helm.template(CASES["webhook-secret"]))} == {"Q0E="}
    issued = helm.template(CASES["webhook-cert-manager"])
    assert not [one for one in webhooks(issued) if "caBundle" in one["clientConfig"]]
    certificate = named(issued, "Certificate", "vramcast-webhook-tls")
    assert certificate["spec"]["dnsNames"] == ["vramcast-webhook.gpu.svc"]
    for kind in ("MutatingWebhookConfiguration", "ValidatingWebhookConfiguration"):
        annotations = named(issued, kind)["metadata"]["annotations"]
        assert annotations == {"cert-manager.io/inject-ca-from": "gpu/vramcast-webhook-tls"}


@pytest.mark.parametrize(
    ("mode", "given"),
    [
        ("scheduler", {"webhook_scheduler_name": "vramcast-scheduler"}),
        ("extender", {"webhook_task_resource": "vramcast.dev/task"}),
        ("observe", {}),
    ],
)
def test_the_webhook_leads_pods_to_vramcast_in_the_way_of_the_mode(helm: Helm, mode: str, given: Values) -> None:
    chosen = settings(helm.template({"mode": mode, "webhook": {"enabled": True}}))
    leads = {name: chosen[name] for name in ("webhook_scheduler_name", "webhook_task_resource") if name in chosen}
    assert leads == given


def test_the_scheduler_ignores_the_resource_that_quotas_count(helm: Helm) -> None:
    """In mode scheduler not by managedResources: those would limit the pods that vramcast is called for."""
    webhook: Values = {"webhook": {"enabled": True, "resource": True}}
    fit: Values = {"name": "NodeResourcesFit", "args": {"ignoredResources": ["a/b"], "x": 1}}
    other: Values = {"name": "InterPodAffinity", "args": {}}
    ours = "vramcast.dev/gpu-memory"
    merged = {"name": "NodeResourcesFit", "args": {"ignoredResources": ["a/b", ours], "x": 1}}
    for given, expected in (
        ([], [{"name": "NodeResourcesFit", "args": {"ignoredResources": [ours]}}]),
        ([fit, other], [other, merged]),
    ):
        documents = helm.template({**webhook, "scheduler": {"pluginConfig": given}})
        config = yaml.safe_load(named(documents, "ConfigMap", "vramcast")["data"]["scheduler.yaml"])
        assert config["profiles"][0]["pluginConfig"] == expected
        assert "managedResources" not in config["extenders"][0]


def test_resource_slices_may_be_read_only_if_they_are_asked_for(helm: Helm) -> None:
    for asked in (False, True):
        role = named(helm.template({"settings": {"resource_slices": asked}}), "ClusterRole", "vramcast-extender")
        granted = [rule["verbs"] for rule in role["rules"] if "resourceslices" in rule["resources"]]
        assert granted == ([["list", "watch"]] if asked else [])


def test_the_webhook_sees_claims_only_if_it_fills_them_in(helm: Helm) -> None:
    for dialects, seen in ((["hami"], []), (["hami", "dra"], ["claims.vramcast.dev"])):
        documents = helm.template({"webhook": {"enabled": True, "dialects": dialects}})
        assert [one["name"] for one in webhooks(documents) if one["name"].startswith("claims")] == seen
        assert settings(documents)["webhook_dialects"] == ",".join(dialects)


def test_names_can_be_overridden_in_part_or_as_a_whole(helm: Helm) -> None:
    def name(values: Values) -> tuple[str, str]:
        deployment = named(helm.template(values, release="one"), "Deployment")
        assert deployment["spec"]["selector"]["matchLabels"].items() <= deployment["metadata"]["labels"].items()
        return deployment["metadata"]["name"], deployment["metadata"]["labels"]["app.kubernetes.io/name"]

    assert name({}) == ("one-vramcast", "vramcast")
    assert name({"nameOverride": "vc"}) == ("one-vc", "vc")
    assert name({"fullnameOverride": "gpus"}) == ("gpus", "vramcast")


@pytest.mark.parametrize("case", CASES)
def test_every_object_has_the_recommended_labels(helm: Helm, case: str) -> None:
    wanted = {"name", "instance", "version", "component", "part-of", "managed-by"}
    for document in helm.template(CASES[case]):
        assert {f"app.kubernetes.io/{name}" for name in wanted} <= document["metadata"]["labels"].keys()


def test_user_ids_that_are_null_are_left_to_the_cluster(helm: Helm) -> None:
    for pod in pods(helm.template(CASES["openshift"])):
        assert pod["securityContext"] == {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
    for pod in pods(helm.template({})):
        assert pod["securityContext"]["runAsUser"] == 65532


def test_every_alert_links_to_its_runbook_under_the_given_address(helm: Helm) -> None:
    def addresses(values: Values) -> list[str]:
        values = {"metrics": {"prometheusRule": {"enabled": True, **values}}}
        (group,) = named(helm.template(values), "PrometheusRule")["spec"]["groups"]
        return [rule["annotations"]["runbook_url"] for rule in group["rules"]]

    usual = addresses({})
    assert "https://vramcast.dev/docs/runbooks/vramcast-down.md" in usual
    base = "https://wiki.example.com/gpu"
    assert addresses({"runbookBaseUrl": base}) == [f"{base}/{address.rpartition('/')[2]}" for address in usual]


def test_two_releases_share_no_object(helm: Helm) -> None:
    def names(release: str) -> set[tuple[str, str, str]]:
        documents = helm.template({}, release=release)
        return {(d["kind"], d["metadata"].get("namespace", ""), d["metadata"]["name"]) for d in documents}

    assert not names("one") & names("two")


def test_mode_observe_may_write_nothing_but_events(helm: Helm) -> None:
    rules = named(helm.template({"mode": "observe"}), "ClusterRole")["rules"]
    writes = {(r, verb) for rule in rules for r in rule["resources"] for verb in rule["verbs"]}
    assert {(r, v) for r, v in writes if v not in ("get", "list", "watch")} == {("events", "create")}


@pytest.mark.parametrize("share", [False, True])
def test_the_test_pod_tolerates_the_taint_of_sharing_nodes_if_it_shares(helm: Helm, share: bool) -> None:
    pod = named(helm.template({"tests": {"share": share}}), "Pod")["spec"]
    keys = [toleration["key"] for toleration in pod["tolerations"]]
    assert keys == ["nvidia.com/gpu", *["vramcast.dev/gpu-sharing"] * share]


def test_the_second_scheduler_calls_vramcast_for_all_of_its_pods(helm: Helm) -> None:
    """They chose it by name, and vramcast's own pod did not."""
    documents = helm.template({})
    config = yaml.safe_load(named(documents, "ConfigMap", "vramcast")["data"]["scheduler.yaml"])
    assert "managedResources" not in config["extenders"][0]
    assert "schedulerName" not in named(documents, "Deployment")["spec"]["template"]["spec"]


# --- the agent


def agent_of(documents: list[Json]) -> Json:
    template: Json = named(documents, "DaemonSet")["spec"]["template"]
    return template


def test_there_is_no_agent_unless_it_is_switched_on(helm: Helm) -> None:
    assert "DaemonSet" not in {document["kind"] for document in helm.template({})}


def test_the_agent_has_the_hosts_processes_and_no_other_rights(helm: Helm) -> None:
    pod = agent_of(helm.template({"agent": {"enabled": True}}))["spec"]
    assert pod["hostPID"] is True
    assert pod["automountServiceAccountToken"] is False
    assert not {"hostNetwork", "hostIPC", "volumes", "serviceAccountName"} & pod.keys()
    assert pod["securityContext"]["runAsNonRoot"] is True
    (container,) = pod["containers"]
    assert "privileged" not in container["securityContext"]
    assert {"name": "NVIDIA_DRIVER_CAPABILITIES", "value": "utility"} in container["env"]
    # It must not take a GPU from a job.
    assert container["resources"].keys() == {"requests", "limits"}
    assert not any("nvidia" in name for kind in container["resources"].values() for name in kind)


def test_nothing_of_the_service_selects_the_agents(helm: Helm) -> None:
    values: Values = {"agent": {"enabled": True}, "metrics": {"podMonitor": {"enabled": True}}}
    documents = helm.template(values)
    labels = agent_of(documents)["metadata"]["labels"].items()
    for document in documents:
        spec = document.get("spec", {})
        selector = spec.get("selector") or spec.get("podSelector") or {}
        chosen = selector.get("matchLabels", selector)
        if chosen:
            assert (chosen.items() <= labels) == document["metadata"]["name"].endswith("-agent"), document["kind"]


def test_only_the_agents_metrics_can_be_reached_and_it_calls_nobody(helm: Helm) -> None:
    policy = named(helm.template({"agent": {"enabled": True}}), "NetworkPolicy", "vramcast-agent")["spec"]
    assert policy["policyTypes"] == ["Ingress", "Egress"]
    assert "egress" not in policy
    assert [port["port"] for rule in policy["ingress"] for port in rule["ports"]] == ["metrics"]
