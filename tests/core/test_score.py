from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from vramcast.core.score import MAX_SCORE, score

_SIZES = st.integers(0, 1 << 20)


def one(size: int, room: int, need: int, tenants: int) -> int:
    return int(score(*(np.array([value], dtype=np.int64) for value in (size, room, need, tenants)))[0])


@given(_SIZES, _SIZES, _SIZES, st.integers(0, 1000))
def test_a_score_is_a_whole_number_from_0_to_10_whatever_comes_in(
    size: int, room: int, need: int, tenants: int
) -> None:
    result = score(*(np.array([value], dtype=np.int64) for value in (size, room, need, tenants)))
    assert result.dtype == np.int64
    assert 0 <= result[0] <= MAX_SCORE


@given(st.integers(1, 1 << 20), st.integers(0, 1 << 20), st.integers(0, 1 << 20), st.integers(0, 50))
def test_less_left_over_never_scores_lower(size: int, left: int, more: int, tenants: int) -> None:
    assert one(size, 100 + left, 100, tenants) >= one(size, 100 + left + more, 100, tenants)


@given(st.integers(1, 1 << 20), st.integers(0, 1 << 20), st.integers(0, 50), st.integers(0, 50))
def test_fewer_tenants_never_score_lower(size: int, left: int, tenants: int, more: int) -> None:
    assert one(size, 100 + left, 100, tenants) >= one(size, 100 + left, 100, tenants + more)


def test_a_perfect_fit_on_an_empty_gpu_is_a_ten() -> None:
    assert one(40_000, 40_000, 40_000, 0) == MAX_SCORE


def test_a_small_pod_prefers_the_small_gpu() -> None:
    assert one(15_000, 15_000, 10_000, 0) > one(80_000, 80_000, 10_000, 0)
