"""`vramcast forecast` and its sweeps on every kind of workload, with physics instead of a trained model."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cli.kinds import KINDS
from tests.controllers.busy import BusyForecaster
from tests.forecast.networks import traced_cnn
from vramcast.cli.annotate import AnnotateOptions, parse_settings, run_annotate
from vramcast.cli.described import read_tasks
from vramcast.cli.forecast import run_forecast
from vramcast.cli.sweep import draw_sweeps
from vramcast.cli.terminal_plot import TerminalPlot
from vramcast.errors import InvalidInput
from vramcast.forecast.description import encode_profile
from vramcast.forecast.forecaster import PhysicsForecaster
from vramcast.forecast.sweep import parse_sweep

SUMMARY = ("parameters=25.6M", "activations=11.1M", "batch-size=64")
PHYSICS = PhysicsForecaster(0.05)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "task.yaml"


def describe(file: Path, text: str, *settings: str) -> None:
    file.write_text(text)
    run_annotate([file], AnnotateOptions(parse_settings(settings or SUMMARY)), in_place=True, check=None, diff=False)


def forecast(capsys: pytest.CaptureFixture[str], *files: Path, **more: Any) -> str:
    sweep = more.pop("sweep", None)
    capsys.readouterr()
    gpus, output = more.pop("gpus", ()), more.pop("output", "table")
    run_forecast(
        read_tasks(None, files, {}, PHYSICS), gpus, output, PHYSICS, parse_sweep(sweep) if sweep else None, **more
    )
    return capsys.readouterr().out


def refusal(*files: Path, **more: Any) -> str:
    with pytest.raises(InvalidInput) as caught:
        run_forecast(read_tasks(None, files, {}, PHYSICS), (), more.pop("output", "table"), PHYSICS, **more)
    return str(caught.value)


@pytest.mark.parametrize("kind", KINDS)
def test_pods_of_every_kind_are_forecast(kind: str, file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    describe(file, KINDS[kind][0])
    (reported,) = json.loads(forecast(capsys, file, output="json", gpus=("Tesla-T4",)))
    assert (reported["pod"], reported["level"]) == ("default/task", "summary")
    assert [one["product"] for one in reported["forecasts"]] == ["Tesla-T4"]


def test_a_profile_is_forecast_and_swept(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    describe(file, KINDS["PyTorchJob"][0], f"profile={encode_profile(traced_cnn())}", "batch-size=16")
    (reported,) = json.loads(forecast(capsys, file, output="json"))
    assert (reported["level"], reported["role"]) == ("profile", "Worker")
    (swept,) = json.loads(forecast(capsys, file, output="json", sweep="batch-size=8..64"))
    medians = [point["median_bytes"] for point in swept["points"]]
    assert medians == sorted(medians)
    assert medians[1] == next(
        one["median_bytes"] for one in reported["forecasts"] if one["product"] == swept["product"]
    )


def test_documents_and_files_are_reported_in_order(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one, two = tmp_path / "one.yaml", tmp_path / "two.yaml"
    describe(one, KINDS["Job"][0] + "---\n" + KINDS["Deployment"][0])
    describe(two, KINDS["RayJob"][0])
    reported = json.loads(forecast(capsys, one, two, output="json"))
    assert [(each["kind"], each["role"]) for each in reported] == [
        ("Job", ""), ("Deployment", ""), ("RayJob", "worker gpu"),
    ]  # fmt: skip


def test_yaml_and_json_have_the_same_content(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    describe(file, KINDS["Job"][0])
    assert yaml.safe_load(forecast(capsys, file, output="yaml")) == json.loads(forecast(capsys, file, output="json"))


def test_the_table_has_parts_products_and_assumptions(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    describe(file, KINDS["Job"][0])
    reported = forecast(capsys, file)
    for words in ("Job/task", "NVIDIA-H200", "adamw states", "assumed: optimizer adamw", "assumed: precision fp32"):
        assert words in reported


# --- mistakes


def test_for_annotations_on_the_job_the_error_tells_where_they_belong(file: Path) -> None:
    text = KINDS["Job"][0].replace("  name: task\n", "  name: task\n  annotations: {vramcast.dev/gpu-memory: 16Gi}\n")
    file.write_text(text)
    reported = refusal(file)
    assert "they belong in spec.template.metadata.annotations" in reported
    assert f"`vramcast annotate -f {file} --move --in-place`" in reported


def test_for_an_undescribed_file_the_error_tells_how_to_describe_it(file: Path) -> None:
    file.write_text(KINDS["Job"][0])
    assert f"`vramcast annotate -f {file} --set KEY=VALUE --in-place`" in refusal(file)


def test_every_mistake_in_every_file_is_reported(tmp_path: Path) -> None:
    one, two = tmp_path / "one.yaml", tmp_path / "two.yaml"
    annotation = "  name: task\n  annotations:\n    vramcast.dev/{}\n"
    one.write_text(KINDS["Pod"][0].replace("  name: task\n", annotation.format('batch_size: "8"')))
    two.write_text(KINDS["Pod"][0].replace("  name: task\n", annotation.format("gpu-memory: 16")))
    reported = refusal(one, two).splitlines()
    assert len(reported) == 2
    assert "did you mean vramcast.dev/batch-size?" in reported[0]
    assert reported[0].startswith(f"{one}: Pod/task: metadata.annotations: vramcast.dev/batch_size: '8'")
    assert 'write it in quotes, "16"' in reported[1]


def test_an_undescribed_template_next_to_described_ones_is_noted(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    describe(file, KINDS["Job"][0])
    file.write_text(file.read_text() + "---\n" + KINDS["Deployment"][0])
    capsys.readouterr()
    run_forecast(read_tasks(None, [file], {}, PHYSICS), (), "json", PHYSICS)
    out, err = capsys.readouterr()
    assert len(json.loads(out)) == 1
    assert f"note: {file}: Deployment/task: requests GPUs, but no annotation describes its task" in err


@pytest.mark.parametrize(
    ("more", "expected"),
    [({"output": "xml"}, "table, json, yaml"), ({"plot": Path("x.png")}, "--sweep batch-size=8..256")],
)
def test_invalid_options_are_refused_with_an_example(more: dict[str, Any], expected: str, file: Path) -> None:
    describe(file, KINDS["Job"][0])
    assert expected in refusal(file, **more)


# --- sweeps


def test_a_sweep_finds_the_largest_batch_on_every_product(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    describe(file, KINDS["Job"][0])
    (reported,) = json.loads(forecast(capsys, file, output="json", sweep="batch-size=8..64", gpus=("Tesla-T4",)))
    assert [point["value"] for point in reported["points"]] == [8, 16, 32, 64]
    (largest,) = reported["largest"]
    usable_bytes = largest["usable_mib"] << 20
    assert largest["bound_bytes"] <= usable_bytes < largest["next_bound_bytes"]


def test_the_sweeps_plot_shows_the_gpus_and_their_largest_batch(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    describe(file, KINDS["Job"][0])
    (reported,) = json.loads(forecast(capsys, file, output="json", sweep="batch-size=8..512"))
    answers = {each["product"]: each["value"] for each in reported["largest"]}
    drawn = forecast(capsys, file, sweep="batch-size=8..512")
    line = next(line for line in drawn.splitlines() if line.rstrip().endswith("T4"))
    assert f"● {answers['Tesla-T4']} " in line
    assert any(f"{answers['NVIDIA-H200']:,}" in line for line in drawn.splitlines() if "NVIDIA-H200" in line)
    assert "needed at risk 0.05" in drawn
    assert max(len(line) for line in drawn.splitlines()) <= 100


def test_many_values_get_few_evenly_spaced_ticks(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    describe(file, KINDS["Job"][0])
    drawn = forecast(capsys, file, sweep="batch-size=8..512:8").splitlines()
    axis = next(number for number, line in enumerate(drawn) if "└" in line)
    assert drawn[axis + 1].split() == ["8", "64", "120", "176", "232", "288", "344", "400", "456", "512"]


def test_a_plot_file_needs_a_known_extension(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"\.png, \.svg, \.pdf"):
        draw_sweeps([], tmp_path / "plot")


@pytest.mark.skipif(find_spec("matplotlib") is not None, reason="with matplotlib it is drawn: see tests/train")
def test_without_matplotlib_the_error_tells_what_to_install(
    file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    describe(file, KINDS["Job"][0])
    with pytest.raises(InvalidInput, match=r"pip install matplotlib \(the extra vramcast\[train\] includes it\)"):
        forecast(capsys, file, sweep="batch-size=8..16", plot=tmp_path / "plot.png")


# --- the plot itself


def rows(plot: TerminalPlot) -> list[str]:
    return [line.plain for line in plot.render([0, 10], "GiB")]


def test_a_line_goes_from_corner_to_corner() -> None:
    plot = TerminalPlot(10, 5, (0, 10), (0, 10))
    plot.line([(0, 0), (10, 10)], "")
    drawn = [row.split("│")[-1].split("┤")[-1] for row in rows(plot)[1:6]]
    assert drawn[0].rstrip()[-1] > "\u2800"
    assert drawn[-1][0] > "\u2800"
    assert all(row.strip() for row in drawn)


def test_levels_on_one_row_share_a_label_and_those_outside_are_left_out() -> None:
    plot = TerminalPlot(10, 5, (0, 10), (0, 10))
    for y, name in ((5.0, "A10"), (5.1, "L4"), (50.0, "H200")):
        plot.level(y, name, "")
    text = "\n".join(rows(plot))
    assert "A10, L4" in text
    assert "H200" not in text


def test_a_mark_at_the_right_edge_has_its_text_on_the_left() -> None:
    plot = TerminalPlot(20, 5, (0, 10), (0, 10))
    plot.mark(10, 5, "99", "")
    assert any("99 ●" in row or "99●" in row for row in rows(plot))


def test_the_table_names_each_counter_of_utilization_and_says_nothing_where_none_is_known(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    describe(file, KINDS["Pod"][0])
    assert "utilization" not in forecast(capsys, file)
    run_forecast(read_tasks(None, [file], {}, PHYSICS), ("Tesla-T4",), "table", BusyForecaster(0.05))
    told = "utilization of a Tesla-T4 of its own: gpu_util 93%, sm_active 64%, sm_occupancy 31%"
    assert told in capsys.readouterr().out
