"""Writes the results as a page."""

from __future__ import annotations

import re

from bench.profiles.checking import MOST_ERROR, MOST_ERROR_OF_A_NEIGHBOUR, Checked, Compared
from bench.profiles.commands import MOST_CHARACTERS, MOST_SECONDS, Profile

from vramcast.forecast.sizes import shown

_LIBRARIES = re.compile(r"\S*/site-packages/")
_INTRODUCTION = """# Recordings where nobody recorded

    make profiles [ARGS="--models NAME ..."]

Made with {versions}.
"""
_PROFILES = """## The command

`vramcast profile`, from the start of the process to the annotations. It must take less than {most_seconds} s on two
cores. CPU seconds are shown too, because they grow less on a busy machine.

| network | s | CPU s | annotation, characters | allowed | pieces | events | peak |
|---|---|---|---|---|---|---|---|
"""
_POINTS = """## At points that nobody recorded

Networks and settings are drawn from the catalog with seed {seed}, and for each {points} points within what its
recording answers: batch, LoRA rank, and sequence length or image side. Errors are those of the recording against a
fresh one at the same point: of the active peak and of the reserved one, before an optimizer is added. At most
{most:.1%} are allowed, and {neighbour:.0%} where the order of events was not recorded and the nearest recorded one
answers (marked *nearest*). Language models whose blocks are alike are recorded with four of them, as in the catalog.
The last network has a window that is shorter than most lengths, which changes the order of events. A length just below
such a window is answered by steps that make a mask: 3 % too much for 13 samples of 808 tokens.

"""


def page(profiles: list[Profile], checked: list[Checked], failed: dict[str, str], facts: dict[str, object]) -> str:
    text = _INTRODUCTION.format(**facts)
    if profiles:
        text += "\n" + _PROFILES.format(most_seconds=MOST_SECONDS) + "".join(map(_profile, profiles))
    if checked or failed:
        text += "\n" + _POINTS.format(most=MOST_ERROR, neighbour=MOST_ERROR_OF_A_NEIGHBOUR, **facts)
        text += (_summary(checked) if checked else "") + _left_out(failed)
    return text


def _profile(found: Profile) -> str:
    kinds = {"": "no recording: plain fp32 is forecast from the layers"}
    peak = found.peak or kinds.get(found.why_no_recording, f"no recording: {found.why_no_recording}")
    return (
        f"| {found.command.name} | {found.seconds:.0f} | {found.cpu_seconds:.0f} | {len(found.text):,} | "
        f"{found.command.most_characters:,} | {found.pieces or '-'} | {found.events or '-'} | {peak} |\n"
    )


def _summary(checked: list[Checked]) -> str:
    compared = [one for found in checked for one in found.compared]
    held = sum(one.holds for one in compared)
    exact = sum(one.error == 0 for one in compared)
    furthest = max(checked, key=lambda found: found.error)
    largest = max(checked, key=lambda found: found.characters)
    refused = sum(found.refuses_outside for found in checked)
    told = (
        f"{len(checked)} networks, {len(compared)} points: {held} within what is allowed, {exact} exact. The largest "
        f"error is {furthest.error:.2%} ({furthest.drawn}).\n"
        f"Outside of what was recorded {refused} of {len(checked)} recordings refuse to answer. The largest annotation "
        f"has {largest.characters:,} characters ({largest.drawn}); {MOST_CHARACTERS:,} are allowed."
    )
    lines = [
        told,
        "",
        "| network | characters | pieces | point: error of active / reserved | holds |",
        "|---|---|---|---|---|",
        *(_row(found) for found in checked),
    ]
    return "\n".join(lines) + "\n"


def _row(found: Checked) -> str:
    points = "; ".join(_told(one) for one in found.compared)
    holds = "yes" if found.holds else "**no**"
    return f"| {found.drawn} | {found.characters:,} | {found.pieces} | {points} | {holds} |"


def _told(one: Compared) -> str:
    nearest = " (nearest)" if one.from_neighbour else ""
    return f"{shown(one.point)}: {one.active_error:+.2%} / {one.reserved_error:+.2%}{nearest}"


def _left_out(failed: dict[str, str]) -> str:
    if not failed:
        return ""
    rows = "".join(f"- {name}: {_LIBRARIES.sub('', why)}\n" for name, why in failed.items())
    return (
        "\nDrawn, but these cannot be recorded, or their recording refuses a point. The next in the draw took their "
        f"place:\n\n{rows}"
    )
