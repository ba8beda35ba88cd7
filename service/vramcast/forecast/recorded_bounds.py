"""How much more than its recording says a run may take.

A recording has every tensor, but not what libraries take for themselves: cuDNN's workspaces, kernels that were compiled
for the job, buffers for communication, copies that another version of a library makes. For the kinds of run that others
measured, the artifact knows by how much they missed their recordings (`Learned`). For the rest there are *doubts*:
shares of the median that 19 of 20 runs stayed within (docs/forecast.md). Doubts are independent, so their squares add
up.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from math import hypot

from vramcast.forecast.forecast import Factors, Spreads
from vramcast.forecast.physics import bound_factor
from vramcast.hardware.products import PRODUCTS
from vramcast.names import Product
from vramcast.task.quantity import MIB

# At this risk.
_RISK = 0.05
_ALWAYS = 0.10
_CONVOLUTIONS = 0.22
_FUSED = 0.24
_SHARDED = 0.29
_OWN_LOOP = 0.28
# The rule of thumb, for products that nobody measured.
_UNMEASURED = bound_factor(_RISK) - 1.0
# Small runs are further off than a share of them: contexts and workspaces do not shrink with the network.
_LEAST_BYTES = 512 * MIB
# Tensors in use are three times as close to torch's own count as the reserved memory is to the device's.
_OF_TENSORS = 1.0 / 3.0
# Which length follows which decides how large the gaps in the cache are: of twelve other orders than the one that is
# replayed, the worst reserved up to so many times as much for 17 of 23 measured tasks.
_GAPS = 1.35
_ONE = Spreads({_RISK: 1.0})  # margins are stored as they are


class Method(StrEnum):
    FULL = "full"
    LORA = "lora"
    QUANTIZED = "quantized"
    INFERENCE = "inference"


class Figure(StrEnum):
    TENSORS = "tensors"  # torch's allocated memory
    DEVICE = "device"  # what is reserved, with or without the context


@dataclass(frozen=True, slots=True)
class RunKind:
    """What makes runs miss their recordings alike."""

    method: Method = Method.FULL
    sharded: bool = False
    replicated: bool = False  # over several GPUs, which all hold everything
    fused: bool = False
    convolves: bool = False
    images: bool = False  # that is what the network reads
    own_loop: bool = False
    varies: bool = False  # samples differ in length

    @property
    def measured(self) -> bool:
        """Whether published runs of this kind can be compared at all. Of the others nobody has any."""
        unheard = self.images and self.sharded
        return not (unheard or self.own_loop or self.replicated or self.method is Method.INFERENCE)

    def cells(self, figure: Figure) -> Iterator[str]:
        """From the narrowest to the widest. Varying lengths fragment the cache, so they have cells of their own."""
        if self.images:
            yield f"{figure}/images/{self.method}"
            if self.method is Method.QUANTIZED:  # nobody trains all of a quantized network
                yield f"{figure}/images/{Method.LORA}"
            yield f"{figure}/images"
            return
        length, sharding = "varying" if self.varies else "fixed", "sharded" if self.sharded else "single"
        yield f"{figure}/{length}/{sharding}/{self.method}/{'fused' if self.fused else 'plain'}"
        yield f"{figure}/{length}/{sharding}/{self.method}"
        yield f"{figure}/{length}/{sharding}"
        yield f"{figure}/{length}"


@dataclass(frozen=True, slots=True)
class Learned:
    """How runs of a cell missed their recordings, in logarithms of measured over recorded."""

    shift: float  # of the middle run
    factors: Factors  # by risk, how far above that the bound lies
    networks: int

    def beyond(self, risk: float) -> float:
        """How far the bound lies above the recording. The median stays: shifted, it missed unseen networks by more."""
        return max(0.0, self.shift + self.factors.margin(_ONE, risk))


@dataclass(frozen=True, slots=True)
class Bounds:
    """Of one kind of run on one product. `learned` is None where nobody measured that kind."""

    doubt: float
    device: Learned | None = None
    tensors: Learned | None = None
    varies: bool = False

    def ceiling_bytes(self, recorded_bytes: int, risk: float) -> int:
        """No bound lies above it: a recording has every tensor, so it cannot be further off than the rule of thumb for
        a forecast from layers. Only the gaps that other orders of varying lengths leave come on top.
        """
        return round(recorded_bytes * bound_factor(risk) * (_GAPS if self.varies else 1.0))

    def _learned(self, figure: Figure) -> Learned | None:
        return self.device if figure is Figure.DEVICE else self.tensors

    def bound_bytes(self, figure: Figure, recorded_bytes: int, risk: float) -> int:
        """Never above the ceiling, nor below what was recorded."""
        learned = self._learned(figure)
        if learned is None:
            share = self.doubt if figure is Figure.DEVICE else _OF_TENSORS * self.doubt
            more = _scale(risk) * max(share * recorded_bytes, _LEAST_BYTES)
        else:
            more = max(math.expm1(learned.beyond(risk)) * recorded_bytes, _scale(risk) * _LEAST_BYTES)
        bound = min(recorded_bytes + round(more), self.ceiling_bytes(recorded_bytes, risk))
        return max(bound, recorded_bytes)

    def tensors_capacity_bytes(self, room_bytes: int, risk: float) -> int:
        """What the recorded tensors must fit into, so that the true ones fit into the room at this risk."""
        if self.tensors is None:
            return round(room_bytes / (1.0 + _OF_TENSORS * _scale(risk) * self.doubt))
        # What is reserved is doubted by so much; the tensors in it are never further off.
        return round(room_bytes / min(math.exp(self.tensors.beyond(risk)), 1.0 + _scale(risk) * self.doubt))


@dataclass(frozen=True, slots=True)
class RecordedCalibration:
    """The artifact's knowledge of how runs miss their recordings. Empty without an artifact."""

    cells: Mapping[str, Learned]

    def bounds(self, kind: RunKind, product: Product) -> Bounds:
        doubted = doubt(product, kind)
        if not kind.measured or product not in PRODUCTS:
            return Bounds(doubted, varies=kind.varies)
        return Bounds(doubted, self._find(kind, Figure.DEVICE), self._find(kind, Figure.TENSORS), kind.varies)

    def _find(self, kind: RunKind, figure: Figure) -> Learned | None:
        return next((found for cell in kind.cells(figure) if (found := self.cells.get(cell))), None)


UNCALIBRATED = RecordedCalibration({})


def doubt(product: Product, kind: RunKind) -> float:
    """The share of the median that a run exceeds it by with a risk of 0.05."""
    if product not in PRODUCTS:
        return _UNMEASURED
    communicates = kind.sharded or kind.replicated
    found = {_CONVOLUTIONS: kind.convolves, _FUSED: kind.fused, _SHARDED: communicates, _OWN_LOOP: kind.own_loop}
    return min(_UNMEASURED, hypot(_ALWAYS, *(share for share, there in found.items() if there)))


def _scale(risk: float) -> float:
    """Risks differ as they do by the rule of thumb."""
    return (bound_factor(risk) - 1.0) / _UNMEASURED
