from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.cluster.manifests import Json
from tests.cluster.manifests import node as node_manifest

from vramcast.cluster.readers import Node, to_node
from vramcast.forecast.physics import summary_prior
from vramcast.hardware.products import (
    PRODUCTS,
    UNKNOWN_RESERVE_MIB,
    base_product,
    reserve_mib,
)
from vramcast.hardware.vendors import MAX_GPUS, SHARED_GPU, WHOLE_GPU, is_gpu_resource
from vramcast.names import NodeName, Product
from vramcast.placement.gpus import NodeGpus, read_node
from vramcast.placement.ledger import Ledger
from vramcast.task.task import Task
from vramcast.task.vocabulary import Level

SHARING = {"vramcast.dev/gpu-sharing": "true"}
OVERRIDE = "vramcast.dev/gpu-memory"


def labels(product: str = "", memory: object = None, count: object = None, **more: object) -> dict[str, str]:
    """GPU Feature Discovery labels. In `more`, underscores stand for dashes."""
    values = {"product": product or None, "memory": memory, "count": count}
    values |= {name.replace("_", "-"): value for name, value in more.items()}
    return {f"nvidia.com/gpu.{name}": str(value) for name, value in values.items() if value is not None}


def read(
    labels: dict[str, str], allocatable: dict[str, str] | None = None, annotations: dict[str, str] | None = None
) -> NodeGpus:
    return read_node(NodeName("n1"), labels, annotations or {}, allocatable or {})


@pytest.mark.parametrize(
    ("product", "memory", "count", "usable_mib"),
    [
        ("NVIDIA-A100-SXM4-40GB", 40960, 8, 40960 - 450),
        ("Tesla-T4", 15360, 4, 15360 - 440),
        ("NVIDIA-L40S", 46068, 4, 46068 - 620),
        ("NVIDIA-H100-80GB-HBM3", 81559, 8, 81559 - 640),
    ],
)
def test_the_usable_memory_of_a_whole_gpu_excludes_the_driver_reserve(
    product: str, memory: int, count: int, usable_mib: int
) -> None:
    (pool,) = read(labels(product, memory, count)).pools
    assert (pool.resource, pool.product, pool.memory_mib) == (WHOLE_GPU, product, (usable_mib,))
    assert (pool.count, pool.replicas, pool.picked_by_kubelet) == (count, 1, True)


def test_a_sharing_node_lists_every_gpu_and_vramcast_picks() -> None:
    node = read({**labels("Tesla-T4", 15360, 4), **SHARING})
    (pool,) = node.pools
    assert node.sharing
    assert (pool.resource, pool.memory_mib, pool.picked_by_kubelet) == (SHARED_GPU, (14920,) * 4, False)


@pytest.mark.parametrize(
    ("taint", "tainted"),
    [
        ({"key": "vramcast.dev/gpu-sharing", "value": "true", "effect": "NoSchedule"}, True),
        ({"key": "vramcast.dev/gpu-sharing", "effect": "NoExecute"}, True),
        ({"key": "vramcast.dev/gpu-sharing", "value": "true", "effect": "PreferNoSchedule"}, False),
        ({"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"}, False),
        ({}, False),
        (None, False),
    ],
)
def test_a_node_is_tainted_if_its_taint_keeps_other_pods_out(taint: Json | None, tainted: bool) -> None:
    manifest = {**node_manifest(), "spec": {"taints": [taint]}}
    assert to_node(msgspec.convert(manifest, Node)).tainted is tainted


@pytest.mark.parametrize("spec", [None, {}, {"taints": None}])
def test_a_node_without_taints_is_not_tainted(spec: Json | None) -> None:
    assert not to_node(msgspec.convert({**node_manifest(), "spec": spec}, Node)).tainted


def test_without_a_memory_label_the_product_table_gives_the_size() -> None:
    (pool,) = read(labels("NVIDIA-L40S", count=2)).pools
    assert pool.memory_mib == (PRODUCTS["NVIDIA-L40S"].memory_mib - 620,)


def test_a_memory_label_in_bytes_is_recognized() -> None:
    (pool,) = read(labels("NVIDIA-A100-SXM4-40GB", 42949672960, 1)).pools
    assert pool.memory_mib == (40960 - 450,)


def test_an_unknown_product_with_a_memory_label_gets_the_largest_reserve() -> None:
    (pool,) = read(labels("NVIDIA-Z999", 50000, 1)).pools
    assert pool.memory_mib == (50000 - UNKNOWN_RESERVE_MIB,)


