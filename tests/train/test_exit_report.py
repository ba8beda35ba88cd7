"""The exit report beside the real torch, on the CPU: it counts steps, and every rank of torchrun is in it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch

import vramcast
from vramcast.report.message import split

TRAIN = """
import time, torch
import vramcast.report.reporter as reporter
while not reporter._reporter._steps._counting:
    time.sleep(0.01)
model = torch.nn.Linear(8, 1)
optimizers = [torch.optim.AdamW(model.parameters()), torch.optim.SGD(model.parameters())]
for _ in range(7):
    model(torch.randn(4, 8)).sum().backward()
    for optimizer in optimizers:
        optimizer.step()
"""


def run(folder: Path, *launcher: str) -> dict[str, Any]:
    (folder / "train.py").write_text(TRAIN)
    environment = {
        **{name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE")},
        "PYTHONPATH": str(Path(vramcast.__file__).parents[1]),
        "VRAMCAST_REPORT_FILE": str(folder / "message"),
    }
    command = [sys.executable, *launcher, "-m", "vramcast.report", str(folder / "train.py")]
    subprocess.run(command, check=True, env=environment, cwd=folder, capture_output=True)
    processes = split((folder / "message").read_bytes())[1]["processes"]
    assert isinstance(processes, dict)
    return processes


def test_steps_of_the_first_optimizer_are_counted(tmp_path: Path) -> None:
    (facts,) = run(tmp_path).values()
    assert facts["steps"] == 7
    assert facts["steps_per_second"] > 0
    assert facts["gpus"] == {}
    assert facts["versions"]["torch"] == torch.__version__


def test_every_rank_of_torchrun_reports(tmp_path: Path) -> None:
    launcher = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    ranks = {name: facts for name, facts in run(tmp_path, *launcher).items() if name.startswith("rank")}
    assert ranks.keys() == {"rank 0", "rank 1"}
    assert {facts["steps"] for facts in ranks.values()} == {7}


def test_what_it_reads_of_torch_is_there() -> None:
    """Without a GPU nothing calls these. A torch that renamed one would leave reports empty, silently."""
    assert issubclass(torch.OutOfMemoryError, RuntimeError)
    assert torch.cuda.is_initialized() is False
    for name in ("memory_stats", "device_count", "get_device_properties"):
        assert callable(getattr(torch.cuda, name))
