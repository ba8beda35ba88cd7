from __future__ import annotations

from dataclasses import replace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from tests.placement.builders import A100, bound, decide, demand, ledger_of, sharing_node, take

from vramcast.names import NodeName, PodUid
from vramcast.placement.board import DEFAULT_RANKING, Ranking
from vramcast.placement.fit import MAX_SCORE, Terms, offer_best, points, ranked, terms, worths
from vramcast.placement.interference import IDLE, Load, slowdown
from vramcast.placement.ledger import Ledger
from vramcast.placement.promises import Demand

_SHARES = st.floats(0.0, 1.0, width=32)
_SLOWDOWNS = st.floats(1.0, 100.0, width=32)
_WEIGHTS = st.floats(0.0, 0.9)
_LOADS = st.integers(0, 100).map(lambda percent: Load(percent / 100, percent / 100))


def node_worth(packing: float, slowdown: float, weight: float = 0.2) -> float:
    share, times = np.array([packing], dtype=np.float32), np.array([slowdown], dtype=np.float32)
    return float(Terms(share, times, share).worth(Ranking(weight, 1.2, 0.1))[0])


def pressing(uid: str, need_mib: int, load: Load, count: int = 1) -> Demand:
    return replace(demand(uid, need_mib, count), loads={A100: load})


@given(st.floats(-2.0, 2.0, width=32), _SLOWDOWNS, _WEIGHTS)
def test_a_worth_is_a_share_for_any_input(packing: float, slowdown: float, weight: float) -> None:
    assert 0 <= node_worth(packing, slowdown, weight) <= 1


@given(st.lists(st.one_of(_SHARES, st.just(-1.0)), max_size=20))
def test_scores_order_nodes_as_their_worths_do_and_only_the_best_get_ten(worths: list[float]) -> None:
    found = points(np.array(worths, dtype=np.float32))
    assert found.dtype == np.int64
    for score, worth in zip(found.tolist(), worths, strict=True):
        assert 0 <= score <= MAX_SCORE
        assert (score == MAX_SCORE) == (worth >= 0 and worth == max(worths))
        assert worth >= 0 or score == 0
    ordered = [score for _, score in sorted(zip(worths, found.tolist(), strict=True))]
    assert ordered == sorted(ordered)


@given(_SHARES, _SHARES, _SLOWDOWNS, _WEIGHTS)
def test_a_fuller_gpu_is_never_worth_less(one: float, other: float, slowdown: float, weight: float) -> None:
    less, more = sorted((one, other))
    assert node_worth(more, slowdown, weight) >= node_worth(less, slowdown, weight)


@given(_SHARES, _SLOWDOWNS, _SLOWDOWNS, _WEIGHTS)
def test_more_slowdown_is_never_worth_more(packing: float, one: float, other: float, weight: float) -> None:
    less, more = sorted((one, other))
    assert node_worth(packing, less, weight) >= node_worth(packing, more, weight)


@given(_SHARES, st.floats(1.0, 3.0, width=32), _WEIGHTS)
def test_a_worth_is_what_the_api_says_of_its_terms(packing: float, slowdown: float, weight: float) -> None:
    above = max(0.0, slowdown - 1.2)
    told = (1 - weight) * packing + weight * (1 - 2 * above)  # both packings are the same here
    np.testing.assert_allclose(node_worth(packing, slowdown, weight), max(0.0, told), atol=1e-5)


def test_a_perfect_fit_on_an_empty_gpu_is_worth_most() -> None:
    assert node_worth(1.0, 1.0) == 1


def test_a_small_pod_prefers_the_small_gpu() -> None:
    ledger = ledger_of(sharing_node("small", 15_000), sharing_node("large", 80_000))
    small, large = scores(ledger, demand("a", 10_000), "small", "large")
    assert small > large


def scores(ledger: Ledger, wanted: Demand, *nodes: str) -> list[int]:
    return ledger.scores(wanted, ledger.board.columns(nodes)).tolist()


