from __future__ import annotations

import ctypes
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from tests.agent.machine import NAME, Machine, Scrape, build_library
from vramcast.agent.exporter import Looks
from vramcast.agent.nvml import Nvml


@pytest.fixture(scope="session")
def fake_nvml(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_library(tmp_path_factory.mktemp("nvml"))


@pytest.fixture
def machine(fake_nvml: Path, tmp_path: Path) -> Iterator[Machine]:
    """Its agent is not started yet."""
    machine = Machine(tmp_path, fake_nvml)
    yield machine
    machine.process.terminate()


class Agent:
    """The agent without its process and its port: starting a process for each case would take a while."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.nvml = Nvml()
        # A second passes between any two looks.
        self.looks = Looks(self.nvml, machine.node, machine.proc, clock=count().__next__)
        self._registry = CollectorRegistry()
        self._registry.register(self.looks)

    def scrape(self) -> Scrape:
        return Scrape(generate_latest(self._registry).decode())


@pytest.fixture
def agent(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> Iterator[Agent]:
    monkeypatch.setenv("FAKE_NVML_FILE", str(machine.directory / "nvml"))
    # The binding opens the library by its name, and finds the one that is loaded.
    ctypes.CDLL(str(machine.library / NAME))
    agent = Agent(machine)
    yield agent
    agent.nvml.close()
