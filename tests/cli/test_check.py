"""`vramcast annotate --check` as CI runs it: limits, formats, exit codes, the GitHub Action and the pre-commit hook."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.docs.pages import REPOSITORY
from vramcast.cli.annotate import AnnotateOptions, run_annotate
from vramcast.cli.check import CheckOptions, NeedLimit, parse_limit
from vramcast.cli.manifests import parse_manifest
from vramcast.cli.yaml_edits import find_line
from vramcast.errors import InvalidInput
from vramcast.forecast.forecaster import PhysicsForecaster

JOB = """\
# A comment, so that lines are counted and not documents.
apiVersion: batch/v1
kind: Job
metadata: {name: grown}
spec:
  template:
    metadata:
      annotations:
        vramcast.dev/model: timm/resnet50
        vramcast.dev/batch-size: "BATCH"
    spec:
      restartPolicy: Never
      schedulerName: vramcast-scheduler
      containers: [{name: train, image: a, resources: {limits: {nvidia.com/gpu: 1}}}]
"""
GIVEN = """\
---
apiVersion: v1
kind: Pod
metadata: {name: given, annotations: {vramcast.dev/gpu-memory: SIZE}}
spec:
  schedulerName: vramcast-scheduler
  containers: [{name: train, image: a, resources: {limits: {nvidia.com/gpu: 1}}}]
