"""Why a node cannot take a pod.

kube-scheduler groups nodes by identical text, so a reason contains nothing that differs from node to node.
"""

from __future__ import annotations

from enum import IntEnum

from vramcast.task.quantity import human_mib


class Reason(IntEnum):
    """Small integers, because they are handled as an array with one entry per node. 0 is a fit.

    The order is that of the checks: a node gets the first reason that applies.
    """

    FITS = 0
    UNKNOWN_NODE = 1
    NO_GPU = 2
    MEMORY_UNKNOWN = 3
    NOT_SHARING = 4
    SHARING = 5
    TOO_FEW_GPUS = 6
    TOO_SMALL = 7
    MIXED = 8
    HELD = 9
    UNMANAGED = 10
    NO_ROOM = 11
    INVALID_TASK = 12
    UNDESCRIBED = 13
    TOO_SLOW = 14

    @property
    def label(self) -> str:
        """As in metrics and JSON."""
        return self.name.lower()


_WORDS = {
    Reason.UNKNOWN_NODE: "node not known to vramcast",
    Reason.NO_GPU: "node has no such GPU",
    Reason.MEMORY_UNKNOWN: "GPU memory of the node not known (see the node's labels)",
    Reason.NOT_SHARING: "node does not share its GPUs",
    Reason.SHARING: "node shares its GPUs, pods that ask for {resource} stay off it",
    Reason.TOO_FEW_GPUS: "too few such GPUs on the node, {count} needed",
    Reason.TOO_SMALL: "GPU too small for {need}",
    Reason.MIXED: "GPUs in use both by sharing and by non-sharing pods",
    Reason.HELD: "GPU memory held for pods that are being placed, {need} needed",
    Reason.UNMANAGED: "GPU memory taken by processes outside of Kubernetes, {need} needed",
    Reason.NO_ROOM: "GPU memory promised to other pods, {need} needed",
    Reason.TOO_SLOW: "tasks on the GPU would slow each other down more than vramcast.dev/max-slowdown allows",
    Reason.UNDESCRIBED: "pod asks for a GPU and does not describe its task",
}


def reason_text(reason: Reason, need_mib: int = 0, count: int = 1, resource: str = "a GPU") -> str:
    """One phrase that reads well after "0/12 nodes are available: 7 ..."."""
    need = human_mib(need_mib) + (f" on each of {count} GPUs" if count > 1 else "")
    return _WORDS[reason].format(need=need, count=count, resource=resource)
