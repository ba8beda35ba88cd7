"""What the next run needs, from the runs that were seen."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vramcast.outcomes.run_memory import SCATTER_BY_AGE
from vramcast.recommend.margins import MarginBasis, Margins, Need, Peak, runs_for


def whole(*peaks_mib: int) -> list[Peak]:
    return [Peak(mib) for mib in peaks_mib]


def test_a_workload_that_was_seen_once_gets_twice_the_margin_of_one_seen_twice() -> None:
    margins = Margins([], 0.05)
    once, twice = margins.need(whole(10_000)), margins.need(whole(10_000, 10_000))
    assert (once.basis, twice.basis) == (MarginBasis.PUBLISHED, MarginBasis.PUBLISHED)
    assert math.log1p(once.margin) == pytest.approx(2 * math.log1p(twice.margin))
    assert once.mib == math.ceil(10_000 * (1 + once.margin))


def test_nineteen_runs_are_enough_for_a_risk_of_one_in_twenty() -> None:
    assert (runs_for(0.05), runs_for(0.1), runs_for(0.01)) == (19, 9, 99)
    peaks = whole(*range(1001, 1020))
    assert Margins([], 0.05).need(peaks) == Need(1019, MarginBasis.OWN_RUNS, 0.0)
    assert Margins([], 0.05).need(peaks[1:]).basis is MarginBasis.PUBLISHED


def test_with_many_runs_a_wild_one_does_not_set_the_need() -> None:
    need = Margins([], 0.05).need(whole(30_000, *[10_000] * 60))
    assert need.mib == 10_000
    assert need.margin < 0


def test_the_newest_run_is_never_above_the_need() -> None:
    assert Margins([], 0.05).need(whole(*[10_000] * 60, 14_000)).mib == 14_000


def test_a_failed_run_is_a_floor_and_not_a_run() -> None:
    margins = Margins([], 0.05)
    failed = [Peak(20_000, floor=True)]
    assert margins.need([*whole(10_000), *failed]).mib == margins.need(whole(20_000)).mib
    assert margins.need(failed).basis is MarginBasis.PUBLISHED
    assert margins.need([*whole(*[10_000] * 18), *failed]).basis is MarginBasis.PUBLISHED


def test_workloads_of_the_same_cluster_set_the_margin_once_there_are_enough() -> None:
    steady = [whole(10_000, 10_000) for _ in range(19)]
    wild = [whole(10_000, 15_000) for _ in range(19)]
    few = Margins(wild[:18], 0.05).need(whole(10_000))
    assert few.basis is MarginBasis.PUBLISHED
    assert Margins(steady, 0.05).need(whole(10_000)).mib == math.ceil(10_000 * math.exp(SCATTER_BY_AGE[0][1][2]))
    assert Margins(wild, 0.05).need(whole(10_000)) == Need(15_000, MarginBasis.OTHER_WORKLOADS, pytest.approx(0.5))


def test_more_runs_before_the_next_one_need_less_margin() -> None:
    draw = random.Random(7)
    histories = [whole(*(round(10_000 * math.exp(draw.gauss(0, 0.1))) for _ in range(12))) for _ in range(60)]
    margins = Margins(histories, 0.05)
    seen = [margins.need(whole(*[10_000] * runs)).margin for runs in (1, 2, 4, 8)]
    assert seen == sorted(seen, reverse=True)
    assert seen[0] > seen[-1]


@pytest.mark.parametrize("runs", [1, 2, 3, 6, 12])
def test_the_stated_risk_holds_for_workloads_that_the_margins_have_not_seen(runs: int) -> None:
    draw = random.Random(runs)

    def history(count: int) -> list[int]:
        typical, scatter = draw.uniform(2_000, 60_000), draw.choice((0.0, 0.02, 0.1, 0.3))
        return [max(1, round(typical * math.exp(draw.gauss(0, scatter)))) for _ in range(count)]

    margins = Margins([whole(*history(draw.randint(1, 20))) for _ in range(400)], 0.05)
    above = 0
    for _ in range(2_000):
        *seen, following = history(runs + 1)
        above += following > margins.need(whole(*seen)).mib
    assert above / 2_000 <= 0.065


@given(st.lists(st.integers(0, 200_000), min_size=1, max_size=40), st.sampled_from((0.01, 0.05, 0.2)))
def test_less_risk_never_means_less_memory(peaks: list[int], risk: float) -> None:
    history = whole(*peaks)
    assert Margins([history], risk / 2).need(history).mib >= Margins([history], risk).need(history).mib
