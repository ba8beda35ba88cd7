"""What the client that creates an object is told, as admission warnings: mistakes, and the forecast in one line."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from vramcast.admission.context import Needs
from vramcast.admission.review import MAX_WARNING_LENGTH, MAX_WARNINGS
from vramcast.errors import InvalidTask
from vramcast.hardware.vendors import SHARED_GPU, vendor_of
from vramcast.names import Product, Resource
from vramcast.placement.gpus import SHARING_LABEL
from vramcast.task.quantity import MIB, ceil_mib, human_mib
from vramcast.task.workloads import MisplacedAnnotation

_NAME = "vramcast: "
MAX_MISTAKES = MAX_WARNINGS - 1


def mistakes(invalid: InvalidTask, of: str = "") -> list[str]:
    """One warning each, and one that counts the rest. `of`: the role of the template, where an object has several."""
    shown, more = invalid.errors[:MAX_MISTAKES], len(invalid.errors) - MAX_MISTAKES
    lines = [str(error) for error in shown] + ([f"and {more} more mistakes"] if more > 0 else [])
    return [f"{_NAME}{of and f'{of}: '}{line}" for line in lines]


def misplaced(found: Sequence[MisplacedAnnotation]) -> list[str]:
    """An annotation of the Job is none of its pods."""
    warnings = []
    for place, group in groupby(found, key=lambda each: each.place):
        same = list(group)
        where, names = ".".join(map(str, place)), ", ".join(each.name for each in same)
        belongs = ".".join(map(str, same[0].templates[0].annotations_place))
        warnings.append(f"{_NAME}{where}: {names} without effect there: move to {belongs}")
    return warnings


def forecast(needs: Needs, *, given: bool, of: str = "") -> str:
    """`given`: the pod states its need itself, so there is no risk to tell."""
    least, most = (human_mib(ceil_mib(choose(needs.by_product.values()))) for choose in (min, max))
    size = most if least == most else f"{least} to {most}"
    gpus = f" on each of {needs.gpus} GPUs" if needs.gpus > 1 else ""
    risk = "" if given else f" at risk {needs.risk:g}"
    line = f"{_NAME}{of and f'{of}: '}needs {size}{gpus}{risk}; "
    return line + (_listed(needs.fits, MAX_WARNING_LENGTH - len(line)) if needs.fits else _too_large(needs))


def no_such_gpu(resource: Resource, gpus: int) -> str:
    if resource == SHARED_GPU:
        return f"{_NAME}no node of this cluster shares {_count(gpus)} (label {SHARING_LABEL}), so the pod will wait"
    return f"{_NAME}no node of this cluster has {gpus} {resource}, so the pod will wait"


def not_ready() -> str:
    return f"{_NAME}the forecast was not ready in time; what rests on it was not filled in"


def _count(gpus: int) -> str:
    return "a GPU" if gpus == 1 else f"{gpus} GPUs"


def _listed(products: Sequence[Product], room: int) -> str:
    """As many as fit into the line."""
    names = [short_name(product) for product in products]
    for shown in range(len(names), 0, -1):
        more = f" and {len(names) - shown} more" if shown < len(names) else ""
        text = f"fits {', '.join(names[:shown])}{more}"
        if len(text) <= room:
            return text
    return f"fits {len(names)} GPU products"


def _too_large(needs: Needs) -> str:
    product = max(needs.sizes_bytes, key=lambda each: needs.sizes_bytes[each])
    size = human_mib(needs.sizes_bytes[product] // MIB)
    return f"fits no GPU of this cluster; the largest that it may use is {short_name(product)} with {size}"


def short_name(product: Product) -> str:
    """Without the vendor: `A100-SXM4-80GB`."""
    return product.removeprefix(vendor_of(product).name + "-") or "unnamed GPU"
