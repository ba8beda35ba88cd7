"""Before torch 1.13 CUDA loaded every kernel at the start, whatever the job used."""

from __future__ import annotations

import pytest

from vramcast.forecast.forecast import Forecast
from vramcast.forecast.model import BUILTIN, choose_forecaster
from vramcast.names import Product
from vramcast.task.quantity import MIB
from vramcast.task.task import parse_task
from vramcast.task.vocabulary import PREFIX

_RECORDED = {"model": "timm/resnet50", "precision": "amp-fp16", "batch-size": "32", "optimizer": "sgd-momentum"}
_BY_LAYERS = {**_RECORDED, "precision": "fp32"}
_SUMMARY = {"architecture": "cnn", "parameters": "9000000", "activations": "4000000", "batch-size": "32"}
_ALL_KERNELS_BYTES = 1150 * MIB


def _forecast(settings: dict[str, str], framework: str) -> Forecast:
    task = parse_task({PREFIX + name: value for name, value in {**settings, "framework": framework}.items() if value})
    assert task is not None
    product = Product("NVIDIA-GeForce-RTX-3090")
    return choose_forecaster(BUILTIN, 0.05, physics_if_unusable=False).forecast(task, product)


@pytest.mark.parametrize("settings", [_RECORDED, _BY_LAYERS, _SUMMARY])
def test_a_job_that_says_an_older_torch_has_all_kernels_in_its_context(settings: dict[str, str]) -> None:
    today, old = _forecast(settings, ""), _forecast(settings, "torch==1.12")
    assert old.context_bytes - today.context_bytes == _ALL_KERNELS_BYTES
    more = old.median_bytes - today.median_bytes  # a learned factor counts for the context too
    assert 0.8 * _ALL_KERNELS_BYTES <= more <= 1.3 * _ALL_KERNELS_BYTES
    assert old.bound_bytes > today.bound_bytes
    (context,) = [part for part in old.parts if "all kernels, as before torch 1.13" in part.because]
    assert context.size_bytes == old.context_bytes


@pytest.mark.parametrize("framework", ["torch==1.13", "torch==2.4", "torch", "transformers==4.40"])
def test_other_libraries_change_no_context(framework: str) -> None:
    assert _forecast(_RECORDED, framework).median_bytes == _forecast(_RECORDED, "").median_bytes


def test_a_kepler_gpu_had_few_kernels_to_load() -> None:
    k80 = Product("Tesla-K80")
    settings = {PREFIX + name: value for name, value in _BY_LAYERS.items()}
    today, old = (parse_task({**settings, PREFIX + "framework": version}) for version in ("torch==2.4", "torch==1.10"))
    assert today is not None
    assert old is not None
    forecaster = choose_forecaster(BUILTIN, 0.05, physics_if_unusable=False)
    assert forecaster.forecast(old, k80).context_bytes == forecaster.forecast(today, k80).context_bytes
