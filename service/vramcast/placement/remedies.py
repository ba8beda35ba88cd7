"""What to do about each reason: for `kubectl vramcast why`, and for docs/troubleshooting.md."""

from __future__ import annotations

from vramcast.placement.reasons import Reason

REMEDIES = {
    Reason.UNKNOWN_NODE: "The watch has not delivered the node yet. If it lasts, check `vramcast_cluster_synced` and "
    "`vramcast_cluster_stale_seconds`.",
    Reason.NO_GPU: "Normal for CPU nodes. On a GPU node: GPU Feature Discovery does not run there, or the pod asks for "
    "a MIG profile that the node does not have.",
    Reason.MEMORY_UNKNOWN: "GPU Feature Discovery does not report `nvidia.com/gpu.memory` for this product. Set the "
    "node annotation `vramcast.dev/gpu-memory`, such as `40Gi`.",
    Reason.NOT_SHARING: 'The pod has `vramcast.dev/share: "true"`. Label a node `vramcast.dev/gpu-sharing=true`.',
    Reason.SHARING: "The pod asks the device plugin for a GPU. Add nodes that do not share, or let the pod share.",
    Reason.TOO_FEW_GPUS: "No single node has that many GPUs of the kind the pod asks for.",
    Reason.TOO_SMALL: "No GPU on these nodes is large enough, even when empty. The Event `FitsNoGpu` tells the median, "
    "the risk and the cheapest change that would make it fit; `vramcast advise -f job.yaml --gpu L40S` tells more.",
    Reason.MIXED: "The sharing label changed while pods ran, or another scheduler bound a pod there. vramcast places "
    "nothing on the node until the pods of the other kind have left: drain it.",
    Reason.HELD: "Normal for a moment. If it lasts, binds are hanging: check `vramcast_binds_total`.",
    Reason.UNMANAGED: "Telemetry shows memory that no pod of vramcast accounts for. Look for the process with "
    "`nvidia-smi` on the node.",
    Reason.NO_ROOM: "The GPUs are full. `kubectl vramcast top` lists the pods that hold them. A promise counts in full "
    "even while its pod uses little.",
    Reason.INVALID_TASK: "The annotations are invalid; the text names the key. `vramcast annotate -f job.yaml --check` "
    "finds this before you submit.",
    Reason.TOO_SLOW: "This pod, or one on the GPU, sets `max-slowdown`. Raise it, or wait for the neighbour to end.",
    Reason.UNDESCRIBED: "`undescribed: reject` is set. Describe the task: `vramcast annotations` lists the keys.",
}
