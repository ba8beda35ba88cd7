"""A sweep as a plot file. Needs matplotlib, which the extra `train` installs."""

from __future__ import annotations

from pathlib import Path

import pytest

from vramcast.cli.sweep import draw_sweeps
from vramcast.errors import InvalidInput
from vramcast.forecast.forecaster import PhysicsForecaster
from vramcast.forecast.report import COMMON_PRODUCTS
from vramcast.forecast.sweep import parse_sweep
from vramcast.forecast.sweep_report import sweep_task
from vramcast.task.task import Task
from vramcast.task.vocabulary import Level

TASK = Task(Level.SUMMARY, parameters=25_600_000, activations=11_100_000, batch_size=64)
SWEPT = sweep_task(PhysicsForecaster(0.05), TASK, COMMON_PRODUCTS, parse_sweep("batch-size=8..512"))


@pytest.mark.parametrize(("name", "begins"), [("plot.png", b"\x89PNG"), ("plot.svg", b"<?xml"), ("plot.pdf", b"%PDF")])
def test_a_plot_is_written_in_the_format_of_its_name(name: str, begins: bytes, tmp_path: Path) -> None:
    draw_sweeps([("one", SWEPT), ("two", SWEPT)], tmp_path / name)
    written = (tmp_path / name).read_bytes()
    assert written.startswith(begins)
    assert len(written) > 5000


def test_a_missing_directory_gives_one_message(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"--plot .*plot\.png"):
        draw_sweeps([("one", SWEPT)], tmp_path / "nowhere" / "plot.png")
