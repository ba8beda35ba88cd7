"""Forecasts of a user's own network that the user can check by hand."""

from __future__ import annotations

from functools import cache
from itertools import pairwise

import pytest
import torch
from torch import Tensor, nn

from vramcast.forecast.forecast import Source
from vramcast.forecast.model import BUILTIN, choose_forecaster
from vramcast.names import Product
from vramcast.profile.arguments import ProfileArguments
from vramcast.profile.commands import profile_target
from vramcast.profile.profiled import Profiled
from vramcast.task.task import parse_task
from vramcast.task.vocabulary import PREFIX

A100 = Product("NVIDIA-A100-SXM4-80GB")
WIDTHS = (32, 64, 128, 256, 512)
LEARNED = choose_forecaster(BUILTIN, 0.05, physics_if_unusable=False)


def twice(channels: int, wanted: int) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(channels, wanted, 3, padding=1), nn.BatchNorm2d(wanted), nn.ReLU(inplace=True),
        nn.Conv2d(wanted, wanted, 3, padding=1), nn.BatchNorm2d(wanted), nn.ReLU(inplace=True),
    )  # fmt: skip


class UNet(nn.Module):
    """As tutorials write it: 7.8 million weights."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.ModuleList([twice(before, after) for before, after in pairwise((3, *WIDTHS))])
        wide = [*pairwise(reversed(WIDTHS))]
        self.up = nn.ModuleList([nn.ConvTranspose2d(before, after, 2, 2) for before, after in wide])
        self.merge = nn.ModuleList([twice(before, after) for before, after in wide])
        self.head = nn.Conv2d(WIDTHS[0], 2, 1)

    def forward(self, given: Tensor) -> Tensor:
        kept: list[Tensor] = []
        for level, down in enumerate(self.down):
            given = down(nn.functional.max_pool2d(given, 2) if level else given)
            kept.append(given)
        for up, merge, beside in zip(self.up, self.merge, kept[-2::-1], strict=True):
            given = merge(torch.cat([beside, up(given)], 1))
        return self.head(given)  # type: ignore[no-any-return]


@cache
def profiled(precision: str) -> Profiled:
    arguments = ProfileArguments(
        f"{__name__}:UNet", shapes=("3x256x256",), settings={"precision": precision, "optimizer": "adamw"}, gpu=A100
    )
    return profile_target(arguments, LEARNED)


def test_the_unet_has_the_weights_of_the_one_that_nobody_believed() -> None:
    assert profiled("fp32").summary.parameters == pytest.approx(7.8e6, rel=0.01)


@pytest.mark.parametrize(
    ("precision", "kind", "source"),
    [
        ("fp32", "annotations", Source.MODEL),
        ("amp-fp16", "annotations", Source.RECORDING),
        ("fp32", "summary_annotations", Source.MODEL),
    ],
)
def test_a_small_unet_is_not_bounded_by_a_terabyte(precision: str, kind: str, source: Source) -> None:
    """It was bounded at 1,442 GiB for batch 8 and at 119 GiB for batch 128."""
    annotations = getattr(profiled(precision), kind)
    runs = []
    for batch in (1, 2, 4, 8, 16, 32, 64, 128):
        task = parse_task({**annotations, f"{PREFIX}batch-size": str(batch)})
        assert task is not None
        runs.append(LEARNED.forecast(task, A100))
    assert {run.source for run in runs} == {source}
    assert all(run.bound_bytes < 4 * run.median_bytes for run in runs)
    assert all(before.bound_bytes < after.bound_bytes for before, after in pairwise(runs))
    assert runs[3].bound_bytes < 20 << 30
