"""Objects for pods that wait between filter and bind: device claims, late-bound volumes and gangs.

No driver and no controller manager runs here. The devices exist only as objects, and `VolumeBinder` does the one thing
of the volume controllers that the scheduler waits for.
"""

from __future__ import annotations

import threading
from typing import Any

from .api import Api, ApiError, Json

# The API server and the scheduler need both. Gangs are alpha in 1.36.
GANG_GATES = "--feature-gates=GenericWorkload=true,GangScheduling=true"
GANG_API = "--runtime-config=scheduling.k8s.io/v1alpha2=true"

_DRIVER = "nic.example.com"
_DEVICES = "/apis/resource.k8s.io/v1"
_STORAGE = "/apis/storage.k8s.io/v1"
_GROUPS = "/apis/scheduling.k8s.io/v1alpha2/namespaces/default/podgroups"
_CLAIMS = "/api/v1/namespaces/default/persistentvolumeclaims"
_SELECTED_NODE = "volume.kubernetes.io/selected-node"
STORAGE_CLASS = "late"


def create_device_class(api: Api) -> None:
    _create(api, f"{_DEVICES}/deviceclasses", {"metadata": {"name": _DRIVER}, "spec": {}})


def create_devices(api: Api, node: str, count: int = 4) -> None:
    """The devices that a driver would publish for this node."""
    spec = {
        "driver": _DRIVER,
        "nodeName": node,
        "pool": {"name": node, "generation": 1, "resourceSliceCount": 1},
        "devices": [{"name": f"nic-{number}"} for number in range(count)],
    }
    _create(api, f"{_DEVICES}/resourceslices", {"metadata": {"name": f"{node}-nics"}, "spec": spec})


def create_claim(api: Api, name: str) -> Json:
    """A claim for one device. Returns the fields that a pod needs to use it."""
    request = {"name": "nic", "exactly": {"deviceClassName": _DRIVER}}
    claim = {"metadata": {"name": name}, "spec": {"devices": {"requests": [request]}}}
    _create(api, f"{_DEVICES}/namespaces/default/resourceclaims", claim)
    return {"resourceClaims": [{"name": "nic", "resourceClaimName": name}]}


def create_storage_class(api: Api) -> None:
    body = {
        "metadata": {"name": STORAGE_CLASS},
        "provisioner": "example.com/nobody",
        "volumeBindingMode": "WaitForFirstConsumer",
    }
    _create(api, f"{_STORAGE}/storageclasses", body)


def create_volume_claim(api: Api, name: str) -> Json:
    """A claim whose volume is made once a node is chosen. Returns the fields that a pod needs to use it."""
    spec = {
        "accessModes": ["ReadWriteOnce"],
        "storageClassName": STORAGE_CLASS,
        "resources": {"requests": {"storage": "1Gi"}},
    }
    _create(api, _CLAIMS, {"metadata": {"name": name}, "spec": spec})
    return {"volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": name}}]}


def create_gang(api: Api, name: str, size: int) -> Json:
    """A group that is placed as a whole or not at all. Returns the fields that its pods need."""
    _create(api, _GROUPS, {"metadata": {"name": name}, "spec": {"schedulingPolicy": {"gang": {"minCount": size}}}})
    return {"schedulingGroup": {"podGroupName": name}}


def create_priority_class(api: Api, name: str, value: int) -> None:
    _create(api, "/apis/scheduling.k8s.io/v1/priorityclasses", {"metadata": {"name": name}, "value": value})


def clear_today(api: Api) -> None:
    """Deletes what these tests made, apart from the classes."""
    for path in (
        f"{_DEVICES}/namespaces/default/resourceclaims",
        f"{_DEVICES}/resourceslices",
        _CLAIMS,
        "/api/v1/persistentvolumes",
        _GROUPS,
    ):
        for item in api.get(path)["items"]:
            _delete(api, path, item)


def _delete(api: Api, path: str, item: Json) -> None:
    """At once: the controllers that would remove the finalizers do not run."""
    target = f"{path}/{item['metadata']['name']}"
    try:
        if item["metadata"].get("finalizers"):
            api.patch(target, {"metadata": {"finalizers": None}})
        api.request("DELETE", target)
    except ApiError as error:
        if error.status != 404:
            raise


class VolumeBinder:
    """Makes and binds a volume for every claim that the scheduler has chosen a node for, after `delay_seconds`."""

    def __init__(self, api: Api, delay_seconds: float = 0.1) -> None:
        self._api = api
        self._delay_seconds = delay_seconds
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="volume-binder", daemon=True)

    def __enter__(self) -> VolumeBinder:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(0.02):
            for claim in self._api.get(_CLAIMS)["items"]:
                node = claim["metadata"].get("annotations", {}).get(_SELECTED_NODE)
                if node and not claim["spec"].get("volumeName") and not self._stop.wait(self._delay_seconds):
                    self._bind(claim, node)

    def _bind(self, claim: Json, node: str) -> None:
        name = f"volume-{claim['metadata']['name']}"
        here = {"key": "kubernetes.io/hostname", "operator": "In", "values": [node]}
        reference = {"kind": "PersistentVolumeClaim", "apiVersion": "v1", "namespace": "default"}
        reference |= {key: claim["metadata"][key] for key in ("name", "uid")}
        volume: dict[str, Any] = {
            "metadata": {"name": name},
            "spec": {
                "capacity": {"storage": "1Gi"},
                "accessModes": ["ReadWriteOnce"],
                "storageClassName": STORAGE_CLASS,
                "claimRef": reference,
                "local": {"path": "/data"},
                "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [here]}]}},
            },
        }
        _create(self._api, "/api/v1/persistentvolumes", volume)
        self._api.patch(f"/api/v1/persistentvolumes/{name}/status", {"status": {"phase": "Bound"}})
        path = f"{_CLAIMS}/{claim['metadata']['name']}"
        bound = {"metadata": {"annotations": {"pv.kubernetes.io/bind-completed": "yes"}}, "spec": {"volumeName": name}}
        self._api.patch(path, bound)
        self._api.patch(f"{path}/status", {"status": {"phase": "Bound"}})


def _create(api: Api, path: str, body: Json) -> None:
    try:
        api.request("POST", path, body)
    except ApiError as error:
        if error.reason != "AlreadyExists":
            raise
