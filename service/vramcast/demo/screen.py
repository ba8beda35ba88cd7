"""The output of the demo: at most 100 columns, plain text in a pipe. Symbols carry the meaning, colours repeat it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from vramcast.cluster.seam import PodEvent
from vramcast.demo.day import Finish, Submit
from vramcast.demo.scheduler import CycleResult, Gpu
from vramcast.task.quantity import human_mib

_WIDTH = 100
_BAR_WIDTH = 28
_REST_OF_MAP = 71
_PROMISED, _UNMANAGED, _ROOM = "█", "▒", "·"
_MARKS = {"placed": ("✓", "bold green"), "waits": ("✗", "bold red"), "ended": ("■", "bold blue")}


def new_console() -> Console:
    """As wide as the terminal, but at most 100 columns; 100 in a pipe."""
    console = Console(highlight=False)
    console.width = min(console.width, _WIDTH) if console.is_terminal else _WIDTH
    return console


def _print(console: Console, shown: RenderableType) -> None:
    """In a pipe, without trailing spaces."""
    if console.is_terminal:
        console.print(shown)
        return
    with console.capture() as capture:
        console.print(shown)
    console.file.writelines(f"{line.rstrip()}\n" for line in capture.get().splitlines())
    console.file.flush()


def show_opening(console: Console, url: str, gpus: Sequence[Gpu]) -> None:
    nodes = len({gpu.node for gpu in gpus})
    text = Text.assemble(
        ("vramcast", "bold"), " on a simulated cluster: ", (f"{nodes} nodes", "bold"), " of mixed GPUs, at ",
        (url, "cyan"), ".\nOpen that address: its page shows what happens here.\n",
        "Schedules a day of training pods, each through ",
        ("POST /filter", "bold"), ", ", ("/prioritize", "bold"), " and ", ("/bind", "bold"),
        ", as kube-scheduler does.",
    )  # fmt: skip
    _print(console, Panel(text, border_style="dim", expand=False))
    show_map(console, "before the day", gpus)


# --- the map


def show_map(console: Console, title: str, gpus: Sequence[Gpu]) -> None:
    bar_width = max(8, min(_BAR_WIDTH, console.width - _REST_OF_MAP))
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim", pad_edge=False)
    for header in ("node", "GPU", "product", title):
        table.add_column(header, no_wrap=True)
    table.add_column("room", justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    for node, group in groupby(gpus, key=lambda gpu: gpu.node):
        for number, gpu in enumerate(group):
            name = Text("" if number else node, "bold")
            table.add_row(name, _which(gpu), _short_product(gpu.product), *_load(gpu, bar_width))
    legend = Text.assemble(
        (_PROMISED, "blue"), " promised   ", (_UNMANAGED, "red"), " unmanaged   ", (_ROOM, "green"), " room",
        style="dim",
    )  # fmt: skip
    _print(console, Padding(Group(table, Text(), legend), (1, 0, 1, 2)))


def _which(gpu: Gpu) -> str:
    if gpu.free_devices is None:
        return str(gpu.index)
    if gpu.replicas > 1:
        return f"slices x{gpu.devices}"
    profile = gpu.resource.removeprefix("nvidia.com/").removeprefix("mig-")
    return f"{'whole' if profile == 'gpu' else profile} x{gpu.devices}"


def _short_product(product: str) -> str:
    return product.removeprefix("NVIDIA-").removeprefix("Tesla-").replace("SXM4-", "")


def _load(gpu: Gpu, width: int) -> tuple[Text, Text, Text]:
    """Bar, room and size."""
    if gpu.free_devices is not None and gpu.replicas == 1:
        used = gpu.devices - gpu.free_devices
        bar = _bar(used, 0, gpu.devices, width)
        return bar, Text(f"{gpu.free_devices} free"), Text(f"of {gpu.devices}, {human_mib(gpu.size_mib)} each", "dim")
    taken = gpu.size_mib - gpu.unmanaged_mib - gpu.room_mib
    text = f"of {human_mib(gpu.size_mib)}"
    if gpu.free_devices is not None:
        text += f", {gpu.free_devices} free"
    return _bar(taken, gpu.unmanaged_mib, gpu.size_mib, width), Text(human_mib(gpu.room_mib)), Text(text, "dim")


def _bar(promised: int, unmanaged: int, size: int, width: int) -> Text:
    """Always `width` wide; anything above 0 gets at least one block."""
    blocks = [max(1, round(part * width / max(size, 1))) if part > 0 else 0 for part in (promised, unmanaged)]
    blocks[0] = min(blocks[0], width - blocks[1])
    return Text.assemble(
        (_PROMISED * blocks[0], "blue"), (_UNMANAGED * blocks[1], "red"), (_ROOM * (width - sum(blocks)), "green")
    )


# --- one step of the day


def show_result(
    console: Console, step: Submit, result: CycleResult, gpus: Iterable[Gpu], events: Iterable[PodEvent]
) -> None:
    key = f"{step.namespace}/{step.name}"
    lines = [_where(result, key, list(gpus)), Text(step.note, "dim italic")]
    warnings = [event for event in events if event.warning]
    lines += [_warning(event) for event in warnings]
    if result.error:
        lines.append(Text(result.error, "red"))
    lines += _why_not({node: _without_repeats(reason, warnings) for node, reason in result.reasons.items()})
    _show_step(console, step.at, "placed" if result.node else "waits", key, lines)


def show_still_waiting(console: Console, step: Submit) -> None:
    """Without reasons: they were shown before."""
    _show_step(console, step.at, "waits", f"{step.namespace}/{step.name}", [Text("still waits", "red")])


def show_finish(console: Console, step: Finish) -> None:
    lines = [Text("finishes", "bold blue"), Text(step.note, "dim italic")]
    _show_step(console, step.at, "ended", f"{step.namespace}/{step.name}", lines)


def _show_step(console: Console, at: str, what: str, key: str, lines: Sequence[Text]) -> None:
    mark, style = _MARKS[what]
    grid = Table.grid(padding=(0, 1, 0, 0))
    for width in (5, 1, 20):
        grid.add_column(width=width, no_wrap=True, overflow="fold")
    grid.add_column(ratio=1)
    grid.add_row(Text(at, "dim"), Text(mark, style), Text(key, "bold"), Group(*lines))
    _print(console, Padding(grid, (0, 0, 1, 2)))


def _where(result: CycleResult, key: str, gpus: Sequence[Gpu]) -> Text:
    if not result.node:
        return Text("waits", "bold red")
    text = Text.assemble("→ ", (result.node, "bold green"))
    mine = [gpu for gpu in gpus if gpu.node == result.node and key in gpu.needs_mib]
    indices = [str(gpu.index) for gpu in mine if gpu.free_devices is None]
    if indices:
        text.append(f" GPU {' and '.join(indices)}", "bold green")
    need_mib = mine[0].needs_mib[key] if mine else None
    if mine and need_mib is None:
        text.append("   a device, nothing forecast", "dim")
    if need_mib is not None:
        text.append(f"   reserves {_gib(need_mib)} of {_gib(mine[0].size_mib)} GiB")
        if indices or mine[0].replicas > 1:
            text.append(f", {_gib(mine[0].room_mib)} left", "dim")
    if len(result.scores) > 1 and any(result.scores.values()):
        ranked = sorted(result.scores.items(), key=lambda item: (-item[1], item[0] != result.node, item[0]))
        text.append("\nscores: " + ", ".join(f"{name} {points}" for name, points in ranked), "dim")
    return text


def _gib(mib: int) -> str:
    return f"{mib / 1024:.1f}"


def _warning(event: PodEvent) -> Text:
    return Text.assemble(("event ", "yellow"), (event.reason, "bold yellow"), (f" {event.message}", "yellow"))


def _without_repeats(reason: str, warnings: Sequence[PodEvent]) -> str:
    for event in warnings:
        reason = reason.replace(event.message, "not understood, see the event")
    return reason


def _why_not(reasons: Mapping[str, str]) -> list[Text]:
    """Groups nodes with the same reason, as kube-scheduler does in the pod's event."""
    by_reason: dict[str, list[str]] = {}
    for node, reason in reasons.items():
        by_reason.setdefault(reason, []).append(node)
    return [
        Text.assemble(("not ", "dim"), (", ".join(sorted(nodes)), ""), (f": {reason}", "dim"))
        for reason, nodes in sorted(by_reason.items(), key=lambda item: (-len(item[1]), item[0]))
    ]


