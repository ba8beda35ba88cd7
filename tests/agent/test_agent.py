"""From what the driver says to what Prometheus reads, with NVIDIA's own binding on a library that reads a file."""

from __future__ import annotations

import httpx
import pytest
from structlog.testing import capture_logs

from tests.agent.conftest import Agent
from tests.agent.machine import FakeProcess, Machine, systemd_cgroup
from tests.controlplane import eventually
from tests.serve.running import run_to_the_end
from vramcast.outcomes.agent_series import MEMORY, UTILIZATION

ONE = "11111111-aaaa-4bbb-8ccc-0123456789ab"
TWO = "22222222-aaaa-4bbb-8ccc-0123456789ab"


def share_a_gpu(machine: Machine) -> list[FakeProcess]:
    """Two processes of one pod, one of another, and one of the host."""
    for pid, uid in ((10, ONE), (11, ONE), (20, TWO)):
        machine.add_process(pid, systemd_cgroup(uid))
    machine.add_process(30, "0::/user.slice/user-1000.slice/session-3.scope\n")
    return [
        FakeProcess(10, 3_000, 40),
        FakeProcess(11, 1_000, 20),
        FakeProcess(20, 2_000, 10),
        FakeProcess(30, 500),
    ]


def test_memory_and_utilization_are_summed_by_pod(agent: Agent) -> None:
    agent.machine.gpus = 2
    agent.machine.show(share_a_gpu(agent.machine))
    scrape = agent.scrape()
    assert scrape.by_pod(MEMORY) == {"": 6_500, ONE: 4_000, TWO: 2_000}
    # Each process is busy by its percentage on average, 5 % more or less in its two samples.
    assert scrape.by_pod(UTILIZATION) == {"": 50, ONE: 60, TWO: 10}
    assert scrape.by_pod(MEMORY, gpu=1) == {"": 0}
    assert scrape.blind() == scrape.blind(gpu=1) == []
    (labels,) = [found for name, found, _ in scrape.samples if name == MEMORY and found["pod_uid"] == TWO]
    assert labels == {"Hostname": "a", "gpu": "0", "UUID": "GPU-a-0", "pod_uid": TWO, "told_apart": "yes"}


def test_a_process_in_two_lists_counts_once(agent: Agent) -> None:
    agent.machine.add_process(10, systemd_cgroup(ONE))
    agent.machine.show([FakeProcess(10, 3_000), FakeProcess(10, 3_000, kind="graphics")])
    assert agent.scrape().by_pod(MEMORY) == {"": 3_000, ONE: 3_000}


def test_without_utilization_by_process_only_the_whole_gpus_is_exported(agent: Agent) -> None:
    agent.machine.show(share_a_gpu(agent.machine), {"nvmlDeviceGetProcessUtilization": 3})
    scrape = agent.scrape()
    assert scrape.by_pod(UTILIZATION) == {"": 50}
    assert scrape.by_pod(MEMORY)[ONE] == 4_000


def test_pods_that_did_nothing_have_a_utilization_of_0(agent: Agent) -> None:
    agent.machine.add_process(10, systemd_cgroup(ONE))
    agent.machine.show([FakeProcess(10, 3_000)])
    assert agent.scrape().by_pod(UTILIZATION) == {"": 50, ONE: 0}


def test_an_old_driver_counts_its_reserve_as_used(agent: Agent) -> None:
    agent.machine.show(share_a_gpu(agent.machine), {"nvmlDeviceGetMemoryInfo_v2": 13})
    assert agent.scrape().by_pod(MEMORY) == {"": 6_950, ONE: 4_000, TWO: 2_000}


