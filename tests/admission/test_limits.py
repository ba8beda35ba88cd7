"""The limit of a pod's runtimes: never below its need, never above its GPU, without the context where it must be."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vramcast.admission.limits import MemoryLimit, ProcessContext, is_capped, limit, limit_annotations
from vramcast.hardware.vendors import SHARED_GPU, WHOLE_GPU
from vramcast.names import Resource
from vramcast.settings import Runtime
from vramcast.task.task import Task
from vramcast.task.vocabulary import Cap, Level

A100_MIB = 40510
CONTEXT = ProcessContext(least_mib=430, usual_mib=1429)
NONE = ProcessContext(0, 0)


def test_the_context_is_not_part_of_what_an_allocator_counts() -> None:
    limited = limit(10_000, [A100_MIB], CONTEXT, slack=0.1)
    # 11,000 - 430 and 10,000 - 1,429 of 40,510 MiB.
    assert limited == MemoryLimit(whole_mib=11_000, fraction=0.2610, pool_mib=8_571, pool_fraction=0.2115, gpus=1)


def test_what_is_taken_at_the_start_stays_within_the_promise() -> None:
    """Four JAX pods fill a GPU to the brim, and the last one still gets its pool."""
    quarter = A100_MIB // 4
    limited = limit(quarter, [A100_MIB], CONTEXT, slack=0.1)
    assert limited is not None
    assert 4 * (limited.pool_fraction * A100_MIB + CONTEXT.usual_mib) <= A100_MIB


def test_the_usual_context_is_not_taken_off_a_need_that_is_hardly_more() -> None:
    limited = limit(2_000, [A100_MIB], CONTEXT, slack=0.1)
    assert limited is not None
    assert limited.pool_mib == 2_000 - CONTEXT.least_mib


def test_every_runtime_reads_its_own_form() -> None:
    limited = limit(10_000, [A100_MIB, A100_MIB], CONTEXT, slack=0.1)
    assert limited is not None
    assert limit_annotations(limited, tuple(Runtime)) == {
        "vramcast.dev/limit-torch": "per_process_memory_fraction:0.2610",
        "vramcast.dev/limit-jax": "0.2115",
        "vramcast.dev/limit-tensorflow": "8571",
        "vramcast.dev/limit-mps": "0=11000M,1=11000M",
        "vramcast.dev/limit-hami-core": "11000m",
    }


def test_only_the_runtimes_that_were_asked_for_get_a_limit() -> None:
    assert list(limit_annotations(MemoryLimit(10, 0.9, 8, 0.8, 1), (Runtime.JAX,))) == ["vramcast.dev/limit-jax"]


def test_a_need_below_the_context_has_no_limit_because_nothing_could_run_within_it() -> None:
    assert limit(256, [A100_MIB], CONTEXT, slack=0.1) is None


def test_of_gpus_of_two_sizes_the_smaller_sets_the_fraction() -> None:
    limited = limit(10_000, [24_000, 80_000], NONE, slack=0.0)
    assert limited is not None
    assert limited.fraction * 24_000 >= 10_000


@given(
    need_mib=st.integers(1, 80_000),
    more_mib=st.lists(st.integers(0, 80_000), min_size=1, max_size=8),
    least_mib=st.integers(0, 700),
    more_context_mib=st.integers(0, 1000),
    slack=st.floats(0, 1),
)
def test_a_limit_covers_the_need_and_stays_on_the_gpu(
    need_mib: int, more_mib: list[int], least_mib: int, more_context_mib: int, slack: float
) -> None:
    sizes = [need_mib + more for more in more_mib]
    limited = limit(need_mib, sizes, ProcessContext(least_mib, least_mib + more_context_mib), slack)
    if limited is None:
        assert need_mib <= least_mib
        return
    assert need_mib <= limited.whole_mib <= min(sizes)
    assert 0 < limited.pool_mib <= need_mib - least_mib
    assert 0 < limited.pool_fraction <= 1
    assert limited.pool_fraction <= max(limited.fraction, 0.0001)
    assert 0 < limited.fraction <= 1
    assert all(limited.fraction * size >= (limited.whole_mib - least_mib) * (1 - 1e-9) for size in sizes)
    assert f"{limited.fraction:.4f}" == str(limited.fraction).ljust(6, "0")[:6]


@pytest.mark.parametrize(
    ("cap", "resource", "capped"),
    [
        (None, SHARED_GPU, True),
        (Cap.SOFT, SHARED_GPU, True),
        (Cap.OFF, SHARED_GPU, False),
        (None, WHOLE_GPU, False),
        (Cap.SOFT, WHOLE_GPU, True),
        (Cap.OFF, WHOLE_GPU, False),
    ],
)
def test_pods_that_share_are_capped_unless_they_say_no(cap: Cap | None, resource: Resource, capped: bool) -> None:
    assert is_capped(Task(Level.NAME, model="timm/resnet50", cap=cap), resource) is capped


def test_an_undescribed_pod_is_not_capped() -> None:
    assert not is_capped(None, SHARED_GPU)
