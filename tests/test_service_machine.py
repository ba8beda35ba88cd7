"""The whole service against an API server whose every answer Hypothesis may delay, lose or overtake.

Each call of the service to the API server has two moments, when it is handled and when its answer arrives. Between them
anything may happen: watch events, a second bind, an edit, the end of the pod, a takeover by the other replica, a
restart. In every order, the pods that vramcast binds to a GPU never add up to more than it has. In the end the ledger
matches the API server, pods that are gone are forgotten, and every pod that fits is placed.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
import structlog
from hypothesis import given, settings

from tests.machine.mutants import MUTANTS, PACKAGE, Mutant
from tests.machine.take import CHOICES, take_walk

# Without it the same walks every time. CONTRIBUTING.md has the longer search.
WALKS = os.environ.get("WALKS")


@pytest.fixture(autouse=True, scope="module")
def quiet() -> Iterator[None]:
    """Thousands of decisions, of which nobody reads the log."""
    before = structlog.get_config()
    structlog.configure(logger_factory=structlog.ReturnLoggerFactory())
    yield
    structlog.configure(**before)


@pytest.mark.timeout(3600)
@settings(max_examples=int(WALKS or 300), derandomize=WALKS is None, deadline=None)
@given(CHOICES)
def test_no_order_of_events_breaks_a_promise(choices: bytes) -> None:
    take_walk(choices)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_every_mutant_still_has_its_place_in_the_code(mutant: Mutant) -> None:
    """That the search finds it takes minutes: `python -m tests.machine.mutants`."""
    for edit in mutant.edits:
        assert (PACKAGE / edit.file).read_text().count(edit.old) == 1, edit
