"""Fresh recordings, kept in the user's cache: an interrupted run goes on where it stopped, and solving can change
without recording anything again."""

from __future__ import annotations

import hashlib
from collections.abc import Callable

from bench.profiles.drawing import Drawn
from bench.recordings.taping import cache_folder, load_tape, save_tape

from vramcast.forecast.sizes import Point, shown
from vramcast.forecast.tape import Tape
from vramcast.profile.recording.network import NetworkSteps


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
            steps.append(NetworkSteps(lambda: source.make(source.base), source.inputs(source.base), drawn.settings))
        tape = steps[0].tape(point)
        save_tape(tape, path)
        return tape

    return record
