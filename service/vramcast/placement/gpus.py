"""A node's GPUs, read from the labels and annotations that cluster admins already have.

A node offers *pools* of devices. A pool that a device plugin hands out (whole GPUs, MIG slices) is interchangeable
devices of one size: the kubelet picks. The pool of a sharing node is the physical GPUs by index: vramcast picks. What
differs between GPU vendors is in hardware/vendors.py.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from vramcast.hardware.products import base_product, memory_mib, reserve_mib
from vramcast.hardware.vendors import MAX_GPUS, SHARED_GPU, VENDORS, GpuVendor
from vramcast.names import NodeName, Product, Resource
from vramcast.task.quantity import MIB, parse_quantity

SHARING_LABEL = "vramcast.dev/gpu-sharing"
# The taint has the same key. It keeps out the pods of other schedulers, which the label does not.
SHARING_TAINT = SHARING_LABEL
KEEPS_OUT = frozenset({"NoSchedule", "NoExecute"})
# On a node: what its GPUs really are, where labels are missing or wrong. `40Gi`, or one per index: `40Gi,24Gi`.
MEMORY_OVERRIDE = "vramcast.dev/gpu-memory"
PRODUCT_OVERRIDE = "vramcast.dev/gpu-product"
# On a node: which of its GPUs have fast links to each other. `0-3,4-7`: two groups of four.
LINKS = "vramcast.dev/gpu-links"

# GPU Feature Discovery once wrote bytes where MiB belong; no GPU has this many MiB.
_CERTAINLY_BYTES = 1 << 26
# Beyond these a label is a mistake: 1 TiB on one GPU, and more replicas than a GPU could ever be cut into.
_MAX_MEMORY_MIB = 1 << 20
_MAX_REPLICAS = 1024


@dataclass(frozen=True, slots=True)
class Pool:
    """Devices of one node under one resource name. `memory_mib`: usable, per device that can be told apart."""

    resource: Resource
    product: Product
    memory_mib: tuple[int, ...]
    count: int
    replicas: int = 1

    @property
    def picked_by_kubelet(self) -> bool:
        return self.resource != SHARED_GPU


@dataclass(frozen=True, slots=True)
class NodeGpus:
    """What one node offers. `problem` says why a node with GPUs offers none.

    `tainted`: only pods that tolerate the taint of sharing nodes can land here.
    """

    name: NodeName
    sharing: bool = False
    pools: tuple[Pool, ...] = ()
    problem: str = ""
    tainted: bool = False
    links: tuple[range, ...] = ()  # groups of GPUs with fast links, by index

    def pool(self, resource: Resource) -> Pool | None:
        return next((pool for pool in self.pools if pool.resource == resource), None)

    def misplaces(self, resource: Resource) -> bool:
        """A pod from the device plugin on a sharing node, or the reverse: nothing tells which GPUs both would use."""
        return bool(self.pools) and (resource == SHARED_GPU) != self.sharing


def read_node(
    name: NodeName,
    labels: Mapping[str, str],
    annotations: Mapping[str, str],
    allocatable: Mapping[str, str],
    *,
    tainted: bool = False,
) -> NodeGpus:
    """The GPUs of a node. Never raises: a node that cannot be read offers nothing and reports why."""
    sharing = labels.get(SHARING_LABEL) == "true"
    if labels.get(SHARING_LABEL, "true") not in {"true", "false"}:
        value = labels[SHARING_LABEL][:60]
        return NodeGpus(name, problem=f'label {SHARING_LABEL}={value!r}: expected "true" or "false"', tainted=tainted)
    try:
        pools = _read_pools(sharing, labels, annotations, allocatable)
        links = _read_links(annotations.get(LINKS))
    except ValueError as error:
        return NodeGpus(name, sharing, problem=str(error), tainted=tainted)
    return NodeGpus(name, sharing, pools, tainted=tainted, links=links)


def _read_pools(
    sharing: bool, labels: Mapping[str, str], annotations: Mapping[str, str], allocatable: Mapping[str, str]
) -> tuple[Pool, ...]:
    facts = _read_facts(labels, annotations, allocatable)
    slices = _slice_pools(facts)
    if sharing and (slices or facts.sliced):
        kind = facts.vendor.slices.name
        raise ValueError(f"{SHARING_LABEL} is set on a node with {kind}: share whole GPUs, or use {kind}, not both")
    main = _main_pool(facts, sharing, _override_mib(annotations.get(MEMORY_OVERRIDE)))
    return (*([main] if main else []), *slices)


def _vendor(labels: Mapping[str, str], devices: Mapping[str, int]) -> GpuVendor:
    """Whose GPUs the node has: by what the device plugin offers, else by the labels."""
    found = [vendor for vendor in VENDORS if any(map(vendor.devices.fullmatch, devices))]
    if len(found) > 1:
        # Every exporter numbers its GPUs from 0, so telemetry could not tell which GPU 0 is full.
        names = " and ".join(vendor.name for vendor in found)
        raise ValueError(f"the node has GPUs of {names}: expected one vendor per node")
    found += [vendor for vendor in VENDORS if {vendor.labels.product, vendor.labels.memory} & labels.keys()]
    return found[0] if found else VENDORS[0]


@dataclass(frozen=True, slots=True)
class _Facts:
    vendor: GpuVendor
    labels: Mapping[str, str]
    devices: Mapping[str, int]  # by resource, as the device plugin offers them
    resource: Resource  # the one that stands for the node's GPUs, and not for slices with labels of their own
    product_label: str
    sliced: bool


def _read_facts(labels: Mapping[str, str], annotations: Mapping[str, str], allocatable: Mapping[str, str]) -> _Facts:
    devices = {name: count for name, text in allocatable.items() if (count := _count(text))}
    vendor = _vendor(labels, devices)
    names, slices = vendor.labels, vendor.slices
    offered = (name for name in devices if not slices.prefix or not name.startswith(slices.prefix))
    resource = min((Resource(name) for name in offered if vendor.devices.fullmatch(name)), default=vendor.whole_gpu)
    label = annotations.get(PRODUCT_OVERRIDE) or labels.get(names.product) or vendor.unnamed_product
    seen = (label, resource, labels.get(names.product, ""), labels.get(names.partition, ""))
    return _Facts(vendor, labels, devices, resource, label, any(map(slices.marker.search, seen)))


def _main_pool(facts: _Facts, sharing: bool, override: tuple[int, ...]) -> Pool | None:
    """The whole (or shared, or time-sliced) GPUs of the node; None where it has none."""
    labels, names = facts.labels, facts.vendor.labels
    advertised = facts.devices.get(facts.resource, 0)
    replicas = _replicas(labels, names.replicas)
    count = _whole_number(labels, names.count)
    if count is None and names.count_by_memory:
        count = _whole_number(labels, names.count_by_memory + labels.get(names.memory, ""))
        # This labeller does not show replicas: more devices than GPUs reveal them.
        replicas = min(-(-advertised // count), _MAX_REPLICAS) if count and advertised > count else 1
    if count is None:
        count = advertised // replicas or len(override)
    if not count:
        return None
    if count > MAX_GPUS * 8:
        raise ValueError(f"{names.count or names.count_by_memory}={count} is more devices than a node can have")
    product = base_product(facts.product_label)
    totals = override or (_label_mib(facts, product),)
    # The driver reports a labelled slice net of its reserve.
    reserve = 0 if facts.sliced and facts.vendor.slices.memory_labelled else reserve_mib(product)
    usable = tuple(max(0, total - reserve) for total in totals)
    if sharing:
        if count > MAX_GPUS:
            raise ValueError(f"{count} shared GPUs on one node; at most {MAX_GPUS} are supported")
        if len(usable) not in (1, count):
            raise ValueError(f"annotation {MEMORY_OVERRIDE} names {len(usable)} GPUs, the node has {count}")
        return Pool(SHARED_GPU, product, usable if len(usable) == count else usable * count, count)
    if labels.get(names.sharing_strategy) == "mps" and replicas > 1:
        # MPS limits each replica to its share of the memory: a replica is a device of that size.
        return Pool(facts.resource, product, (min(usable) // replicas,), count * replicas)
    return Pool(facts.resource, product, (min(usable),), count, replicas)


def _slice_pools(facts: _Facts) -> list[Pool]:
    """MIG in the mixed strategy: every profile is a resource of its own."""
    pattern, labels = facts.vendor.slices.resource, facts.labels
    if pattern is None:
        return []
    pools = []
    for name in sorted({*facts.devices, *(key.removesuffix(".count") for key in labels if key.endswith(".count"))}):
        match = pattern.fullmatch(name)
        if match is None:
            continue
        stem = match["stem"]
        count = facts.devices.get(name) or _whole_number(labels, stem + ".count") or 0
        replicas = _replicas(labels, stem + ".replicas")
        # 5gb of a 40 GB chip is 4864 MiB: a slice's name is rounded up by about a twentieth.
        memory = _memory_mib(facts, stem + ".memory") or int(match["gigabytes"]) * 1024 * 19 // 20
        if count:
            product = base_product(labels.get(facts.vendor.labels.product, ""))
            pools.append(Pool(Resource(name), product, (memory,), max(1, count // replicas), replicas))
    return pools


def _label_mib(facts: _Facts, product: Product) -> int:
    key, slices = facts.vendor.labels.memory, facts.vendor.slices
    if facts.sliced and not slices.memory_labelled:
        raise ValueError(
            f"the GPUs are cut into {slices.name}, and no label shows the memory of one: annotate the node with "
            f"{MEMORY_OVERRIDE}, such as 20Gi"
        )
    memory = _memory_mib(facts, key) or (0 if facts.sliced else memory_mib(product))
    if memory:
        return memory
    label = facts.product_label or "(no label)"
    raise ValueError(
        f"the GPU memory is not known: no label {key}, and product {label!r} is not in the table; annotate the node "
        f"with {MEMORY_OVERRIDE}, such as 40Gi"
    )


def _memory_mib(facts: _Facts, key: str) -> int:
    """0 where there is no such label."""
    names = facts.vendor.labels
    memory = _whole_number(facts.labels, key, names.memory_suffix) or 0
    is_bytes = memory >= _CERTAINLY_BYTES and not names.memory_suffix
    mib = memory // MIB if is_bytes else memory * names.memory_unit_mib
    if mib > _MAX_MEMORY_MIB:
        unit = "GiB" if names.memory_suffix else "MiB"
        raise ValueError(f"label {key}={facts.labels[key]}: expected the {unit} of one GPU")
    return mib


def _replicas(labels: Mapping[str, str], key: str) -> int:
    replicas = _whole_number(labels, key) or 1
    if replicas > _MAX_REPLICAS:
        raise ValueError(f"label {key}={replicas}: expected at most {_MAX_REPLICAS}")
    return replicas


def _override_mib(text: str | None) -> tuple[int, ...]:
    if not text:
        return ()
    try:
        sizes = tuple(int(parse_quantity(part) // MIB) for part in text.split(","))
    except ValueError as error:
        raise ValueError(f"annotation {MEMORY_OVERRIDE}={text[:60]!r}: expected {error}") from None
    if not all(0 < size <= _MAX_MEMORY_MIB for size in sizes):
        raise ValueError(f"annotation {MEMORY_OVERRIDE}={text[:60]!r}: expected the memory of one GPU, such as 40Gi")
    return sizes


def _read_links(text: str | None) -> tuple[range, ...]:
    if not text:
        return ()
    groups = []
    for part in text.replace(" ", "").split(","):
        match = re.fullmatch(r"([0-9]{1,2})-([0-9]{1,2})", part)
        if match is None or not int(match[1]) < int(match[2]) < MAX_GPUS:
            raise ValueError(f"annotation {LINKS}={text[:60]!r}: expected groups of GPUs such as 0-3,4-7")
        groups.append(range(int(match[1]), int(match[2]) + 1))
    return tuple(groups)


def _whole_number(values: Mapping[str, str], key: str, suffix: str = "") -> int | None:
    text = values.get(key)
    if text is None or not key:
        return None
    if not re.fullmatch(r"[0-9]{1,18}" + suffix, text):
        expected = f", such as 64{suffix}" if suffix else ""
        raise ValueError(f"label {key}={text[:60]!r}: expected a whole number{expected}")
    return int(text.removesuffix(suffix))


def _count(text: str) -> int:
    return int(text) if re.fullmatch(r"[0-9]{1,6}", text) else 0
