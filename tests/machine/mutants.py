"""Faults that the machine must find: `python -m tests.machine.mutants` puts each into a copy of the package and walks.

Most of them were in the code once. A search that cannot find them would prove nothing by finding nothing.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import vramcast

PACKAGE = Path(vramcast.__file__).parent
ROOT = Path(__file__).parents[2]


@dataclass(frozen=True, slots=True)
class Edit:
    file: str
    old: str
    new: str


@dataclass(frozen=True, slots=True)
class Mutant:
    name: str
    edits: tuple[Edit, ...]


def mutant(name: str, *edits: tuple[str, str, str]) -> Mutant:
    return Mutant(name, tuple(Edit(*edit) for edit in edits))


_DROP_BY_POD = """if (own := {ledger}.promise_of(promise.uid)) and own.state != "bound":
                {ledger}._drop_promise(own.uid, own.node)"""
BIND, FILTER = "api/bind.py", "api/filter.py"
LEDGER, STATE = "placement/ledger.py", "placement/state.py"
MAINTENANCE, TAKEOVER, LEADERSHIP = "controllers/maintenance.py", "controllers/takeover.py", "controllers/leadership.py"

MUTANTS = (
    mutant(
        "a stale read withdraws the next bind's promise",
        (MAINTENANCE, "service.state.ledger.withdraw(promise)", _DROP_BY_POD.format(ledger="service.state.ledger")),
    ),
    mutant(
        "a refused bind withdraws another bind's promise",
        (
            BIND, "case Fate.REFUSED:\n            ledger.withdraw(promise)",
            "case Fate.REFUSED:\n            " + _DROP_BY_POD.format(ledger="ledger"),
        ),
    ),
    mutant("a stale read revives a pod that is gone", (LEDGER, "        self._gone[uid] = None\n", "")),
    mutant(
        "a list ends what was bound after it began",
        (LEDGER, "if uid not in present and all(self._promises[node][uid].made_at < listed_at for node in nodes)",
         "if uid not in present"),
    ),
    mutant("holds never expire", (LEDGER, "if hold.expires_at <= now]", "if False]")),
    mutant(
        "a hold is renewed for ever",
        (LEDGER, "return now - since < self._hold_ttl_seconds", "return True"),
        (LEDGER, "self._held_since.get(demand.uid, now) + self._hold_ttl_seconds", "now + self._hold_ttl_seconds"),
    ),
    mutant(
        "filter remembers a pod that ended while it waited",
        (FILTER, "if state.is_gone(pod.uid, started):", "if False:"),
    ),
    mutant(
        "an edit of a bound pod changes its promise",
        (STATE, "if known is not None and known.node == pod.node is not None:", "if False:"),
        (STATE, "(own.state is State.BOUND or (own.attempt and not _bound_by_another(own, pod)))", "False"),
    ),
    mutant(
        "a bind without an answer counts as refused",
        (BIND, "case Fate.UNKNOWN:\n            ledger.leave_unconfirmed(promise, service.clock())",
         "case Fate.UNKNOWN:\n            ledger.withdraw(promise)"),
    ),
    mutant(
        "an unconfirmed bind is resolved while its write may still arrive",
        (MAINTENANCE, "service.clock() - service.settings.unconfirmed_ttl_seconds", "service.clock()"),
    ),
    mutant("bind takes room without looking", (LEDGER, "if not decision.fits[0] or", "if")),
    mutant("a takeover touches no pod", (TAKEOVER, "[pod for pod in pods if pod.node is None]", "[]")),
    mutant(
        "a takeover ignores what its touch shows",
        (TAKEOVER, "for pod in touched if pod is not None]", "for pod in touched if pod is not None and not pod.node]"),
    ),
    mutant(
        "a takeover trusts its watch",
        (TAKEOVER, "service.apply([PodSeen(pod, read_at=started) for pod in pods])", "pass"),
    ),
    mutant("Bindings name no version", (BIND, "resource_version if fenced else", 'resource_version if False else')),
    mutant(
        "a version is renewed across a takeover",
        (STATE, "newer.scheduling.requeued == filtered.scheduling.requeued and _is_newer", "_is_newer"),
    ),
    mutant(
        "a leader does not notice that its Lease has run out",
        (LEADERSHIP, "self._term is not None and self._clock() < self._safe_until", "self._term is not None"),
    ),
    mutant(
        "a former leader counts what it tried, not what the next leader wrote",
        (STATE, "return promise.mark is not None and pod.scheduling.requeued != promise.mark", "return False"),
    ),
    mutant(
        "a leader repeats what it tried before another led",
        (TAKEOVER, "service.state.ledger.withdraw_all(pod.uid)", "pass"),
    ),
    mutant(
        "a pod is kept out by its own promise",
        (LEDGER, "return self._count_own_promises(decision) if demand.uid in self._nodes_of_pod else decision",
         "return decision"),
    ),
    mutant(
        "a member of a gang holds every node",
        (FILTER, "1 if decision.demand.gang else settings.most_nodes_offered", "settings.most_nodes_offered"),
    ),
    mutant(
        "a gang that is not bound keeps its holds",
        (LEDGER, "expires_at=min(hold.expires_at, expires_at)", "expires_at=hold.expires_at"),
    ),
)  # fmt: skip


def apply(found: Mutant, package: Path) -> None:
    """Every edit must still name one place in the code."""
    for edit in found.edits:
        path = package / edit.file
        text = path.read_text()
        assert text.count(edit.old) == 1, f"{found.name}: {text.count(edit.old)} places in {edit.file}: {edit.old}"
        path.write_text(text.replace(edit.old, edit.new))


def walks_until_found(found: Mutant, most: int, seed: int) -> int | None:
    """None if it was not found."""
    with tempfile.TemporaryDirectory() as directory:
        package = Path(directory) / "vramcast"
        shutil.copytree(PACKAGE, package, ignore=shutil.ignore_patterns("__pycache__"))
        apply(found, package)
        done = subprocess.run(
            [sys.executable, "-m", "tests.machine.search", str(most), str(seed)],
            cwd=ROOT, env={**os.environ, "PYTHONPATH": directory}, capture_output=True, text=True, check=False,
        )  # fmt: skip
    last = done.stderr.rstrip().rpartition("\n")[2]
    assert done.returncode == 0 or last.startswith("found in "), done.stderr
    return int(last.split()[2]) if done.returncode else None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--walks", type=int, default=600, help="most walks in one search")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3], help="one search each")
    parser.add_argument("--only", default="", help="mutants whose name contains this")
    asked = parser.parse_args()
    missed = 0
    for each in MUTANTS:
        if asked.only not in each.name:
            continue
        results = [walks_until_found(each, asked.walks, seed) for seed in asked.seeds]
        missed += results.count(None)
        cells = ("-" if walks is None else str(walks) for walks in results)
        print(f"| {each.name} | {' | '.join(cells)} |", flush=True)
    sys.exit(f"{missed} searches found nothing" if missed else 0)


if __name__ == "__main__":
    main()
