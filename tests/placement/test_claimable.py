"""GPUs from ResourceSlices: for nodes without labels, the newest generation, and never over what labels show."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.fakes import sharing_node, whole_node

from vramcast.hardware.vendors import CLAIMED_GPU, SHARED_GPU
from vramcast.names import NodeName, Product
from vramcast.placement.claimable import (
    ClaimableGpus,
    GpuSlice,
    PublishedGpu,
    SliceGone,
    SliceSeen,
    SlicesListed,
    product_named,
)
from vramcast.placement.gpus import NodeGpus, Pool

H100 = Product("NVIDIA-H100-80GB-HBM3")
BARE = NodeGpus(NodeName("n"), problem="the GPU memory is not known")
SHARING = replace(BARE, sharing=True)
USABLE_MIB = 81_559 - 640


def published(count: int = 2, generation: int = 1, name: str = "s", node: str = "n", product: str = H100) -> SliceSeen:
    gpus = tuple(PublishedGpu(f"gpu-{number}", product, 81_559) for number in range(count))
    return SliceSeen(GpuSlice(name, NodeName(node), "pool", generation, gpus))


@pytest.mark.parametrize(
    ("node", "pool"),
    [
        (BARE, Pool(CLAIMED_GPU, H100, (USABLE_MIB,), 2)),
        (SHARING, Pool(SHARED_GPU, H100, (USABLE_MIB, USABLE_MIB), 2)),
    ],
)
def test_a_node_without_labels_has_the_gpus_of_its_slices(node: NodeGpus, pool: Pool) -> None:
    claimable = ClaimableGpus()
    assert claimable.complete(node) == node
    (after,) = claimable.apply(published())
    assert after == replace(node, pools=(pool,), problem="")
    assert claimable.complete(node) == after


@pytest.mark.parametrize("node", [sharing_node("n"), whole_node("n")])
def test_labels_count_where_there_are_any(node: NodeGpus) -> None:
    claimable = ClaimableGpus()
    claimable.apply(published())
    assert claimable.complete(node) == node
    assert claimable.apply(published(4)) == []


def test_labels_that_appear_later_count() -> None:
    claimable = ClaimableGpus()
    claimable.complete(BARE)
    assert claimable.complete(whole_node("n")) == whole_node("n")
    assert claimable.apply(published()) == []


def test_only_the_newest_generation_of_a_pool_counts() -> None:
    claimable = ClaimableGpus()
    claimable.complete(BARE)
    claimable.apply(published(8, generation=1, name="old"))
    (after,) = claimable.apply(published(2, generation=2, name="new"))
    assert after.pools[0].count == 2


@pytest.mark.parametrize("change", [SliceGone("s"), SlicesListed(frozenset()), published(0), published(node="other")])
def test_gpus_that_are_no_longer_published_are_gone(change: SliceSeen | SliceGone | SlicesListed) -> None:
    claimable = ClaimableGpus()
    claimable.complete(BARE)
    claimable.apply(published())
    assert claimable.apply(change) == [BARE]


def test_a_node_that_is_gone_is_forgotten() -> None:
    claimable = ClaimableGpus()
    claimable.complete(BARE)
    claimable.forget_node(BARE.name)
    assert claimable.apply(published()) == []


def test_gpus_are_numbered_as_their_names_are() -> None:
    claimable = ClaimableGpus()
    claimable.complete(SHARING)
    gpus = tuple(PublishedGpu(f"gpu-{number}", H100, 10_000 + number) for number in (10, 2, 0))
    (after,) = claimable.apply(SliceSeen(GpuSlice("s", SHARING.name, "p", 1, gpus)))
    assert after.pools[0].memory_mib == (9_360, 9_362, 9_370)


def test_names_of_drivers_are_names_of_labels() -> None:
    assert product_named("NVIDIA H100 80GB HBM3") == H100
