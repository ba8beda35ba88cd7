"""The series that `vramcast agent` exports: the contract between the agent on each node and the service.

The units and labels are dcgm-exporter's. The names are not: a second exporter of DCGM_FI_DEV_FB_USED would double every
sum over it that a cluster already has. A pod is named by its UID, which is all that a process tells about its pod.
"""

from __future__ import annotations

from typing import Final

MEMORY: Final = "vramcast_agent_memory_used_mib"
UTILIZATION: Final = "vramcast_agent_utilization_percent"

NODE: Final = "Hostname"
GPU: Final = "gpu"
UUID: Final = "UUID"
POD: Final = "pod_uid"  # empty: the whole device
# On the series of a whole device: YES if every process on it could be attributed to a pod or to none.
TOLD_APART: Final = "told_apart"
YES: Final = "yes"
NO: Final = "no"
