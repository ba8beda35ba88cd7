from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from vramcast.placement.fit import MAX_SCORE, score
from vramcast.placement.name_index import Ints

_SIZES = st.integers(0, 1 << 20)


def node_score(size: int, spare: int, tenants: int) -> int:
    return int(score_node(size, spare, tenants)[0])


def score_node(size: int, spare: int, tenants: int) -> Ints:
    return score(np.array([size], dtype=np.int32), np.array([spare]), np.array([tenants], dtype=np.int32))


@given(_SIZES, _SIZES, st.integers(0, 1000))
def test_a_score_is_a_whole_number_from_0_to_10_for_any_input(size: int, spare: int, tenants: int) -> None:
    result = score_node(size, spare, tenants)
    assert result.dtype == np.int64
    assert 0 <= result[0] <= MAX_SCORE


@given(st.integers(1, 1 << 20), st.integers(0, 1 << 20), st.integers(0, 1 << 20), st.integers(0, 50))
def test_less_spare_memory_never_scores_lower(size: int, left: int, more: int, tenants: int) -> None:
    assert node_score(size, left, tenants) >= node_score(size, left + more, tenants)


@given(st.integers(1, 1 << 20), st.integers(0, 1 << 20), st.integers(0, 50), st.integers(0, 50))
def test_fewer_tenants_never_score_lower(size: int, left: int, tenants: int, more: int) -> None:
    assert node_score(size, left, tenants) >= node_score(size, left, tenants + more)


def test_a_perfect_fit_on_an_empty_gpu_scores_ten() -> None:
    assert node_score(40_000, 0, 0) == MAX_SCORE


def test_a_small_pod_prefers_the_small_gpu() -> None:
    assert node_score(15_000, 5_000, 0) > node_score(80_000, 70_000, 0)
