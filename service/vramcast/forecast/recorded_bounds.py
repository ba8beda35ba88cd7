"""How much more than its recording says a run may take.

A recording has every tensor, but not what libraries take for themselves: cuDNN's workspaces, kernels that were compiled
for the job, buffers for communication. Each of these is a *doubt*, a share of the median that 19 of 20 measured runs
stayed within (docs/forecast.md has the runs). Doubts are independent, so their squares add up.
"""

from __future__ import annotations

from math import hypot

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


def doubt(product: Product, *, convolves: bool, fused: bool, sharded: bool, own_loop: bool) -> float:
    """The share of the median that a run exceeds it by with a risk of 0.05."""
    if product not in PRODUCTS:
        return _UNMEASURED
    found = {_CONVOLUTIONS: convolves, _FUSED: fused, _SHARDED: sharded, _OWN_LOOP: own_loop}
    return min(_UNMEASURED, hypot(_ALWAYS, *(share for share, there in found.items() if there)))


def bound_bytes(median_bytes: int, doubted: float, risk: float) -> int:
    """Never above the rule of thumb for a forecast from layers."""
    more = _scale(risk) * max(doubted * median_bytes, _LEAST_BYTES)
    return min(median_bytes + round(more), round(median_bytes * bound_factor(risk)))


def tensors_capacity_bytes(room_bytes: int, doubted: float, risk: float) -> int:
    """What the recorded tensors must fit into, so that the true ones fit into the room at this risk."""
    return round(room_bytes / (1.0 + _OF_TENSORS * _scale(risk) * doubted))


def _scale(risk: float) -> float:
    """Risks differ as they do by the rule of thumb."""
    return (bound_factor(risk) - 1.0) / _UNMEASURED
