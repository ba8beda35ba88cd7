"""Writes one Binding, and reports its fate only when it is certain.

A refused bind gives its room back, so "refused" must be true. A try is *ambiguous* if it may have taken effect without
an answer: a timeout, a broken connection, a 5xx. After one of those we read the pod, and believe only what cannot
change any more: it has a node, it is being deleted, or another pod has its name. A pod without a node proves nothing,
because the lost write may still arrive.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Final

from vramcast.cluster.objects import get_pod, object_path
from vramcast.cluster.seam import BindingWrite, BindResult, Fate
from vramcast.cluster.transport import Action, ApiResponse, ApiUnavailable, ApiUnreachable, Backoff, Transport
from vramcast.task.pod import NO_METADATA, Metadata, Pod, to_record
from vramcast.task.vocabulary import Written

_CREATE: Final = Action("create", "pods/binding")
# This part of the deadline is reserved for reading the pod.
_READ_FRACTION: Final = 0.25
_SHORTEST_TIMEOUT_SECONDS: Final = 0.05
# Two bindings to one node differ if they assign other GPUs, or another part of them.
_ASSIGNMENT: Final = (Written.GPU_INDICES, Written.RESERVED_MEMORY)


@dataclass(frozen=True, slots=True)
class BindTiming:
    """`deadline_seconds` covers all tries and reads; keep it below the scheduler's httpTimeout.

    A write with a `deadline` has less: the time that it waited for a worker counts too.
    """

    deadline_seconds: float = 1.5
    backoff: Backoff = field(default_factory=lambda: Backoff(first_seconds=0.02, longest_seconds=0.3))
    clock: Callable[[], float] = time.monotonic
    pause: Callable[[float], object] = time.sleep


@dataclass(slots=True)
class _Tries:
    """What is known after the last try. `answer` is None if that one got none."""

    answer: ApiResponse | None = None
    ambiguous: bool = False
    error: str = ""


def bind(transport: Transport, write: BindingWrite, timing: BindTiming) -> BindResult:
    """Never raises for anything that the API server does."""
    started = timing.clock()
    ends_at = started + timing.deadline_seconds if write.deadline is None else write.deadline
    tries_end_at = ends_at - timing.deadline_seconds * _READ_FRACTION
    if started >= tries_end_at:
        # The scheduler is about to retry. A write now could overlap with the next one.
        return BindResult(Fate.REFUSED, "no time was left to write the Binding, and nothing was written")
    tries = _try_until_answered(transport, write, timing, tries_end_at)
    answer = tries.answer
    if answer is not None and answer.ok:
        return BindResult(Fate.BOUND)
    if not tries.ambiguous and (answer is None or answer.status != 409):
        return BindResult(Fate.REFUSED, tries.error)
    return _ask_the_pod(transport, write, tries, max(_SHORTEST_TIMEOUT_SECONDS, ends_at - timing.clock()))


def _try_until_answered(transport: Transport, write: BindingWrite, timing: BindTiming, ends_at: float) -> _Tries:
    """Retries while that can help and time is left. The first try always happens."""
    tries = _Tries()
    failures = 0
    while True:
        delay_seconds = _try_once(transport, write, tries, max(_SHORTEST_TIMEOUT_SECONDS, ends_at - timing.clock()))
        if delay_seconds is None:
            return tries
        failures += 1
        delay_seconds = max(delay_seconds, timing.backoff.delay_seconds(failures))
        if timing.clock() + delay_seconds >= ends_at:
            return tries
        timing.pause(delay_seconds)


def _try_once(transport: Transport, write: BindingWrite, tries: _Tries, timeout_seconds: float) -> float | None:
    """The shortest delay before a retry; None if the answer is final."""
    path = f"{object_path(write.namespace, 'pods', write.pod)}/binding"
    try:
        answer = transport.request(_CREATE, "POST", path, body=_body(write), timeout_seconds=timeout_seconds)
    except ApiUnreachable as error:
        tries.answer, tries.error = None, str(error)
        tries.ambiguous = tries.ambiguous or error.maybe_applied
        return 0.0
    tries.answer = answer
    if answer.ok:
        return None
    tries.error = str(answer.refusal())
    if answer.status >= 500:
        tries.ambiguous = True  # "etcd timed out" is a 500, and etcd may have the write
        return answer.retry_after_seconds or 0.0
    if answer.status == 429:
        return answer.retry_after_seconds or 0.0
    return None


def _ask_the_pod(transport: Transport, write: BindingWrite, tries: _Tries, timeout_seconds: float) -> BindResult:
    """The fate of a conflict or an ambiguous try, as far as the pod itself shows it."""
    try:
        pod = get_pod(transport, write.namespace, write.pod, timeout_seconds)
    except ApiUnavailable as error:
        return BindResult(Fate.UNKNOWN, f"{tries.error}; and then: {error}")
    proven = _proven_fate(write, pod)
    if proven is not None:
        return replace(proven, seen=to_record(pod) if pod is not None else None)
    if tries.ambiguous:
        return BindResult(Fate.UNKNOWN, f"{tries.error}; the pod is not bound, but the write may still come through")
    return BindResult(Fate.REFUSED, tries.error)


def _proven_fate(write: BindingWrite, pod: Pod | None) -> BindResult | None:
    """None if the pod proves nothing."""
    name = f"pod {write.namespace}/{write.pod}"
    metadata = (pod.metadata if pod else None) or NO_METADATA
    if pod is None or metadata.uid != write.uid:
        return BindResult(Fate.REFUSED, f"{name} with UID {write.uid} does not exist any more")
    node = pod.spec.node_name if pod.spec else None
    if node and node != write.node:
        return BindResult(Fate.REFUSED, f"{name} is already on node {node}")
    if node:
        annotations = metadata.annotations or {}
        if any(annotations.get(key) != write.annotations[key] for key in _ASSIGNMENT if key in write.annotations):
            return BindResult(Fate.REFUSED, f"{name} is already on node {node}, with another assignment of GPUs")
        return BindResult(Fate.BOUND)
    why = _unbindable(write, metadata)
    return BindResult(Fate.REFUSED, f"{name} {why}") if why else None


def _unbindable(write: BindingWrite, metadata: Metadata) -> str:
    """Why the API server would refuse this write however late it arrives; empty if it would not."""
    if metadata.deletion_timestamp:
        return "is being deleted"
    if write.resource_version and metadata.resource_version != write.resource_version:
        return "has changed since it was filtered"
    return ""


def _body(write: BindingWrite) -> object:
    return {
        "apiVersion": "v1",
        "kind": "Binding",
        # The UID is a precondition: the write must not bind another pod that was created with the same name.
        "metadata": {
            "name": write.pod,
            "namespace": write.namespace,
            "uid": write.uid,
            **({"resourceVersion": write.resource_version} if write.resource_version else {}),
            "annotations": dict(write.annotations),
        },
        "target": {"apiVersion": "v1", "kind": "Node", "name": write.node},
    }
