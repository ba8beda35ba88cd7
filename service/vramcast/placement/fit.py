"""Which nodes can take a demand, why the others cannot, and which of them is best. Reads the board, changes nothing."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from vramcast.hardware.vendors import SHARED_GPU
from vramcast.names import NodeName
from vramcast.placement.board import Board, Ranking
from vramcast.placement.interference import IDLE, SLOWDOWN
from vramcast.placement.name_index import Ints
from vramcast.placement.pool_table import MAX_MIB, Bools, Floats, Mibs, PoolTable, Pressing, Sweep
from vramcast.placement.promises import Demand, Promise
from vramcast.placement.reasons import Reason

Reasons = npt.NDArray[np.uint8]
_Array = TypeVar("_Array", npt.NDArray[np.int32], npt.NDArray[np.float32])
MAX_SCORE = 10
# A node with more GPUs free than this is as empty as one with so many.
_MANY_GPUS = 8
# How many nodes to score for each one offered.
_SHORTLIST = 3
# More than any GPU has: the need on a product without a forecast.
_NEVER_MIB = MAX_MIB + 1


@dataclass(frozen=True, slots=True)
class Decision:
    """The answer to one demand for the nodes asked about. Shapes: (asked,)."""

    demand: Demand
    columns: Ints  # -1: an unknown node
    fits: Bools  # after `offer_best`: fits and is offered
    reasons: Reasons
    sweep: Sweep | None  # of every node, asked about or not

    def counts(self) -> dict[Reason, int]:
        """How many nodes were rejected for which reason, in the order of the checks."""
        counted = enumerate(np.bincount(self.reasons).tolist())
        return {Reason(code): nodes for code, nodes in counted if nodes and code != Reason.FITS}


def decide(board: Board, demand: Demand, columns: Ints, *, count_devices: bool) -> Decision:
    """For the asked nodes, by column. Facts about the pod come first, then one sweep over all nodes."""
    unoffered = board.unoffered_shared if demand.ask.resource == SHARED_GPU else board.unoffered_whole
    table = board.tables.get(demand.ask.resource)
    if table is None:
        return Decision(demand, columns, np.zeros(len(columns), dtype=np.bool_), unoffered[columns], None)
    counts = count_devices and demand.ask.resource != SHARED_GPU
    needs = _needs(board, table, demand)
    sweep = table.sweep(needs, demand.ask.count, _pressing(board, table, demand))
    if demand.ask.count > 1:
        # Where the kubelet picks, one row stands for all GPUs, so the sweep has not counted them.
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
    """For every node that offers the resource: why it does not fit, if it does not. (nodes,)

    Written from the last check to the first, so that the first check that fails is the one that remains.
    """
    count, nodes = demand.ask.count, len(needs)
    reasons = np.full(nodes, Reason.NO_ROOM, dtype=np.uint8)
    if table.limits or any(load.most_slowdown < np.inf for load in demand.loads.values()):
        reasons[table.fits_with(np.zeros_like(table.held), needs, count)] = Reason.TOO_SLOW
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
    """The need on each node by its product, and on the empty last column. (nodes + 1,)"""
    nodes = board.width + 1
    by_product = np.full(max(1, len(board.product_ids)), _NEVER_MIB if demand.needs_mib else 0, dtype=np.int32)
    for product, need_mib in demand.needs_mib.items():
        if product in board.product_ids:
            by_product[board.product_ids[product]] = min(need_mib, _NEVER_MIB)
    needs = _by_node(by_product, table, nodes)
    if demand.ask.count > 1 and table.sliced.any():
        # All replicas of a pod may end on one GPU.
        sliced = table.sliced[:nodes]
        needs[sliced] = np.minimum(needs[sliced].astype(np.int64) * demand.ask.count, _NEVER_MIB)
    return np.asarray(needs, dtype=np.int32)


def _pressing(board: Board, table: PoolTable, demand: Demand) -> Pressing | None:
    """None: a demand that says nothing of its neighbours."""
    if not demand.loads:
        return None
    by_product = np.zeros(max(1, len(board.product_ids)), dtype=np.float32)
    for product, load in demand.loads.items():
        if product in board.product_ids:
            by_product[board.product_ids[product]] = load.pressure
    limit = min(load.most_slowdown for load in demand.loads.values())
    ranking = board.ranking
    weight = ranking.slowdown_weight / (1.0 - ranking.slowdown_weight)
    return Pressing(_by_node(by_product, table, board.width + 1), limit, weight, ranking.harmless_slowdown)


def _by_node(by_product: _Array, table: PoolTable, nodes: int) -> _Array:
    """Of each node's product. A user's own number is the same on all of them, and then looking it up is a waste."""
    first = by_product[0]
    if (by_product == first).all():
        return np.full(nodes, first, dtype=by_product.dtype)
    return by_product[table.product_ids[:nodes]]


@dataclass(frozen=True, slots=True)
class Terms:
    """What the score of each node is made of, for the GPU that the pod would take. Shapes: (nodes,)."""

    packing: Floats  # share of the GPU that would be taken
    slowdown: Floats  # expected, of the pod; what it adds to all its neighbours together is the same again
    node_packing: Floats  # 1 if nothing would be left on the node, 0 if eight GPUs or more

    def worth(self, ranking: Ranking) -> Floats:
        """0 to 1. Packing keeps large and empty GPUs, and nodes of them, free; calm keeps busy tasks apart."""
        # Of the pod and of its neighbours. Linear, as the sweep weighs it when it chooses among the GPUs of a node.
        calm = np.maximum(0, 1 - 2 * np.maximum(0, self.slowdown - ranking.harmless_slowdown))
        packing = (1 - ranking.node_weight) * self.packing + ranking.node_weight * self.node_packing
        weighed = (1 - ranking.slowdown_weight) * packing + ranking.slowdown_weight * calm
        return np.asarray(np.clip(weighed, 0, 1), dtype=np.float32)


def terms(board: Board, demand: Demand, sweep: Sweep | None, columns: Ints) -> Terms | None:
    """Of each of these nodes, meaningless where the demand does not fit. None: no node has such a resource."""
    table = board.tables.get(demand.ask.resource)
    if table is None or sweep is None:
        return None
    gpus = sweep.gpus(columns)
    size_mib = np.maximum(table.size[gpus[-1], columns], 1)
    own = sweep.pressure[columns] if sweep.pressure is not None else np.float32(IDLE.pressure)
    slowdown = 1 + SLOWDOWN * own * table.pressures(gpus, columns[np.newaxis, :]).max(axis=0)
    packing = 1 - sweep.spare_mib(columns) / size_mib
    need_gpus = demand.ask.count * sweep.needs_mib[columns] / np.maximum(table.largest[columns], 1)
    left_gpus = np.maximum(np.minimum(table.free_gpus[columns] - need_gpus, _MANY_GPUS), 0)
    whole = 1 - left_gpus / _MANY_GPUS
    return Terms(packing.astype(np.float32), np.asarray(slowdown, np.float32), np.asarray(whole, np.float32))


def worths(board: Board, demand: Demand, sweep: Sweep | None, columns: Ints) -> Floats:
    """How good each of these nodes is, 0 to 1; below 0 where the demand does not fit. (columns,)"""
    found = terms(board, demand, sweep, columns)
    if found is None or sweep is None:
        return np.full(len(columns), -1, dtype=np.float32)
    return np.where(sweep.fits[columns], found.worth(board.ranking), np.float32(-1))


def points(worth: Floats) -> Ints:
    """The scores of the extender protocol, 0 to 10: ten for the best of these nodes alone, at most nine for the others.

    Eleven steps cannot tell nodes apart that are nearly as full as each other. If they tied, every other pod would open
    a fresh node, and pods with many GPUs would soon find none.
    """
    steps = np.clip(np.rint(worth * MAX_SCORE), 0, MAX_SCORE - 1)
    return np.asarray(np.where((worth >= 0) & (worth == worth.max(initial=0)), MAX_SCORE, steps), dtype=np.int64)


def scores(board: Board, demand: Demand, sweep: Sweep | None, columns: Ints) -> Ints:
    """The score of each of these nodes; 0 where the demand does not fit. (columns,)"""
    return points(worths(board, demand, sweep, columns))


def linked(board: Board, demand: Demand, node: NodeName, gpus: tuple[int, ...]) -> tuple[int, ...]:
    """GPUs of one group with fast links, instead of these, if a group has enough with room: its fullest ones.

    With a limit on slowdown somewhere, room alone does not decide, and these stay.
    """
    groups, table, column = board.nodes[node].links, board.tables[demand.ask.resource], board.column(node)
    pool = board.nodes[node].pool(demand.ask.resource)
    limited = table.limits or any(load.most_slowdown < np.inf for load in demand.loads.values())
    if demand.ask.count == 1 or limited or column is None or pool is None or pool.picked_by_kubelet:
        return gpus
    need_mib = demand.needs_mib.get(pool.product, 0)
    found = []
    for group in groups:
        rooms = sorted((table.room(gpu, column), gpu) for gpu in group if gpu < pool.count)
        able = [(room_mib, gpu) for room_mib, gpu in rooms if room_mib >= need_mib][: demand.ask.count]
        if len(able) == demand.ask.count:
            found.append((sum(room_mib for room_mib, _ in able), tuple(sorted(gpu for _, gpu in able))))
    return min(found)[1] if found else gpus


def fits_without(board: Board, decision: Decision, gone: Iterable[Promise]) -> Bools:
    """Which of the asked nodes would have room if these promises on shared GPUs ended? (asked,)"""
    table, sweep, count = board.tables.get(SHARED_GPU), decision.sweep, decision.demand.ask.count
    if table is None or sweep is None or decision.demand.ask.resource != SHARED_GPU:
        return np.zeros(len(decision.columns), dtype=np.bool_)
    rows, columns, freed = [], [], []
    for promise in gone:
        column = board.column(promise.node)
        for row in promise.gpu_indices or range(table.width):
            if column is not None and row < table.width:
                rows.append(row)
                columns.append(column)
                freed.append(promise.need_mib or 0)
    relief = np.zeros_like(table.held)
    np.add.at(relief, (rows, columns), freed)
    fits = table.fits_with(relief, sweep.needs_mib, count)[decision.columns]
    return np.asarray(fits & (decision.reasons == Reason.NO_ROOM), dtype=np.bool_)


def offer_best(board: Board, decision: Decision, most: int) -> Decision:
    """The same decision with only the `most` best nodes offered.

    Nodes that are equally good keep the scheduler's order. It starts at another node every cycle, so they take turns.
    """
    fitting = _fullest(board, decision, _SHORTLIST * most)
    worth = worths(board, decision.demand, decision.sweep, decision.columns[fitting])
    order = np.argsort(-worth, kind="stable")
    offered = np.zeros_like(decision.fits)
    offered[fitting[order[:most]]] = True
    return replace(decision, fits=offered)


def _fullest(board: Board, decision: Decision, most: int) -> Ints:
    """Positions of the nodes that the demand would fill best: scoring thousands of nodes would cost more."""
    table, sweep = board.tables.get(decision.demand.ask.resource), decision.sweep
    if table is None or sweep is None or most >= len(decision.fits):
        return np.flatnonzero(decision.fits)
    # Nearly always all GPUs of a node have the same size.
    shares = sweep.spare_shares(table.size[0])
    if node_weight := board.ranking.node_weight:
        shares += table.free_gpus[: len(shares)] * np.float32(node_weight / _MANY_GPUS)
    empty = shares[decision.columns]
    empty[~decision.fits] = np.inf
    # The value first and then where it is: finding the positions at once (argpartition) takes half as long again.
    limit = np.partition(empty, most)[most]
    chosen = empty < limit
    ties = np.flatnonzero(empty == limit)
    chosen[ties[: most - np.count_nonzero(chosen)]] = True
    return np.flatnonzero(chosen & decision.fits)