@given(st.lists(_LOADS, max_size=4), _LOADS, _LOADS)
def test_a_neighbour_more_never_raises_a_score(tenants: list[Load], more: Load, own: Load) -> None:
    """With the same room left: a neighbour that needs no memory. One that takes room also makes the GPU fuller."""
    ledger = ledger_of(sharing_node("node", 40_000), sharing_node("other", 30_000))
    for number, load in enumerate(tenants):
        ledger.promise(replace(bound(f"tenant-{number}", "node", 5_000, 0), load=load))
    wanted = pressing("a", 8_000, own)
    columns = ledger.board.columns(["node", "other"])
    before, worth = ledger.scores(wanted, columns), ledger.score_terms(wanted, columns)
    ledger.promise(replace(bound("more", "node", 0, 0), load=more))
    after, less = ledger.scores(wanted, columns), ledger.score_terms(wanted, columns)
    assert after[0] <= before[0]
    assert worth is not None
    assert less is not None
    assert less.worth(DEFAULT_RANKING)[0] <= worth.worth(DEFAULT_RANKING)[0]


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 12_000), _LOADS), max_size=8),
    st.integers(1, 40_000), st.integers(1, 4), _LOADS,
)  # fmt: skip
def test_without_max_slowdown_the_same_nodes_fit_as_without_loads(
    tenants: list[tuple[int, int, Load]], need_mib: int, count: int, own: Load
) -> None:
    with_loads, without = (ledger_of(sharing_node("node", *[40_000] * 4)) for _ in range(2))
    for number, (gpu, taken_mib, load) in enumerate(tenants):
        promise = bound(f"tenant-{number}", "node", taken_mib, gpu)
        with_loads.promise(replace(promise, load=load))
        without.promise(promise)
    one = decide(with_loads, pressing("a", need_mib, own, count), "node")
    other = decide(without, demand("a", need_mib, count), "node")
    assert one.reasons.tolist() == other.reasons.tolist()
    assert one.sweep is not None
    if one.fits[0]:
        # Whatever was preferred, the memory is there.
        column = one.columns
        rooms = [with_loads.board.tables[one.demand.ask.resource].room(int(gpu), int(column[0]))
                 for gpu in one.sweep.gpus(column)[:, 0]]  # fmt: skip
        assert len(set(one.sweep.gpus(column)[:, 0].tolist())) == count
        assert all(room >= need_mib for room in rooms)
        assert one.sweep.spare_mib(column)[0] == rooms[-1] - need_mib


_TENANTS = st.lists(st.tuples(st.integers(0, 9), st.integers(0, 1), st.integers(0, 12_000), _LOADS), max_size=20)


@given(_TENANTS, st.integers(1, 30_000), st.integers(1, 2), _LOADS, _WEIGHTS, st.sampled_from((0.0, 0.1, 0.5)))
def test_the_worth_of_a_node_is_what_its_terms_say(
    tenants: list[tuple[int, int, int, Load]], need_mib: int, count: int, own: Load, weight: float, node_weight: float
) -> None:
    """`/explain` shows the terms; filter and prioritize rank by the sweep alone, in whole MiB and units of pressure."""
    ledger = crowded(tenants, Ranking(weight, 1.2, node_weight))
    decision = decide(ledger, pressing("a", need_mib, own, count), *ledger.nodes)
    found = terms(ledger.board, decision.demand, decision.sweep, decision.columns)
    assert found is not None
    ranked = worths(ledger.board, decision.demand, decision.sweep, decision.columns)
    assert (ranked[~decision.fits] == -1).all()
    np.testing.assert_allclose(ranked[decision.fits], found.worth(ledger.board.ranking)[decision.fits], atol=0.05)


@given(_TENANTS, st.integers(1, 30_000), st.integers(1, 2), _LOADS)
def test_a_crowded_gpu_elsewhere_changes_nothing_whether_it_is_there_or_gone(
    tenants: list[tuple[int, int, int, Load]], need_mib: int, count: int, own: Load
) -> None:
    """While all slowdown in the cluster is harmless it is not weighed at all, and that must not show."""
    ledger = crowded(tenants, DEFAULT_RANKING)
    asked, wanted = [f"node-{number}" for number in range(9)], pressing("a", need_mib, own, count)

    def told() -> list[list[float]]:
        decision = decide(ledger, wanted, *asked)
        assert decision.sweep is not None
        gpus = decision.sweep.gpus(decision.columns[decision.fits]).tolist()
        return [worths(ledger.board, wanted, decision.sweep, decision.columns).tolist(), *gpus]

    before = told()
    for number in range(9):
        ledger.promise(replace(bound(f"heavy-{number}", "node-9", 0, 0), load=Load(1.0, 1.0)))
    assert told() == before
    for number in range(9):
        ledger.forget(PodUid(f"heavy-{number}"))
    assert told() == before


@given(_TENANTS, st.integers(1, 30_000), _LOADS, st.integers(1, 9))
def test_no_node_that_is_not_offered_is_better_than_one_that_is(
    tenants: list[tuple[int, int, int, Load]], need_mib: int, own: Load, most: int
) -> None:
    ledger = crowded(tenants, DEFAULT_RANKING)
    decision = decide(ledger, pressing("a", need_mib, own), *ledger.nodes)
    offered = offer_best(ledger.board, decision, most).fits
    assert offered.sum() == min(most, decision.fits.sum())
    worth = worths(ledger.board, decision.demand, decision.sweep, decision.columns)
    assert worth[offered].min(initial=1) >= worth[decision.fits & ~offered].max(initial=0) - 1e-6


