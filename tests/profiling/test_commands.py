"""`vramcast profile` for a new user: what it prints, and its messages when something is missing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import timm
import torch

import vramcast
from tests.profiling.nets import Attending
from vramcast.errors import InvalidInput
from vramcast.forecast.catalog import builtin_catalog
from vramcast.forecast.forecast import Source
from vramcast.forecast.forecaster import PhysicsForecaster
from vramcast.profile.arguments import ProfileArguments, run_settings
from vramcast.profile.commands import profile_target, run_profile
from vramcast.profile.inputs import Inputs
from vramcast.profile.profiling import profile_network
from vramcast.task.task import parse_task
from vramcast.task.vocabulary import PREFIX, Level

NETS = "tests.profiling.nets"
PHYSICS = PhysicsForecaster(0.05)


@pytest.mark.parametrize(
    ("target", "words"),
    [
        (f"{NETS}:build_perceptrn", "has no 'build_perceptrn'; did you mean build_perceptron"),
        ("tests.profiling.broken:build", "failed with RuntimeError: the data folder is not mounted. Try `python -c"),
        ("no_such_package.models:build", "no module named 'no_such_package' in .*PYTHONPATH"),
        ("just_a_name", "expected package.module:callable, such as my_project.models:build_model"),
        (f"{NETS}:NOT_CALLABLE", "is a int: expected a class, or a function"),
        ("nowhere/config.json", "no such file"),
    ],
)
def test_a_target_that_cannot_be_loaded_says_what_to_do(target: str, words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        profile_target(ProfileArguments(target, ("64",)), PHYSICS)


def test_a_wrong_shape_says_what_was_expected() -> None:
    with pytest.raises(InvalidInput, match="expected the shape of one sample without the batch, such as 3x224x224"):
        profile_target(ProfileArguments(f"{NETS}:build_perceptron", ("3,224,224",)), PHYSICS)


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine can measure")
def test_measuring_without_a_gpu_says_so(tmp_path: object) -> None:
    with pytest.raises(InvalidInput, match="this machine has no CUDA GPU"):
        profile_target(ProfileArguments(f"{NETS}:build_perceptron", ("64",), measure=tmp_path), PHYSICS)  # type: ignore[arg-type]


def test_arguments_reach_the_callable_and_settings_the_annotations() -> None:
    settings = run_settings({"batch-size": 32, "optimizer": None}, ["gradient-checkpointing=true"])
    arguments = ProfileArguments(f"{NETS}:build_perceptron", ("8",), args='{"width": 8}', settings=settings)
    done = profile_target(arguments, PHYSICS)
    task = parse_task(done.annotations)
    assert task is not None
    assert (task.level, task.batch_size, task.gradient_checkpointing) == (Level.PROFILE, 32, True)
    assert done.summary.parameters == 8 * 32 + 32
    totals = parse_task(done.summary_annotations)
    assert totals is not None
    assert (totals.level, totals.parameters) == (Level.SUMMARY, done.summary.parameters)


def test_an_untraceable_network_falls_back_to_the_summary_with_a_message(capsys: pytest.CaptureFixture[str]) -> None:
    run_profile(ProfileArguments(f"{NETS}:GpuOnly", ("16",)), "table", PHYSICS)
    shown = capsys.readouterr().out
    assert "cannot be traced here: NotImplementedError: this kernel needs a GPU" in shown
    assert f"Add {PREFIX}activations" in " ".join(shown.split())
    assert f'{PREFIX}parameters: "544"' in shown


def test_the_output_can_be_json(capsys: pytest.CaptureFixture[str]) -> None:
    run_profile(ProfileArguments(f"{NETS}:build_attending", sequence_length=32), "json", PHYSICS)
    shown = json.loads(capsys.readouterr().out)
    assert shown["traced_on"] == "meta"
    assert shown["annotations"][f"{PREFIX}profile"].startswith("v1:")
    assert shown["forecasts"][0]["median_bytes"] > 0


def test_a_notebook_can_forecast_its_own_module() -> None:
    model = Attending()
    result = vramcast.forecast(model, 32, batch_size=16, optimizer="adamw", gpus=["NVIDIA-L4"])
    assert result["NVIDIA-L4"].holds_it
    assert result.annotations[f"{PREFIX}batch-size"] == "16"
    assert next(model.parameters()).device.type == "cpu"
    batch = torch.zeros(4, 32, dtype=torch.long)
    same = vramcast.forecast(model, batch, batch_size=16, optimizer="adamw", gpus=["NVIDIA-L4"])
    assert same["NVIDIA-L4"].forecast.median_bytes == pytest.approx(result["NVIDIA-L4"].forecast.median_bytes, rel=0.01)


@pytest.mark.parametrize("name", ["resnet18", "vit_tiny_patch16_224"])
def test_the_catalog_equals_a_new_trace(name: str) -> None:
    catalog = builtin_catalog()
    line = catalog.find(f"timm/{name}")
    assert line is not None
    traced = profile_network(lambda: timm.create_model(name), Inputs(shapes=((3, 224, 224),)), f"timm/{name}").profile
    known = catalog.profile(line, None, None)
    # What the pass moves is counted by storage, and a token of zeros may or may not share one with its weight.
    assert known.pop("work") == pytest.approx(traced.pop("work"), rel=1e-4)
    assert known == traced


@pytest.mark.parametrize(
    ("settings", "mark", "source"),
    [({}, "v1:", Source.PHYSICS), ({"precision": "amp-bf16"}, "v2:", Source.RECORDING)],
)
def test_what_the_layers_cannot_tell_is_recorded(settings: dict[str, str], mark: str, source: Source) -> None:
    done = profile_target(ProfileArguments(f"{NETS}:build_perceptron", ("64",), settings=settings), PHYSICS)
    assert done.annotations[f"{PREFIX}profile"].startswith(mark)
    assert {line.forecast.source for line in done.reports} == {source}
    assert not done.why_no_recording


def test_a_network_that_cannot_be_recorded_is_described_by_its_layers_and_says_why() -> None:
    settings = {"precision": "amp-fp16"}
    done = profile_target(ProfileArguments(f"{NETS}:Branching", ("16",), settings=settings), PHYSICS)
    assert done.annotations[f"{PREFIX}profile"].startswith("v1:")
    assert "looks at the values of a tensor" in done.why_no_recording


def test_a_step_is_drawn_with_its_optimizer(tmp_path: Path) -> None:
    picture = tmp_path / "step.png"
    settings = {"optimizer": "adamw", "batch-size": "16"}
    profile_target(ProfileArguments(f"{NETS}:build_perceptron", ("64",), settings=settings, plot=picture), PHYSICS)
    assert picture.read_bytes().startswith(b"\x89PNG")
