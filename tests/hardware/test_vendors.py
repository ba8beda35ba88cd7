"""The same rules for every GPU vendor in the table. A new vendor adds one `Case`."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec
import pytest

from tests.cluster.telemetry_server import serving
from vramcast.cluster.exporters import ExporterTelemetry
from vramcast.cluster.sources import choose_telemetry
from vramcast.hardware.products import calibration_note, memory_mib, reserve_mib
from vramcast.hardware.utilization import UtilizationCounter
from vramcast.hardware.vendors import AMD, NVIDIA, SHARED_GPU, VENDORS, GpuVendor, is_gpu_resource, vendor_of
from vramcast.names import NodeName, Product
from vramcast.outcomes.readings import Device, Frame
from vramcast.placement.gpus import SHARING_LABEL, NodeGpus, read_node
from vramcast.settings import load_settings
from vramcast.task.pod import Ask, Pod, to_record
from vramcast.task.run_status import ContainerState, ContainerStatus, Ending, PodStatus, Terminated, read_run

NOW = 1_700_000_000.0


@dataclass(frozen=True)
class Case:
    vendor: GpuVendor
    labels: dict[str, str]  # of a node with four GPUs
    product: str
    memory_mib: int  # of one GPU, as the label shows it
    scrape: str  # GPU 0 runs ml/train with 10240 MiB, GPU 1 is idle
    shares: dict[UtilizationCounter, float]  # of GPU 0


CASES = [
    Case(
        NVIDIA,
        {
            "nvidia.com/gpu.product": "NVIDIA-L40S",
            "nvidia.com/gpu.memory": "46068",
            "nvidia.com/gpu.count": "4",
        },
        "NVIDIA-L40S",
        46068,
        """
# HELP DCGM_FI_DEV_FB_USED Framebuffer memory used (in MiB).
# TYPE DCGM_FI_DEV_FB_USED gauge
DCGM_FI_DEV_FB_USED{gpu="0",UUID="GPU-1",Hostname="a",namespace="ml",pod="train"} 10240
DCGM_FI_DEV_FB_USED{gpu="1",UUID="GPU-2",Hostname="a"} 0
DCGM_FI_DEV_GPU_UTIL{gpu="0",UUID="GPU-1",Hostname="a",namespace="ml",pod="train"} 87
DCGM_FI_PROF_SM_ACTIVE{gpu="0",UUID="GPU-1",Hostname="a",namespace="ml",pod="train"} 0.412387
DCGM_FI_PROF_SM_OCCUPANCY{gpu="0",UUID="GPU-1",Hostname="a",namespace="ml",pod="train"} 0.197120
DCGM_FI_DEV_MEM_COPY_UTIL{gpu="0",UUID="GPU-1",Hostname="a",namespace="ml",pod="train"} 31
""",
        {
            UtilizationCounter.GPU_UTIL: 0.87,
            UtilizationCounter.SM_ACTIVE: 0.412387,
            UtilizationCounter.SM_OCCUPANCY: 0.19712,
            UtilizationCounter.MEMORY_UTIL: 0.31,
        },
    ),
    Case(
        AMD,
        {
            "amd.com/gpu.cu-count": "304",
            "amd.com/gpu.device-id": "74a1",
            "amd.com/gpu.family": "AI",
            "amd.com/gpu.product-name": "AMD_Instinct_MI300X_OAM",
            "amd.com/gpu.vram": "192G",
            "amd.com/compute-memory-partition": "spx_nps1",
            "beta.amd.com/gpu.vram": "192G",
            "beta.amd.com/gpu.vram.192G": "4",
        },
        "AMD-Instinct-MI300X",
        192 * 1024,
        """
