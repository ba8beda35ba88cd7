"""Commands of the test control plane:

python -m tests.controlplane build           build its programs into the user's cache
python -m tests.controlplane up              run a control plane until ctrl-C
python -m tests.controlplane helm ...        run the pinned Helm
python -m tests.controlplane actionlint ...  run the pinned actionlint
"""

from __future__ import annotations

import os
import signal
import sys
import time
from contextlib import suppress

from .binaries import ACTIONLINT, HELM, BuildError, built_binaries, built_program
from .plane import ControlPlane

TOOLS = {"helm": HELM, "actionlint": ACTIONLINT}


def main() -> int:
    command, *arguments = sys.argv[1:] or [""]
    if command not in ("build", "up", *TOOLS) or (arguments and command not in TOOLS):
        print(__doc__, file=sys.stderr)
        return 2
    try:
        if command in TOOLS:
            program = str(built_program(TOOLS[command], command))
            os.execv(program, [program, *arguments])
        binaries = built_binaries()
    except BuildError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    if command == "build":
        print(f"control plane: built in {binaries.etcd.parents[2]}")
        return 0
    return _up(ControlPlane(binaries))


def _up(plane: ControlPlane) -> int:
    # Handle SIGTERM like ctrl-C, or the temporary directory is left behind.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    started = time.monotonic()
    with plane:
        plane.scheduler()
        print(f"control plane: up after {time.monotonic() - started:.1f} s; logs in {plane.directory}")
        print(f"export KUBECONFIG={plane.kubeconfig}")
        print(f"export PATH={plane.binaries.kubectl.parent}:$PATH", flush=True)
        with suppress(KeyboardInterrupt):
            signal.pause()
    return 0


if __name__ == "__main__":
    sys.exit(main())
