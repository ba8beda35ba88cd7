"""One walk from its start to its last check."""

from __future__ import annotations

from hypothesis import note
from hypothesis import strategies as st

from tests.machine.checks import check_at_rest, check_progress, check_promises, come_to_rest
from tests.machine.kinds import KINDS
from tests.machine.walk import Walk

# One draw for a whole walk: Hypothesis then neither favors choices that it made before nor spends time on each.
CHOICES = st.binary(min_size=500, max_size=900)
_STEPS = range(10, 60)


def take_walk(choices: bytes) -> None:
    walk = Walk(choices, KINDS)
    try:
        for _ in range(walk.pick(_STEPS)):
            walk.step()
            check_promises(walk)
        come_to_rest(walk)
        check_promises(walk)
        check_at_rest(walk)
        check_progress(walk)
    except AssertionError:
        note(" | ".join(walk.choices.trace))
        raise
    finally:
        walk.stop()
