"""ResourceSlices: what drivers of dynamic resource allocation publish about the devices of a node."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

import msgspec

from vramcast.names import NodeName
from vramcast.placement.changes import Change
from vramcast.placement.claimable import (
    GpuSlice,
    PublishedGpu,
    SliceGone,
    SliceSeen,
    SlicesListed,
    product_named,
)
from vramcast.task.pod import NO_METADATA, Metadata
from vramcast.task.quantity import MIB, parse_quantity

_PRODUCT: Final = "productName"
_TYPE: Final = "type"
_MEMORY: Final = "memory"
# A GPU that is cut into slices is published beside them, with its own type.
_WHOLE: Final = frozenset({"", "gpu"})
_MAX_MEMORY_MIB: Final = 1 << 20


class SlicePool(msgspec.Struct, frozen=True, gc=False):
    name: str | None = None
    generation: int | None = None


class PublishedDevice(msgspec.Struct, frozen=True, gc=False):
    name: str | None = None
    attributes: dict[str, Any] | None = None
    capacity: dict[str, Any] | None = None


class SliceSpec(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    node_name: str | None = None
    pool: SlicePool | None = None
    devices: list[PublishedDevice | None] | None = None


class ResourceSlice(msgspec.Struct, frozen=True, gc=False):
    metadata: Metadata | None = None
    spec: SliceSpec | None = None


def to_slice(item: ResourceSlice) -> GpuSlice:
    """Never raises: a device that cannot be read is left out."""
    spec = item.spec or SliceSpec()
    pool = spec.pool or SlicePool()
    gpus = tuple(gpu for device in spec.devices or () if device for gpu in _gpus(device))
    return GpuSlice(_name(item), NodeName(spec.node_name or ""), pool.name or "", pool.generation or 0, gpus)


def _gpus(device: PublishedDevice) -> Iterator[PublishedGpu]:
    product = _attribute(device.attributes, _PRODUCT)
    capacity = _qualified(device.capacity, _MEMORY)
    try:
        mib = int(parse_quantity(str(capacity.get("value"))) // MIB)
    except ValueError:
        return
    if product and 0 < mib <= _MAX_MEMORY_MIB and _attribute(device.attributes, _TYPE) in _WHOLE:
        yield PublishedGpu(device.name or "", product_named(product), mib)


def _attribute(attributes: Mapping[str, Any] | None, name: str) -> str:
    return str(_qualified(attributes, name).get("string", ""))


def _qualified(values: Mapping[str, Any] | None, name: str) -> Mapping[str, Any]:
    """By its name alone, or behind the domain of the driver."""
    found = next((value for key, value in (values or {}).items() if key.rpartition("/")[2] == name), None)
    return found if isinstance(found, Mapping) else {}


def _name(item: ResourceSlice) -> str:
    return (item.metadata or NO_METADATA).name or ""


class SliceReader:
    """Reports a slice only if its GPUs changed."""

    resource = "resourceslices"
    path = "/apis/resource.k8s.io/v1/resourceslices"
    query: Mapping[str, str] = {}
    object_type = ResourceSlice

    def __init__(self) -> None:
        self._known: dict[str, GpuSlice] = {}
        self._listing: set[str] = set()

    def forget(self) -> None:
        self._known.clear()

    def begin_list(self) -> None:
        self._listing = set()

    def listed(self, item: ResourceSlice) -> Change | None:
        self._listing.add(_name(item))
        return self.seen(item)

    def end_list(self, listed_at: float) -> Change:  # noqa: ARG002 - only pods need it
        names, self._listing = frozenset(self._listing), set()
        self._known = {name: known for name, known in self._known.items() if name in names}
        return SlicesListed(names)

    def seen(self, item: ResourceSlice) -> Change | None:
        found = to_slice(item)
        if self._known.get(found.name) == found:
            return None
        self._known[found.name] = found
        return SliceSeen(found)

    def gone(self, item: ResourceSlice) -> Change | None:
        self._known.pop(_name(item), None)
        return SliceGone(_name(item))
