"""MIG profiles against what NVIDIA's tools print."""

from __future__ import annotations

import pytest

from vramcast.hardware.mig import mig_layout
from vramcast.hardware.products import PRODUCTS, memory_mib, reserve_mib
from vramcast.names import Product


# `nvidia-smi mig -lgip` shows these, in MiB.
@pytest.mark.parametrize(
    ("product", "sizes"),
    [
        ("NVIDIA-A100-SXM4-40GB", {"1g.5gb": 4864, "2g.10gb": 9984, "3g.20gb": 20090}),
        ("NVIDIA-H100-80GB-HBM3", {"1g.10gb": 9984, "1g.20gb": 20090, "2g.20gb": 20090, "3g.40gb": 40448}),
    ],
)
def test_a_slice_is_never_thought_larger_than_it_is(product: str, sizes: dict[str, int]) -> None:
    layout = mig_layout(Product(product))
    assert layout is not None
    for name, size_mib in sizes.items():
        profile = layout.profile(name)
        assert profile is not None
        assert 0.9 * size_mib <= profile.usable_mib <= size_mib


@pytest.mark.parametrize("product", [name for name in PRODUCTS if mig_layout(Product(name))])
def test_profiles_grow_and_fit_their_gpu(product: str) -> None:
    layout = mig_layout(Product(product))
    assert layout is not None
    sizes = [(profile.usable_mib, profile.compute_slices) for profile in layout.profiles]
    assert sizes == sorted(sizes)
    assert sizes[-1][0] < (memory_mib(Product(product)) or 0) - reserve_mib(Product(product))


def test_most_gpus_have_no_slices() -> None:
    assert mig_layout(Product("NVIDIA-L40S")) is None
    assert mig_layout(Product("Tesla-T4")) is None
