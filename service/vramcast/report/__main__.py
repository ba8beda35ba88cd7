"""`python -m vramcast.report train.py ...`, or `-m package.module ...`, runs it as python would, and reports."""

from __future__ import annotations

import os
import runpy
import sys

USAGE = """usage: python -m vramcast.report SCRIPT [ARGUMENT ...]
       python -m vramcast.report -m MODULE [ARGUMENT ...]

Runs a training script as python would. When it ends, its peak GPU memory is written to the container's
termination message, or to the file that VRAMCAST_REPORT_FILE names. vramcast reads it there.

  python -m vramcast.report train.py --epochs 3
  torchrun --nproc-per-node 4 -m vramcast.report train.py
"""


def main(arguments: list[str]) -> None:
    as_module = arguments[:1] == ["-m"]
    target = arguments[1:] if as_module else arguments
    if not target or (target[0] in ("-h", "--help") and not as_module):
        sys.exit(USAGE if not target else _help())
    sys.argv = target
    if as_module:
        # As `python -m` does. This program was started so too, hence sys.path[0] is the working directory already.
        runpy.run_module(target[0], run_name="__main__", alter_sys=True)
    else:
        sys.path[0] = os.path.dirname(os.path.abspath(target[0]))
        runpy.run_path(target[0], run_name="__main__")


def _help() -> int:
    sys.stdout.write(USAGE)
    return 0


main(sys.argv[1:])