# HELP gpu_used_vram Total VRAM memory used in MB
# TYPE gpu_used_vram gauge
gpu_used_vram{card_model="102-G30211-0C",card_series="AMD Instinct MI300X OAM",card_vendor="AMD",container="main",\
gpu_compute_partition_type="spx",gpu_id="0",gpu_memory_partition_type="nps1",gpu_partition_id="0",hostname="a",\
namespace="ml",pod="train",serial_number="692409005408"} 10240
gpu_used_vram{card_model="102-G30211-0C",card_series="AMD Instinct MI300X OAM",card_vendor="AMD",container="",\
gpu_compute_partition_type="spx",gpu_id="1",gpu_memory_partition_type="nps1",gpu_partition_id="0",hostname="a",\
namespace="",pod="",serial_number="692409005409"} 0
gpu_used_visible_vram{gpu_id="0",gpu_partition_id="0",hostname="a"} 3
gpu_gfx_activity{card_model="102-G30211-0C",gpu_compute_partition_type="spx",gpu_id="0",gpu_partition_id="0",\
hostname="a",namespace="ml",pod="train"} 87
gpu_umc_activity{card_model="102-G30211-0C",gpu_compute_partition_type="spx",gpu_id="0",gpu_partition_id="0",\
hostname="a",namespace="ml",pod="train"} 31
gpu_prof_sm_active{gpu_id="0",gpu_partition_id="0",hostname="a",namespace="ml",pod="train"} 64
""",
        {UtilizationCounter.GPU_UTIL: 0.87, UtilizationCounter.MEMORY_UTIL: 0.31},
    ),
]
every_vendor = pytest.mark.parametrize("case", CASES, ids=lambda case: case.vendor.name)


def read(labels: dict[str, str], allocatable: dict[str, str] | None = None, **annotations: str) -> NodeGpus:
    noted = {f"vramcast.dev/{name.replace('_', '-')}": value for name, value in annotations.items()}
    return read_node(NodeName("a"), labels, noted, allocatable or {})


def test_every_vendor_has_a_case() -> None:
    assert [case.vendor for case in CASES] == list(VENDORS)


@every_vendor
def test_a_nodes_gpus_are_read_from_its_labels(case: Case) -> None:
    (pool,) = read(case.labels, {case.vendor.whole_gpu: "4"}).pools
    usable = case.memory_mib - reserve_mib(pool.product)
    assert (pool.resource, pool.product, pool.memory_mib) == (case.vendor.whole_gpu, case.product, (usable,))
    assert (pool.count, pool.replicas, pool.picked_by_kubelet) == (4, 1, True)


@every_vendor
def test_a_sharing_node_needs_no_device_plugin_and_vramcast_picks(case: Case) -> None:
    (pool,) = read({**case.labels, SHARING_LABEL: "true"}).pools
    usable = case.memory_mib - reserve_mib(pool.product)
    assert (pool.resource, pool.memory_mib, pool.picked_by_kubelet) == (SHARED_GPU, (usable,) * 4, False)


@every_vendor
def test_without_a_memory_label_the_product_table_counts(case: Case) -> None:
    labels = {key: value for key, value in case.labels.items() if key != case.vendor.labels.memory}
    (pool,) = read(labels, {case.vendor.whole_gpu: "4"}).pools
    total = memory_mib(pool.product)
    assert total is not None
    # A label may be rounded up: never by more than the reserve leaves room for.
    assert case.memory_mib - reserve_mib(pool.product) <= total
    assert pool.memory_mib == (total - reserve_mib(pool.product),)


@every_vendor
def test_a_malformed_memory_label_is_a_problem_that_names_it(case: Case) -> None:
    node = read({**case.labels, case.vendor.labels.memory: "lots"}, {case.vendor.whole_gpu: "4"})
    assert node.pools == ()
    assert f"label {case.vendor.labels.memory}='lots': expected a whole number" in node.problem


@every_vendor
def test_an_annotation_of_the_node_overrides_its_memory(case: Case) -> None:
    (pool,) = read(case.labels, {case.vendor.whole_gpu: "4"}, gpu_memory="20Gi").pools
    assert pool.memory_mib == (20 * 1024 - reserve_mib(pool.product),)


@every_vendor
def test_a_pod_asks_for_the_vendors_gpus_by_its_resource(case: Case) -> None:
    limits = {"cpu": "4", case.vendor.whole_gpu: "2"}
    manifest = {"spec": {"containers": [{"resources": {"limits": limits}}]}}
    assert to_record(msgspec.convert(manifest, Pod)).ask == Ask(case.vendor.whole_gpu, 2)
    assert is_gpu_resource(case.vendor.whole_gpu)


def scraped(case: Case) -> Frame:
    """Through the settings that a cluster with this vendor's exporter would have."""
    with serving(lambda _path, _query, _headers: (200, case.scrape.encode())) as url:
        telemetry = choose_telemetry(
            load_settings(
                {
                    "exporter_urls": url,
                    "telemetry_memory_metric": case.vendor.exporter.memory,
                    "telemetry_utilization_metric": case.vendor.exporter.utilization,
                    "telemetry_memory_util_metric": case.vendor.exporter.memory_util,
                },
                {},
            )
        )
        assert isinstance(telemetry, ExporterTelemetry)
        return telemetry.poll(0.0, NOW)


@every_vendor
def test_a_scrape_of_the_vendors_exporter_becomes_readings(case: Case) -> None:
    frame = scraped(case)
    assert [(reading.node, reading.device, reading.pod, reading.value) for reading in frame.memory] == [
        ("a", Device(0), "ml/train", 10240.0),
        ("a", Device(1), "", 0.0),
    ]
    counted = {
        counter: [(reading.device, reading.value) for reading in found]
        for counter, found in frame.utilization.items()
        if found
    }
    assert counted == {counter: [(Device(0), share)] for counter, share in case.shares.items()}
    assert counted.keys() == case.vendor.exporter.counters.keys()
    assert frame.faults == {}


@pytest.mark.parametrize(("vendor", "phrase"), [(v, phrase) for v in VENDORS for phrase in v.oom_phrases])
def test_an_oom_of_the_vendors_libraries_is_recognized_in_any_case(vendor: GpuVendor, phrase: str) -> None:
    ended = Terminated(exit_code=1, message=f"RuntimeError: {phrase.upper()}, tried to allocate 3.31 GiB")
    status = PodStatus(phase="Failed", container_statuses=[ContainerStatus(state=ContainerState(ended))])
    assert phrase == phrase.lower(), vendor.name
    assert read_run(status, {}).ending is Ending.OOM


@every_vendor
def test_only_an_uncalibrated_vendors_products_carry_a_note(case: Case) -> None:
    note = calibration_note(Product(case.product))
    assert vendor_of(case.product) is case.vendor
    assert (note is None) is case.vendor.calibrated
    assert note is None or f"not calibrated on {case.vendor.name} GPUs" in note
