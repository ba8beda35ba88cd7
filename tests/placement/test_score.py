from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from vramcast.placement.fit import MAX_SCORE, score
from vramcast.placement.name_index import Ints

_SIZES = st.integers(0, 1 << 20)


def one(size: int, spare: int, tenants: int) -> int:
    return int(scored(size, spare, tenants)[0])


def scored(size: int, spare: int, tenants: int) -> Ints:
    return score(np.array([size], dtype=np.int32), np.array([spare]), np.array([tenants], dtype=np.int32))


@given(_SIZES, _SIZES, st.integers(0, 1000))
def test_a_score_is_a_whole_number_from_0_to_10_whatever_comes_in(size: int, spare: int, tenants: int) -> None:
    result = scored(size, spare, tenants)
    assert result.dtype == np.int64
    assert 0 <= result[0] <= MAX_SCORE


@given(st.integers(1, 1 << 20), st.integers(0, 1 << 20), st.integers(0, 1 << 20), st.integers(0, 50))
def test_less_left_over_never_scores_lower(size: int, left: int, more: int, tenants: int) -> None:
    assert one(size, left, tenants) >= one(size, left + more, tenants)


@given(st.integers(1, 1 << 20), st.integers(0, 1 << 20), st.integers(0, 50), st.integers(0, 50))
def test_fewer_tenants_never_score_lower(size: int, left: int, tenants: int, more: int) -> None:
    assert one(size, left, tenants) >= one(size, left, tenants + more)


def test_a_perfect_fit_on_an_empty_gpu_is_a_ten() -> None:
    assert one(40_000, 0, 0) == MAX_SCORE


def test_a_small_pod_prefers_the_small_gpu() -> None:
    assert one(15_000, 5_000, 0) > one(80_000, 70_000, 0)
