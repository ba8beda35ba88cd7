"""Faults at scale: binds through the real kube-scheduler while services, API server, network and clocks fail.

    python -m bench.chaos --out docs/benchmarks/chaos.md

Exits with 1 if a GPU was promised twice, a pod with room was not bound, or a bind took more than 5 s after a fault.
The same seed draws the same faults in the same order.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from .report import report
from .run import Plan, play
from .stage import Size


def main() -> None:
    options = _options()
    plan = Plan(options.seed, options.binds, size=Size(options.nodes))
    outcome = play(plan, lambda line: print(line, flush=True))
    if options.out:
        options.out.write_text(report(outcome))
    print(report(outcome))
    late = [f"fault {f.number} ({f.kind}): {f.back_seconds:.1f} s to the next bind" for f in outcome.late]
    problems = [*outcome.failures(), *late]
    for problem in problems:
        print(f"FAILED (seed {plan.seed}): {problem}", file=sys.stderr)
    sys.exit(bool(problems))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="the markdown file to write")
    parser.add_argument("--binds", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--nodes", type=int, default=Size().nodes, help="with 4 GPUs each")
    return parser.parse_args()


if __name__ == "__main__":
    main()
