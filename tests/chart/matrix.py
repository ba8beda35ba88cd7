"""The values that the chart is tested with: every mode, and everything that can be switched on."""

from __future__ import annotations

from typing import Any

Values = dict[str, Any]

_ALL_METRICS: Values = {
    "podMonitor": {"enabled": True, "labels": {"release": "prometheus"}},
    "serviceMonitor": {"enabled": True, "labels": {"release": "prometheus"}},
    "prometheusRule": {"enabled": True, "labels": {"release": "prometheus"}},
    "dashboard": {"enabled": True},
}
_PODS: Values = {
    "podLabels": {"team": "gpu"},
    "podAnnotations": {"example.com/note": "kept"},
    "commonLabels": {"env": "test"},
    "imagePullSecrets": [{"name": "registry"}],
    "nodeSelector": {"node-role.kubernetes.io/control-plane": ""},
    "tolerations": [{"key": "node-role.kubernetes.io/control-plane", "operator": "Exists", "effect": "NoSchedule"}],
    "topologySpreadConstraints": [
        {"maxSkew": 1, "topologyKey": "topology.kubernetes.io/zone", "whenUnsatisfiable": "ScheduleAnyway",
         "labelSelector": {"matchLabels": {"app.kubernetes.io/name": "vramcast"}}}
    ],
    "priorityClassName": "system-cluster-critical",
    "extraEnv": [{"name": "HTTPS_PROXY", "value": "http://proxy:3128"}],
    "extraVolumes": [{"name": "extra", "emptyDir": {}}],
    "extraVolumeMounts": [{"name": "extra", "mountPath": "/extra"}],
    "networkPolicy": {"metricsFrom": [{"namespaceSelector": {}}]},
}  # fmt: skip
_PEER = [{"ipBlock": {"cidr": "10.0.0.0/8"}}]

CASES: dict[str, Values] = {
    "scheduler": {},
    "scheduler-one-replica": {"replicaCount": 1},
    "scheduler-everything": {**_PODS, "metrics": _ALL_METRICS, "tests": {"share": True}, "agent": {"enabled": True},
                             "view": {"enabled": True},
                             "webhook": {"enabled": True, "validate": "deny", "failurePolicy": "Fail", "resource": True,
                                         "dialects": ["hami:10", "dra"]}},
    "scheduler-plugins": {
        "scheduler": {
            "plugins": {"score": {"disabled": [{"name": "ImageLocality"}]}},
            "pluginConfig": [{"name": "NodeResourcesFit", "args": {"scoringStrategy": {"type": "MostAllocated"}}}],
            "extraArgs": ["--feature-gates=AllAlpha=false"],
        },
        "extender": {"ignorable": True, "preempt": False, "managedResources": ["nvidia.com/gpu"]},
        "settings": {"undescribed": "reject", "default_oom_risk": 0.01},
        "image": {"digest": "sha256:" + "0" * 64},
    },
    "model-configmap": {"model": {"existingConfigMap": "model"}},
    "model-claim": {"model": {"existingClaim": "model", "path": "v2"}},
    "candidate-configmap": {"candidate": {"existingConfigMap": "next"}},
    "candidate-claim": {
        "model": {"existingClaim": "model"},
        "candidate": {"existingClaim": "next", "path": "v3"},
    },
    "other-names": {"nameOverride": "vc", "fullnameOverride": "gpu-forecasts"},
    "openshift": {"podSecurityContext": {"runAsUser": None, "runAsGroup": None, "fsGroup": None}},
    "agent": {"agent": {"enabled": True}},
    "view": {"view": {"enabled": True, "port": 9999}, "networkPolicy": {"viewFrom": _PEER}},
    "view-extender": {"mode": "extender", "view": {"enabled": True}},
    "agent-default-runtime": {
        "agent": {"enabled": True, "runtimeClassName": "", "nodeSelector": {}, "tolerations": []},
        "networkPolicy": {"enabled": False},
    },
    "no-network-policy": {"networkPolicy": {"enabled": False}},
    "own-config-map": {"settings": {"calibration_config_map": "ml/mine"}},
    "extender": {"mode": "extender"},
    "extender-everything": {"mode": "extender", **_PODS, "metrics": _ALL_METRICS, "extender": {"service": {
        "clusterIP": "10.96.0.77", "annotations": {"example.com/note": "kept"}}},
        "networkPolicy": {"extenderFrom": _PEER}},
    "extender-cert-manager": {"mode": "extender", "tls": {"certManager": {"enabled": True}}},
    "extender-issuer": {
        "mode": "extender",
        "tls": {"certManager": {"enabled": True, "issuerRef": {"kind": "ClusterIssuer", "name": "internal"}}},
    },
    "extender-secret": {"mode": "extender", "tls": {"existingSecret": "given"}},
    "webhook": {"webhook": {"enabled": True}},
    "webhook-cert-manager": {"webhook": {"enabled": True, "certificates": "cert-manager"}},
    "webhook-issuer": {
        "webhook": {
            "enabled": True, "certificates": "cert-manager", "issuerRef": {"kind": "ClusterIssuer", "name": "internal"},
        },
    },
    "webhook-secret": {
        "webhook": {"enabled": True, "certificates": "secret", "existingSecret": "given", "caBundle": "Q0E="},
    },
    "extender-webhook": {"mode": "extender", "webhook": {"enabled": True, "resource": True}},
    "observe-webhook": {
        "mode": "observe", "webhook": {"enabled": True, "workloads": False}, "networkPolicy": {"webhookFrom": _PEER},
    },
    "observe": {"mode": "observe"},
    "observe-everything": {"mode": "observe", **_PODS, "metrics": _ALL_METRICS},
    "given-account": {"serviceAccount": {"create": False, "name": "given"}, "rbac": {"create": False}},
}  # fmt: skip