"""


def job(batch: int | str = 512) -> str:
    return JOB.replace("BATCH", str(batch))


def limit(max_memory: str | None = "20Gi", gpu: str | None = None) -> NeedLimit | None:
    return parse_limit(max_memory, gpu, lambda: PhysicsForecaster(0.05))


def write(directory: Path, **texts: str) -> list[Path]:
    paths = [directory / f"{name}.yaml" for name in texts]
    for path, text in zip(paths, texts.values(), strict=True):
        path.write_text(text)
    return paths


def check(paths: list[Path], **options: Any) -> int:
    return run_annotate(paths, AnnotateOptions({}), in_place=False, check=CheckOptions(**options), diff=False)


def findings(paths: list[Path], capsys: pytest.CaptureFixture[str], **options: Any) -> tuple[int, list[dict[str, Any]]]:
    code = check(paths, output="json", **options)
    return code, json.loads(capsys.readouterr().out)


def test_every_template_of_every_file_is_held_to_the_limit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paths = write(tmp_path, small=job(8), large=job() + GIVEN.replace("SIZE", "21Gi"))
    code, found = findings(paths, capsys, limit=limit())
    assert code == 1
    assert [(Path(each["file"]).name, each["kind"], each["template"]) for each in found] == [
        ("small.yaml", "ok", "Job/grown"),
        ("large.yaml", "over", "Job/grown"),
        ("large.yaml", "over", "Pod/given"),
    ]


def test_what_is_over_the_limit_says_need_risk_median_parts_and_the_batch_that_fits(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    paths = write(tmp_path, large=job())
    code, (over,) = findings(paths, capsys, limit=limit())
    assert code == 1
    assert over["limit_mib"] == 20 * 1024 < over["need_mib"]
    assert over["risk"] == 0.05
    assert max(over["parts_bytes"], key=lambda part: over["parts_bytes"][part]) == "activations"
    batch = over["largest_batch_size"]
    for words in ("over the limit of 20.0 GiB", "at risk 0.05", "activations", f"batch-size {batch} would fit"):
        assert words in over["message"]
    assert check(write(tmp_path, fits=job(batch)), limit=limit()) == 0
    assert check(write(tmp_path, not_yet=job(batch + 1)), limit=limit()) == 1


def test_a_need_that_is_exactly_the_limit_passes(tmp_path: Path) -> None:
    assert check(write(tmp_path, given=GIVEN.replace("SIZE", "20Gi")), limit=limit()) == 0
    assert check(write(tmp_path, given=GIVEN.replace("SIZE", "20481Mi")), limit=limit()) == 1


def test_without_a_number_the_limit_is_what_the_gpu_has(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paths = write(tmp_path, given=GIVEN.replace("SIZE", "15Gi"))
    assert check(paths, limit=limit(None, "Tesla-T4")) == 1
    assert "over the 14.6 GiB that it has" in capsys.readouterr().err
    assert check(paths, limit=limit(None, "NVIDIA-L4")) == 0


@pytest.mark.parametrize(
    ("max_memory", "gpu", "message"),
    [
        ("40GB", None, "--max-memory '40GB': expected a Kubernetes quantity such as 16Gi (did you mean 40G?"),
        ("0", None, "--max-memory '0': expected at least 1Mi"),
        (None, "Voodoo-2", "Voodoo-2"),
    ],
)
def test_a_bad_limit_is_refused(max_memory: str | None, gpu: str | None, message: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        limit(max_memory, gpu)
    assert message in str(caught.value)


def test_mistakes_are_on_the_line_of_their_annotation(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paths = write(tmp_path, wrong=job("many"), unknown=job(8).replace("resnet50", "resnet5O"))
    code, found = findings(paths, capsys, limit=limit())
    assert code == 1
    assert [(each["kind"], each["line"]) for each in found] == [("mistake", 10), ("mistake", 9)]


def test_a_file_that_cannot_be_read_is_an_error_and_the_others_are_checked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, found = findings([tmp_path / "none.yaml", *write(tmp_path, large=job())], capsys, limit=limit())
    assert code == 2
    assert [each["kind"] for each in found] == ["error", "over"]


def test_github_shows_what_is_wrong_next_to_its_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paths = write(tmp_path, large=job(), small=job(8))
    assert check(paths, output="github", limit=limit()) == 1
    first, second = capsys.readouterr().out.splitlines()
    assert first.startswith(f"::error file={paths[0]},line=8,title=GPU memory over the limit::Job/grown needs ")
    assert second.startswith(f"ok: {paths[1]}: Job/grown needs ")


def test_what_github_would_read_as_a_command_is_escaped(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "a,b:c%.yaml"
    path.write_text(job("1\\n::error::x"))
    check([path], output="github")
    (line,) = capsys.readouterr().out.splitlines()
    assert "file=" + str(path).replace("%", "%25").replace(",", "%2C").replace(":", "%3A") + ",line=10" in line


def test_files_without_a_description_are_skipped_on_request(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paths = write(tmp_path, values="replicas: 2\n", chart="a: {{ .Values.a }}\n", good=job(8))
    code, found = findings(paths, capsys, skip_undescribed=True)
    assert (code, [Path(each["file"]).name for each in found]) == (0, ["good.yaml"])
    assert check(paths) == 1


def test_lines_are_found_in_every_document() -> None:
    manifest = parse_manifest(job() + GIVEN.replace("SIZE", "1Gi"), "a.yaml")
    places = [(found.document, found.template.annotations_place) for found in manifest.found]
    assert [find_line(manifest.text, *place) for place in places] == [8, 18]
    assert find_line("a: 1\n", 0, ("b", "c")) == 1


# --- the command, the Action and the hook


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`vramcast` where the Action installs it."""
    home = tmp_path_factory.mktemp("runner") / "vramcast/bin"
    home.mkdir(parents=True)
    (home / "vramcast").write_text(f'#!/bin/sh\nexec {sys.executable} -m vramcast "$@"\n')
    (home / "vramcast").chmod(0o755)
    return home / "vramcast"


def run(command: list[str], directory: Path, **more: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, **more}
    return subprocess.run(command, cwd=directory, env=environment, capture_output=True, text=True, check=False)


def test_the_limit_needs_a_check_and_a_command_needs_a_file(program: Path, tmp_path: Path) -> None:
    write(tmp_path, job=job(8))
    for arguments, message in (
        (["--max-memory", "1Gi", "-f", "job.yaml"], "need --check"),
        (["--check"], "name a manifest"),
        (["--check", "-f", "job.yaml", "-o", "xml"], "--output 'xml': expected text, json, github"),
    ):
        done = run([str(program), "annotate", *arguments], tmp_path)
        assert (done.returncode, message in done.stderr) == (2, True), done.stderr


ACTION = yaml.safe_load((REPOSITORY / ".github/actions/check/action.yml").read_text())


