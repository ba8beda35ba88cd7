"""What the webhook adds to an object, and the JSON patch that adds it.

A change only ever fills in what is absent. Two changes of one object may need the same missing parent, such as the
annotations of a pod that has none, so the patch is built against a copy that grows with every change.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, Final

from vramcast.errors import InvalidRequest
from vramcast.task.pod import PodRecord, parse_count
from vramcast.task.vocabulary import INJECTED, PREFIX
from vramcast.task.workloads import Place

Object = Mapping[str, Any]
APPEND: Final = "-"  # the last step of a path: one more entry of a list


@dataclass(frozen=True, slots=True)
class Change:
    """`path` leads to the new value; `told` is the word for it in the annotation `vramcast.dev/injected`.

    `replaces`: a default of the API server, or a value that the new one contains. Nothing else is ever replaced.
    """

    path: Place
    value: Any
    told: str
    replaces: bool = False


@dataclass(frozen=True, slots=True)
class AdmittedPod:
    """A pod as the API server sends it, and what it means."""

    raw: Object
    record: PodRecord

    @property
    def annotations(self) -> Mapping[str, str]:
        return mapping(mapping(self.raw.get("metadata")).get("annotations"))

    @property
    def asked_gpus(self) -> int:
        """By the description, which may be for any system."""
        return max(1, parse_count(self.annotations.get(PREFIX + "gpus", 1)))

    @property
    def spec(self) -> Object:
        return mapping(self.raw.get("spec"))

    def containers(self, *fields: str) -> Iterator[tuple[Place, Object]]:
        """With their places; `fields` are `containers` and `initContainers`, in this order, unless given."""
        for field in fields or ("containers", "initContainers"):
            for index, container in enumerate(entries(self.spec.get(field))):
                yield ("spec", field, index), mapping(container)


def annotate(pod: AdmittedPod, name: str, value: str, told: str) -> list[Change]:
    return [] if name in pod.annotations else [Change(("metadata", "annotations", name), value, told)]


def set_env(pod: AdmittedPod, variable: Object, told: str) -> list[Change]:
    """One more variable for every container and init container that does not set it."""
    return [
        Change((*place, "env", APPEND), variable, told)
        for place, container in pod.containers()
        if find_env(container, variable["name"]) is None
    ]


def find_env(container: Object, name: str) -> tuple[int, Object] | None:
    """The variable and its index. If it is set twice, the last one counts."""
    found = [
        (index, mapping(entry)) for index, entry in enumerate(entries(container.get("env")))
        if mapping(entry).get("name") == name
    ]  # fmt: skip
    return found[-1] if found else None


def from_annotation(variable: str, annotation: str) -> Object:
    """An environment variable with the value that an annotation has when the container starts."""
    return {"name": variable, "valueFrom": {"fieldRef": {"fieldPath": f"metadata.annotations['{annotation}']"}}}


def mapping(value: Any) -> Mapping[str, Any]:
    """Null is an empty object, as in Go."""
    return value if isinstance(value, Mapping) else {}


def entries(value: Any) -> Sequence[Any]:
    return value if isinstance(value, list) else ()


# ------------------------------------------------------------------ the patch


def tell(raw: Object, changes: Sequence[Change]) -> list[Change]:
    """The changes, and the annotation that lists them together with those of earlier calls."""
    if not changes:
        return []
    annotations = mapping(mapping(raw.get("metadata")).get("annotations"))
    before = [word for word in str(annotations.get(INJECTED, "")).split(",") if word]
    words = dict.fromkeys([*before, *(change.told for change in changes)])
    note = Change(("metadata", "annotations", INJECTED), ",".join(words), "", replaces=INJECTED in annotations)
    return [*changes, note]


def apply(raw: Object, changes: Iterable[Change]) -> tuple[Any, list[dict[str, Any]]]:
    """The changed object, and the operations of a JSON patch (RFC 6902) that make it. Raises InvalidRequest."""
    changed = deepcopy(raw)
    operations = [_enter(changed, change) for change in changes]
    return changed, operations


def _enter(changed: Any, change: Change) -> dict[str, Any]:
    holder, steps = changed, change.path
    for depth, step in enumerate(steps[:-1]):
        inner = _get(holder, step)
        if inner is None:
            value = _wrapped(steps[depth + 1 :], change.value)
            _put(holder, step, deepcopy(value))
            return {"op": "add", "path": _pointer(steps[: depth + 1]), "value": value}
        holder = inner
    known = None if steps[-1] == APPEND else _get(holder, steps[-1])
    if known is not None and not change.replaces:
        raise InvalidRequest(f"{_pointer(steps)} is set already")
    _put(holder, steps[-1], deepcopy(change.value))
    operation = "replace" if known is not None else "add"
    return {"op": operation, "path": _pointer(steps), "value": change.value}


def _wrapped(steps: Place, value: Any) -> Any:
    """The value inside of the parents that are missing."""
    for step in reversed(steps):
        value = [value] if step == APPEND or isinstance(step, int) else {step: value}
    return value


def _get(holder: Any, step: str | int) -> Any:
    if isinstance(holder, dict) and isinstance(step, str):
        return holder.get(step)
    if isinstance(holder, list) and isinstance(step, int) and step < len(holder):
        return holder[step]
    raise InvalidRequest(f"the object has no place for {step!r}")


def _put(holder: Any, step: str | int, value: Any) -> None:
    if isinstance(holder, list) and step == APPEND:
        holder.append(value)
    elif (isinstance(holder, dict) and isinstance(step, str)) or (isinstance(holder, list) and isinstance(step, int)):
        holder[step] = value  # type: ignore[index] # told apart above
    else:
        raise InvalidRequest(f"the object has no place for {step!r}")


def _pointer(steps: Place) -> str:
    """RFC 6901: ~ and / are escaped."""
    return "".join("/" + str(step).replace("~", "~0").replace("/", "~1") for step in steps)
