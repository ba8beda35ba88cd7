"""MIG profiles by GPU product: which slices a GPU can be cut into, and what a process can use in each.

A GPU has slices of compute and slices of memory; a profile takes some of each. Names and fractions are from NVIDIA's
MIG user guide. What is usable is less than the fraction of the memory: `nvidia-smi mig -lgip` shows 95 % of it for
A100, A30 and the 80 GB H100, and less for larger ones, where this table stays on the low side.
"""

from __future__ import annotations

from dataclasses import dataclass

from vramcast.hardware.products import memory_mib
from vramcast.names import Product


@dataclass(frozen=True, slots=True)
class MigProfile:
    name: str  # 2g.20gb
    compute_slices: int
    memory_slices: int
    usable_mib: int


@dataclass(frozen=True, slots=True)
class MigLayout:
    """How one product is cut. `profiles`: smallest first, without the one that is the whole GPU."""

    compute_slices: int
    memory_slices: int
    profiles: tuple[MigProfile, ...]

    def profile(self, name: str) -> MigProfile | None:
        """Media extensions (`1g.10gb+me`) do not change its size."""
        plain = name.partition("+")[0]
        return next((profile for profile in self.profiles if profile.name == plain), None)


_SEVENTHS = ((1, 1), (1, 2), (2, 2), (3, 4), (4, 4))  # (compute, memory) of 7 and 8
_QUARTERS = ((1, 1), (2, 2))  # of 4 and 4
_MEASURED, _CAUTIOUS = 0.95, 0.90

# The gigabytes in the names, by memory slices, and how much of the fraction is usable.
_CUTS: dict[str, tuple[dict[int, int], float]] = {
    "NVIDIA-A100-SXM4-40GB": ({1: 5, 2: 10, 4: 20}, _MEASURED),
    "NVIDIA-A100-PCIE-40GB": ({1: 5, 2: 10, 4: 20}, _MEASURED),
    "NVIDIA-A100-SXM4-80GB": ({1: 10, 2: 20, 4: 40}, _MEASURED),
    "NVIDIA-A100-80GB-PCIe": ({1: 10, 2: 20, 4: 40}, _MEASURED),
    "NVIDIA-A800-SXM4-80GB": ({1: 10, 2: 20, 4: 40}, _MEASURED),
    "NVIDIA-A30": ({1: 6, 2: 12}, _MEASURED),
    "NVIDIA-H100-80GB-HBM3": ({1: 10, 2: 20, 4: 40}, _MEASURED),
    "NVIDIA-H100-PCIe": ({1: 10, 2: 20, 4: 40}, _MEASURED),
    "NVIDIA-H800": ({1: 10, 2: 20, 4: 40}, _MEASURED),
    "NVIDIA-H100-NVL": ({1: 12, 2: 24, 4: 47}, _CAUTIOUS),
    "NVIDIA-H20": ({1: 12, 2: 24, 4: 48}, _CAUTIOUS),
    "NVIDIA-GH200-480GB": ({1: 12, 2: 24, 4: 48}, _CAUTIOUS),
    "NVIDIA-H200": ({1: 18, 2: 35, 4: 71}, _CAUTIOUS),
    "NVIDIA-B200": ({1: 23, 2: 45, 4: 90}, _CAUTIOUS),
}


def mig_layout(product: Product) -> MigLayout | None:
    """None: the product has no MIG, or its slices are not known."""
    total_mib, cut = memory_mib(product), _CUTS.get(product)
    if total_mib is None or cut is None:
        return None
    names, usable = cut
    compute, memory, shapes = (7, 8, _SEVENTHS) if 4 in names else (4, 4, _QUARTERS)
    profiles = (
        MigProfile(f"{c}g.{names[m]}gb", c, m, int(total_mib * m / memory * usable)) for c, m in shapes
    )  # fmt: skip
    return MigLayout(compute, memory, tuple(profiles))
