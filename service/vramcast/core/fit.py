"""Fit: which nodes can take a demand, and why the others cannot. Reads the board, changes nothing."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from vramcast.core.board import Board
from vramcast.core.gpu import SHARED_GPU
from vramcast.core.promise import Demand
from vramcast.core.reasons import Reason
from vramcast.core.score import score
from vramcast.core.table import Bools, Ints, PoolTable, Sweep

# More than any GPU has, and far from overflow: the need on a product that nobody forecast for.
_NEVER_MIB = 1 << 40


@dataclass(frozen=True, slots=True)
class Decision:
    """The answer for one demand on the nodes that were asked about. Shapes: (asked,)."""

    demand: Demand
    columns: Ints  # -1: a node that is not known
    fits: Bools
    reasons: Ints
    sweep: Sweep | None  # of every node, asked about or not
    needs_mib: Ints  # the same


def decide(board: Board, demand: Demand, columns: Ints, *, count_devices: bool) -> Decision:
    """For the asked nodes, by their columns. Per-pod facts once, then all nodes in one sweep."""
    table = board.tables.get(demand.ask.resource)
    if table is None:
        missing = np.ones(len(columns), dtype=np.bool_)
        reasons = _name_missing(board, np.zeros_like(columns), columns, missing, demand)
        return Decision(demand, columns, ~missing, reasons, None, np.zeros(board.width, dtype=np.int64))
    counts = count_devices and demand.ask.resource != SHARED_GPU
    needs = _needs(board, table, demand)
    sweep = table.sweep(needs, demand.ask.count, len(needs))
    fits = sweep.fits & table.offered[: len(needs)]
    if demand.ask.count > 1:
        # A row stands for one GPU where we pick, and for all of them where the kubelet does.
        fits &= table.devices[: len(needs)] >= demand.ask.count
    if counts:
        fits &= table.free_devices[: len(needs)] >= demand.ask.count
    asked_fits = fits[columns] & (columns >= 0)
    reasons = np.zeros(len(columns), dtype=np.int64)
    if not asked_fits.all():
        reasons = np.where(asked_fits, Reason.FITS, _explain(table, needs, demand, counts)[columns])
        reasons = _name_missing(board, reasons, columns, (columns < 0) | ~table.offered[columns], demand)
    return Decision(demand, columns, asked_fits, reasons, sweep, needs)


def _explain(table: PoolTable, needs: Ints, demand: Demand, counts: bool) -> Ints:
    """For every node that offers the resource, the reason why it does not fit, should it not. (nodes,)

    Written from the last check to the first, so that the first that holds stands in the end.
    """
    count, nodes = demand.ask.count, len(needs)
    reasons = np.full(nodes, Reason.NO_ROOM, dtype=np.int64)
    if table.strangers.any():
        reasons[table.fits_with(table.held + table.strangers, needs, count)] = Reason.STRANGERS
    if table.held.any():
        reasons[table.fits_with(table.held, needs, count)] = Reason.HELD
    reasons[table.mixed[:nodes]] = Reason.MIXED
    reasons[~table.fits_empty(needs, count)] = Reason.TOO_SMALL
    devices = table.free_devices if counts else table.devices
    reasons[devices[:nodes] < count] = Reason.TOO_FEW_GPUS
    return reasons


def _name_missing(board: Board, reasons: Ints, columns: Ints, missing: Bools, demand: Demand) -> Ints:
    """Nodes that are not known, or that do not offer the resource at all."""
    if missing.any():
        unoffered = board.unoffered_shared if demand.ask.resource == SHARED_GPU else board.unoffered_whole
        reasons[missing] = unoffered[columns[missing]]
        reasons[columns < 0] = Reason.UNKNOWN_NODE
    return reasons


def _needs(board: Board, table: PoolTable, demand: Demand) -> Ints:
    """The need on each node, by its product. On time-sliced nodes one GPU may get all of a pod's replicas."""
    by_product = np.full(max(1, len(board.product_ids)), _NEVER_MIB if demand.needs_mib else 0, dtype=np.int64)
    for product, need_mib in demand.needs_mib.items():
        if product in board.product_ids:
            by_product[board.product_ids[product]] = min(need_mib, _NEVER_MIB)
    needs = by_product[table.product_ids[: board.width]]
    if demand.ask.count > 1:
        needs = np.where(table.sliced[: board.width], needs * demand.ask.count, needs)
    return np.asarray(needs, dtype=np.int64)


def scores(board: Board, decision: Decision) -> Ints:
    """How good each asked node is for the demand, 0 to 10; 0 where it does not fit. (asked,)"""
    table = board.tables.get(decision.demand.ask.resource)
    if table is None or decision.sweep is None:
        return np.zeros(len(decision.columns), dtype=np.int64)
    at, gpus = decision.columns, decision.sweep.gpus[-1][decision.columns]
    points = score(table.size[gpus, at], decision.sweep.room_mib[at], decision.needs_mib[at], table.tenants[gpus, at])
    return np.where(decision.fits, points, 0)
