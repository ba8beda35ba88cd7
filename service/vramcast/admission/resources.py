"""Resources of containers: which are there, and one more."""

from __future__ import annotations

from collections.abc import Iterator

from vramcast.admission.change import AdmittedPod, Change, Object, mapping
from vramcast.task.pod import parse_count
from vramcast.task.workloads import Place

PlacedContainer = tuple[Place, Object]


def limits(container: Object) -> Object:
    """What a container asks for. Of an extended resource the request is the limit, and may stand alone."""
    resources = mapping(container.get("resources"))
    return {**mapping(resources.get("requests")), **mapping(resources.get("limits"))}


def has_resource(pod: AdmittedPod, *names: str) -> bool:
    return any(name in limits(container) for _, container in pod.containers() for name in names)


def count_of(container: Object, name: str) -> int:
    return parse_count(limits(container).get(name, 0))


def most_of(pod: AdmittedPod, name: str) -> int:
    """The most that one container asks for."""
    return max((count_of(container, name) for _, container in pod.containers()), default=0)


def containers_with(pod: AdmittedPod, name: str) -> Iterator[PlacedContainer]:
    return ((place, container) for place, container in pod.containers() if count_of(container, name))


def add_resource(placed: PlacedContainer | None, name: str, quantity: str, told: str) -> list[Change]:
    """Both as limit and as request, which must be equal. Nothing if the container asks for it already."""
    if placed is None or name in limits(placed[1]):
        return []
    return [Change((*placed[0], "resources", field, name), quantity, told) for field in ("limits", "requests")]
