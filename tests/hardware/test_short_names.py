"""GPU names as people type them."""

from __future__ import annotations

import pytest

from vramcast.errors import InvalidInput
from vramcast.hardware.short_names import find_product, known_products, short_name
from vramcast.names import Product


@pytest.mark.parametrize(
    ("typed", "product"),
    [
        ("L40S", "NVIDIA-L40S"),
        ("l40", "NVIDIA-L40"),
        ("a100-80", "NVIDIA-A100-SXM4-80GB"),
        ("A100 40GB", "NVIDIA-A100-SXM4-40GB"),
        ("a100-pcie-80g", "NVIDIA-A100-80GB-PCIe"),
        ("4090", "NVIDIA-GeForce-RTX-4090"),
        ("rtx4090", "NVIDIA-GeForce-RTX-4090"),
        ("RTX 3090", "NVIDIA-GeForce-RTX-3090"),
        ("a10", "NVIDIA-A10"),
        ("A10G", "NVIDIA-A10G"),
        ("t4", "Tesla-T4"),
        ("v100-32", "Tesla-V100-SXM2-32GB"),
        ("h100-80", "NVIDIA-H100-80GB-HBM3"),
        ("h200", "NVIDIA-H200"),
        ("mi300x", "AMD-Instinct-MI300X"),
        ("NVIDIA-A100-SXM4-40GB-MIG-1g.5gb-SHARED", "NVIDIA-A100-SXM4-40GB"),
    ],
)
def test_a_short_name_means_one_product(typed: str, product: str) -> None:
    assert find_product(typed) == product


@pytest.mark.parametrize("typed", ["a100", "V100", "h100"])
def test_a_name_that_leaves_the_memory_open_is_refused_with_the_choices(typed: str) -> None:
    with pytest.raises(InvalidInput, match=rf"GPU '{typed}' may be one of .*\(.* GiB\).*\(.* GiB\): give more"):
        find_product(typed)


@pytest.mark.parametrize(("typed", "meant"), [("L4OS", "L40S"), ("A1OO-80GB", "A100-80GB"), ("rtx 4091", "RTX-4090")])
def test_an_unknown_name_is_refused_with_the_nearest(typed: str, meant: str) -> None:
    with pytest.raises(InvalidInput, match=rf"no known product has this name; did you mean .*{meant}"):
        find_product(typed)


@pytest.mark.parametrize("typed", ["", "?!", "quantum"])
def test_a_name_like_no_other_is_refused_with_all(typed: str) -> None:
    with pytest.raises(InvalidInput, match=r"the known ones are A100-40GB, .*RTX-5090"):
        find_product(typed)


def test_every_product_is_found_by_its_own_name_and_its_short_one_holds_as_much() -> None:
    for product in known_products():
        assert find_product(str(product)) == product
        assert find_product(str(product).lower().replace("-", " ")) is not None


def test_a_product_of_the_cluster_needs_no_table() -> None:
    ours = Product("Some-New-GPU")
    assert find_product("Some-New-GPU", [ours]) == ours


def test_short_names_leave_out_makers_and_sockets() -> None:
    assert short_name(Product("NVIDIA-A100-SXM4-80GB")) == "A100-80GB"
