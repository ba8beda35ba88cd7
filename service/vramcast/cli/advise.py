"""`vramcast advise`: what would make a task fit, and the lines to change."""

from __future__ import annotations

import sys
from collections.abc import Collection, Sequence

from rich import box
from rich.console import Console
from rich.table import Table

from vramcast.advice.lines import changed_annotations, lines
from vramcast.advice.report import advice_json, smallest_text, time_change, words
from vramcast.advice.search import GpuAdvice, Proposal, advise, whole
from vramcast.cli.described import DescribedTask, naming
from vramcast.cli.forecast import check_output, heading, print_annotations, write
from vramcast.errors import InvalidInput
from vramcast.forecast.forecast import Forecaster
from vramcast.forecast.report import COMMON_PRODUCTS
from vramcast.forecast.report_tables import new_console
from vramcast.hardware.short_names import find_product, short_name
from vramcast.task.quantity import ceil_mib, human_mib


def run_advise(
    tasks: Sequence[DescribedTask], gpus: Sequence[str], keep: Collection[str], output: str, forecaster: Forecaster
) -> int:
    """The exit code: 1 if a task fits nowhere, whatever is changed. Raises InvalidInput."""
    check_output(output)
    if not gpus:
        raise InvalidInput("advise needs a GPU to make the task fit on: give one with --gpu, such as --gpu A10")
    rooms = [whole(find_product(gpu)) for gpu in gpus]
    others = [whole(product) for product in COMMON_PRODUCTS]
    found = []
    for described in tasks:
        with naming(described):
            found.append((described, [advise(forecaster, described.task, room, keep, others) for room in rooms]))
    if output == "table":
        console = new_console()
        for described, advices in found:
            for advice in advices:
                _print(console, described, advice)
    else:
        write([{**each.identity, "advice": [advice_json(one) for one in advices]} for each, advices in found], output)
    return int(any(not advice.fits and not advice.proposals for _, advices in found for advice in advices))


def _print(console: Console, described: DescribedTask, advice: GpuAdvice) -> None:
    forecast, room = advice.forecast, advice.room
    console.print(heading(described), soft_wrap=True)
    median = human_mib(ceil_mib(forecast.median_bytes))
    verdict = "[green]it fits[/green]" if advice.fits else "[red]it does not fit[/red]"
    console.print(
        f"needs {human_mib(forecast.need_mib)} at risk {forecast.risk:g} (median {median}) on "
        f"{short_name(room.product)}, which has {human_mib(room.mib)}: {verdict}",
        highlight=False, soft_wrap=True,
    )  # fmt: skip
    if advice.fits:
        print_annotations(described.annotations)
        return
    if advice.fits_at_risk is not None:
        console.print(f"It would fit as it is at risk {advice.fits_at_risk:g} (--max-oom-risk).", highlight=False)
    if not advice.proposals:
        console.print(f"Nothing makes it fit: {smallest_text(advice)}.", highlight=False, soft_wrap=True)
        print_annotations(described.annotations)
        return
    console.print(_table(advice))
    for number, proposal in enumerate(advice.proposals, 1):
        _print_lines(console, number, proposal)


def _table(advice: GpuAdvice) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("#", justify="right")
    table.add_column("change, the cheapest first")
    table.add_column("GPUs", justify="right")
    table.add_column(f"GiB at {advice.forecast.risk:g}", justify="right")
    table.add_column("time per step", justify="right")
    table.add_column("cost", justify="right")
    for number, each in enumerate(advice.proposals, 1):
        needs = f"{each.forecast.need_mib / 1024:.1f} of {each.room.mib / 1024:.1f}"
        shown = (words(each), str(each.cost.gpus), needs, time_change(each), f"{each.cost.points:.0f}")
        table.add_row(str(number), *shown)
    return table


def _print_lines(console: Console, number: int, proposal: Proposal) -> None:
    console.print(f"[bold]{number}. {words(proposal)}[/bold]", highlight=False, soft_wrap=True)
    for effect in proposal.cost.effects:
        console.print(f"   [dim]because[/dim] {effect.why}", highlight=False, soft_wrap=True)
    code = lines(proposal.task, proposal.changed)
    for title, each in (("plain PyTorch", code.pytorch), ("Hugging Face Trainer", code.trainer)):
        if each:
            sys.stdout.write(f"   {title}:\n" + "".join(f"     {line}\n" for line in each))
    if proposal.changed:
        print_annotations(changed_annotations(proposal.task, proposal.changed), indent="   ")
    else:
        sys.stdout.write("\n")
