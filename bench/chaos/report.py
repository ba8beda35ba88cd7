"""The result as a page of the documentation."""

from __future__ import annotations

import os
import platform
import statistics
import textwrap

from vramcast import __version__

from .faults import KINDS
from .run import BACK_SECONDS, Injected, Outcome, quantile

# Defects that earlier runs found. Each has its own test now.
FINDINGS = (
    (
        "A pod's `gpu-memory` was raised between the scheduler's last sight of it and filter. Its Binding named the "
        "newest version of the pod but promised the old need."
    ),
    (
        "A short run promised 59 GiB on a GPU of 40 after a change of leaders. A replica whose Bindings had got no "
        "answer led again after the other one, and went by its own old attempts: it counted them instead of what the "
        "other had written for the same pod, and it repeated them. The run's logs were lost, so which of the two it "
        "was is not known; both are mended."
    ),
)


def report(outcome: Outcome) -> str:
    plan = outcome.plan
    setting = (
        f"`python -m bench.chaos --seed {plan.seed} --binds {plan.binds} --out docs/benchmarks/chaos.md`: two replicas "
        "of the chart's default mode, each a real kube-scheduler with its vramcast, on a real API server and etcd. A "
        "proxy between each vramcast and the API server injects errors. Pods with random needs come, live for some "
        f"seconds and go, on {plan.size.nodes} nodes with {plan.size.gpus_a_node} GPUs each, while one fault follows "
        "another. "
        "The same seed draws the same faults in the same order."
    )
    check = (
        "What happened is read from etcd, every version of every pod in order, and judged by rules that share no code "
        "with vramcast. Nothing is asked of vramcast. What a Binding wrote counts until the pod is gone."
    )
    lines = [
        "# Faults at scale",
        "",
        *textwrap.wrap(setting, 120),
        "",
        *textwrap.wrap(check, 120),
        "",
        *_summary(outcome),
        "",
        *_fault_table(outcome),
        "",
        *textwrap.wrap(_versions(outcome), 120),
        "",
        "## What it has found",
        "",
        *(line for finding in FINDINGS for line in textwrap.wrap(f"- {finding}", 120, subsequent_indent="  ")),
        "",
    ]
    return "\n".join(lines)


def _summary(outcome: Outcome) -> list[str]:
    back = [fault.back_seconds for fault in outcome.faults]
    refused = ", ".join(f"{count} x {status}" for status, count in outcome.refused.items()) or "none"
    waits, minutes, rate = outcome.wait_seconds, outcome.seconds / 60, outcome.binds / outcome.seconds
    rows = (
        ("binds", f"{outcome.binds:,} in {minutes:.0f} min, {rate:.0f} per second"),
        ("faults", f"{len(outcome.faults)} of {len(KINDS)} kinds"),
        ("GPUs over, at any moment", f"**{len(outcome.over)}**"),
        (
            f"pods stuck: had room for {outcome.plan.longest_wait_seconds:.0f} s and were not bound",
            f"**{len(outcome.stuck)}**",
        ),
        (f"faults without a bind for more than {BACK_SECONDS:.0f} s after their end", f"**{len(outcome.late)}**"),
        ("back in service after a fault", f"median {statistics.median(back):.2f} s, worst {max(back):.2f} s"),
        ("other rules broken", f"**{len(outcome.breaches)}**"),
        ("Bindings that the API server refused, by status", refused),
        ("from creation to Binding", f"median {quantile(waits, 0.5):.2f} s, P99 {quantile(waits, 0.99):.1f} s"),
        ("longest wait, faults and full clusters included", f"{max(waits):.0f} s"),
        ("kube-schedulers that ended because they lost the Lease", str(outcome.restarts)),
    )
    return ["| | |", "|---|---|", *(f"| {name} | {value} |" for name, value in rows)]


def _fault_table(outcome: Outcome) -> list[str]:
    lines = [
        *textwrap.wrap(
            "*Lasted* is the length of the fault itself. *Back* is the time from its end to the next bind, which the "
            "whole chain of scheduler, vramcast and API server needs.",
            120,
        ),
        "",
        "| fault | what it does | times | lasted, median | back: median | worst |",
        "|---|---|---|---|---|---|",
    ]
    for kind in KINDS:
        faults = [fault for fault in outcome.faults if fault.kind == kind.__name__]
        if faults:
            what = " ".join((kind.__doc__ or "").partition("\n\n")[0].split())
            lines.append(f"| {kind.__name__.replace('_', ' ')} | {what} | {_cells(faults)} |")
    return lines


def _cells(faults: list[Injected]) -> str:
    lasted = statistics.median(fault.lasted_seconds for fault in faults)
    back = [fault.back_seconds for fault in faults]
    return f"{len(faults)} | {lasted:.1f} s | {statistics.median(back):.2f} s | {max(back):.2f} s"


def _versions(outcome: Outcome) -> str:
    return (
        f"vramcast {__version__}, Kubernetes {outcome.versions['kubernetes']}, etcd {outcome.versions['etcd']}, "
        f"Python {platform.python_version()}, {os.cpu_count()} cores for everything ({platform.machine()})."
    )
