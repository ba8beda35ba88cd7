"""ResourceSlices as drivers write them, and as nobody should."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from vramcast.cluster.slices import ResourceSlice, SliceReader, to_slice
from vramcast.names import NodeName
from vramcast.placement.claimable import GpuSlice, PublishedGpu, SliceGone, SliceSeen, SlicesListed


def device(name: str = "gpu-0", memory: Any = "81559Mi", kind: str = "gpu", **more: Any) -> dict[str, Any]:
    attributes = {"productName": {"string": "NVIDIA H100 80GB HBM3"}, "type": {"string": kind}}
    return {"name": name, "attributes": attributes, "capacity": {"memory": {"value": memory}}, **more}


def resource_slice(*devices: Any, name: str = "s", **spec: Any) -> ResourceSlice:
    pool = {"name": "n", "generation": 3, "resourceSliceCount": 1}
    whole = {"driver": "gpu.nvidia.com", "nodeName": "n", "pool": pool, "devices": list(devices), **spec}
    return msgspec.convert({"metadata": {"name": name}, "spec": whole}, ResourceSlice)


def test_whole_gpus_are_read_with_product_and_memory() -> None:
    found = to_slice(resource_slice(device(), device("gpu-0-mig-1", "10Gi", "mig"), device("gpu-1")))
    product = "NVIDIA-H100-80GB-HBM3"
    gpus = (PublishedGpu("gpu-0", product, 81_559), PublishedGpu("gpu-1", product, 81_559))
    assert found == GpuSlice("s", NodeName("n"), "n", 3, gpus)


def test_names_may_have_the_domain_of_the_driver() -> None:
    attributes = {"gpu.example.com/productName": {"string": "NVIDIA L4"}}
    capacity = {"gpu.example.com/memory": {"value": "24Gi"}}
    (gpu,) = to_slice(resource_slice({"name": "a", "attributes": attributes, "capacity": capacity})).gpus
    assert gpu == PublishedGpu("a", "NVIDIA-L4", 24_576)


@pytest.mark.parametrize(
    "odd",
    [
        None, {}, {"name": "nic-0"}, device(memory="lots"), device(memory="0"), device(memory="2P"),
        device(attributes=None), device(attributes={"productName": {"int": 3}}), device(capacity={"memory": "40Gi"}),
        device(attributes={"productName": "x"}), device(capacity=None), device(memory=None),
    ],
)  # fmt: skip
def test_a_device_that_is_no_gpu_or_cannot_be_read_is_left_out(odd: Any) -> None:
    assert len(to_slice(resource_slice(odd, device("gpu-1"))).gpus) == 1


@pytest.mark.parametrize("empty", [{}, {"metadata": None, "spec": None}, {"spec": {"devices": None, "pool": None}}])
def test_an_empty_slice_has_no_gpus(empty: Any) -> None:
    assert to_slice(msgspec.convert(empty, ResourceSlice)).gpus == ()


def test_only_changes_are_reported() -> None:
    reader = SliceReader()
    reader.begin_list()
    assert isinstance(reader.listed(resource_slice(device())), SliceSeen)
    assert reader.end_list(0.0) == SlicesListed(frozenset({"s"}))
    assert reader.seen(resource_slice(device())) is None
    assert isinstance(reader.seen(resource_slice(device(), device("gpu-1"))), SliceSeen)
    assert reader.gone(resource_slice()) == SliceGone("s")
    assert isinstance(reader.seen(resource_slice(device())), SliceSeen)
    reader.forget()
    assert isinstance(reader.seen(resource_slice(device())), SliceSeen)
