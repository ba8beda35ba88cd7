"""ResourceClaims for GPUs whose memory is a consumable capacity: without a number, a claim takes the whole GPU.

A claim is immutable, so its memory must be there when it is created. Its own annotations describe the task, because the
pods that will use it are not known yet. A template may describe its claims in its own metadata or in the claims' one.
Read by the scheduler's allocator; drivers step in 1 Mi (NVIDIA's consumable_shares.go).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from vramcast.admission.change import Change, Object, entries, mapping
from vramcast.admission.context import Context, Needs
from vramcast.names import Product
from vramcast.settings import System
from vramcast.task.quantity import ceil_mib
from vramcast.task.task import describes
from vramcast.task.workloads import Place

KINDS: Final = frozenset({"ResourceClaim", "ResourceClaimTemplate"})
_MEMORY: Final = "memory"


def stand_in(raw: Object) -> Object:
    """A pod that has the claim's description, and uses it."""
    metadata = mapping(raw.get("metadata"))
    inner = mapping(mapping(mapping(raw.get("spec")).get("metadata")).get("annotations"))
    described = {**_descriptions(inner), **_descriptions(mapping(metadata.get("annotations")))}
    return {
        "metadata": {"name": metadata.get("name"), "namespace": metadata.get("namespace"), "annotations": described},
        "spec": {"containers": [], "resourceClaims": [{"name": "gpu"}]},
    }


def fill(raw: Object, context: Context) -> list[Change]:
    """The memory of every request for a GPU that names none."""
    needs, settings = context.needs, context.settings
    if needs is None or System.DRA not in settings.dialect_units:
        return []
    classes = frozenset(settings.webhook_claim_classes.split(","))
    return [
        Change((*place, "capacity", "requests", _MEMORY), f"{_mib(request, needs)}Mi", f"memory:{name}")
        for place, name, request in _requests(raw)
        if request.get("deviceClassName") in classes and _MEMORY not in _asked(request)
    ]  # fmt: skip


def _descriptions(annotations: Mapping[str, Any]) -> dict[str, Any]:
    return {name: text for name, text in annotations.items() if describes(name)}


def _requests(raw: Object) -> Iterator[tuple[Place, str, Object]]:
    """Every request for devices, and every alternative of one, with its place and name."""
    outer: Place = ("spec", "spec") if raw.get("kind") == "ResourceClaimTemplate" else ("spec",)
    spec = mapping(raw.get("spec"))
    devices = mapping(mapping(spec.get("spec") if len(outer) > 1 else spec).get("devices"))
    for index, request in enumerate(map(mapping, entries(devices.get("requests")))):
        place: Place = (*outer, "devices", "requests", index)
        if "exactly" in request:
            yield (*place, "exactly"), str(request.get("name")), mapping(request["exactly"])
        for number, alternative in enumerate(map(mapping, entries(request.get("firstAvailable")))):
            yield (*place, "firstAvailable", number), f"{request.get('name')}/{alternative.get('name')}", alternative


def _asked(request: Object) -> Object:
    return mapping(mapping(request.get("capacity")).get("requests"))


def _mib(request: Object, needs: Needs) -> int:
    """For the product that the request selects, or else the most over the products that can hold the task."""
    selectors = str([mapping(entry).get("cel") for entry in entries(request.get("selectors"))])
    named = {product for product in needs.by_product if _names(selectors, product)}
    return ceil_mib(max((needs.by_product[product] for product in named), default=needs.reserved_bytes))


def _names(selectors: str, product: Product) -> bool:
    """Labels have hyphens where the driver's product names have spaces."""
    return product.lower() in selectors.lower().replace(" ", "-")
