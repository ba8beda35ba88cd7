"""What only AMD has: labels in GiB, hidden replicas, compute partitions. And a whole decision on its nodes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.api.client import Client
from tests.fakes import new_fake_service, pod_manifest, shared_pod, whole_node
from vramcast.cluster.readers import to_node
from vramcast.cluster.static_file import read_cluster_file
from vramcast.errors import InvalidClusterFile
from vramcast.forecast.forecaster import PhysicsForecaster
from vramcast.forecast.report import usable_mib
from vramcast.hardware.products import (
    PRODUCTS,
    UNCALIBRATED_MIB,
    UNKNOWN_RESERVE_MIB,
    base_product,
    calibration_note,
    memory_mib,
    reserve_mib,
)
from vramcast.hardware.vendors import AMD, NVIDIA
from vramcast.names import NodeName, Product
from vramcast.placement.gpus import SHARING_LABEL, NodeGpus, read_node
from vramcast.task.task import Task
from vramcast.task.vocabulary import Level

PRODUCT, VRAM, COUNT = "amd.com/gpu.product-name", "amd.com/gpu.vram", "beta.amd.com/gpu.vram."
PARTITION = "amd.com/compute-memory-partition"


def node(
    name: str = "a", gpus: int = 8, vram: str = "192G", product: str = "AMD_Instinct_MI300X_OAM", **more: str
) -> NodeGpus:
    labels = {PRODUCT: product, VRAM: vram, COUNT + vram: str(gpus)}
    labels |= {SHARING_LABEL: "true"} if more.pop("sharing", "") else {}
    labels |= {PARTITION: more.pop("partition")} if "partition" in more else {}
    annotations = {"vramcast.dev/gpu-memory": more.pop("memory")} if "memory" in more else {}
    return read_node(NodeName(name), labels, annotations, more or {"amd.com/gpu": str(gpus)})


@pytest.mark.parametrize(("vram", "mib"), [("16G", 16 << 10), ("64G", 64 << 10), ("192G", 192 << 10)])
def test_the_labellers_g_is_gib(vram: str, mib: int) -> None:
    (pool,) = node(vram=vram).pools
    assert pool.memory_mib == (mib - UNKNOWN_RESERVE_MIB,)


@pytest.mark.parametrize(
    ("vram", "expected"),
    [
        ("192", "such as 64G"),
        ("192Gi", "such as 64G"),
        ("9999G", "the GiB of one GPU"),
        ("67108864G", "the GiB of one"),
    ],
)
def test_a_vram_label_in_another_form_is_a_problem(vram: str, expected: str) -> None:
    read = node(vram=vram)
    assert read.pools == ()
    assert VRAM in read.problem
    assert expected in read.problem


def test_without_the_labellers_count_the_device_plugins_number_counts() -> None:
    read = read_node(NodeName("a"), {PRODUCT: "AMD_Instinct_MI210", VRAM: "64G"}, {}, {"amd.com/gpu": "4"})
    assert [(pool.count, pool.replicas) for pool in read.pools] == [(4, 1)]


def test_more_devices_than_gpus_are_replicas_of_them() -> None:
    (pool,) = node(gpus=8, **{"amd.com/gpu": "32"}).pools
    assert (pool.count, pool.replicas) == (8, 4)


def test_a_node_without_a_product_label_is_still_known_to_be_uncalibrated() -> None:
    (pool,) = read_node(NodeName("a"), {VRAM: "64G"}, {}, {"amd.com/gpu": "1"}).pools
    assert calibration_note(pool.product) is not None


@pytest.mark.parametrize("single", [True, False])
def test_partitions_need_an_annotation_for_their_memory(single: bool) -> None:
    devices = {"amd.com/gpu" if single else "amd.com/cpx_nps4": "64"}
    partition = {"partition": "cpx_nps4"} if single else {}
    assert "annotate the node with vramcast.dev/gpu-memory" in node(gpus=64, vram="24G", **partition, **devices).problem
    (pool,) = node(gpus=64, vram="24G", memory="24Gi", **partition, **devices).pools
    assert (pool.resource, pool.count) == (next(iter(devices)), 64)
    assert pool.memory_mib == (24 * 1024 - UNKNOWN_RESERVE_MIB,)


def test_partitioned_gpus_are_not_shared() -> None:
    assert "share whole GPUs, or use compute partitions" in node(sharing="yes", partition="cpx_nps1").problem


def test_a_node_with_devices_of_two_vendors_is_a_problem() -> None:
    both = node(**{"amd.com/gpu": "8", "nvidia.com/gpu": "1"})
    assert (both.pools, both.problem) == ((), "the node has GPUs of NVIDIA and AMD: expected one vendor per node")


def test_labels_of_a_second_vendor_without_devices_do_not_matter() -> None:
    labels = {PRODUCT: "AMD_Radeon_Graphics", VRAM: "0G", "nvidia.com/gpu.product": "Tesla-T4"}
    (pool,) = read_node(NodeName("a"), labels, {}, {"nvidia.com/gpu": "2"}).pools
    assert (pool.resource, pool.product) == (NVIDIA.whole_gpu, "Tesla-T4")


def test_a_static_cluster_describes_amd_nodes_by_their_product(tmp_path: Path) -> None:
    file = tmp_path / "cluster.yaml"
    file.write_text("nodes: [{name: a, product: AMD-Instinct-MI300X, gpus: 8, memory: 192Gi}]")
    (pool,) = to_node(read_cluster_file(file).nodes["a"]).pools
    assert (pool.resource, pool.count) == (AMD.whole_gpu, 8)
    assert pool.memory_mib == (192 * 1024 - UNKNOWN_RESERVE_MIB,)
    file.write_text("nodes: [{name: a, product: AMD-Instinct-MI300X, gpus: 8, replicas: 2}]")
    with pytest.raises(InvalidClusterFile, match="expected no replicas and no `mig` on GPUs of AMD"):
        read_cluster_file(file)


# ---------------------------------------------------------------------- products


@pytest.mark.parametrize(
    ("label", "product"),
    [
        ("AMD_Instinct_MI300X_OAM", "AMD-Instinct-MI300X"),
        ("AMD_Instinct_MI300X", "AMD-Instinct-MI300X"),
        ("AMD-Instinct-MI300X", "AMD-Instinct-MI300X"),
        ("AMD_Instinct_MI325_OAM", "AMD-Instinct-MI325X"),
        ("AMD_INSTINCT_MI250_MCM_OAM_AC_MBA", "AMD-Instinct-MI250X"),
        ("AMD_Instinct_MI210", "AMD-Instinct-MI210"),
        ("AMD_Instinct_MI300A", "AMD-Instinct-MI300A"),
        ("AMD_Radeon_PRO_W7900", "AMD_Radeon_PRO_W7900"),
    ],
)
def test_every_spelling_of_an_instinct_is_one_product(label: str, product: str) -> None:
    assert base_product(label) == product
    assert base_product(product) == product
    assert calibration_note(Product(product)) is not None


def test_an_uncalibrated_product_has_the_overheads_of_an_unknown_one() -> None:
    assert not UNCALIBRATED_MIB.keys() & PRODUCTS.keys()
    for product in map(Product, UNCALIBRATED_MIB):
        assert reserve_mib(product) == UNKNOWN_RESERVE_MIB
        assert memory_mib(product) == UNCALIBRATED_MIB[product]
        assert "not calibrated on AMD GPUs" in (calibration_note(product) or "")


# ---------------------------------------------------------------------- a decision


@pytest.fixture
def client() -> Client:
    nodes = [
        node("mi300x"),
        node("mi210", gpus=2, vram="64G", product="AMD_Instinct_MI210"),
        node("mi300x-shared", gpus=2, sharing="yes"),
        whole_node("a100"),
    ]
    return Client(new_fake_service(nodes))


NODES = ["mi300x", "mi210", "mi300x-shared", "a100"]


def test_a_pod_goes_where_the_resource_it_asks_for_has_room(client: Client) -> None:
    pod = pod_manifest("p", {"gpu-memory": "100Gi"}, {AMD.whole_gpu: "1"})
    assert client.feasible(pod, NODES) == ["mi300x"]
    reasons = client.reasons(pod, NODES)
    assert reasons["mi210"] == "GPU too small for 100.0 GiB"
    assert set(reasons) == {"mi210", "mi300x-shared", "a100"}
    assert client.place(pod, "mi300x") == ""


def test_a_forecast_decides_on_amd_nodes_too(client: Client) -> None:
    described = {"model": "timm/resnet50", "batch-size": "64", "input-size": "3x224x224"}
    assert client.feasible(pod_manifest("p", described, {AMD.whole_gpu: "1"}), NODES) == ["mi300x", "mi210"]


def test_pods_share_an_amd_gpu_until_it_is_full(client: Client) -> None:
    for name, index in (("p", "0"), ("q", "0"), ("r", "1")):
        pod = shared_pod(name, "90Gi")
        assert client.feasible(pod, NODES) == ["mi300x-shared"]
        assert client.place(pod, "mi300x-shared") == ""
        assert client.cluster.writes[-1].annotations["vramcast.dev/gpu-indices"] == index
    assert client.feasible(shared_pod("s", "110Gi"), NODES) == []


@pytest.mark.parametrize(("product", "uncalibrated"), [("AMD-Instinct-MI300X", True), ("Tesla-T4", False)])
def test_a_forecast_for_an_uncalibrated_product_says_so(product: str, uncalibrated: bool) -> None:
    task = Task(Level.SUMMARY, parameters=10**8, activations=10**7, batch_size=8)
    forecast = PhysicsForecaster(0.05).forecast(task, Product(product))
    assert any("not calibrated on AMD GPUs" in assumption for assumption in forecast.assumptions) is uncalibrated
    assert usable_mib(Product(product))
