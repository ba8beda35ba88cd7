"""`python -m tests.controlplane build` fills the cache; `up` runs a control plane until ctrl-C; `helm ...` is Helm."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from contextlib import suppress

from .binaries import BuildError, built_binaries
from .plane import ControlPlane


def main() -> int:
    if sys.argv[1:2] == ["helm"]:
        helm = str(built_binaries().helm)
        os.execv(helm, [helm, *sys.argv[2:]])
    parser = argparse.ArgumentParser(prog="python -m tests.controlplane", description=__doc__)
    parser.add_argument("command", choices=("build", "up"))
    command = parser.parse_args().command
    try:
        binaries = built_binaries()
    except BuildError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    if command == "build":
        print(f"control plane: ready in {binaries.etcd.parents[2]}")
        return 0
    return _up(ControlPlane(binaries))


def _up(plane: ControlPlane) -> int:
    # A plain kill must end it as ctrl-C does, or the directory would stay behind.
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