def show_night(console: Console, pod: str, what: str) -> None:
    _print(console, Padding(Text.assemble(("night ", "dim"), (pod, "bold"), f"  {what}"), (0, 0, 0, 2)))


# --- the end


def show_summary(console: Console, placed: Sequence[str], waiting: Sequence[str], gpus: Iterable[Gpu]) -> None:
    text = Text.assemble((f"{len(placed)} pods placed", "bold green"))
    if all(gpu.promised_mib + gpu.unmanaged_mib <= gpu.size_mib for gpu in gpus if gpu.free_devices is None):
        text.append(", no GPU promised more than it has")
    if waiting:
        text.append("; ")
        text.append(f"{len(waiting)} wait", "bold red")
        text.append(": " + ", ".join(waiting))
    _print(console, Padding(text, (0, 0, 0, 2)))


def show_commands(console: Console, commands: Sequence[tuple[str, str]], url: str) -> None:
    text = Text.assemble("The page is at ", (url, "cyan"), ". Pods come and go there from now on. Try:")
    _print(console, Padding(text, (1, 0, 0, 2)))
    for command, why in commands:
        # Not wrapped, so that it can be copied.
        console.print(f"  [dim]# {why}[/dim]")
        console.print(f"  [bold]{command}[/bold]", soft_wrap=True)
    _print(console, Padding(Text("Press Ctrl-C to stop.", "dim"), (1, 0, 0, 2)))
