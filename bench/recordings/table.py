"""Writes the results of the slices as a page."""

from __future__ import annotations

from statistics import mean

from bench.recordings.cases import Counters
from bench.recordings.slices import Result, bias, error, inside, mean_error

_INTRODUCTION = """# Recordings against measured runs

What recordings alone say about runs that others measured. No figure is corrected by a learned part.

    python -m bench.recordings --data DIR [--slice NAME] [--every N] --out docs/benchmarks/recordings.md

Repeated runs with other versions of the same libraries count once, with their median. *Bias* is the median of said
over measured: a minus says too little. A slice may be thinned, and what was not recorded is counted among the rows
left out. Recordings were made with {versions}.

What is not in a recording:

- The memory of a CUDA context is a constant of each GPU product, as in the forecast. timm's fp32 runs were read from
  the whole device, where the context and cuDNN take 1,679 MiB.
- The AMP intervals are of torch 1.12 and CUDA 11 on an RTX 3090, and nobody read what that device shows beside torch.
  2,100 MiB fit every second of them best, and the other half did not choose that
  (`python -m bench.recordings.context`). But the rule (a batch fits if it runs at capacity, and gradients stay) was
  chosen among twelve by looking at intervals of both halves. With the 1,679 MiB of the A100, which no interval chose,
  89 and 92 % were inside.
- How many gathers ZeRO-3's host runs ahead of the GPU: eight. On every second of these runs 8 and 12 fit best (active
  memory 1.4 and 1.2 % off), and on the other half, which chose nothing, both are 1.7 % off
  (`python -m bench.recordings.ahead`).
- The rules for FSDP and ZeRO follow the frameworks' code, but these runs were looked at while the rules were written,
  so they explain and do not test.

What the measured runs did, and a recording is made to do: Mistral's heads repeated for flash attention (transformers
before 4.48) and Liger's loss without its other kernels (fms), outputs that the loop holds through the next step (xMem's
language models: assumed, after looking at the figures), and gradients dropped before backward (where xMem says so).
timm's fp32 runs had cuDNN's autotuner on: backward copies tensors into channels-last layout, which was decided on 11
runs. What else its kernels take for speed is not known, and it is the tail of that slice. A batch that just fits (AMP
intervals) is asked without these copies, because torch takes other kernels where memory is short; it fits if its steps
run in the memory that there is, given that the allocator frees what it caches before it fails; and its gradients are
kept from step to step, because `zero_grad` of torch before 2.0 writes zeros. The zoo's segmentation networks have
OpenMMLab's stem and heads, as its configurations say, around torchvision's backbone. Its detectors are recorded on the
CPU, for minutes each.
"""


def page(results: list[Result], speed: str, versions: str) -> str:
    parts = [_INTRODUCTION.format(versions=versions), _summary(results)]
    if speed:
        parts.append(speed)
    parts += [_details(result) for result in results]
    return "\n".join(parts)


def _summary(results: list[Result]) -> str:
    lines = ["| slice | cases | error | bias | must | aim |", "|---|---|---|---|---|---|"]
    for result in results:
        chosen = result.slice
        found, signed = _figures(result)
        count = len(result.said) or len(result.distances)
        lines.append(f"| {chosen.title} | {count} | {found} | {signed} | {chosen.must} | {chosen.aim} |")
    return "\n".join(lines) + "\n"


def _figures(result: Result) -> tuple[str, str]:
    chosen = result.slice
    if not chosen.counters:
        far = [distance for _, distance in result.distances]
        return (inside(far), f"{mean(far):+.4f}") if far else ("-", "-")
    if chosen.name == "timm-fp32":
        ratios = result.ratios(Counters.DEVICE)
        return f"{error(ratios)} / {mean_error(ratios)}", bias(ratios)
    ratios_of = [result.ratios(counter) for counter in chosen.counters]
    return " / ".join(error(ratios) for ratios in ratios_of), " / ".join(bias(ratios) for ratios in ratios_of)


def _details(result: Result) -> str:
    chosen = result.slice
    lines = [f"## {chosen.title[0].upper()}{chosen.title[1:]}", ""]
    if chosen.counters:
        lines += [f"Counters: {', '.join(chosen.counters)}.", ""]
    if len(result.kinds()) > 1:
        lines += ["| part | cases | median error | bias |", "|---|---|---|---|"]
        for kind in result.kinds():
            ratios_of = [result.ratios(counter, kind) for counter in chosen.counters]
            found = " / ".join(error(ratios) for ratios in ratios_of)
            signed = " / ".join(bias(ratios) for ratios in ratios_of)
            lines.append(f"| {kind} | {len(ratios_of[0])} | {found} | {signed} |")
        lines.append("")
    lines += _furthest(result)
    left = ", ".join(f"{reason} ({count})" for reason, count in result.cases.left_out.most_common())
    lines += [f"Of {result.cases.rows:,} rows left out: {left or 'none'}.", ""]
    return "\n".join(lines)


_SHOWN = 5


def _furthest(result: Result) -> list[str]:
    """The cases that are most wrong, so that one sees where to look."""
    if result.distances:
        far = sorted(result.distances, key=lambda pair: -abs(pair[1]))[:_SHOWN]
        shown = ", ".join(f"{case.name} {distance:+.3f}" for case, distance in far if distance)
        return [f"Furthest from their interval: {shown or 'none'}.", ""]
    counter = result.slice.counters[-1]
    known = [(case, found) for case, found in result.said if counter in case.measured_gib]
    known.sort(key=lambda pair: -abs(pair[1][counter] / pair[0].measured_gib[counter] - 1))
    if not known:
        return []
    lines = [f"| furthest off, {counter} | measured GiB | said GiB |", "|---|---|---|"]
    lines += [
        f"| {case.name} | {case.measured_gib[counter]:.2f} | {found[counter]:.2f} |" for case, found in known[:_SHOWN]
    ]
    return [*lines, ""]
