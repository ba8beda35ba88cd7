"""Plots of the report as SVG. Colours are classes of the page, so they follow its light or dark scheme."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import UTC, datetime
from html import escape
from typing import Final

from vramcast.cli.recommend.rows import gpu
from vramcast.recommend.advice import Recommendation
from vramcast.recommend.packing import Occupancy
from vramcast.task.quantity import human_mib

_WIDTH, _HEIGHT, _LEFT, _RIGHT, _TOP, _BOTTOM = 960, 300, 46, 12, 12, 28
_BINS: Final = 240
_ROW, _NAME, _VALUE = 26, 330, 200
MOST_BARS: Final = 20


def over_time(plans: Sequence[tuple[str, str, Occupancy]], start: float, end: float) -> str:
    """GPUs in use. `plans`: name, class and occupancy. Each column shows the most within its time."""
    top = _round_up(max([1, *(plan.most for _, _, plan in plans)]))
    wide, high = _WIDTH - _LEFT - _RIGHT, _HEIGHT - _TOP - _BOTTOM

    def y(value: float) -> float:
        return _TOP + high * (1 - value / top)

    parts = []
    for tick in range(5):
        value = top * tick / 4
        parts.append(
            f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y(value):.1f}" y2="{y(value):.1f}"/>'
        )
        parts.append(f'<text class="axis" x="{_LEFT - 8}" y="{y(value) + 4:.1f}" text-anchor="end">{value:g}</text>')
    for tick in range(6):
        at, x = start + (end - start) * tick / 5, _LEFT + wide * tick / 5
        anchor = "start" if tick == 0 else "end" if tick == 5 else "middle"
        label = f"{datetime.fromtimestamp(at, UTC):%d %b %H:%M}"
        parts.append(f'<text class="axis" x="{x:.1f}" y="{_HEIGHT - 8}" text-anchor="{anchor}">{label}</text>')
    for _, style, plan in plans:
        values = binned(plan, start, end, _BINS)
        points = [f"{_LEFT + wide * n / _BINS:.1f},{y(v):.1f} {_LEFT + wide * (n + 1) / _BINS:.1f},{y(v):.1f}"
                  for n, v in enumerate(values)]  # fmt: skip
        parts.append(f'<polyline class="{style}" points="{" ".join(points)}"/>')
    told = "; ".join(f"{name}: at most {plan.most}" for name, _, plan in plans)
    return _svg(_HEIGHT, f"GPUs in use over time. {told}.", parts)


def binned(plan: Occupancy, start: float, end: float, bins: int) -> list[int]:
    """The most GPUs in use within each of `bins` equal parts of the time."""
    most = [0] * bins
    length = (end - start) / bins
    stops = [*(at for at, _ in plan.changes[1:]), end]
    for (at, count), stop in zip(plan.changes, stops, strict=False):
        first = max(int((at - start) / length), 0)
        last = min(math.ceil((stop - start) / length), bins)
        for number in range(first, max(last, first + 1)):
            if number < bins:
                most[number] = max(most[number], count)
    return most


def memory_bars(found: Sequence[Recommendation]) -> str:
    """Peak and need of each workload, as parts of the memory of its GPU."""
    parts = []
    wide = _WIDTH - _NAME - _VALUE
    shown = [one for one in found if one.usable_mib][:MOST_BARS]
    for number, one in enumerate(shown):
        y = number * _ROW + 4
        need, peak = (min(mib / one.usable_mib, 1.0) * wide for mib in (one.need.mib, one.peak_mib))
        label = _shortened(f"{one.workload.label}", 44)
        told = f"{human_mib(one.peak_mib)} of {human_mib(one.usable_mib)}"
        title = (
            f"{one.workload.label} on {gpu(one)}: peak {human_mib(one.peak_mib)}, need {human_mib(one.need.mib)}, "
            f"usable {human_mib(one.usable_mib)}"
        )
        parts += [
            f"<g><title>{escape(title)}</title>",
            f'<text class="name" x="{_NAME - 10}" y="{y + 14}" text-anchor="end">{escape(label)}</text>',
            f'<rect class="all" x="{_NAME}" y="{y}" width="{wide}" height="18" rx="4"/>',
            f'<rect class="need" x="{_NAME}" y="{y}" width="{need:.1f}" height="18" rx="4"/>',
            f'<rect class="peak" x="{_NAME}" y="{y + 4}" width="{peak:.1f}" height="10" rx="2"/>',
            f'<text class="axis" x="{_NAME + wide + 10}" y="{y + 14}">{told}</text></g>',
        ]
    told = f"Peak and need of {len(shown)} workloads; the table below has the same figures."
    return _svg(len(shown) * _ROW + 8, told, parts)


def _svg(height: int, told: str, parts: Sequence[str]) -> str:
    label = escape(told, quote=True)
    return f'<svg viewBox="0 0 {_WIDTH} {height}" role="img" aria-label="{label}">{"".join(parts)}</svg>'


def _shortened(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most // 2 - 1]}…{text[-(most // 2) :]}"


def _round_up(value: int) -> int:
    """To a number that four lines divide well."""
    step = 4
    while step * 10 < value:
        step *= 10
    return math.ceil(value / step) * step
