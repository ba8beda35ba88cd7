"""Tapes for tests: by hand, random, and of a small network."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from hypothesis import strategies as st

from vramcast.forecast.tape import Mark, Moment, Role, Tape

KIB = 1 << 10
MIB = 1 << 20


def tape_of(
    sizes: Iterable[int],
    events: Iterable[int],
    marks: tuple[Mark, ...] = (),
    roles: Iterable[Role] = (),
    streams: Iterable[int] = (),
    units: Iterable[int] = (),
) -> Tape:
    """Roles are TEMPORARY, and units -1, unless given."""
    all_sizes = np.array(list(sizes), np.int64)
    count = len(all_sizes)
    return Tape(
        sizes=all_sizes,
        roles=np.array(list(roles) or [Role.TEMPORARY] * count, np.uint8),
        units=np.array(list(units) or [-1] * count, np.int16),
        events=np.array(list(events), np.int32),
        marks=marks,
        streams=np.array(list(streams), np.uint8),
    )


_SIZES = st.one_of(
    st.integers(0, 4 * KIB),
    st.integers(4 * KIB, MIB),
    st.integers(MIB, 12 * MIB),
    st.sampled_from([MIB, MIB + 1, 10 * MIB - 512, 10 * MIB, 21 * MIB, 60 * MIB]),
)


@st.composite
def random_tapes(draw: st.DrawFn, streams: int = 1) -> Tape:
    """Any order of making and freeing."""
    choices = draw(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 1 << 20), _SIZES), max_size=60))
    sizes: list[int] = []
    events: list[int] = []
    live: list[int] = []
    for kind, pick, size in choices:
        if live and kind == 0:
            events.append(~live.pop(pick % len(live)))
        else:
            live.append(len(sizes))
            events.append(len(sizes))
            sizes.append(size)
    on = draw(st.lists(st.integers(0, streams - 1), min_size=len(sizes), max_size=len(sizes))) if streams > 1 else []
    roles = draw(st.lists(st.sampled_from(Role), min_size=len(sizes), max_size=len(sizes)))
    return tape_of(sizes, events, marks=(Mark(0, Moment.STEP), Mark(len(events), Moment.END)), roles=roles, streams=on)
