"""The GPU products that a pod may land on, by its node selector and its required node affinity."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from vramcast.admission.change import Object, entries, mapping
from vramcast.hardware.products import base_product
from vramcast.hardware.vendors import VENDORS
from vramcast.names import Product

_LABELS: Final = frozenset(vendor.labels.product for vendor in VENDORS)


def may_use(spec: Object, products: Iterable[Product]) -> list[Product]:
    """Only what is certain excludes a product: an equal label, or `In` of every term."""
    allowed = [_selected(spec), _required(spec)]
    return [product for product in products if all(names is None or product in names for names in allowed)]


def _selected(spec: Object) -> set[Product] | None:
    named = [value for key, value in mapping(spec.get("nodeSelector")).items() if key in _LABELS]
    return {base_product(str(value)) for value in named} if named else None


def _required(spec: Object) -> set[Product] | None:
    """The terms are alternatives: one that names no product allows all of them."""
    affinity = mapping(mapping(spec.get("affinity")).get("nodeAffinity"))
    required = mapping(affinity.get("requiredDuringSchedulingIgnoredDuringExecution"))
    found = [_named(mapping(term)) for term in entries(required.get("nodeSelectorTerms"))]
    return {product for names in found if names for product in names} if found and all(found) else None


def _named(term: Object) -> set[Product]:
    return {
        base_product(str(value))
        for expression in map(mapping, entries(term.get("matchExpressions")))
        if expression.get("key") in _LABELS and expression.get("operator") == "In"
        for value in entries(expression.get("values"))
    }
