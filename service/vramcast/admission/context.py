"""What the webhook knows when it admits an object: its settings, the namespace's policy, and what the task needs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from vramcast.names import Product
from vramcast.settings import Settings


@dataclass(frozen=True, slots=True)
class Needs:
    """What a task needs on each GPU, by the products of this cluster that the pod may use. Never empty."""

    by_product: Mapping[Product, int]  # bytes, at the pod's risk
    median_bytes: Mapping[Product, int]
    sizes_bytes: Mapping[Product, int]  # the usable memory of the product's largest GPU in this cluster
    gpus: int
    risk: float

    @property
    def largest_bytes(self) -> int:
        return max(self.by_product.values())

    @property
    def widest(self) -> Product:
        """Of the products that can hold the task, the one on which it needs most: where one number must do for all."""
        return max(self.fits or tuple(self.by_product), key=lambda product: (self.by_product[product], product))

    @property
    def reserved_bytes(self) -> int:
        return self.by_product[self.widest]

    @property
    def fits(self) -> tuple[Product, ...]:
        """The products with a GPU that is large enough, smallest first."""
        holds = [product for product, need in self.by_product.items() if need <= self.sizes_bytes[product]]
        return tuple(sorted(holds, key=lambda product: (self.sizes_bytes[product], product)))


@dataclass(frozen=True, slots=True)
class Context:
    """`needs` is None if the task cannot be forecast, or not in time: fillers leave out what rests on it.

    `shares`: pods of this namespace share GPUs unless they ask for a device.
    `visible_devices`: the variables by which containers of this cluster see only their GPUs.
    """

    settings: Settings
    shares: bool = True
    needs: Needs | None = None
    visible_devices: tuple[str, ...] = ("NVIDIA_VISIBLE_DEVICES",)
