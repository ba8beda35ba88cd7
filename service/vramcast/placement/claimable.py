"""GPUs that drivers publish as ResourceSlices, for nodes whose labels show none.

With a DRA driver, GPU Feature Discovery may be missing. The slices then tell the products and sizes. A node whose
labels show its GPUs is left as it is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Set
from dataclasses import dataclass, replace

from vramcast.hardware.products import base_product, reserve_mib
from vramcast.hardware.vendors import CLAIMED_GPU, MAX_GPUS, SHARED_GPU
from vramcast.names import NodeName, Product
from vramcast.placement.gpus import NodeGpus, Pool


@dataclass(frozen=True, slots=True)
class PublishedGpu:
    """`memory_mib` is the total, as the driver reports it."""

    name: str
    product: str
    memory_mib: int


@dataclass(frozen=True, slots=True)
class GpuSlice:
    """One ResourceSlice of one node. Of a pool's slices only those of the newest generation count."""

    name: str
    node: NodeName
    pool: str
    generation: int
    gpus: tuple[PublishedGpu, ...]


@dataclass(frozen=True, slots=True)
class SliceSeen:
    slice: GpuSlice


@dataclass(frozen=True, slots=True)
class SliceGone:
    name: str


@dataclass(frozen=True, slots=True)
class SlicesListed:
    """A complete list: slices missing from it are gone."""

    names: frozenset[str]


SliceChange = SliceSeen | SliceGone | SlicesListed


class ClaimableGpus:
    def __init__(self) -> None:
        self._slices: dict[str, GpuSlice] = {}
        self._bare: dict[NodeName, NodeGpus] = {}  # nodes whose labels show no GPU

    def apply(self, change: SliceChange) -> list[NodeGpus]:
        """The nodes whose GPUs may have changed, as they are now."""
        match change:
            case SliceSeen(found):
                names = {found.node} | self._lose({found.name})
                self._slices[found.name] = found
            case SliceGone(name):
                names = self._lose({name})
            case SlicesListed(listed):
                names = self._lose(self._slices.keys() - listed)
        return [self._with_slices(self._bare[name]) for name in sorted(names & self._bare.keys())]

    def _lose(self, names: Set[str]) -> set[NodeName]:
        return {self._slices.pop(name).node for name in names & self._slices.keys()}

    def forget_node(self, name: NodeName) -> None:
        self._bare.pop(name, None)

    def complete(self, node: NodeGpus) -> NodeGpus:
        """The node as its labels show it, or else as its slices do."""
        if node.pools:
            self._bare.pop(node.name, None)
            return node
        self._bare[node.name] = node
        return self._with_slices(node)

    def _with_slices(self, node: NodeGpus) -> NodeGpus:
        gpus = self._gpus(node.name)
        if not gpus or len(gpus) > MAX_GPUS:
            return node
        product = Counter(gpu.product for gpu in gpus).most_common(1)[0][0]
        usable = tuple(max(0, gpu.memory_mib - reserve_mib(Product(gpu.product))) for gpu in gpus)
        pool = (
            Pool(SHARED_GPU, Product(product), usable, len(gpus))
            if node.sharing
            else Pool(CLAIMED_GPU, Product(product), (min(usable),), len(gpus))
        )
        return replace(node, pools=(pool,), problem="")

    def _gpus(self, name: NodeName) -> list[PublishedGpu]:
        """In the order of their names, which drivers number."""
        here = [one for one in self._slices.values() if one.node == name]
        newest: Counter[str] = Counter()
        for one in here:
            newest[one.pool] = max(newest[one.pool], one.generation)
        found = (gpu for one in here if one.generation == newest[one.pool] for gpu in one.gpus)
        return sorted(found, key=lambda gpu: (len(gpu.name), gpu.name))


def product_named(name: str) -> Product:
    """Drivers write `NVIDIA A100-SXM4-40GB` where labels have `NVIDIA-A100-SXM4-40GB`."""
    return base_product("-".join(name.split()))
