"""The page of the filter benchmark, which two commands make."""

from __future__ import annotations

from bench.before import BEFORE, BUSY, NOW, Result, section, table
from bench.filter import parts


def timed(before_ms: float, now_ms: float, busy_ms: float) -> dict[str, list[float]]:
    """The fastest tenth of ten calls."""
    return {name: [9.0] * 8 + [ms, 0.0] for name, ms in ((BEFORE, before_ms), (NOW, now_ms), (BUSY, busy_ms))}


def test_each_command_replaces_its_part_of_the_page_and_leaves_the_other() -> None:
    own, before = "# Filter\n\n| a | b |\n", section("abc", 400, "| c |")
    assert parts(f"{own}\n{before}") == (own, before)
    assert parts(own) == (own, "")


def test_the_ratio_is_that_of_filter_and_prioritize_together() -> None:
    result = Result(100, "fits", timed(2.0, 2.5, 3.0), timed(1.0, 2.0, 3.0))
    assert (result.ratio(NOW), result.ratio(BUSY)) == (1.5, 2.0)
    row = "| 100 | fits | 2.00 / 2.50 / 3.00 | 1.00 / 2.00 / 3.00 | **1.50** (1.50) | **2.00** (2.00) |"
    assert table([[result]]).endswith(row)


def test_a_pod_that_fits_nowhere_is_not_prioritized() -> None:
    nothing = {name: [0.0] for name in (BEFORE, NOW, BUSY)}
    assert "| 1.00 / 2.00 / 3.00 | - |" in table([[Result(100, "none", timed(1.0, 2.0, 3.0), nothing)]])
