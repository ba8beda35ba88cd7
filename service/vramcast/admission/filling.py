"""All that the webhook adds to one pod, as one patch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import msgspec

from vramcast.admission import caps, inject, quota
from vramcast.admission.change import AdmittedPod, Change, Object, apply, tell
from vramcast.admission.context import Context
from vramcast.admission.dialects import table
from vramcast.errors import InvalidRequest
from vramcast.task.pod import Pod, PodRecord, to_record

Filler = Callable[[AdmittedPod, Context], list[Change]]
# Each sees the pod as it came, with `share` filled in.
FILLERS: Final[tuple[Filler, ...]] = (inject.fill, caps.fill, quota.fill, table.fill)


@dataclass(frozen=True, slots=True)
class Filled:
    operations: Sequence[dict[str, Any]]
    told: tuple[str, ...]


def read(raw: Object, context: Context) -> AdmittedPod:
    """The pod as its namespace means it: one that asks for no GPU shares one. Raises InvalidRequest."""
    changed, _ = apply(raw, inject.share(raw, context))
    pod = AdmittedPod(changed, _to_record(changed))
    dialect = table.spoken(pod, context) if pod.record.invalid is not None else None
    if dialect is None:
        return pod
    # It is for another system that does not see its GPU yet: with the number, it will.
    claims = Change(("spec", "resourceClaims"), [{"name": dialect.name}], "", replaces=True)
    return replace(pod, record=_to_record(apply(changed, [claims])[0]))


def _to_record(raw: Object) -> PodRecord:
    try:
        return to_record(msgspec.convert(raw, Pod))
    except msgspec.ValidationError as error:
        raise InvalidRequest(f"request.object is not a pod: {error}") from None


def fill(raw: Object, pod: AdmittedPod, context: Context, fillers: Sequence[Filler] = FILLERS) -> Filled:
    """`pod`: what `read` made of `raw`. A description with mistakes says nothing, so nothing is added."""
    if pod.record.invalid is not None:
        return Filled((), ())
    changes = inject.share(raw, context)
    for filler in fillers:
        changes += filler(pod, context)
    _, operations = apply(raw, tell(raw, changes))
    return Filled(operations, tuple(dict.fromkeys(change.told for change in changes)))