@pytest.mark.parametrize(
    ("errors", "more", "why"),
    [
        ({"nvmlDeviceGetComputeRunningProcesses_v3": 13}, [], "old_driver"),
        ({"nvmlDeviceGetComputeRunningProcesses_v3": 3}, [], "old_driver"),
        ({"nvmlDeviceGetComputeRunningProcesses_v3": 4}, [], "not_permitted"),
        ({}, [FakeProcess(20, None)], "no_memory"),
        ({}, [FakeProcess(20, None, kind="mps")], "no_memory"),
        ({}, [FakeProcess(99, 100)], "not_visible"),
        ({}, [FakeProcess(40, 100)], "mps"),
        ({}, [FakeProcess(50, 100)], "unknown_cgroup"),
    ],
)
def test_processes_that_cannot_be_told_apart_are_not_guessed(
    agent: Agent, errors: dict[str, int], more: list[FakeProcess], why: str
) -> None:
    machine, processes = agent.machine, share_a_gpu(agent.machine)
    machine.add_process(40, "0::/system.slice/mps.service\n", "nvidia-cuda-mps")
    machine.add_process(50, "0::/kubepods.slice/kubepods-novel.slice/something\n")
    machine.show([*processes, *more], errors)
    with capture_logs() as lines:
        scrape = agent.scrape()
        agent.scrape()
    assert scrape.by_pod(MEMORY).keys() == scrape.by_pod(UTILIZATION).keys() == {""}
    assert scrape.blind() == [why]
    assert [found["told_apart"] for name, found, _ in scrape.samples if name == MEMORY] == ["no"]
    assert [line["why"] for line in lines] == [why]


def test_clients_of_mps_count_where_the_driver_lists_them(agent: Agent) -> None:
    agent.machine.add_process(40, "0::/system.slice/mps.service\n", "nvidia-cuda-mps")
    agent.machine.add_process(10, systemd_cgroup(ONE))
    agent.machine.show([FakeProcess(40, 30), FakeProcess(10, 3_000, kind="mps")])
    scrape = agent.scrape()
    assert scrape.by_pod(MEMORY) == {"": 3_030, ONE: 3_000}
    assert scrape.blind() == []


def test_a_node_with_slices_is_left_to_the_vendors_exporter(agent: Agent) -> None:
    agent.machine.gpus, agent.machine.sliced = 2, {1}
    agent.machine.show(share_a_gpu(agent.machine))
    scrape = agent.scrape()
    assert scrape.blind(gpu=0) == scrape.blind(gpu=1) == ["mig"]
    assert scrape.by_pod(MEMORY) == {"": 6_500}


def test_once_processes_can_be_told_apart_again_the_log_says_so(agent: Agent) -> None:
    processes = share_a_gpu(agent.machine)
    with capture_logs() as lines:
        agent.machine.show([*processes, FakeProcess(99, 100)])
        agent.scrape()
        agent.machine.show(processes)
        assert agent.scrape().blind() == []
    assert [line["event"] for line in lines] == ["processes cannot be told apart", "processes can be told apart"]


def test_two_scrapes_in_a_second_ask_the_driver_once(agent: Agent) -> None:
    agent.looks.clock = lambda: 0.0
    agent.machine.show(share_a_gpu(agent.machine))
    agent.scrape()
    agent.machine.show([])
    assert agent.scrape().by_pod(MEMORY)[""] == 6_500


def test_as_a_process_it_answers_probes_and_recovers_with_the_driver(machine: Machine) -> None:
    processes = share_a_gpu(machine)
    machine.show(processes)
    machine.start()
    assert machine.scrape().by_pod(MEMORY) == {"": 6_500, ONE: 4_000, TWO: 2_000}
    assert httpx.get(f"{machine.url}/").status_code == 404

    def health() -> int:
        return httpx.get(f"{machine.url}/healthz").status_code

    machine.show(processes, {"nvmlDeviceGetCount_v2": 999})
    eventually(lambda: health() == 503, what="the probe to fail")
    scrape = machine.scrape()
    assert scrape.by_pod(MEMORY) == {}
    assert scrape.value("vramcast_agent_failures_total") >= 1
    machine.show(processes)
    eventually(lambda: health() == 200, what="the probe to succeed")
    machine.process.terminate(grace_seconds=60)
    assert "agent started" in machine.process.log_tail(10)
    assert "Traceback" not in machine.process.log_tail(100)


def test_without_the_drivers_library_it_says_what_to_do() -> None:
    done = run_to_the_end("agent", "--node", "a", "--port", "0", environ={"LD_LIBRARY_PATH": ""})
    assert done.returncode == 2
    assert "libnvidia-ml.so.1" in done.stderr
    assert "agent.runtimeClassName" in done.stderr
