"""A summary that is a known network's: the layers behind its numbers.

A count of layers, the elements that a sample keeps alive and a number of parameters, all three at once, are as good as
a name: networks of the catalog that agree in them are versions of one another, and one's bound is within `DOUBT` of
the other's. So the layers are taken to be those of the known network, and the bound is raised by what a mistake costs.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace
from functools import lru_cache

from vramcast.forecast.catalog import Catalog, Line
from vramcast.forecast.description import Description
from vramcast.task.task import Task
from vramcast.task.vocabulary import Level

# Nobody retypes a figure to the last digit; another head has more or fewer weights and keeps next to nothing alive.
_ACTIVATIONS_APART = 0.005
_PARAMETERS_APART = 0.10
# By how much bounds of look-alikes may differ: what is added to the bound of a network that nobody named.
DOUBT = 1.10


def match_catalog(known: Iterable[Line], task: Task) -> Line | None:
    """The model, at the size that it was traced at, whose numbers a summary has."""
    if task.level is not Level.SUMMARY or not (task.layers and task.activations and task.parameters):
        return None
    alike = [line for line in known if _apart(line, task) <= 1.0]
    return min(alike, key=lambda line: _apart(line, task), default=None)


def layers_of(catalog: Catalog, line: Line, task: Task) -> Description:
    """With as many parameters as the summary tells."""
    network = catalog.describe(line.name, None, None).network
    return _with_parameters(network, task.parameters or network.parameters)


@lru_cache(maxsize=256)
def _with_parameters(network: Description, count: int) -> Description:
    """One for all products: what is worked out of a description is remembered by it."""
    return replace(network, parameters=count)


def _apart(line: Line, task: Task) -> float:
    """1 at the edge of what is taken for the same network, more outside."""
    if task.layers != line.layers or task.architecture not in (None, line.family):
        return math.inf
    activations = abs(math.log((task.activations or 1) / line.activations)) / _ACTIVATIONS_APART
    parameters = abs(math.log((task.parameters or 1) / line.parameters)) / _PARAMETERS_APART
    return max(activations, parameters)
