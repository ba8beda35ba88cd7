"""How busy recorded runs keep their GPU follows from the parts of their step."""

from __future__ import annotations

import pytest

from vramcast.forecast.catalog import builtin_catalog
from vramcast.forecast.duty import duty
from vramcast.forecast.forecast import Source
from vramcast.forecast.model import BUILTIN, choose_forecaster
from vramcast.hardware.utilization import UNKNOWN_UTILIZATION
from vramcast.names import Product
from vramcast.task.task import Task, parse_task
from vramcast.task.vocabulary import PREFIX

_A100 = Product("NVIDIA-A100-SXM4-80GB")
_LORA = {"model": "Llama-3.1-8B", "precision": "bf16", "lora-rank": "16", "sequence-length": "2048"}
_SMALL = {"model": "timm/mobilenetv3_small_100", "precision": "amp-fp16"}


def _task(settings: dict[str, str], batch: int, **more: str) -> Task:
    told = {**settings, **more, "batch-size": str(batch)}
    task = parse_task({PREFIX + name: value for name, value in told.items()})
    assert task is not None
    return task


def _busy(settings: dict[str, str], batch: int, product: Product = _A100, **more: str) -> tuple[float, float]:
    task = _task(settings, batch, **more)
    network = builtin_catalog().describe(settings["model"], None, task.sequence_length).network
    said = duty(network, task, product)
    assert said.gpu_util is not None
    assert said.sm_active is not None
    return said.gpu_util, said.sm_active


def test_a_large_language_model_leaves_its_gpu_no_pause() -> None:
    assert _busy(_LORA, 4)[0] == pytest.approx(1.0, abs=0.01)


def test_a_gpu_waits_for_the_kernels_of_a_small_network() -> None:
    assert _busy(_SMALL, 8)[0] < 0.3


@pytest.mark.parametrize("settings", [_LORA, _SMALL, {"model": "timm/resnet50", "precision": "amp-bf16"}])
def test_more_samples_keep_a_gpu_no_less_busy(settings: dict[str, str]) -> None:
    shares = [_busy(settings, 2**power) for power in range(9)]
    assert shares == sorted(shares)
    assert all(0.0 < sm_active <= gpu_util <= 1.0 for gpu_util, sm_active in shares)


@pytest.mark.parametrize(
    ("product", "more"), [(_A100, {"zero-stage": "3", "data-parallel-size": "8", "offload": "optimizer"}), ("?", {})]
)
def test_what_the_host_computes_and_unknown_gpus_leave_it_unknown(product: str, more: dict[str, str]) -> None:
    network = builtin_catalog().describe(_LORA["model"], None, 2048).network
    assert duty(network, _task(_LORA, 4, **more), Product(product)) == UNKNOWN_UTILIZATION


def test_a_named_recording_says_how_busy_it_keeps_the_gpu() -> None:
    said = choose_forecaster(BUILTIN, 0.05, physics_if_unusable=False).forecast(_task(_LORA, 4), _A100)
    assert said.source is Source.RECORDING
    assert (said.utilization.gpu_util, said.utilization.sm_active) == _busy(_LORA, 4)
    assert said.utilization.sm_occupancy is None