@pytest.mark.parametrize("product", ["NVIDIA-Z999", ""])
def test_an_unknown_product_without_a_memory_label_is_reported_with_a_remedy(product: str) -> None:
    node = read(labels(product, count=2))
    assert node.pools == ()
    assert "no label nvidia.com/gpu.memory" in node.problem
    assert OVERRIDE in node.problem


def test_a_node_without_gpus_has_no_pools_and_no_problem() -> None:
    node = read({"kubernetes.io/os": "linux"}, {"cpu": "8", "memory": "32Gi"})
    assert (node.pools, node.problem) == ((), "")


def test_without_a_count_label_the_device_plugin_gives_the_count() -> None:
    (pool,) = read(labels("Tesla-T4"), {"nvidia.com/gpu": "4"}).pools
    assert pool.count == 4
    (sliced,) = read(labels("Tesla-T4", replicas=4), {"nvidia.com/gpu": "8"}).pools
    assert (sliced.count, sliced.replicas) == (2, 4)


# ---------------------------------------------------------------------- time-slicing and MPS


def test_time_sliced_gpus_keep_their_full_size_and_have_replicas() -> None:
    sliced = labels("NVIDIA-A100-SXM4-40GB-SHARED", 40960, 2, replicas=4, sharing_strategy="time-slicing")
    (pool,) = read(sliced, {"nvidia.com/gpu": "8"}).pools
    assert (pool.resource, pool.product) == (WHOLE_GPU, "NVIDIA-A100-SXM4-40GB")
    assert (pool.memory_mib, pool.count, pool.replicas) == ((40510,), 2, 4)


def test_the_pool_has_the_renamed_resource_that_pods_request() -> None:
    sliced = labels("Tesla-T4", 15360, 1, replicas=4, sharing_strategy="time-slicing")
    (pool,) = read(sliced, {"nvidia.com/gpu": "0", "nvidia.com/gpu.shared": "4"}).pools
    assert (pool.resource, pool.count, pool.replicas) == ("nvidia.com/gpu.shared", 1, 4)


