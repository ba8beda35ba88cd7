"""Compiles the allocator's replay loop into the wheel, if there is a C compiler; without one the wheel is pure Python.

The library uses nothing of Python's C interface, so one build serves every version of Python.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

SOURCE = Path("service/vramcast/forecast/allocator.c")
LIBRARY = SOURCE.with_name("_allocator.so")


class CompileAllocator(BuildHookInterface[Any]):
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:  # noqa: ARG002  # hatchling's interface
        root = Path(self.root)
        command = shlex.split(os.environ.get("CC", "cc"))
        if shutil.which(command[0]) is None:
            print(f"no C compiler ({command[0]}): replays will run in Python, some forty times slower", file=sys.stderr)  # noqa: T201
            return
        options = ["-O2", "-shared", "-fPIC", "-o", str(root / LIBRARY), str(root / SOURCE)]
        subprocess.run([*command, *options], check=True)  # noqa: S603  # the compiler that the user named
        build_data["artifacts"].append(str(LIBRARY))
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{sysconfig.get_platform().replace('-', '_').replace('.', '_')}"