def run_action(program: Path, directory: Path, **inputs: str) -> subprocess.CompletedProcess[str]:
    """The step that checks, as the runner starts it. The other one installs the package."""
    _, step = ACTION["runs"]["steps"]
    given = {name: inputs.get(name.replace("-", "_"), each["default"]) for name, each in ACTION["inputs"].items()}
    environment = {}
    for name, value in step["env"].items():
        (wanted,) = [each for each in given if value == f"${{{{ inputs.{each} }}}}"]
        environment[name] = given[wanted]
    runner = ["bash", "--noprofile", "--norc", "-e", "-o", "pipefail", "-c", step["run"]]
    return run(runner, directory, RUNNER_TEMP=str(program.parents[2]), **environment)


def test_the_action_fails_a_pull_request_that_grows_a_job_past_its_gpu(program: Path, tmp_path: Path) -> None:
    (tmp_path / "jobs/team a").mkdir(parents=True)
    write(tmp_path / "jobs", values="replicas: 2\n")
    write(tmp_path / "jobs/team a", grown=job(8))
    good = run_action(program, tmp_path, files="jobs/**/*.yaml", max_memory="20Gi")
    assert (good.returncode, "checking 2 files" in good.stdout) == (0, True), good.stdout + good.stderr
    write(tmp_path / "jobs/team a", grown=job())
    bad = run_action(program, tmp_path, files="jobs/**/*.yaml", max_memory="20Gi", gpu="NVIDIA-A100-SXM4-40GB")
    assert bad.returncode == 1
    assert "::error file=jobs/team a/grown.yaml,line=8,title=GPU memory over the limit::Job/grown needs" in bad.stdout
    none = run_action(program, tmp_path, files="nowhere/*.yaml")
    assert (none.returncode, none.stdout) == (2, "::error::no file matches nowhere/*.yaml\n")


def test_the_steps_of_the_action_are_clean_bash_and_install_what_is_there(tmp_path: Path) -> None:
    for step in ACTION["runs"]["steps"]:
        script = tmp_path / "step.sh"
        script.write_text(step["run"])
        shellcheck = Path(sys.executable).with_name("shellcheck")
        done = run([str(shellcheck), "--shell=bash", str(script)], tmp_path)
        assert done.returncode == 0, done.stdout
    action = REPOSITORY / ".github/actions/check"
    for name in ("requirements/build.txt", "requirements/serve.txt", "pyproject.toml"):
        assert (action / "../../.." / name).is_file()


@pytest.mark.e2e
def test_the_example_workflow_is_valid_and_uses_inputs_that_exist(tmp_path: Path) -> None:
    path = REPOSITORY / "examples/ci/github-workflow.yaml"
    linter = [sys.executable, "-m", "tests.controlplane", "actionlint", str(path)]
    done = run(linter, REPOSITORY)
    assert done.returncode == 0, done.stdout + done.stderr
    steps = yaml.safe_load(path.read_text())["jobs"]["check"]["steps"]
    (used,) = [step for step in steps if "vramcast" in step["uses"]]
    assert used["uses"].split("/", 2)[2].split("@")[0] == ".github/actions/check"
    assert set(used["with"]) <= set(ACTION["inputs"])


def test_the_hook_runs_as_pre_commit_calls_it(program: Path, tmp_path: Path) -> None:
    """pre-commit appends the arguments of the user's configuration, then the names of the files."""
    (hook,) = yaml.safe_load((REPOSITORY / ".pre-commit-hooks.yaml").read_text())
    (repository,) = yaml.safe_load((REPOSITORY / "examples/ci/pre-commit-config.yaml").read_text())["repos"]
    (used,) = repository["hooks"]
    assert (used["id"], hook["language"], hook["types"]) == ("vramcast-check", "python", ["yaml"])
    write(tmp_path, values="replicas: 2\n", grown=job())
    name, *arguments = shlex.split(hook["entry"])
    assert name == "vramcast"  # a script of the wheel
    done = run([str(program), *arguments, *used["args"], "values.yaml", "grown.yaml"], tmp_path)
    assert done.returncode == 1
    assert "grown.yaml: Job/grown needs" in done.stderr
    assert "values.yaml" not in done.stderr
