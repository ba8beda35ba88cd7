"""`vramcast profile --measure DIR`: runs a few real steps on this machine's GPU and writes a record for training."""

from __future__ import annotations

import csv
import gzip
import json
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from vramcast.errors import InvalidInput, WorldUnavailable
from vramcast.profile.inputs import Inputs, arguments
from vramcast.task.task import Task
from vramcast.task.vocabulary import Optimizer, Precision

_STEPS = 5
_COLUMNS = (
    "source", "profile", "gpu", "batch_size", "precision", "optimizer", "memory_mib", "memory_kind", "outcome",
    "gpu_util", "sm_active", "sm_occupancy", "fp32_active",
)  # fmt: skip
_OPTIMIZERS: dict[Optimizer, Callable[..., torch.optim.Optimizer]] = {
    Optimizer.SGD: lambda weights: torch.optim.SGD(weights, lr=1e-3),
    Optimizer.SGD_MOMENTUM: lambda weights: torch.optim.SGD(weights, lr=1e-3, momentum=0.9),
    Optimizer.ADAM: torch.optim.Adam,
    Optimizer.ADAMW: torch.optim.AdamW,
    Optimizer.RMSPROP: torch.optim.RMSprop,
    Optimizer.ADAGRAD: torch.optim.Adagrad,
}
_MIXED = {Precision.AMP_FP16: torch.float16, Precision.AMP_BF16: torch.bfloat16}


def need_gpu() -> None:
    if not torch.cuda.is_available():
        raise InvalidInput(
            "--measure runs real steps, but this machine has no CUDA GPU: run the command on one that does, or omit "
            "--measure to get a forecast"
        )


def measure(
    build: Callable[[], nn.Module], inputs: Inputs, task: Task, profile: Mapping[str, Any], data: Path
) -> dict[str, str]:
    """Appends a row to `measurements.csv`, and the profile to `profiles/measured.jsonl.gz`."""
    outcome = "ok"
    try:
        _run_steps(build().cuda().train(), inputs, task)
    except torch.cuda.OutOfMemoryError:
        outcome = "oom"
    row = {
        "source": "measured", "profile": str(profile["id"]), "gpu": torch.cuda.get_device_name().replace(" ", "-"),
        "batch_size": str(task.batch_size), "precision": str(task.precision), "optimizer": str(task.optimizer),
        "memory_mib": str(_used_mib()), "memory_kind": "nvml-device", "outcome": outcome,
    }  # fmt: skip
    append_record(data, row, profile)
    return row


def append_record(data: Path, row: Mapping[str, str], profile: Mapping[str, Any]) -> None:
    (data / "profiles").mkdir(parents=True, exist_ok=True)
    table = data / "measurements.csv"
    new = not table.exists()
    with table.open("a", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, _COLUMNS, restval="")
        if new:
            writer.writeheader()
        writer.writerow(row)
    with gzip.open(data / "profiles" / "measured.jsonl.gz", "at", encoding="utf-8") as lines:
        lines.write(json.dumps({**profile, "group": profile["id"]}) + "\n")


def _run_steps(model: nn.Module, inputs: Inputs, task: Task) -> None:
    if task.optimizer not in _OPTIMIZERS:
        raise InvalidInput(f"--measure cannot run {task.optimizer}: expected one of {', '.join(_OPTIMIZERS)}")
    optimizer = _OPTIMIZERS[task.optimizer](model.parameters())
    mixed = _MIXED.get(task.precision)
    for _ in range(_STEPS):
        args, kwargs = arguments(model, inputs, task.batch_size, "cuda")
        with torch.autocast("cuda", dtype=mixed, enabled=mixed is not None):
            loss = total(model(*args, **kwargs))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    torch.cuda.synchronize()


def total(result: Any) -> Tensor:
    """The result's loss, or else the sum of its differentiable tensors."""
    loss = getattr(result, "loss", None)
    if isinstance(loss, Tensor):
        return loss
    leaves = [
        leaf for leaf in torch.utils._pytree.tree_leaves(result) if isinstance(leaf, Tensor) and leaf.requires_grad
    ]
    if not leaves:
        raise InvalidInput("the network returns nothing differentiable, so there is no training step to measure")
    return torch.stack([leaf.float().sum() for leaf in leaves]).sum()


def _used_mib() -> int:
    """The caching allocator returns nothing to the device, so usage after the steps is their peak."""
    command = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits", "-i", "0"]
    try:
        shown = subprocess.run(command, capture_output=True, text=True, check=True, timeout=30)  # noqa: S603
        return int(shown.stdout.strip())
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        raise WorldUnavailable(f"nvidia-smi did not report the used memory: {error}") from error