def test_an_mps_replica_is_a_device_with_its_share_of_the_memory() -> None:
    mps = labels("Tesla-T4-SHARED", 15360, 2, replicas=4, sharing_strategy="mps")
    (pool,) = read(mps, {"nvidia.com/gpu": "8"}).pools
    assert (pool.memory_mib, pool.count, pool.replicas) == ((14920 // 4,), 8, 1)


# ---------------------------------------------------------------------- MIG


def test_single_strategy_mig_slices_are_small_gpus_without_a_reserve() -> None:
    (pool,) = read(labels("NVIDIA-A100-SXM4-40GB-MIG-1g.5gb", 4864, 7), {"nvidia.com/gpu": "7"}).pools
    assert (pool.resource, pool.product) == (WHOLE_GPU, "NVIDIA-A100-SXM4-40GB")
    assert (pool.memory_mib, pool.count) == ((4864,), 7)


def test_a_single_strategy_mig_slice_without_a_memory_label_never_gets_the_whole_gpus_size() -> None:
    assert "not known" in read(labels("NVIDIA-A100-SXM4-40GB-MIG-1g.5gb", count=7)).problem


def test_the_mixed_mig_strategy_makes_one_pool_per_profile() -> None:
    node = read(
        {
            **labels("NVIDIA-A100-SXM4-40GB"),
            "nvidia.com/mig-1g.5gb.count": "2", "nvidia.com/mig-1g.5gb.memory": "4864",
            "nvidia.com/mig-3g.20gb.count": "1", "nvidia.com/mig-3g.20gb.memory": "19968",
        },
        {"nvidia.com/mig-1g.5gb": "2", "nvidia.com/mig-3g.20gb": "1"},
    )  # fmt: skip
    assert {(p.resource, p.memory_mib, p.count) for p in node.pools} == {
        ("nvidia.com/mig-1g.5gb", (4864,), 2),
        ("nvidia.com/mig-3g.20gb", (19968,), 1),
    }
    assert {p.product for p in node.pools} == {"NVIDIA-A100-SXM4-40GB"}


@pytest.mark.parametrize(
    ("profile", "real_mib"),
    [
        ("1g.5gb", 4864),
        ("2g.10gb", 9856),
        ("3g.20gb", 19968),
        ("7g.40gb", 40192),
        ("1g.10gb", 9728),
        ("7g.80gb", 80896),
    ],
)
def test_a_size_derived_from_a_mig_profile_is_never_too_large(profile: str, real_mib: int) -> None:
    (pool,) = read({}, {f"nvidia.com/mig-{profile}": "1"}).pools
    assert 0.94 * real_mib <= pool.memory_mib[0] <= real_mib


def test_a_mig_memory_label_in_bytes_is_recognized() -> None:
    (pool,) = read({"nvidia.com/mig-1g.5gb.memory": str(4864 << 20)}, {"nvidia.com/mig-1g.5gb": "1"}).pools
    assert pool.memory_mib == (4864,)


def test_sharing_and_mig_on_one_node_is_reported_as_a_problem() -> None:
    mixed = read({**labels("NVIDIA-A100-SXM4-40GB", 40960, 1), **SHARING}, {"nvidia.com/mig-1g.5gb": "7"})
    single = read({**labels("NVIDIA-A100-SXM4-40GB-MIG-1g.5gb", 4864, 7), **SHARING})
    assert mixed.pools == single.pools == ()
    assert "share whole GPUs, or use MIG" in mixed.problem
    assert mixed.problem == single.problem


# ---------------------------------------------------------------------- annotations override labels


def test_one_override_sets_the_size_of_every_gpu() -> None:
    (pool,) = read(labels("Tesla-T4", 15360, 2), annotations={OVERRIDE: "10Gi"}).pools
    assert pool.memory_mib == (10 * 1024 - 440,)


def test_an_override_list_sets_the_size_of_each_shared_gpu() -> None:
    (pool,) = read({**labels("Tesla-T4", 15360, 2), **SHARING}, annotations={OVERRIDE: "10Gi, 8Gi"}).pools
    assert pool.memory_mib == (10 * 1024 - 440, 8 * 1024 - 440)


def test_where_the_kubelet_picks_the_smallest_override_counts() -> None:
    (pool,) = read(labels("Tesla-T4", 15360, 2), annotations={OVERRIDE: "10Gi,8Gi"}).pools
    assert pool.memory_mib == (8 * 1024 - 440,)


def test_a_product_override_sets_the_driver_reserve() -> None:
    (pool,) = read(labels("what-is-this", 46068, 1), annotations={"vramcast.dev/gpu-product": "NVIDIA-L40S"}).pools
    assert (pool.product, pool.memory_mib) == ("NVIDIA-L40S", (46068 - 620,))


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("40GB", "did you mean 40G?"),
        ("40", "the memory of one GPU, such as 40Gi"),
        ("-40Gi", "the memory of one GPU"),
        ("9Ti", "the memory of one GPU"),
        ("40Gi,,", "a Kubernetes quantity"),
        ("40Gi,40Gi,40Gi", "names 3 GPUs, the node has 2"),
    ],
)
def test_a_bad_override_is_reported_with_an_explanation(override: str, expected: str) -> None:
    node = read({**labels("Tesla-T4", 15360, 2), **SHARING}, annotations={OVERRIDE: override})
    assert node.pools == ()
    assert OVERRIDE in node.problem
    assert expected in node.problem


# ---------------------------------------------------------------------- nonsense labels


@pytest.mark.parametrize(
    ("bad", "expected"),
    [
        (labels("Tesla-T4", 15360, "many"), "gpu.count='many': expected a whole number"),
        (labels("Tesla-T4", 15360, -1), "expected a whole number"),
        (labels("Tesla-T4", 15360, 9999), "more devices than a node can have"),
        (labels("Tesla-T4", "16GB", 1), "gpu.memory='16GB': expected a whole number"),
        (labels("Tesla-T4", "9" * 19, 1), "expected a whole number"),
        (labels("Tesla-T4", 1 << 24, 1), "expected the MiB of one GPU"),
        (labels("Tesla-T4", "9" * 18, 1), "expected the MiB of one GPU"),
        (labels("Tesla-T4", 15360, 1, replicas="9" * 18), "replicas"),
        ({"nvidia.com/mig-1g.5gb.count": "1", "nvidia.com/mig-1g.5gb.memory": "9" * 18}, "expected the MiB"),
        ({**labels("Tesla-T4", 15360, MAX_GPUS + 1), **SHARING}, "at most 32"),
    ],
)
def test_a_nonsense_label_is_reported_with_what_was_expected(bad: dict[str, str], expected: str) -> None:
    node = read(bad)
    assert node.pools == ()
    assert expected in node.problem


