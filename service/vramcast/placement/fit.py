"""Which nodes can take a demand, why the others cannot, and which of them is best. Reads the board, changes nothing."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from vramcast.hardware.vendors import SHARED_GPU
from vramcast.names import NodeName
from vramcast.placement.board import Board, Ranking
from vramcast.placement.interference import IDLE, SLOWDOWN
from vramcast.placement.name_index import Ints
from vramcast.placement.pool_table import MAX_MIB, Bools, Floats, Mibs, Packed, PoolTable, Pressing, Sweep
from vramcast.placement.promises import Demand, Promise
from vramcast.placement.reasons import Reason

Reasons = npt.NDArray[np.uint8]
_Number = TypeVar("_Number", np.int32, np.float32)
MAX_SCORE = 10
# A node with more GPUs free than this is as empty as one with so many.
_MANY_GPUS = 8
# However much whole nodes count, of two GPUs of a node the fuller one is better.
_LEAST_EMPTY = 0.01
# So many parts for each value that is looked for: more find fewer candidates, and take longer themselves.
_PARTS = 4
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
    np.putmask(reasons, sweep.fits, Reason.FITS)  # a third of the time of an index of flags
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
    by_product = [_NEVER_MIB if demand.needs_mib else 0] * max(1, len(board.product_ids))
    for product, need_mib in demand.needs_mib.items():
        if product in board.product_ids:
            by_product[board.product_ids[product]] = min(need_mib, _NEVER_MIB)
    needs = _by_node(np.int32, by_product, table, nodes)
    if demand.ask.count > 1 and table.sliced.any():
        # All replicas of a pod may end on one GPU.
        sliced = table.sliced[:nodes]
        needs[sliced] = np.minimum(needs[sliced].astype(np.int64) * demand.ask.count, _NEVER_MIB)
    return needs


def _pressing(board: Board, table: PoolTable, demand: Demand) -> Pressing | None:
    """None: a demand that says nothing of its neighbours."""
    if not demand.loads:
        return None
    by_product = [0.0] * max(1, len(board.product_ids))
    for product, load in demand.loads.items():
        if product in board.product_ids:
            by_product[board.product_ids[product]] = load.pressure
    limit = min([load.most_slowdown for load in demand.loads.values()])
    pressure = _by_node(np.float32, by_product, table, board.width + 1)
    return Pressing(pressure, max(by_product), limit, _weight(board.ranking), board.ranking.harmless_slowdown)


def _weight(ranking: Ranking) -> float:
    """GPUs left empty that a doubled run is worth."""
    empty = (1.0 - ranking.slowdown_weight) * (1.0 - ranking.node_weight)
    return ranking.slowdown_weight / max(empty, _LEAST_EMPTY)


def _by_node(kind: type[_Number], by_product: Sequence[float], table: PoolTable, nodes: int) -> npt.NDArray[_Number]:
    """Of each node's product. A user's own number is the same on all of them, and then looking it up is a waste."""
    first = by_product[0]
    if by_product.count(first) == len(by_product):
        return np.full(nodes, first, dtype=kind)
    return np.array(by_product, dtype=kind).take(table.product_ids[:nodes])


@dataclass(frozen=True, slots=True)
class Terms:
    """What the score of each node is made of, for the GPU that the pod would take. Shapes: (nodes,)."""

    packing: Floats  # share of the GPU that would be taken
    slowdown: Floats  # expected, of the pod; what it adds to all its neighbours together is the same again
    node_packing: Floats  # 1 if nothing would be left on the node, 0 if eight GPUs or more

    def worth(self, ranking: Ranking) -> Floats:
        """0 to 1. Packing keeps large and empty GPUs, and nodes of them, free; calm keeps busy tasks apart."""
        # Of the pod and of its neighbours.
        slow = 2 * np.maximum(0, self.slowdown - ranking.harmless_slowdown)
        empty = (1 - ranking.node_weight) * (1 - self.packing) + ranking.node_weight * (1 - self.node_packing)
        weighed = 1 - (1 - ranking.slowdown_weight) * empty - ranking.slowdown_weight * slow
        return np.asarray(np.clip(weighed, 0, 1), dtype=np.float32)


def terms(board: Board, demand: Demand, sweep: Sweep | None, columns: Ints) -> Terms | None:
    """Of each of these nodes, meaningless where the demand does not fit. None: no node has such a resource."""
    table = board.tables.get(demand.ask.resource)
    if table is None or sweep is None:
        return None
    gpus, per_mib = sweep.gpus(columns), table.per_mib[columns]
    own = sweep.pressure[columns] if sweep.pressure is not None else np.float32(IDLE.pressure)
    # Of several GPUs, the one with the most left and the worst neighbours.
    slowdown = 1 + SLOWDOWN * own * table.pressures(gpus[-1], columns)
    packing = 1 - sweep.spare_mib(columns) * per_mib
    left_gpus = _left_gpus(table.free_gpus[columns], demand.ask.count * sweep.needs_mib[columns] * per_mib)
    return Terms(
        packing.astype(np.float32), np.asarray(slowdown, np.float32), np.float32(1) - left_gpus / np.float32(_MANY_GPUS)
    )


def worths(board: Board, demand: Demand, sweep: Sweep | None, columns: Ints) -> Floats:
    """How good each of these nodes is, 0 to 1; below 0 where the demand does not fit. (columns,)

    What the terms say, from the sweep that has weighed slowdown against memory already.
    """
    table = board.tables.get(demand.ask.resource)
    if table is None or sweep is None:
        return np.full(len(columns), -1, dtype=np.float32)
    worth = _costs(board.ranking, table.per_mib.take(columns), table.free_gpus.take(columns),
                   sweep.weighed_mib(columns), sweep.needs_mib.take(columns), demand.ask.count)  # fmt: skip
    worth *= np.float32(board.ranking.slowdown_weight - 1)
    worth += np.float32(1)
    np.maximum(worth, np.float32(0), out=worth)
    np.putmask(worth, ~sweep.fits.take(columns), -1)
    return worth


def _costs(
    ranking: Ranking, per_mib: Floats, free_gpus: Floats, weighed_mib: Packed, needs_mib: Mibs, count: int
) -> Floats:
    """GPUs left empty, with what slowdown is worth in those. Shapes: (nodes,)."""
    cost = weighed_mib.astype(np.float32)
    cost *= per_mib
    cost *= np.float32(1 - ranking.node_weight)
    if ranking.node_weight:
        left_gpus = _left_gpus(free_gpus, needs_mib.astype(np.float32) * per_mib * np.float32(count))
        left_gpus *= np.float32(ranking.node_weight / _MANY_GPUS)
        cost += left_gpus
    return cost


def _left_gpus(free_gpus: Floats, need_gpus: Floats) -> Floats:
    left = np.asarray(free_gpus - need_gpus, dtype=np.float32)
    np.maximum(left, np.float32(0), out=left)
    return np.minimum(left, np.float32(_MANY_GPUS), out=left)


def points(worth: Floats) -> Ints:
    """The scores of the extender protocol, 0 to 10: ten for the best of these nodes alone, at most nine for the others.

    Eleven steps cannot tell nodes apart that are nearly as full as each other. If they tied, every other pod would open
    a fresh node, and pods with many GPUs would soon find none.
    """
    steps = np.rint(worth * np.float32(MAX_SCORE))
    np.maximum(steps, np.float32(0), out=steps)
    np.minimum(steps, np.float32(MAX_SCORE - 1), out=steps)
    np.putmask(steps, worth == worth.max(initial=0), MAX_SCORE)
    return np.asarray(steps, dtype=np.int64)


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
    table, sweep = board.tables.get(decision.demand.ask.resource), decision.sweep
    if table is None or sweep is None or most >= len(decision.fits):
        return decision
    nodes = len(sweep.fits)
    # Of all nodes rather than of those asked about: picking those out of one array is faster than out of five.
    cost = _costs(board.ranking, table.per_mib[:nodes], table.free_gpus[:nodes], sweep.weighed_mib(), sweep.needs_mib,
                  decision.demand.ask.count)[decision.columns]  # fmt: skip
    if not decision.fits.all():
        np.putmask(cost, ~decision.fits, np.inf)
    limit = ranked(cost, most)
    offered = cost < limit
    ties = np.flatnonzero(cost == limit)
    offered[ties[: most - np.count_nonzero(offered)]] = True
    return replace(decision, fits=offered & decision.fits)


def ranked(values: Floats, position: int) -> np.float32:
    """The value at this position if they were sorted.

    The best of so many parts of them are at least as large as the best of all. So what is above those need not be
    looked at, which is nearly everything.
    """
    parts = _PARTS * (position + 1)
    each = len(values) // parts
    if each > 1:
        best = values[: each * parts].reshape(each, parts).min(axis=0)
        values = values[values <= np.partition(best, position)[position]]
    return np.float32(np.partition(values, position)[position])
