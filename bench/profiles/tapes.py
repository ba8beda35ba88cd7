"""Fresh recordings, kept in the user's cache: an interrupted run goes on where it stopped, and solving can change
without recording anything again."""

from __future__ import annotations

import hashlib
from collections.abc import Callable

from bench.profiles.drawing import Drawn
from bench.recordings.taping import cache_folder, load_tape, save_tape
from torch import nn

from vramcast.forecast.sizes import Point, shown
from vramcast.forecast.tape import Tape
from vramcast.profile.recording.network import NetworkSteps
from vramcast.profile.sources import ModelSource
from vramcast.profile.stretch import FEWEST_BLOCKS


def _made(source: ModelSource) -> nn.Module:
    """A language model whose blocks are alike has few of them, as the catalog records it: sizes are the same in all."""
    if source.depth is not None and source.depth.alike:
        return source.depth.make(min(source.depth.blocks, FEWEST_BLOCKS))
    return source.make(source.base)


def recorder(drawn: Drawn) -> Callable[[Point], Tape]:
    """Raises Unrecordable when it is called for a point that the network does not take."""
    source = drawn.source
    steps: list[NetworkSteps] = []  # built when a point is not in the cache

    def record(point: Point) -> Tape:
        key = hashlib.sha256(f"{source.name} {drawn.settings} {shown(point)}".encode()).hexdigest()[:20]
        path = cache_folder() / "profiles" / f"{key}.npz"
        if path.exists():
            return load_tape(path)
        if not steps:
            steps.append(NetworkSteps(lambda: _made(source), source.inputs(source.base), drawn.settings))
        tape = steps[0].tape(point)
        save_tape(tape, path)
        return tape

    return record
