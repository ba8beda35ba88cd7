"""GPU vendors: everything that differs between them, in one table.

To add a vendor, add a row here, its products to products.py, and its cases to tests/hardware. AMD's facts come from
ROCm/k8s-device-plugin (device plugin, node labeller) and ROCm/device-metrics-exporter.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from vramcast.hardware.utilization import UtilizationCounter
from vramcast.names import Resource

# The pool of GPUs that vramcast assigns by index. No device plugin knows this name.
SHARED_GPU = Resource("vramcast.dev/shared-gpu")
# GPUs that another system hands out: by a ResourceClaim, or in a field of its own. Watched, and not placed by vramcast.
CLAIMED_GPU = Resource("vramcast.dev/claimed-gpu")
MAX_GPUS = 32


@dataclass(frozen=True, slots=True)
class NodeLabels:
    """The labels that describe a node's GPUs. Empty: the vendor's labeller has none."""

    product: str
    memory: str  # of one GPU: a whole number of `memory_unit_mib`, then `memory_suffix`
    memory_suffix: str = ""
    memory_unit_mib: int = 1
    count: str = ""
    count_by_memory: str = ""  # with the value of the memory label appended
    replicas: str = ""
    sharing_strategy: str = ""
    partition: str = ""


@dataclass(frozen=True, slots=True)
class Slices:
    """GPUs cut into smaller devices: MIG, compute partitions."""

    name: str
    marker: re.Pattern[str]  # found in a product, a partition label or a resource: the device is a slice
    # Resources of slices that have labels of their own, `<stem>.count` and `<stem>.memory`.
    resource: re.Pattern[str] | None = None
    prefix: str = ""
    # Whether the memory label of a sliced GPU shows one slice, net of the driver's reserve.
    memory_labelled: bool = False


@dataclass(frozen=True, slots=True)
class Exporter:
    """The metrics and labels of the vendor's Prometheus exporter."""

    memory: str  # in MiB
    utilization: str  # gpu_util, in percent
    percent_mark: str  # in the name of every metric that counts in percent
    node: str
    gpu: str
    slice: str = ""  # a label that only slices have
    sm_active: str = ""  # as shares; empty: it has no counter that means the same
    sm_occupancy: str = ""
    memory_util: str = ""  # in percent

    @property
    def counters(self) -> dict[UtilizationCounter, str]:
        """The metric of each counter that it has."""
        found = {
            UtilizationCounter.GPU_UTIL: self.utilization,
            UtilizationCounter.SM_ACTIVE: self.sm_active,
            UtilizationCounter.SM_OCCUPANCY: self.sm_occupancy,
            UtilizationCounter.MEMORY_UTIL: self.memory_util,
        }
        return {counter: metric for counter, metric in found.items() if metric}


@dataclass(frozen=True, slots=True)
class GpuVendor:
    name: str  # upper case; product names begin with it
    unnamed_product: str  # where the node has no product label
    whole_gpu: Resource
    devices: re.Pattern[str]  # every resource that its device plugin hands out
    labels: NodeLabels
    slices: Slices
    visible_devices: tuple[str, ...]  # each makes a container see only the GPUs whose indices it lists
    exporter: Exporter
    oom_phrases: tuple[str, ...]  # lower case
    calibrated: bool  # whether forecasts were measured on its GPUs


NVIDIA = GpuVendor(
    name="NVIDIA", unnamed_product="", whole_gpu=Resource("nvidia.com/gpu"),
    devices=re.compile(r"nvidia\.com/(gpu(\.shared)?|mig-[0-9a-z.+-]+)"),
    labels=NodeLabels(
        product="nvidia.com/gpu.product", memory="nvidia.com/gpu.memory", count="nvidia.com/gpu.count",
        replicas="nvidia.com/gpu.replicas", sharing_strategy="nvidia.com/gpu.sharing-strategy",
    ),
    slices=Slices(
        "MIG", marker=re.compile("-MIG-"), prefix="nvidia.com/mig-", memory_labelled=True,
        resource=re.compile(r"(?P<stem>nvidia\.com/mig-[0-9]+g\.(?P<gigabytes>[0-9]{1,4})gb[a-z0-9.+-]*?)(\.shared)?"),
    ),
    visible_devices=("NVIDIA_VISIBLE_DEVICES",),
    exporter=Exporter(
        memory="DCGM_FI_DEV_FB_USED", utilization="DCGM_FI_DEV_GPU_UTIL",
        percent_mark="_UTIL",  # the profiling metrics (..._ACTIVE) are shares
        node="Hostname", gpu="gpu", slice="GPU_I_ID",
        # Only where the exporter's list of counters names them and the GPU can be profiled.
        sm_active="DCGM_FI_PROF_SM_ACTIVE", sm_occupancy="DCGM_FI_PROF_SM_OCCUPANCY",
        memory_util="DCGM_FI_DEV_MEM_COPY_UTIL",  # the driver's memory utilization, whatever moves the data
    ),
    oom_phrases=(
        "cuda out of memory", "cuda error: out of memory", "cuda_error_out_of_memory", "cudaerrormemoryallocation",
        "torch.cuda.outofmemoryerror", "cublas_status_alloc_failed",
    ),
    calibrated=True,
)  # fmt: skip

AMD = GpuVendor(
    name="AMD", unnamed_product="AMD-GPU", whole_gpu=Resource("amd.com/gpu"),
    devices=re.compile(r"amd\.com/(gpu|[sdtqc]px_nps[1248])"),
    labels=NodeLabels(
        product="amd.com/gpu.product-name",
        memory="amd.com/gpu.vram", memory_suffix="G", memory_unit_mib=1024,  # 192G is GiB, rounded to the nearest
        count_by_memory="beta.amd.com/gpu.vram.", partition="amd.com/compute-memory-partition",
    ),
    # Partitions may share one memory domain, so no label shows for certain what one of them can use.
    slices=Slices("compute partitions", marker=re.compile(r"[dtqc]px_nps")),
    # The AMD Container Toolkit reads the first; the ROCm runtime reads the second in a container with every device.
    visible_devices=("AMD_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"),
    # Its profiler has gpu_prof_sm_active, the time of vector instructions, and gpu_prof_occupancy_percent, of the time
    # in which the GPU works. Neither means what NVIDIA's counter of that name means.
    exporter=Exporter(
        memory="gpu_used_vram", utilization="gpu_gfx_activity", percent_mark="_activity",
        memory_util="gpu_umc_activity",
        node="hostname", gpu="gpu_id",  # gpu_partition_id does not mark a slice: whole GPUs have it too
    ),
    oom_phrases=(
        "hip out of memory", "hip error: out of memory", "hip_error_outofmemory", "hiperroroutofmemory",
        "hiperrormemoryallocation", "hipblas_status_alloc_failed", "rocblas_status_memory_error",
    ),
    calibrated=False,
)  # fmt: skip

VENDORS = (NVIDIA, AMD)
WHOLE_GPU = NVIDIA.whole_gpu

# What frameworks print when GPU memory runs out. "OOMKilled" and exit code 137 are about the host's memory.
OOM_PHRASES = (
    "torch.outofmemoryerror",
    "resource_exhausted: out of memory",
    *(phrase for vendor in VENDORS for phrase in vendor.oom_phrases),
)


def is_gpu_resource(name: str) -> bool:
    return "/" in name and any(vendor.devices.fullmatch(name) for vendor in VENDORS)


def vendor_of(product: str) -> GpuVendor:
    """The vendor of a product; the first in the table where the name shows none, as in `Tesla-T4`."""
    return next((vendor for vendor in VENDORS if product.upper().startswith(vendor.name)), VENDORS[0])
