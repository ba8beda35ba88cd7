"""A network's summary: the four numbers that a pod can carry instead of layers, and the catalog model they match.

Training, `vramcast profile` and the catalog all call `summarize`, so the numbers mean the same everywhere.
`activations` counts the elements of one sample that are live at the peak: what autograd saves, without attention
matrices that fused kernels never write, plus the gradients or a language model's logits.

Layers, activations and parameters together identify a network as well as its name does: catalog models that agree in
all three are versions of one another, and their bounds hardly ever differ by more than `MATCH_MARGIN`. So a matching
summary gets the layers of that model, and its bound is raised by the margin.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import lru_cache

from vramcast.forecast.catalog import Catalog, Line
from vramcast.forecast.description import CONVOLUTIONS, Description, OpKind
from vramcast.forecast.physics import sample_peak_bytes
from vramcast.task.task import Task
from vramcast.task.vocabulary import Architecture, Level

_FLOAT_BYTES = 4
_KEEPS_INPUT = frozenset({OpKind.KEEPS_INPUT, OpKind.BATCH_NORM, OpKind.LAYER_NORM, OpKind.LINEAR, *CONVOLUTIONS})
_KEEPS_OUTPUT = frozenset({OpKind.KEEPS_OUTPUT, OpKind.SOFTMAX})
# People round the figures they type. A different head changes the parameters but hardly the activations.
_ACTIVATIONS_APART = 0.005
_PARAMETERS_APART = 0.10
# The bounds of models with the same summary differ by at most this factor, but for one in a hundred.
MATCH_MARGIN = 1.12


@dataclass(frozen=True, slots=True)
class Summary:
    architecture: str
    parameters: int
    layers: int
    activations: int  # elements per sample


def summarize(network: Description) -> Summary:
    kept_bytes = _graph_bytes(network) if network.replayable else sample_peak_bytes(network)
    return Summary(
        architecture=network.family,
        parameters=network.parameters,
        layers=len(network.ops),
        activations=max(1, round(kept_bytes / _FLOAT_BYTES)),
    )


def summarized(task: Task, network: Description) -> Task:
    """The task with its network's totals, as a pod could have given them."""
    found = summarize(network)
    return replace(
        task,
        architecture=Architecture(found.architecture) if found.architecture else task.architecture,
        parameters=found.parameters,
        layers=found.layers,
        activations=found.activations,
    )


def _graph_bytes(network: Description) -> float:
    """The graph shows which operations save the same tensor, so each tensor is counted once."""
    kept: dict[int, int] = {}
    masks = 0
    made_by = {-1: -1}  # a view keeps its source alive
    for index, op in enumerate(network.ops):
        source = made_by[op.inputs[0]]
        made_by[index] = source if op.kind is OpKind.VIEW else index
        if op.kind in _KEEPS_INPUT:
            kept[source] = op.in_elements
        if op.kind in _KEEPS_OUTPUT:
            kept[index] = op.out_elements
        if op.kind is OpKind.DROPOUT:
            masks += op.out_elements  # one byte per element
    return float(_FLOAT_BYTES * sum(kept.values()) + masks)


def catalog_match(known: Iterable[Line], task: Task) -> Line | None:
    """The catalog model, at its traced size, that has the task's summary."""
    if task.level is not Level.SUMMARY or not (task.layers and task.activations and task.parameters):
        return None
    matches = [line for line in known if _distance(line, task) <= 1.0]
    return min(matches, key=lambda line: _distance(line, task), default=None)


def layers_of(catalog: Catalog, line: Line, task: Task) -> Description:
    """The model's layers, with the parameter count of the task's summary."""
    network = catalog.describe(line.name, None, None).network
    return _with_parameters(network, task.parameters or network.parameters)


@lru_cache(maxsize=256)
def _with_parameters(network: Description, count: int) -> Description:
    """Cached so that all products share one description: the caches in physics are keyed by it."""
    return replace(network, parameters=count)


def _distance(line: Line, task: Task) -> float:
    """Up to 1 for what counts as the same network."""
    if task.layers != line.layers or task.architecture not in (None, line.family):
        return math.inf
    activations = abs(math.log((task.activations or 1) / line.activations)) / _ACTIVATIONS_APART
    parameters = abs(math.log((task.parameters or 1) / line.parameters)) / _PARAMETERS_APART
    return max(activations, parameters)
