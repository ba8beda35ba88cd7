"""`vramcast forecast NAME` and `vramcast advise NAME`: flags instead of a manifest."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import yaml
from typer import Typer
from typer.testing import CliRunner

from tests.cli.kinds import KINDS
from tests.controlplane import PATIENCE_SECONDS
from tests.serve.running import run_to_the_end
from vramcast.cli.advise import run_advise
from vramcast.cli.completion import complete_gpu, complete_key, complete_model
from vramcast.cli.described import is_own_network, read_tasks
from vramcast.cli.forecast import run_forecast
from vramcast.cli.task_flags import Flags, with_task_flags
from vramcast.errors import InvalidInput
from vramcast.forecast.forecaster import PhysicsForecaster
from vramcast.task.forms import flag
from vramcast.task.vocabulary import KEYS, PREFIX

PHYSICS = PhysicsForecaster(0.05)
RESNET = {"batch-size": "256"}


def refusal(name: str | None, flags: dict[str, str], *gpus: str) -> str:
    with pytest.raises(InvalidInput) as caught:
        run_forecast(read_tasks(name, (), flags, PHYSICS), gpus, "table", PHYSICS)
    return str(caught.value)


def test_every_annotation_is_a_flag() -> None:
    """As the program parses it: the flags that have a value, and those that are one."""
    values = {"gpu-memory": "16Gi", "profile": "v1:x"}
    for key in KEYS.values():
        if key.name in ("model", "profile"):
            continue
        words = (
            [f"--{key.name}"] if key.form is flag else [f"--{key.name}", values.get(key.name, key.example.strip('"'))]
        )
        flags = _parsed(*words)
        assert list(flags) == [key.name]
        key.parse(flags[key.name])


def test_what_is_usually_true_can_be_said_to_be_false() -> None:
    assert _parsed("--no-master-weights") == {"master-weights": "false"}
    assert _parsed() == {}


def _parsed(*words: str) -> dict[str, str]:
    seen: dict[str, str] = {}

    def command(flags: Flags) -> None:
        seen.update(flags)

    app = Typer()
    app.command()(with_task_flags(command))
    done = CliRunner().invoke(app, list(words))
    assert done.exit_code == 0, done.output
    return seen


@pytest.mark.parametrize("output", ["table", "json", "yaml"])
def test_every_output_ends_with_the_annotations_to_paste(output: str, capsys: pytest.CaptureFixture[str]) -> None:
    flags = {"batch-size": "64", "gradient-checkpointing": "true"}
    run_forecast(read_tasks("timm/resnet50", (), flags, PHYSICS), ["T4"], output, PHYSICS)
    printed = capsys.readouterr().out
    expected = {PREFIX + "model": "timm/resnet50", **{PREFIX + key: text for key, text in flags.items()}}
    if output == "table":
        assert yaml.safe_load(printed[printed.rindex("annotations:") :])["annotations"] == expected
    else:
        (entry,) = yaml.safe_load(printed)
        assert list(entry)[-1] == "annotations"
        assert entry["annotations"] == expected


def test_the_shell_gets_a_forecast_by_name_in_one_command() -> None:
    done = run_to_the_end("forecast", "timm/resnet50", "--batch-size", "64", "--gpu", "L40S", "-o", "json")
    assert done.returncode == 0, done.stderr
    (reported,) = json.loads(done.stdout)
    assert reported["name"] == "timm/resnet50"
    assert [one["product"] for one in reported["forecasts"]] == ["NVIDIA-L40S"]


def test_an_unknown_gpu_is_an_error_not_a_question_mark() -> None:
    done = run_to_the_end("forecast", "timm/resnet50", "--gpu", "L4OS", "--artifact", "physics")
    assert done.returncode == 2
    assert "did you mean L40S" in done.stderr


@pytest.mark.parametrize(
    ("name", "flags", "says"),
    [
        (None, {}, "give the name of a model, such as `vramcast forecast timm/resnet50"),
        (
            "timm/resnet5O",
            {},
            "NAME: 'timm/resnet5O' is not valid: no model in the catalog has this name",
        ),
        ("gpt2", {"batch-size": "0"}, "--batch-size: '0' is not valid: expected a whole number from 1"),
        ("gpt2", {"precision": "fp23"}, "did you mean fp32?"),
        ("gpt2", {"input-size": "3x8x8", "sequence-length": "8"}, "contradicts --input-size: give the one that"),
        ("gpt2", {"quantization": "nf4"}, "give --lora-rank too"),
        ("gpt2", {"zero-stage": "2"}, "sharding needs --data-parallel-size"),
        ("gpt2", {"input-size": "3x224x224"}, "set --sequence-length instead"),
        (None, {"batch-size": "4"}, "alone is not enough for a forecast: give gpu-memory"),
        ("my_project:build", {}, "torch is not installed"),
        ("config.json", {}, "torch is not installed"),
    ],
)
def test_mistakes_are_told_in_the_words_of_the_command(name: str | None, flags: dict[str, str], says: str) -> None:
    if "torch" in says and find_spec("torch"):
        pytest.skip("torch is installed")
    told = refusal(name, flags)
    assert says in told
    assert PREFIX not in told


def test_a_length_that_nobody_gave_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    run_forecast(read_tasks("gpt2", (), {}, PHYSICS), ["T4"], "json", PHYSICS)
    assert "note: assumed sequence-length 512: give the tokens of your samples with --sequence-length" in (
        capsys.readouterr().err
    )


@pytest.mark.parametrize(
    ("name", "own"),
    [("my.module:build", True), ("x/config.json", True), ("timm/resnet50", False), ("timm:resnet50", False)],
)
def test_own_networks_are_told_from_names(name: str, own: bool) -> None:
    assert is_own_network(name) is own


# --- files


def test_a_manifest_that_asks_for_no_gpu_is_forecast_with_a_note(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "pod.yaml"
    file.write_text(
        "apiVersion: batch/v1\nkind: Job\nmetadata: {name: task}\nspec:\n  template:\n    metadata:\n"
        '      annotations: {vramcast.dev/model: timm/resnet50, vramcast.dev/batch-size: "8"}\n'
        "    spec: {containers: [{name: train}]}\n"
    )
    run_forecast(read_tasks(None, [file], {}, PHYSICS), ["T4"], "json", PHYSICS)
    out, err = capsys.readouterr()
    assert json.loads(out)[0]["forecasts"]
    assert "note:" in err
    assert "asks for no GPU" in err


def test_flags_override_the_annotations_of_a_file(tmp_path: Path) -> None:
    file = tmp_path / "pod.yaml"
    annotated = "  name: task\n  annotations: {vramcast.dev/model: timm/resnet50}\n"
    file.write_text(KINDS["Pod"][0].replace("  name: task\n", annotated))
    (described,) = read_tasks(None, [file], {"batch-size": "32"}, PHYSICS)
    assert described.task.batch_size == 32
    assert described.annotations[PREFIX + "batch-size"] == "32"


def test_a_name_and_a_file_contradict_each_other(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="give one of them"):
        read_tasks("gpt2", [tmp_path / "x.yaml"], {}, PHYSICS)


# --- advise


def test_advice_is_printed_with_the_lines_to_change(capsys: pytest.CaptureFixture[str]) -> None:
    code = run_advise(read_tasks("timm/resnet50", (), RESNET, PHYSICS), ["T4"], (), "table", PHYSICS)
    printed = capsys.readouterr().out
    assert code == 0
    for words in ("it does not fit", "plain PyTorch:", "Hugging Face Trainer:", "annotations:", "because"):
        assert words in printed


def test_advice_for_a_task_that_cannot_fit_exits_with_1(capsys: pytest.CaptureFixture[str]) -> None:
    tasks = read_tasks(None, (), {"gpu-memory": "900Gi"}, PHYSICS)
    assert run_advise(tasks, ["T4"], (), "table", PHYSICS) == 1
    assert "Nothing makes it fit" in capsys.readouterr().out


def test_advice_needs_a_gpu() -> None:
    with pytest.raises(InvalidInput, match="give one with --gpu, such as --gpu A10"):
        run_advise(read_tasks("timm/resnet50", (), RESNET, PHYSICS), [], (), "table", PHYSICS)


# --- completion


def test_models_and_gpus_are_completed() -> None:
    assert "timm/resnet50" in complete_model("timm/resnet5")
    assert any(name.startswith("Llama-3.1") for name in complete_model("llama-3.1"))
    assert "L40S" in complete_gpu("l4")
    assert complete_key("batch-size,pre") == ["batch-size,precision"]


def test_the_shell_completes_without_loading_the_model_runtime() -> None:
    environ = {
        "_VRAMCAST_COMPLETE": "complete_bash", "COMP_WORDS": "vramcast forecast timm/resnet5", "COMP_CWORD": "2",
        "PYTHONPROFILEIMPORTTIME": "1",
    }  # fmt: skip
    program = Path(sys.executable).parent / "vramcast"
    done = subprocess.run(
        [program], env={**os.environ, **environ}, capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False
    )
    assert "timm/resnet50" in done.stdout.split()
    assert "onnxruntime" not in done.stderr
    assert "vramcast.forecast.catalog" in done.stderr
