"""Reads a cluster from a YAML file: nodes, and the pods that already run on them.

The file may hold Kubernetes objects, such as the output of `kubectl get nodes,pods -A -o yaml`, or this short form,
which is expanded to the same objects:

    nodes:
    - {name: l40s, product: NVIDIA-L40S, gpus: 4, sharing: true, unmanaged: [0, 18Gi]}
    - {name: a10, product: NVIDIA-A10, gpus: 2, replicas: 4}
    - {name: mig, product: NVIDIA-A100-SXM4-40GB, mig: {1g.5gb: 3, 3g.20gb: 1}}
    pods:
    - {name: bert, node: l40s, annotations: {share: true, gpu-memory: 12Gi, gpu-indices: 0}}
    - {name: notebook, node: a10, limits: {nvidia.com/gpu: 1}}
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import yaml

from vramcast.cluster.readers import Node, to_node
from vramcast.errors import FieldError, InvalidClusterFile
from vramcast.hardware.vendors import MAX_GPUS, WHOLE_GPU, is_gpu_resource, vendor_of
from vramcast.placement.gpus import MEMORY_OVERRIDE, SHARING_LABEL
from vramcast.task.forms import MAX_GPU_MEMORY_MIB
from vramcast.task.pod import Pod, to_record
from vramcast.task.quantity import ceil_mib, parse_quantity
from vramcast.task.vocabulary import PREFIX, Written

_T = TypeVar("_T", Node, Pod)
_NODE_KEYS = ("name", "product", "gpus", "memory", "sharing", "replicas", "mig", "unmanaged")
_POD_KEYS = ("name", "namespace", "uid", "node", "annotations", "limits")
_SECTIONS = ("nodes", "pods")
_PROFILE = re.compile(r"\d{1,2}g\.\d{1,4}gb")
_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")


@dataclass(slots=True)
class ClusterFile:
    """The file's objects. `unmanaged_mib`: unmanaged memory by node and GPU index."""

    nodes: dict[str, Node] = field(default_factory=dict)
    pods: list[Pod] = field(default_factory=list)
    unmanaged_mib: dict[str, tuple[int, ...]] = field(default_factory=dict)


def read_cluster_file(path: Path) -> ClusterFile:
    """Raises InvalidClusterFile with every mistake and its place in the file."""
    try:
        documents = list(yaml.safe_load_all(path.read_text()))
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidClusterFile(f"{path}: cannot be read: {error}") from None
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise InvalidClusterFile(f"{path}: is not YAML: {' '.join(str(error).split())}") from None
    reader = _Reader()
    for number, document in enumerate(documents):
        place = f"document {number + 1}: " if len(documents) > 1 else ""
        if document is not None:
            reader.read_document(document, place)
    reader.check_whole()
    if reader.errors:
        raise InvalidClusterFile("\n".join(f"{path}: {error}" for error in reader.errors))
    return reader.found


