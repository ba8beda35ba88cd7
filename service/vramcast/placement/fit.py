"""Fit: which nodes can take a demand, and why the others cannot. Reads the board, changes nothing."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from vramcast.hardware.vendors import SHARED_GPU
from vramcast.placement.board import Board
from vramcast.placement.promises import Demand
from vramcast.placement.reasons import Reason
from vramcast.placement.score import MAX_SCORE, score
from vramcast.placement.table import MOST_MIB, Bools, Ints, Mibs, PoolTable, Sweep

Reasons = npt.NDArray[np.uint8]
# Of nodes that are scored to offer one.
_SHORTLIST = 3
# More than any GPU has: the need on a product that nobody forecast for.
_NEVER_MIB = MOST_MIB + 1


@dataclass(frozen=True, slots=True)
class Decision:
    """The answer for one demand on the nodes that were asked about. Shapes: (asked,)."""

    demand: Demand
    columns: Ints  # -1: a node that is not known
    fits: Bools  # and is offered: the best of them, where `offer_best` chose
    reasons: Reasons
    sweep: Sweep | None  # of every node, asked about or not

    def counts(self) -> dict[Reason, int]:
        """How many nodes got which reason, in the order of the checks; those that fit are not among them."""
        counted = enumerate(np.bincount(self.reasons).tolist())
        return {Reason(code): nodes for code, nodes in counted if nodes and code != Reason.FITS}


def decide(board: Board, demand: Demand, columns: Ints, *, count_devices: bool) -> Decision:
    """For the asked nodes, by their columns. Per-pod facts once, then all nodes in one sweep."""
    unoffered = board.unoffered_shared if demand.ask.resource == SHARED_GPU else board.unoffered_whole
    table = board.tables.get(demand.ask.resource)
    if table is None:
        return Decision(demand, columns, np.zeros(len(columns), dtype=np.bool_), unoffered[columns], None)
    counts = count_devices and demand.ask.resource != SHARED_GPU
    needs = _needs(board, table, demand)
    sweep = table.sweep(needs, demand.ask.count)
    if demand.ask.count > 1:
        # A row stands for one GPU where we pick, and for all of them where the kubelet does.
        sweep.fits[:] &= table.devices[: len(needs)] >= demand.ask.count
    if counts:
        sweep.fits[:] &= table.free_devices[: len(needs)] >= demand.ask.count
    fits = sweep.fits[columns]
    if fits.all():
        return Decision(demand, columns, fits, np.zeros(len(columns), dtype=np.uint8), sweep)
    reasons = np.where(table.offered[: len(needs)], _explain(table, needs, demand, counts), unoffered)
    reasons[sweep.fits] = Reason.FITS
    return Decision(demand, columns, fits, reasons[columns], sweep)


def _explain(table: PoolTable, needs: Mibs, demand: Demand, counts: bool) -> Reasons:
    """For every node that offers the resource, the reason why it does not fit, should it not. (nodes,)

    Written from the last check to the first, so that the first that holds stands in the end.
    """
    count, nodes = demand.ask.count, len(needs)
    reasons = np.full(nodes, Reason.NO_ROOM, dtype=np.uint8)
    if table.unmanaged_mib:
        reasons[table.fits_with(table.held + table.unmanaged, needs, count)] = Reason.UNMANAGED
    if table.held_mib:
        reasons[table.fits_with(table.held, needs, count)] = Reason.HELD
    reasons[table.mixed[:nodes]] = Reason.MIXED
    reasons[~table.fits_empty(needs, count)] = Reason.TOO_SMALL
    devices = table.free_devices if counts else table.devices
    reasons[devices[:nodes] < count] = Reason.TOO_FEW_GPUS
    return reasons


def _needs(board: Board, table: PoolTable, demand: Demand) -> Mibs:
    """The need on each node, by its product; and on the column that is nobody's."""
    nodes = board.width + 1
    by_product = np.full(max(1, len(board.product_ids)), _NEVER_MIB if demand.needs_mib else 0, dtype=np.int32)
    for product, need_mib in demand.needs_mib.items():
        if product in board.product_ids:
            by_product[board.product_ids[product]] = min(need_mib, _NEVER_MIB)
    needs = by_product[table.product_ids[:nodes]]
    if demand.ask.count > 1 and table.sliced.any():
        # One GPU may get all of a pod's replicas.
        sliced = table.sliced[:nodes]
        needs[sliced] = np.minimum(needs[sliced].astype(np.int64) * demand.ask.count, _NEVER_MIB)
    return np.asarray(needs, dtype=np.int32)


def scores(board: Board, demand: Demand, sweep: Sweep | None, columns: Ints) -> Ints:
    """How good each of these nodes is for the demand, 0 to 10; 0 where it does not fit. (columns,)"""
    table = board.tables.get(demand.ask.resource)
    if table is None or sweep is None:
        return np.zeros(len(columns), dtype=np.int64)
    gpus = sweep.gpus(columns)[-1]
    points = score(table.size[gpus, columns], sweep.spare_mib(columns), table.tenants[gpus, columns])
    return np.where(sweep.fits[columns], points, 0)


def offer_best(board: Board, decision: Decision, most: int) -> Decision:
    """The same, with only the `most` best of the nodes that fit.

    Equally good ones in the order in which the scheduler named them: it begins with others every time.
    """
    fitting = _filled_best(board, decision, _SHORTLIST * most)
    points = scores(board, decision.demand, decision.sweep, decision.columns[fitting])
    order = np.argsort((MAX_SCORE - points).astype(np.uint8), kind="stable")
    offered = np.zeros_like(decision.fits)
    offered[fitting[order[:most]]] = True
    return replace(decision, fits=offered)


def _filled_best(board: Board, decision: Decision, most: int) -> Ints:
    """Where among the asked nodes those are that the demand fills best; scoring all of thousands would cost more."""
    table, sweep = board.tables.get(decision.demand.ask.resource), decision.sweep
    if table is None or sweep is None or most >= len(decision.fits):
        return np.flatnonzero(decision.fits)
    # The GPUs of a node are of one size, as good as always.
    empty = sweep.spare_shares(table.size[0])[decision.columns]
    empty[~decision.fits] = np.inf
    best = np.sort(np.argpartition(empty, most)[:most])
    return best[decision.fits[best]]
