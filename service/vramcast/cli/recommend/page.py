"""The report as one HTML file: no scripts, and nothing that it would have to fetch."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from importlib.resources import files

from vramcast.cli.recommend.plots import MOST_BARS, memory_bars, over_time
from vramcast.cli.recommend.rows import COLUMNS, NUMBERS, moment, row, summary, totals
from vramcast.cli.recommend.text import METHOD, TOTALS, all_notes
from vramcast.recommend.report import Report

_CLASSES = ("was", "shared", "sliced")


def to_html(report: Report) -> str:
    style = files("vramcast.cli.recommend").joinpath("page.css").read_text(encoding="utf-8")
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>What GPUs could be freed</title>
<style>{style}</style>
</head>
<body>
<main>
<h1>What GPUs could be freed</h1>
<p>{escape(summary(report))}</p>
{_tiles(report)}
{_notes(report)}
<section><h2>GPUs in use</h2>
{_legend([("was", "as it was"), ("shared", "with shares"), ("sliced", "with MIG slices")])}
{
        over_time(
            [(name, style, plan) for style, (name, plan) in zip(_CLASSES, report.plans, strict=True)],
            report.history.start,
            report.history.end,
        )
    }
<p>{escape(METHOD)}</p>
{_table("GPUs and GPU-hours by plan", TOTALS, totals(report), frozenset(TOTALS[1:]))}
</section>
<section><h2>Memory of the {MOST_BARS} workloads with the most to spare</h2>
{_legend([("peak", "peak"), ("need", f"need at risk {report.risk:g}"), ("all", "usable on its GPU")])}
{memory_bars(report.recommendations)}
</section>
<section><h2>Workloads</h2>
{_workloads(report)}
</section>
</main>
</body>
</html>
"""


def _tiles(report: Report) -> str:
    was = report.as_it_was
    tiles = [(str(was.most), "GPUs at the busiest moment", moment(was.busiest_at))]
    for name, plan in report.plans[1:]:
        hours = was.gpu_hours - plan.gpu_hours
        tiles.append(
            (str(was.most - plan.most), f"GPUs freed {name}", f"{hours:,.0f} of {was.gpu_hours:,.0f} GPU-hours")
        )
    shown = [f'<div class="tile"><b>{big}</b>{what}<small>{small}</small></div>' for big, what, small in tiles]
    return f'<div class="tiles">{"".join(shown)}</div>'


def _notes(report: Report) -> str:
    notes = "".join(f"<li>{escape(note)}</li>" for note in all_notes(report))
    return f'<section class="notes"><h2>What limits these figures</h2><ul>{notes}</ul></section>' if notes else ""


def _legend(entries: Iterable[tuple[str, str]]) -> str:
    def sample(style: str) -> str:
        if style in _CLASSES:
            return f'<polyline class="{style}" points="0,6 26,6"/>'
        return f'<rect class="{style}" width="26" height="12" rx="3"/>'

    shown = [
        f'<li><svg viewBox="0 0 26 12" aria-hidden="true">{sample(style)}</svg>{name}</li>' for style, name in entries
    ]
    return f'<ul class="legend">{"".join(shown)}</ul>'


def _workloads(report: Report) -> str:
    classes = [{"fewer GPUs": "do-fewer"}.get(one.verdict, f"do-{one.verdict}") for one in report.recommendations]
    return _table("Workloads, the most spare GPU-hours first", COLUMNS, [row(one) for one in report.recommendations],
                  NUMBERS, classes)  # fmt: skip


def _table(
    caption: str, columns: Sequence[str], rows: Sequence[Sequence[str]], right: frozenset[str],
    last_classes: Sequence[str] = (),
) -> str:  # fmt: skip
    """`last_classes`: of the last cell of each row."""

    def cell(tag: str, column: str, text: str, more: str = "") -> str:
        names = " ".join(filter(None, ("number" if column in right else "", more)))
        scope = ' scope="col"' if tag == "th" else ""
        return f"<{tag}{scope}{f' class={chr(34)}{names}{chr(34)}' if names else ''}>{escape(text)}</{tag}>"

    head = "".join(cell("th", column, column) for column in columns)
    lines = []
    for number, cells in enumerate(rows):
        more = [""] * (len(cells) - 1) + [last_classes[number] if last_classes else ""]
        lines.append("<tr>" + "".join(map(cell, ["td"] * len(cells), columns, cells, more)) + "</tr>")
    label = escape(caption, quote=True)
    return (
        f'<div class="scroll" role="region" aria-label="{label}" tabindex="0"><table><thead><tr>{head}</tr></thead>'
        f"<tbody>{''.join(lines)}</tbody></table></div>"
    )
