"""KAI's and Volcano's own code reads what the webhook wrote, and sees the bytes that were meant.

The module proxy does not have HAMi. Volcano's reader of vGPUs takes the names of the resources as arguments and treats
them as HAMi's GenerateResourceRequests does: each container's limits, a memory that must be an integer, and the whole
GPU without it. So it stands in for HAMi's.
"""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.admission.pods import MODEL, admitted, new_pod
from tests.admission.test_dialects import NEED_MIB, asking, context, needs
from tests.controlplane.binaries import DIALECTS, built_program

pytestmark = pytest.mark.e2e

HAMI = ("nvidia.com/gpu", "nvidia.com/gpumem", "nvidia.com/gpumem-percentage", "nvidia.com/gpucores")
VOLCANO = tuple(f"volcano.sh/vgpu-{part}" for part in ("number", "memory", "memory-percentage", "cores"))


@pytest.fixture(scope="module")
def programs() -> Path:
    return built_program(DIALECTS, "kai").parent


def seen_by(program: Path, pod: Any, *arguments: str) -> Any:
    done = subprocess.run([program, *arguments], input=msgspec.json.encode(pod), capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()
    return msgspec.json.decode(done.stdout)


@pytest.mark.parametrize("gpus", [1, 2])
def test_kai_sees_the_memory_of_each_gpu(programs: Path, gpus: int) -> None:
    described = new_pod({**MODEL, "gpus": str(gpus)}, schedulerName="kai-scheduler")
    pod = admitted(described, context("kai", needs(gpus)))
    assert seen_by(programs / "kai", pod) == {"mib": NEED_MIB, "devices": gpus, "shares": True}


def test_kai_does_not_understand_a_quantity(programs: Path) -> None:
    """Otherwise the unit above would not matter."""
    found = seen_by(programs / "kai", new_pod(annotations={"gpu-memory": "10Gi"}))
    assert found["mib"] == 0
    assert "failed to parse GPU memory annotation" in found["error"]


@pytest.mark.parametrize(("dialect", "names"), [("hami", HAMI), ("volcano", VOLCANO)])
@pytest.mark.parametrize(("factor", "read"), [(1, NEED_MIB), (10, 1001)])
def test_volcano_sees_the_memory_of_each_gpu_of_each_container(
    programs: Path, dialect: str, names: tuple[str, ...], factor: int, read: int
) -> None:
    containers = asking({names[0]: "2"}, {"cpu": "1"}, {names[0]: "1"})
    pod = admitted(new_pod(containers=containers), context(f"{dialect}:{factor}"))
    found = seen_by(programs / "volcano", pod, *names)
    assert [(each["Nums"], each["Memreq"]) for each in found] == [(2, read), (1, read)]
    assert read * factor >= NEED_MIB


@pytest.mark.parametrize("names", [HAMI, VOLCANO], ids=["hami", "volcano"])
def test_without_a_number_a_pod_would_take_the_whole_gpu(programs: Path, names: tuple[str, ...]) -> None:
    (found,) = seen_by(programs / "volcano", new_pod(containers=asking({names[0]: "1"})), *names)
    assert (found["Memreq"], found["MemPercentagereq"]) == (0, 100)