@given(st.lists(st.one_of(st.integers(0, 50), st.just(np.inf)), min_size=1, max_size=300), st.integers(0, 20))
def test_the_ranked_value_is_the_one_that_sorting_would_find(values: list[float], position: int) -> None:
    position = min(position, len(values) - 1)
    assert ranked(np.array(values, dtype=np.float32), position) == sorted(values)[position]


def crowded(tenants: list[tuple[int, int, int, Load]], ranking: Ranking) -> Ledger:
    ledger = Ledger(ranking=ranking)
    for number in range(10):
        ledger.put_node(sharing_node(f"node-{number}", 40_000, 40_000))
    for number, (node, gpu, taken_mib, load) in enumerate(tenants):
        ledger.promise(replace(bound(f"tenant-{number}", f"node-{node}", taken_mib, gpu), load=load))
    return ledger


def test_a_whole_gpu_comes_from_the_node_that_has_fewest_left() -> None:
    """So that nodes with many free GPUs remain for pods that need many."""
    ledger = ledger_of(sharing_node("fresh", *[40_000] * 8), sharing_node("used", *[40_000] * 8))
    for gpu in range(6):
        ledger.promise(bound(f"tenant-{gpu}", "used", 40_000, gpu))
    fresh, used = scores(ledger, demand("a", 40_000), "fresh", "used")
    assert used > fresh


def test_the_shortlist_has_the_nodes_with_fewest_gpus_left() -> None:
    ledger = ledger_of(*(sharing_node(f"fresh-{number}", *[40_000] * 8) for number in range(20)),
                       sharing_node("used", *[40_000] * 8))  # fmt: skip
    for gpu in range(6):
        ledger.promise(bound(f"tenant-{gpu}", "used", 40_000, gpu))
    names = [*(f"fresh-{number}" for number in range(20)), "used"]
    offered = ledger.offer_best(decide(ledger, demand("a", 40_000), *names), 1)
    assert offered.fits.tolist() == [False] * 20 + [True]


HEAVY, LIGHT = Load(1.0, 0.9), Load(0.1, 0.1)


def test_bind_takes_the_calmer_gpu_although_the_other_is_fuller() -> None:
    ledger = ledger_of(sharing_node("node", 40_000, 40_000))
    ledger.promise(replace(bound("heavy", "node", 10_000, 0), load=HEAVY))
    ledger.promise(replace(bound("light", "node", 8_000, 1), load=LIGHT))
    assert take(ledger, pressing("a", 8_000, HEAVY), "node").gpu_indices == (1,)


def test_a_task_without_pressure_takes_the_fullest_gpu_that_fits() -> None:
    ledger = ledger_of(sharing_node("node", 40_000, 40_000))
    ledger.promise(replace(bound("heavy", "node", 10_000, 0), load=HEAVY))
    assert take(ledger, pressing("a", 8_000, IDLE), "node").gpu_indices == (0,)


def test_a_node_with_a_calm_gpu_scores_higher_than_one_with_a_busy_gpu() -> None:
    ledger = ledger_of(sharing_node("busy", 40_000), sharing_node("calm", 40_000))
    ledger.promise(replace(bound("heavy", "busy", 10_000, 0), load=HEAVY))
    ledger.promise(replace(bound("light", "calm", 10_000, 0), load=LIGHT))
    busy, calm = scores(ledger, pressing("a", 8_000, HEAVY), "busy", "calm")
    assert calm > busy


def test_the_terms_of_a_score_are_those_of_the_gpu_that_bind_would_take() -> None:
    ledger = ledger_of(sharing_node("node", 40_000))
    ledger.promise(replace(bound("heavy", "node", 10_000, 0), load=HEAVY))
    terms = ledger.score_terms(pressing("a", 10_000, LIGHT), ledger.board.columns(["node"]))
    assert terms is not None
    assert terms.packing[0] == np.float32(0.5)
    assert 1.0 < terms.slowdown[0] < 1.2
    assert NodeName("node") in ledger.nodes


@given(st.integers(0, 100), st.integers(0, 100))
def test_below_the_harmless_slowdown_the_fullest_gpu_is_taken_and_above_it_the_calm_one(own: int, tenant: int) -> None:
    ranking = Ranking(slowdown_weight=0.9, harmless_slowdown=1.5, node_weight=0.0)
    ledger = Ledger(ranking=ranking)
    ledger.put_node(sharing_node("node", 40_000, 40_000))
    ledger.promise(replace(bound("tenant", "node", 10_000, 0), load=Load(tenant / 100, tenant / 100)))
    expected = slowdown(own / 100, tenant / 100)
    gpu = take(ledger, pressing("a", 8_000, Load(own / 100, own / 100)), "node").gpu_indices[0]
    if expected < 1.45:
        assert gpu == 0
    elif expected > 1.6:
        assert gpu == 1
