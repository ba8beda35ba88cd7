"""A node's GPUs, read from the labels and annotations that cluster admins already have.

A node offers *pools* of devices. A pool that a device plugin hands out (`nvidia.com/gpu`, `nvidia.com/mig-1g.5gb`)
is interchangeable devices of one size: the kubelet picks. The pool of a sharing node is the physical GPUs by
index: vramcast picks.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from vramcast.hardware.products import PRODUCTS, base_product, reserve_mib
from vramcast.hardware.vendors import MAX_GPUS, SHARED_GPU, WHOLE_GPU
from vramcast.names import NodeName, Product, Resource
from vramcast.task.quantity import MIB, parse_quantity

SHARING_LABEL = "vramcast.dev/gpu-sharing"
# On a node: what its GPUs really are, where labels are missing or wrong. `40Gi`, or one per index: `40Gi,24Gi`.
MEMORY_OVERRIDE = "vramcast.dev/gpu-memory"
PRODUCT_OVERRIDE = "vramcast.dev/gpu-product"

_LABEL = "nvidia.com/gpu."
_MIG_RESOURCE = re.compile(r"nvidia\.com/mig-(?P<profile>[0-9]+g\.(?P<gigabytes>[0-9]{1,4})gb[a-z0-9.+-]*?)(\.shared)?")
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
    """What one node offers. `problem` says why a node with GPUs offers none."""

    name: NodeName
    sharing: bool = False
    pools: tuple[Pool, ...] = ()
    problem: str = ""

    def pool(self, resource: Resource) -> Pool | None:
        return next((pool for pool in self.pools if pool.resource == resource), None)


def read_node(
    name: NodeName, labels: Mapping[str, str], annotations: Mapping[str, str], allocatable: Mapping[str, str]
) -> NodeGpus:
    """The GPUs of a node. Never raises: a node that cannot be read offers nothing and says why."""
    sharing = labels.get(SHARING_LABEL) == "true"
    if labels.get(SHARING_LABEL, "true") not in {"true", "false"}:
        said = labels[SHARING_LABEL][:60]
        return NodeGpus(name, problem=f'label {SHARING_LABEL}={said!r}: expected "true" or "false"')
    try:
        pools = _read_pools(sharing, labels, annotations, allocatable)
    except ValueError as error:
        return NodeGpus(name, sharing, problem=str(error))
    return NodeGpus(name, sharing, pools)


def _read_pools(
    sharing: bool, labels: Mapping[str, str], annotations: Mapping[str, str], allocatable: Mapping[str, str]
) -> tuple[Pool, ...]:
    mig = tuple(_mig_pools(labels, allocatable))
    if sharing and (mig or "-MIG-" in labels.get(_LABEL + "product", "")):
        raise ValueError(f"{SHARING_LABEL} is set on a node with MIG devices: share whole GPUs, or use MIG, not both")
    main = _main_pool(sharing, labels, annotations, allocatable)
    return (*([main] if main else []), *mig)


def _main_pool(
    sharing: bool, labels: Mapping[str, str], annotations: Mapping[str, str], allocatable: Mapping[str, str]
) -> Pool | None:
    """The whole (or shared, or time-sliced) GPUs of the node; None where it has none."""
    label = annotations.get(PRODUCT_OVERRIDE) or labels.get(_LABEL + "product", "")
    override = _override_mib(annotations.get(MEMORY_OVERRIDE))
    replicas = _replicas(labels, _LABEL + "replicas")
    resource = next((Resource(r) for r in (WHOLE_GPU, WHOLE_GPU + ".shared") if _devices(allocatable, r)), WHOLE_GPU)
    advertised = _devices(allocatable, resource)
    count = _whole_number(labels, _LABEL + "count")
    if count is None:
        count = advertised // replicas or (len(override) if override else 0)
    if not count:
        return None
    if count > MAX_GPUS * 8:
        raise ValueError(f"{_LABEL}count={count} is more devices than a node can have")
    product = base_product(label)
    totals = override or (_label_mib(labels, label, product),)
    # A MIG device carries its own reserve: the driver reports the slice net of it.
    reserve = 0 if "-MIG-" in label else reserve_mib(product)
    usable = tuple(max(0, total - reserve) for total in totals)
    if sharing:
        if count > MAX_GPUS:
            raise ValueError(f"{count} shared GPUs on one node; at most {MAX_GPUS} are supported")
        if len(usable) not in (1, count):
            raise ValueError(f"annotation {MEMORY_OVERRIDE} names {len(usable)} GPUs, the node has {count}")
        return Pool(SHARED_GPU, product, usable if len(usable) == count else usable * count, count)
    if labels.get(_LABEL + "sharing-strategy") == "mps" and replicas > 1:
        # MPS limits each replica to its share of the memory: a replica is a device of that size.
        return Pool(resource, product, (min(usable) // replicas,), count * replicas)
    return Pool(resource, product, (min(usable),), count, replicas)


def _mig_pools(labels: Mapping[str, str], allocatable: Mapping[str, str]) -> list[Pool]:
    """MIG in the mixed strategy: every profile is a resource of its own."""
    pools = []
    product = base_product(labels.get(_LABEL + "product", ""))
    for name in sorted({*allocatable, *(key.removesuffix(".count") for key in labels if key.endswith(".count"))}):
        match = _MIG_RESOURCE.fullmatch(name)
        if match is None:
            continue
        stem = f"nvidia.com/mig-{match['profile']}"
        count = _devices(allocatable, name) or _whole_number(labels, stem + ".count") or 0
        replicas = _replicas(labels, stem + ".replicas")
        # 5gb of a 40 GB chip is 4864 MiB: what a slice is called is rounded up by about a twentieth.
        memory = _memory_mib(labels, stem + ".memory") or int(match["gigabytes"]) * 1024 * 19 // 20
        if count:
            pools.append(Pool(Resource(name), product, (memory,), max(1, count // replicas), replicas))
    return pools


def _label_mib(labels: Mapping[str, str], label: str, product: Product) -> int:
    memory = _memory_mib(labels, _LABEL + "memory")
    if memory:
        return memory
    if product in PRODUCTS and "-MIG-" not in label:
        return PRODUCTS[product].memory_mib
    raise ValueError(
        f"the GPU memory is not known: no label {_LABEL}memory, and product {label or '(no label)'!r} is not in the "
        f"table; annotate the node with {MEMORY_OVERRIDE}, such as 40Gi"
    )


def _memory_mib(labels: Mapping[str, str], key: str) -> int:
    """0 where there is no such label."""
    memory = _whole_number(labels, key) or 0
    mib = memory // MIB if memory >= _CERTAINLY_BYTES else memory
    if mib > _MAX_MEMORY_MIB:
        raise ValueError(f"label {key}={memory}: expected the MiB of one GPU")
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


def _whole_number(values: Mapping[str, str], key: str) -> int | None:
    text = values.get(key)
    if text is None:
        return None
    if not re.fullmatch(r"[0-9]{1,18}", text):
        raise ValueError(f"label {key}={text[:60]!r}: expected a whole number")
    return int(text)


def _devices(allocatable: Mapping[str, str], resource: str) -> int:
    text = allocatable.get(resource, "0")
    return int(text) if re.fullmatch(r"[0-9]{1,6}", text) else 0
