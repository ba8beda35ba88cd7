"""One Binding, written at most once and answered honestly.

The answer decides whether room is given away again, so "refused" must be certain. A try is *ambiguous* when it may
have had an effect that nobody told us about: a timeout, a broken connection, a 5xx. After one of those only the pod
itself settles the matter, and only if it shows something that cannot change any more: a node, its end, or that it is
another pod. A pod that is not bound proves nothing: the lost write may still come through.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Final

from vramcast.cluster.backoff import Backoff
from vramcast.cluster.pods import get_pod, pod_path
from vramcast.cluster.seam import BindingWrite, BindResult, Fate
from vramcast.cluster.transport import Action, ApiResponse, ApiUnavailable, ApiUnreachable, Transport
from vramcast.task.pod import NO_METADATA, Metadata, Pod, to_record
from vramcast.task.vocabulary import Written

_CREATE: Final = Action("create", "pods/binding")
# The part of the deadline that is kept for looking at the pod.
_LOOK_FRACTION: Final = 0.25
_SHORTEST_LOOK_SECONDS: Final = 0.05
# What makes two bindings to one node different: who has which GPU, and how much of it.
_ASSIGNMENT: Final = (Written.GPU_INDICES, Written.RESERVED_MEMORY)


@dataclass(frozen=True, slots=True)
class BindTiming:
    """`deadline_seconds` is for everything, tries and looks; it must stay under the scheduler's httpTimeout."""

    deadline_seconds: float = 1.5
    backoff: Backoff = field(default_factory=lambda: Backoff(first_seconds=0.02, longest_seconds=0.3))
    clock: Callable[[], float] = time.monotonic
    pause: Callable[[float], object] = time.sleep


@dataclass(slots=True)
class _Try:
    """What is known after the last try. `answer`: the server's last word, if it had any."""

    answer: ApiResponse | None = None
    ambiguous: bool = False
    said: str = ""


def bind(transport: Transport, write: BindingWrite, timing: BindTiming) -> BindResult:
    """Never raises for what the API server does or does not do."""
    ends_at = timing.clock() + timing.deadline_seconds
    last = _try_until_answered(transport, write, timing, ends_at - timing.deadline_seconds * _LOOK_FRACTION)
    answer = last.answer
    if answer is not None and answer.ok:
        return BindResult(Fate.BOUND)
    if not last.ambiguous and (answer is None or answer.status != 409):
        return BindResult(Fate.REFUSED, last.said)
    return _wait_for_holds(transport, write, last, max(_SHORTEST_LOOK_SECONDS, ends_at - timing.clock()))


def _try_until_answered(transport: Transport, write: BindingWrite, timing: BindTiming, ends_at: float) -> _Try:
    """Tries again while that can help and there is time; the first try is always made."""
    tried = _Try()
    failures = 0
    while True:
        delay_seconds = _try_once(transport, write, tried, max(_SHORTEST_LOOK_SECONDS, ends_at - timing.clock()))
        if delay_seconds is None:
            return tried
        failures += 1
        delay_seconds = max(delay_seconds, timing.backoff.delay_seconds(failures))
        if timing.clock() + delay_seconds >= ends_at:
            return tried
        timing.pause(delay_seconds)


def _try_once(transport: Transport, write: BindingWrite, tried: _Try, timeout_seconds: float) -> float | None:
    """None: this is the answer. Otherwise the least time after which to try again."""
    path = f"{pod_path(write.namespace, write.pod)}/binding"
    try:
        answer = transport.request(_CREATE, "POST", path, body=_body(write), timeout_seconds=timeout_seconds)
    except ApiUnreachable as error:
        tried.answer, tried.said = None, str(error)
        tried.ambiguous = tried.ambiguous or error.maybe_applied
        return 0.0
    tried.answer = answer
    if answer.ok:
        return None
    tried.said = str(answer.refusal())
    if answer.status >= 500:
        tried.ambiguous = True  # "etcd timed out" is a 500, and the write may be in it
        return answer.retry_after_seconds or 0.0
    if answer.status == 429:
        return answer.retry_after_seconds or 0.0
    return None


def _wait_for_holds(transport: Transport, write: BindingWrite, last: _Try, timeout_seconds: float) -> BindResult:
    try:
        pod = get_pod(transport, write.namespace, write.pod, timeout_seconds)
    except ApiUnavailable as error:
        return BindResult(Fate.UNKNOWN, f"{last.said}; and then: {error}")
    fate = _shown_fate(write, pod)
    if fate is not None:
        return replace(fate, seen=to_record(pod) if pod is not None else None)
    if last.ambiguous:
        return BindResult(Fate.UNKNOWN, f"{last.said}; the pod is not bound, but the write may still come through")
    return BindResult(Fate.REFUSED, last.said)


def _shown_fate(write: BindingWrite, pod: Pod | None) -> BindResult | None:
    """What the pod proves; None if it proves nothing."""
    shown = f"pod {write.namespace}/{write.pod}"
    metadata = (pod.metadata if pod else None) or NO_METADATA
    if pod is None or metadata.uid != write.uid:
        return BindResult(Fate.REFUSED, f"{shown} with UID {write.uid} does not exist any more")
    node = pod.spec.node_name if pod.spec else None
    if node and node != write.node:
        return BindResult(Fate.REFUSED, f"{shown} is already on node {node}")
    if node:
        annotations = metadata.annotations or {}
        if any(annotations.get(key) != write.annotations[key] for key in _ASSIGNMENT if key in write.annotations):
            return BindResult(Fate.REFUSED, f"{shown} is already on node {node}, with another assignment of GPUs")
        return BindResult(Fate.BOUND)
    why = _unbindable(write, metadata)
    return BindResult(Fate.REFUSED, f"{shown} {why}") if why else None


def _unbindable(write: BindingWrite, metadata: Metadata) -> str:
    """Why this write cannot come through any more, however late it arrives; nothing if it can."""
    if metadata.deletion_timestamp:
        return "is being deleted"  # and the API server binds no such pod
    if write.resource_version and metadata.resource_version != write.resource_version:
        return "has changed since it was filtered"  # and never becomes again what the write asks for
    return ""


def _body(write: BindingWrite) -> object:
    return {
        "apiVersion": "v1",
        "kind": "Binding",
        # The UID is a precondition: a pod that was deleted and made again under its name is not bound by mistake.
        "metadata": {
            "name": write.pod,
            "namespace": write.namespace,
            "uid": write.uid,
            **({"resourceVersion": write.resource_version} if write.resource_version else {}),
            "annotations": dict(write.annotations),
        },
        "target": {"apiVersion": "v1", "kind": "Node", "name": write.node},
    }
