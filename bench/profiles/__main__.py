"""Checks recordings: how long `vramcast profile` takes, and whether a recording is right where nobody recorded.

    python -m bench.profiles [--models NAME ...] [--points N] [--seed N] [--only command|points] [--out FILE]

Needs torch and the libraries of the catalog. Fresh recordings are kept in the user's cache, so an interrupted run goes
on where it stopped.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from bench.profiles.checking import Checked, check
from bench.profiles.commands import COMMANDS, Profile, run
from bench.profiles.drawing import SHARES, Drawn, draw_networks, draw_settings
from bench.profiles.networks import windowed
from bench.profiles.page import page
from bench.profiles.tapes import recorder
from bench.recordings.taping import versions

from vramcast.errors import InvalidInput
from vramcast.profile.sources import all_sources


def main() -> None:
    arguments = _arguments()
    profiles = _profiles() if arguments.only != "points" else []
    checked: list[Checked] = []
    failed: dict[str, str] = {}
    if arguments.only != "command":
        for networks, wanted in _draws(arguments):
            checked += islice(_checked(networks, arguments, failed), wanted)
    facts = {"versions": versions(), "seed": arguments.seed, "points": arguments.points}
    text = page(profiles, checked, failed, facts)
    if arguments.out:
        arguments.out.write_text(text, encoding="utf-8")
    else:
        sys.stdout.write(text)


def _profiles() -> list[Profile]:
    found = []
    for command in COMMANDS:
        found.append(run(command))
        _say(f"{command.name}: {found[-1].seconds:.0f} s, {len(found[-1].text):,} characters")
    return found


def _draws(arguments: argparse.Namespace) -> Iterator[tuple[Iterator[Drawn], int]]:
    sources = list(all_sources())
    if arguments.models:
        named = [source for source in sources if source.name in arguments.models]
        yield (draw_settings(source, arguments.seed) for source in named), len(named)
        return
    for library, networks in draw_networks(sources, arguments.seed).items():
        yield networks, min(SHARES[library], arguments.most)
    yield iter([windowed()]), 1  # hardly any model of the catalog has one, and it is where recordings fail


def _checked(networks: Iterator[Drawn], arguments: argparse.Namespace, failed: dict[str, str]) -> Iterator[Checked]:
    for drawn in networks:
        try:
            found = check(drawn, recorder(drawn), arguments.points, arguments.seed)
        except InvalidInput as error:
            failed[str(drawn)] = str(error)
            _say(f"{drawn}: {error}")
        else:
            _say(f"{drawn}: {found.characters:,} characters, {found.pieces} pieces, error {found.error:.2%}")
            yield found


def _say(text: str) -> None:
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--models", nargs="+", help="these networks of the catalog instead of a draw")
    parser.add_argument("--points", type=int, default=3, help="for each network")
    parser.add_argument("--most", type=int, default=max(SHARES.values()), help="networks of each library")
    parser.add_argument("--seed", type=int, default=19)
    parser.add_argument("--only", choices=("command", "points"), help="one of the two parts")
    parser.add_argument("--out", type=Path, help="write the page here")
    return parser.parse_args()


if __name__ == "__main__":
    main()
