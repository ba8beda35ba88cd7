"""The short version of bench/chaos: every kind of fault twice, judged by the API server's own history.

How fast it recovers and how long a pod waits depends on the machine, so only the benchmark limits that. Here they have
minutes.
"""

from __future__ import annotations

from collections import Counter

import pytest
from bench.chaos.faults import KINDS
from bench.chaos.run import Plan, play
from bench.chaos.stage import Size

from tests.chart.conftest import QUICK_LEASE
from tests.controlplane import PATIENCE_SECONDS

pytestmark = pytest.mark.e2e

ROUNDS = 2
PLAN = Plan(
    seed=12,
    binds=0,
    rounds=ROUNDS,
    size=Size(nodes=10),
    gap_seconds=1.0,
    pace=0.4,
    lease=QUICK_LEASE,
    longest_wait_seconds=PATIENCE_SECONDS,
)


def test_no_fault_overfills_a_gpu_or_leaves_a_pod_behind() -> None:
    outcome = play(PLAN, print)
    assert not outcome.failures(), "\n".join(outcome.failures())
    assert all(fault.back_seconds < float("inf") for fault in outcome.faults)
    assert Counter(fault.kind for fault in outcome.faults) == {kind.__name__: ROUNDS for kind in KINDS}
    # With hardly any binds between the faults, the rest would prove little.
    assert outcome.binds > 5 * len(outcome.faults)
