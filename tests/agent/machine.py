"""A GPU node without GPUs: NVIDIA's own binding on a library that reads a file, and processes of pods."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.controlplane import PATIENCE_SECONDS, Process, eventually, free_port

NAME = "libnvidia-ml.so.1"
SOURCE = Path(__file__).with_name("fake_nvml.c")
CONTAINER = "f" * 64


def build_library(directory: Path) -> Path:
    """The directory for LD_LIBRARY_PATH."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("needs a C compiler")
    directory.mkdir(parents=True, exist_ok=True)
    out = directory / NAME
    flags = ["-Wall", "-Werror", "-shared", "-fPIC", f"-Wl,-soname,{NAME}"]
    subprocess.run([compiler, *flags, "-o", out, SOURCE], check=True)
    return directory


def systemd_cgroup(uid: str) -> str:
    """As containerd with the systemd driver makes it, on cgroup v2."""
    pod = f"kubepods-burstable-pod{uid.replace('-', '_')}.slice"
    return f"0::/kubepods.slice/kubepods-burstable.slice/{pod}/cri-containerd-{CONTAINER}.scope\n"


@dataclass(frozen=True, slots=True)
class FakeProcess:
    """`mib` None: the driver does not say. `kind`: compute, graphics or mps."""

    pid: int
    mib: int | None
    percent: int | None = None
    gpu: int = 0
    kind: str = "compute"

    def __str__(self) -> str:
        mib = "-" if self.mib is None else self.mib
        return f"process {self.gpu} {self.kind} {self.pid} {mib} {'' if self.percent is None else self.percent}"


@dataclass(slots=True)
class Machine:
    """`gpus`: how many. Their processes use all that the GPUs use. Its agent is a process once it is started."""

    directory: Path
    library: Path
    gpus: int = 1
    node: str = "a"
    sliced: set[int] = field(default_factory=set)
    proc: Path = field(init=False)
    process: Process = field(init=False)
    url: str = field(init=False)

    def __post_init__(self) -> None:
        self.proc = self.directory / "proc"
        self.proc.mkdir(parents=True)
        self.show([])
        self._set_up(["--proc", str(self.proc)])

    def _set_up(self, arguments: Sequence[str], wrapper: Sequence[str] = ()) -> None:
        port = free_port()
        self.url = f"http://127.0.0.1:{port}"
        flags = ["--node", self.node, "--host", "127.0.0.1", "--port", str(port), *arguments]
        command = [*wrapper, sys.executable, "-m", "vramcast", "agent", *flags]
        environment = {"LD_LIBRARY_PATH": str(self.library), "FAKE_NVML_FILE": str(self.directory / "nvml")}
        self.process = Process("agent", command, self.directory / "agent.log", environment)

    def use_real_processes(self, *wrapper: str) -> None:
        self._set_up([], wrapper)

    def start(self) -> None:
        self.process.start()
        eventually(self.answers, what="the agent to answer")

    def answers(self) -> bool:
        self.process.check_alive()
        try:
            return httpx.get(f"{self.url}/healthz", timeout=PATIENCE_SECONDS).status_code in (200, 503)
        except httpx.TransportError:
            return False

    def show(self, processes: Iterable[FakeProcess], errors: Mapping[str, int] | None = None) -> None:
        """What NVML says from now on."""
        processes = list(processes)
        lines = []
        for gpu in range(self.gpus):
            here = {process.pid: process.mib or 0 for process in processes if process.gpu == gpu}
            mig = " mig" if gpu in self.sliced else ""
            lines.append(f"gpu {gpu} GPU-{self.node}-{gpu} {sum(here.values())} {50 if here else 0}{mig}")
        lines += [str(process) for process in processes]
        lines += [f"error {function} {code}" for function, code in (errors or {}).items()]
        new = self.directory / "nvml.new"
        new.write_text("\n".join([*lines, ""]))
        os.replace(new, self.directory / "nvml")

    def add_process(self, pid: int, cgroup: str, command: str = "python") -> None:
        """In the tree that stands for /proc."""
        (self.proc / str(pid)).mkdir(exist_ok=True)
        (self.proc / str(pid) / "cgroup").write_text(cgroup)
        (self.proc / str(pid) / "comm").write_text(f"{command}\n")

    def scrape(self) -> Scrape:
        return Scrape(httpx.get(f"{self.url}/metrics", timeout=PATIENCE_SECONDS).raise_for_status().text)


class Scrape:
    """One answer of /metrics."""

    def __init__(self, text: str) -> None:
        families = text_string_to_metric_families(text)
        self.samples = [(s.name, s.labels, s.value) for family in families for s in family.samples]

    def by_pod(self, metric: str, gpu: int = 0) -> dict[str, float]:
        """By UID. The whole GPU is under the empty name."""
        return {
            labels["pod_uid"]: value
            for name, labels, value in self.samples
            if name == metric and labels["gpu"] == str(gpu)
        }

    def blind(self, gpu: int = 0) -> list[str]:
        return [
            labels["why"]
            for name, labels, value in self.samples
            if name == "vramcast_agent_blind" and labels["gpu"] == str(gpu) and value
        ]

    def value(self, metric: str) -> float:
        (found,) = [value for name, _, value in self.samples if name == metric]
        return found