class _Reader:
    """Collects the objects and all mistakes in one pass."""

    def __init__(self) -> None:
        self.found = ClusterFile()
        self.errors: list[FieldError] = []
        self._pod_places: dict[str, str] = {}

    def _error(self, place: str, value: object, expected: str) -> None:
        self.errors.append(FieldError(place, value if isinstance(value, str) else repr(value), expected))

    # --- the document

    def read_document(self, document: object, place: str) -> None:
        if not isinstance(document, dict):
            self._error(place or "(whole file)", document, "expected `nodes:` and `pods:`, or Kubernetes objects")
        elif "kind" in document:
            self._read_object(document, place)
        else:
            self._check_keys(document, _SECTIONS, place)
            for section, read in (("nodes", self._read_node_entry), ("pods", self._read_pod_entry)):
                self._read_list(document.get(section), f"{place}{section}", read)

    def _read_list(self, entries: object, place: str, read: Callable[[dict[str, Any], str], None]) -> None:
        if entries is None:
            return
        if not isinstance(entries, list):
            self._error(place, entries, "expected a list")
            return
        for number, entry in enumerate(entries):
            if isinstance(entry, dict):
                read(entry, f"{place}[{number}]")
            else:
                self._error(f"{place}[{number}]", entry, "expected a mapping")

    def _read_object(self, document: dict[str, Any], place: str) -> None:
        kind = document["kind"]
        if kind in {"List", "NodeList", "PodList"}:
            item_kind = kind.removesuffix("List")
            for item in document.get("items") or ():
                if isinstance(item, dict):
                    item.setdefault("kind", item_kind)
            self._read_list(document.get("items"), f"{place}items", self._read_object)
        elif kind == "Node":
            self._add_node(document, place or "(whole file)")
        elif kind == "Pod":
            self._add_pod(document, place or "(whole file)")
        else:
            self._error(f"{place}kind" if not place or place[-1] == " " else f"{place}.kind", kind,
                       "expected Node, Pod or List")  # fmt: skip

    def _read_node_entry(self, entry: dict[str, Any], place: str) -> None:
        if "metadata" in entry:
            self._add_node(entry, place)
            return
        manifest = self._expand_node(entry, place)
        node = self._add_node(manifest, place) if manifest else None
        problem = to_node(node).problem if node else ""
        if problem:
            self._error(place, entry["name"], problem)

    def _read_pod_entry(self, entry: dict[str, Any], place: str) -> None:
        if "metadata" in entry:
            self._add_pod(entry, place)
            return
        manifest = self._expand_pod(entry, place)
        pod = self._add_pod(manifest, place) if manifest else None
        invalid = to_record(pod).invalid if pod else None
        for error in invalid.errors if invalid else ():
            self.errors.append(FieldError(f"{place}: {error.field}", error.value, error.expected))

    # --- objects

    def _add_node(self, manifest: dict[str, Any], place: str) -> Node | None:
        node = self._convert(manifest, Node, place)
        name = (node.metadata.name or "") if node and node.metadata else ""
        if node is None or not self._check_name(name, f"{place}.metadata.name"):
            return None
        if name in self.found.nodes:
            self._error(place, name, "expected each node once")
        self.found.nodes[name] = node
        return node

    def _add_pod(self, manifest: dict[str, Any], place: str) -> Pod | None:
        pod = self._convert(manifest, Pod, place)
        if pod is None or not self._check_name(pod.metadata.name if pod.metadata else None, f"{place}.metadata.name"):
            return None
        key = to_record(pod).key
        if key in self._pod_places:
            self._error(place, key, f"expected each pod once, it is also {self._pod_places[key]}")
        self._pod_places[key] = place
        self.found.pods.append(pod)
        return pod

    def _convert(self, manifest: dict[str, Any], kind: type[_T], place: str) -> _T | None:
        try:
            return msgspec.convert(manifest, kind)
        except msgspec.ValidationError as error:
            message, _, where = str(error).partition(" - at ")
            self._error(place + where.strip("`").removeprefix("$"), "", message)
        except RecursionError:
            self._error(place, "", "nested too deeply")
        return None

    def check_whole(self) -> None:
        if not self.found.nodes and not self.errors:
            self._error("nodes", "", "expected at least one node")
        for pod in self.found.pods:
            record = to_record(pod)
            if record.node is not None and record.node not in self.found.nodes and not self.errors:
                self._error(f"{self._pod_places[record.key]}: node", record.node, "expected a node of this file")

    # --- the short form

    def _expand_node(self, entry: dict[str, Any], place: str) -> dict[str, Any] | None:
        before = len(self.errors)
        self._check_keys(entry, _NODE_KEYS, place)
        self._check_name(entry.get("name"), f"{place}.name")
        product = self._text(entry, "product", place)
        gpus = self._count(entry, "gpus", place, 0, MAX_GPUS)
        replicas = self._count(entry, "replicas", place, 1, 64)
        sharing = self._flag(entry, "sharing", place)
        memory = self._sizes([entry["memory"]] if "memory" in entry else [], f"{place}.memory", least_mib=1)
        unmanaged = self._unmanaged(entry, place)
        mig = self._mig(entry, place)
        if not mig and not entry.get("gpus"):
            self._error(f"{place}.gpus", entry.get("gpus", ""), "expected the node's number of GPUs (or `mig`)")
        vendor = vendor_of(product)
        names = vendor.labels
        if (replicas > 1 and not names.replicas) or (mig and not vendor.slices.prefix):
            self._error(place, product, f"expected no replicas and no `mig` on GPUs of {vendor.name}")
        if len(self.errors) > before:
            return None
        if unmanaged:
            self.found.unmanaged_mib[entry["name"]] = unmanaged
        labels = {names.product: product} | ({names.count: str(gpus)} if names.count else {})
        labels |= {SHARING_LABEL: "true"} if sharing else {}
        if replicas > 1:
            labels |= {names.replicas: str(replicas), names.sharing_strategy: "time-slicing"}
        devices: dict[str, int] = {vendor.whole_gpu: gpus * replicas} if gpus else {}
        devices |= {vendor.slices.prefix + profile: count for profile, count in mig.items()}
        annotations = {MEMORY_OVERRIDE: f"{memory[0]}Mi"} if memory else {}
        metadata = {"name": entry["name"], "labels": labels, "annotations": annotations}
        return {"metadata": metadata, "status": {"allocatable": devices}}

    def _expand_pod(self, entry: dict[str, Any], place: str) -> dict[str, Any] | None:
        before = len(self.errors)
        self._check_keys(entry, _POD_KEYS, place)
        metadata = {key: self._text(entry, key, place) for key in ("name", "namespace", "uid") if key in entry}
        self._check_name(entry.get("name"), f"{place}.name")
        node = self._text(entry, "node", place)
        annotations = dict(self._annotations(entry, place))
        limits = {name: count for name, count in self._mapping(entry, "limits", place).items()
                  if self._check_limit(name, count, f"{place}.limits.{name}")}  # fmt: skip
        if len(self.errors) > before:
            return None
        if node and PREFIX + "gpu-memory" in annotations:
            # A pod that already runs on a node was promised the memory that it declares.
            annotations.setdefault(Written.RESERVED_MEMORY, annotations[PREFIX + "gpu-memory"])
        return {
            "metadata": {**metadata, "annotations": annotations},
            "spec": {"nodeName": node or None, "containers": [{"resources": {"limits": limits}}]},
        }

    # --- values

    def _check_keys(self, entry: Mapping[Any, Any], known: tuple[str, ...], place: str) -> None:
        for key in entry:
            if key not in known:
                near = get_close_matches(str(key), known, n=1)
                hint = f"did you mean {near[0]}?" if near else f"expected one of {', '.join(known)}"
                self._error(f"{place}.{key}".lstrip("."), entry[key], f"there is no such key; {hint}")

    def _check_name(self, name: object, place: str) -> bool:
        valid = isinstance(name, str) and _NAME.fullmatch(name) is not None
        if not valid:
            self._error(place, name if name is not None else "", "expected a name such as gpu-node-1")
        return valid

    def _text(self, entry: Mapping[str, Any], key: str, place: str) -> str:
        text = entry.get(key, "")
        if not isinstance(text, str):
            self._error(f"{place}.{key}", text, "expected a string")
            return ""
        return text

    def _flag(self, entry: Mapping[str, Any], key: str, place: str) -> bool:
        flag = entry.get(key, False)
        if not isinstance(flag, bool):
            self._error(f"{place}.{key}", flag, "expected true or false")
        return flag is True

    def _count(self, entry: Mapping[str, Any], key: str, place: str, low: int, high: int) -> int:
        count = entry.get(key, low)
        if isinstance(count, bool) or not isinstance(count, int) or not low <= count <= high:
            self._error(f"{place}.{key}", count, f"expected a whole number from {max(1, low)} to {high}")
            return low
        return count

    def _mapping(self, entry: Mapping[str, Any], key: str, place: str) -> dict[str, Any]:
        values = entry.get(key) or {}
        if not isinstance(values, dict) or not all(isinstance(name, str) for name in values):
            self._error(f"{place}.{key}", values, "expected a mapping of names to values")
            return {}
        return values

    def _mig(self, entry: Mapping[str, Any], place: str) -> dict[str, int]:
        slices = self._mapping(entry, "mig", place)
        for profile in slices:
            if not _PROFILE.fullmatch(profile):
                self._error(f"{place}.mig.{profile}", profile, "expected a MIG profile such as 1g.5gb")
        return {profile: self._count(slices, profile, f"{place}.mig", 1, MAX_GPUS * 8) for profile in slices}

    def _unmanaged(self, entry: Mapping[str, Any], place: str) -> tuple[int, ...]:
        sizes = entry.get("unmanaged") or []
        if not isinstance(sizes, list):
            self._error(f"{place}.unmanaged", sizes, "expected one quantity for each GPU, such as [0, 10Gi]")
            return ()
        return self._sizes(sizes, f"{place}.unmanaged", least_mib=0)

    def _sizes(self, values: list[Any], place: str, least_mib: int) -> tuple[int, ...]:
        sizes = []
        for number, value in enumerate(values):
            where = f"{place}[{number}]" if least_mib == 0 else place
            try:
                mib = ceil_mib(parse_quantity(str(value)))
            except ValueError as error:
                self._error(where, value, f"expected {error}")
                continue
            if not least_mib <= mib <= MAX_GPU_MEMORY_MIB or 0 < parse_quantity(str(value)) < 1024:
                self._error(where, value, "expected the memory of one GPU, such as 10Gi")
            sizes.append(mib)
        return tuple(sizes)

    def _check_limit(self, name: str, count: object, place: str) -> bool:
        valid = isinstance(count, int) and not isinstance(count, bool) and 1 <= count <= MAX_GPUS * 8
        if not valid or not is_gpu_resource(name):
            self._error(place, count, f"expected a GPU resource and a count, such as {WHOLE_GPU}: 1")
        return valid

    def _annotations(self, entry: Mapping[str, Any], place: str) -> Iterator[tuple[str, str]]:
        """Keys without a slash get our prefix. Unlike in Kubernetes, numbers and booleans need no quotes."""
        for name, value in self._mapping(entry, "annotations", place).items():
            if not isinstance(value, str | int | float):
                self._error(f"{place}.annotations.{name}", value, "expected a string")
                continue
            text = str(value).lower() if isinstance(value, bool) else str(value)
            yield (name if "/" in name else PREFIX + name), text