_PROFILES = st.sampled_from(["1g.5gb", "7g.80gb", "1g.10gb+me", "2g.99999999999999999999gb", "x"])
_KEYS = st.one_of(
    st.sampled_from(["product", "memory", "count", "replicas", "sharing-strategy"]).map("nvidia.com/gpu.{}".format),
    st.builds("nvidia.com/mig-{}.{}".format, _PROFILES, st.sampled_from(["count", "memory", "replicas"])),
    st.sampled_from([*SHARING, OVERRIDE, "vramcast.dev/gpu-product", "nvidia.com/gpu", "nvidia.com/gpu.shared"]),
    _PROFILES.map("nvidia.com/mig-{}".format),
    st.sampled_from(["amd.com/gpu", "amd.com/cpx_nps4", "amd.com/gpu.vram", "beta.amd.com/gpu.vram.64G"]),
    st.sampled_from(["amd.com/gpu.product-name", "amd.com/compute-memory-partition"]),
    st.text(max_size=10),
)
_VALUES = st.one_of(
    st.integers(-1, 10**19).map(str),
    st.integers(0, 64).map(str),
    st.sampled_from(
        ["true", "time-slicing", "mps", "none", "40Gi", "40Gi,24Gi", "1e999", "64G", "cpx_nps4", *PRODUCTS]
    ),
    st.sampled_from(list(PRODUCTS)).map("{}-MIG-1g.5gb-SHARED".format),
    st.text(max_size=10),
)
_MAPS = st.dictionaries(_KEYS, _VALUES, max_size=8)


@given(_MAPS, _MAPS, _MAPS)
def test_arbitrary_labels_break_neither_the_parser_nor_the_ledger(
    labels: dict[str, str], annotations: dict[str, str], allocatable: dict[str, str]
) -> None:
    node = read(labels, allocatable, annotations)
    assert not (node.pools and node.problem)
    assert all(size >= 0 for pool in node.pools for size in pool.memory_mib)
    Ledger().put_node(node)


# ---------------------------------------------------------------------- manifests


def read_manifest(manifest: Json) -> NodeGpus:
    return to_node(msgspec.json.decode(msgspec.json.encode(manifest), type=Node))


def test_a_node_is_read_from_labels_and_allocatable() -> None:
    shared = read_manifest(node_manifest("n0", gpus=4))
    assert shared.sharing
    assert [pool.count for pool in shared.pools] == [4]
    whole = node_manifest("n1")
    whole["metadata"]["labels"].pop("vramcast.dev/gpu-sharing")
    whole["status"]["allocatable"] = {"cpu": "64", "nvidia.com/gpu": 8, "odd": None}
    assert [(pool.resource, pool.count) for pool in read_manifest(whole).pools] == [(WHOLE_GPU, 8)]


@pytest.mark.parametrize("manifest", [{}, {"metadata": None}, {"metadata": {"name": "n"}, "status": None}])
def test_an_empty_node_has_no_gpus(manifest: Json) -> None:
    assert read_manifest(manifest).pools == ()


# ---------------------------------------------------------------------- products


@pytest.mark.parametrize(
    "label",
    ["Tesla-T4", "Tesla-T4-SHARED", "Tesla-T4-MIG-1g.5gb", "Tesla-T4-MIG-1g.5gb-SHARED", "Tesla-T4-SHARED-MIG-1g.5gb"],
)
def test_sharing_and_slicing_do_not_change_the_product(label: str) -> None:
    assert base_product(label) == "Tesla-T4"


def context_bytes(product: Product) -> float:
    parts = summary_prior(Task(Level.SUMMARY, parameters=1, activations=1, batch_size=1), product).parts
    return sum(part.size_bytes for part in parts if part.name == "CUDA context")


def test_an_unknown_product_has_overheads_no_smaller_than_any_known_one() -> None:
    unknown = base_product("NVIDIA-Z999")
    assert reserve_mib(unknown) == UNKNOWN_RESERVE_MIB >= max(spec.reserve_mib for spec in PRODUCTS.values())
    assert context_bytes(unknown) >= max(context_bytes(Product(name)) for name in PRODUCTS)


def test_every_product_leaves_most_of_its_memory_usable() -> None:
    assert all(0 < spec.reserve_mib + spec.context_mib < spec.memory_mib / 10 for spec in PRODUCTS.values())


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("nvidia.com/gpu", True), ("nvidia.com/gpu.shared", True), ("nvidia.com/mig-1g.5gb", True),
        ("nvidia.com/mig-1g.5gb.shared", True), ("nvidia.com/gpumem", False), ("cpu", False),
        ("nvidia.com/", False), ("xnvidia.com/gpu", False), ("nvidia.com/mig-", False),
        ("amd.com/gpu", True), ("amd.com/cpx_nps4", True), ("amd.com/gpu.shared", False), ("amd.com/nic", False),
        ("intel.com/gpu", False),
    ],
)  # fmt: skip
def test_only_a_known_vendors_devices_are_gpus(name: str, expected: bool) -> None:
    assert is_gpu_resource(name) is expected
