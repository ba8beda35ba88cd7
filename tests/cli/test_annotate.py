"""`vramcast annotate`: annotations go into the pod template, and nothing else changes."""

from __future__ import annotations

import difflib
import io
import json
import stat
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cli.kinds import KINDS
from vramcast.cli.annotate import SCHEDULER_NAME, AnnotateOptions, parse_names, parse_settings, run_annotate
from vramcast.cli.check import CheckOptions
from vramcast.cli.yaml_edits import format_place
from vramcast.errors import InvalidInput
from vramcast.task.workloads import find_templates

SUMMARY = ("parameters=25.6M", "activations=11.1M", "batch-size=64")
SUMMARY_LINES = {
    "vramcast.dev/parameters: 25.6M", "vramcast.dev/activations: 11.1M", 'vramcast.dev/batch-size: "64"',
}  # fmt: skip


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "task.yaml"


def annotate(file: Path, *settings: str, **options: Any) -> None:
    parsed = AnnotateOptions(parse_settings(settings), **options)
    assert run_annotate([file], parsed, in_place=True, check=None, diff=False) == 0


def check(file: Path, capsys: pytest.CaptureFixture[str], *settings: str) -> tuple[int, str]:
    code = run_annotate(
        [file], AnnotateOptions(parse_settings(settings)), in_place=False, check=CheckOptions(), diff=False
    )
    return code, capsys.readouterr().err


def refusal(file: Path, *settings: str, **options: Any) -> str:
    """The error message. Checks that the file is unchanged."""
    before = file.read_bytes()
    with pytest.raises(InvalidInput) as caught:
        annotate(file, *settings, **options)
    assert file.read_bytes() == before
    assert list(file.parent.iterdir()) == [file]
    return str(caught.value)


def added(before: str, after: str) -> list[str]:
    """The added lines. Checks that none was removed."""
    lines = list(difflib.ndiff(before.splitlines(), after.splitlines()))
    assert [line for line in lines if line.startswith("- ")] == []
    return [line[2:].strip() for line in lines if line.startswith("+ ")]


# --- where annotations go


@pytest.mark.parametrize("kind", KINDS)
def test_annotations_go_into_the_pod_template_of_every_kind_and_nothing_else_changes(kind: str, file: Path) -> None:
    text, place = KINDS[kind]
    file.write_text(text)
    annotate(file, *SUMMARY)
    lines = added(text, file.read_text())
    assert set(lines) >= SUMMARY_LINES
    annotations = next(
        template
        for document in yaml.safe_load_all(file.read_text())
        for template in find_templates(document)
        if format_place(template.annotations_place) == place
    ).annotations
    assert annotations["vramcast.dev/batch-size"] == "64"


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "TrainJob"])
def test_the_scheduler_is_set_on_request(kind: str, file: Path) -> None:
    file.write_text(KINDS[kind][0])
    annotate(file, *SUMMARY, scheduler_name=SCHEDULER_NAME)
    described = [
        template
        for document in yaml.safe_load_all(file.read_text())
        for template in find_templates(document)
        if template.annotations
    ]
    assert [template.spec["schedulerName"] for template in described] == [SCHEDULER_NAME]


def test_for_a_train_job_the_error_tells_where_to_set_the_scheduler(file: Path) -> None:
    file.write_text(KINDS["TrainJob"][0])
    assert "TrainingRuntime" in refusal(file, *SUMMARY, scheduler_name=SCHEDULER_NAME)


def test_a_train_job_gets_a_patch_with_a_manager_and_a_target(file: Path) -> None:
    file.write_text(KINDS["TrainJob"][0])
    annotate(file, *SUMMARY)
    (patch,) = yaml.safe_load(file.read_text())["spec"]["runtimePatches"]
    assert patch["manager"] == "vramcast.dev/annotate"
    (job,) = patch["trainingRuntimeSpec"]["template"]["spec"]["replicatedJobs"]
    assert job["name"] == "node"


def test_a_train_job_with_older_overrides_keeps_using_them(file: Path) -> None:
    overrides = "  podTemplateOverrides:\n  - targetJobs: [{name: node}]\n    spec: {serviceAccountName: x}\n"
    file.write_text(KINDS["TrainJob"][0] + overrides)
    annotate(file, *SUMMARY)
    spec = yaml.safe_load(file.read_text())["spec"]
    assert "runtimePatches" not in spec
    assert spec["podTemplateOverrides"][0]["metadata"]["annotations"]["vramcast.dev/batch-size"] == "64"


def test_of_several_templates_those_that_request_gpus_are_described(file: Path) -> None:
    file.write_text(KINDS["PyTorchJob"][0])
    annotate(file, *SUMMARY)
    replicas = yaml.safe_load(file.read_text())["spec"]["pytorchReplicaSpecs"]
    assert "metadata" not in replicas["Master"]["template"]
    assert "metadata" in replicas["Worker"]["template"]


@pytest.mark.parametrize("word", ["master", "Master", "PyTorchJob/task master"])
def test_a_template_is_chosen_by_its_role(word: str, file: Path) -> None:
    file.write_text(KINDS["PyTorchJob"][0])
    annotate(file, *SUMMARY, "share=true", templates=(word,))
    replicas = yaml.safe_load(file.read_text())["spec"]["pytorchReplicaSpecs"]
    assert "metadata" in replicas["Master"]["template"]
    assert "metadata" not in replicas["Worker"]["template"]


def test_an_unknown_role_gets_the_list_of_roles(file: Path) -> None:
    file.write_text(KINDS["RayJob"][0])
    reported = refusal(file, *SUMMARY, templates=("workers",))
    assert "RayJob/task head, RayJob/task worker gpu" in reported


def test_if_no_template_requests_a_gpu_one_must_be_chosen(file: Path) -> None:
    file.write_text(KINDS["RayJob"][0].replace("nvidia.com/gpu: 1", "cpu: 1"))
    assert "--template" in refusal(file, *SUMMARY, "share=true")


# --- layout


LAYOUTS = {
    "comments everywhere": """\
# above the first document

---
kind: Job   # a Job
metadata: {name: task}
spec:
    template:
        # before the metadata
        metadata:
            annotations:   # ours go here
                team: "vision"   # theirs
                # last word
            labels: {app: x}

        spec:
            containers:
                -   name: train
                    resources: {limits: {nvidia.com/gpu: 1}}
---
# another document
kind: ConfigMap
data:
  script: |
    # not a comment
    x: 1
...
""",
    "flow style": """\
{kind: Pod, metadata: {name: task, annotations: {team: vision}}, spec: {containers: [{name: x, resources: {limits: \
{nvidia.com/gpu: 1}}}]}}
""",
    "JSON": json.dumps(
        {
            "kind": "Pod",
            "metadata": {"name": "task", "labels": {"app": "x"}},
            "spec": {"containers": [{"name": "x", "resources": {"limits": {"nvidia.com/gpu": 1}}}]},
        },
        indent=2,
    ),
    "empty annotations": """\
kind: Pod
metadata:
  name: task
  annotations: {}  # none yet
spec: {containers: [{name: x, resources: {limits: {nvidia.com/gpu: 1}}}]}
""",
    "annotations of nothing": """\
kind: Pod
metadata:
  annotations:  # none yet
  name: task
spec: {containers: [{name: x, resources: {limits: {nvidia.com/gpu: 1}}}]}
""",
    "anchors": """\
kind: Pod
metadata:
  name: task
  annotations: &common
    team: vision
  labels: *common
spec:
  containers:
  - &one
    name: x
    resources: {limits: {nvidia.com/gpu: 1}}
""",
    "merge keys": """\
x-common: &common
  team: vision
kind: Pod
metadata:
  name: task
  annotations:
    <<: *common
    note: 'single'
spec: {containers: [{name: x, resources: {limits: {nvidia.com/gpu: 1}}}]}
""",
    "a block scalar last": """\
kind: Pod
metadata:
  name: task
  annotations:
    note: |
      many
      lines

spec: {containers: [{name: x, resources: {limits: {nvidia.com/gpu: 1}}}]}
""",
    "an alias last": """\
x-team: &team vision
kind: Pod
metadata:
  name: task
  annotations:
    team: *team  # shared
spec: {containers: [{name: x, resources: {limits: {nvidia.com/gpu: 1}}}]}
""",
    "Windows' line ends": "kind: Pod\r\nmetadata:\r\n  name: task\r\nspec:\r\n  containers:\r\n  - name: x\r\n"
    "    resources: {limits: {nvidia.com/gpu: 1}}\r\n",
    "no newline at the end": "spec: {containers: [{name: x, resources: {limits: {nvidia.com/gpu: 1}}}]}\nkind: Pod\n"
    "metadata:\n  name: task",
    "a byte order mark": "\ufeffkind: Pod\nmetadata:\n  name: task\nspec:\n  containers:\n  - name: x\n"
    "    resources: {limits: {nvidia.com/gpu: 1}}\n",
}


@pytest.mark.parametrize("layout", [layout for layout in LAYOUTS if layout != "anchors"])
def test_every_layout_is_preserved_to_the_byte(layout: str, file: Path) -> None:
    text = LAYOUTS[layout]
    file.write_bytes(text.encode())
    annotate(file, *SUMMARY, scheduler_name=SCHEDULER_NAME)
    after = file.read_bytes().decode()
    # Every character is still there, in order: text was only inserted.
    following = iter(after)
    assert all(letter in following for letter in text.replace(": {}", ":"))
    assert after.count("#") == text.count("#")
    assert ("\r\n" in text) == ("\r\n" in after)
    assert after.count("\r\n") in (0, after.count("\n"))
    pod = next(template for document in yaml.safe_load_all(after) for template in find_templates(document))
    assert pod.annotations["vramcast.dev/batch-size"] == "64"
    assert pod.spec["schedulerName"] == SCHEDULER_NAME


def test_json_stays_json(file: Path) -> None:
    file.write_text(LAYOUTS["JSON"])
    annotate(file, *SUMMARY)
    assert json.loads(file.read_text())["metadata"]["annotations"]["vramcast.dev/parameters"] == "25.6M"


def test_values_shared_by_an_anchor_are_not_edited(file: Path) -> None:
    file.write_text(LAYOUTS["anchors"])
    assert "by hand" in refusal(file, *SUMMARY)


def test_a_second_edit_changes_values_in_place(file: Path) -> None:
    file.write_text(KINDS["Job"][0])
    annotate(file, *SUMMARY)
    once = file.read_text()
    annotate(file, "batch-size=128")
    assert file.read_text() == once.replace('batch-size: "64"', 'batch-size: "128"')
    annotate(file, "batch-size=128")
    assert file.read_text() == once.replace('batch-size: "64"', 'batch-size: "128"')


def test_unset_removes_the_line_even_of_a_misspelt_key(file: Path) -> None:
    file.write_text(described("team: vision", "vramcast.dev/gpu-memory: 16Gi", 'vramcast.dev/batch_size: "8"  # oops'))
    annotate(file, *SUMMARY, unset=parse_names(["gpu-memory", "vramcast.dev/batch_size", "layers"]))
    annotations = yaml.safe_load(file.read_text())["metadata"]["annotations"]
    assert annotations == {
        "team": "vision", "vramcast.dev/parameters": "25.6M", "vramcast.dev/activations": "11.1M",
        "vramcast.dev/batch-size": "64",
    }  # fmt: skip
    assert "oops" not in file.read_text()


@pytest.mark.parametrize(
    ("setting", "line"),
    [
        ("batch-size=7e9", None), ("parameters=7e9", 'parameters: "7e9"'), ("share=true", 'share: "true"'),
        ("max-oom-risk=0.01", 'max-oom-risk: "0.01"'), ("input-size=3x224x224", "input-size: 3x224x224"),
        ("gpu-memory=16Gi", "gpu-memory: 16Gi"), ("sequence-length=4k", "sequence-length: 4k"),
    ],
)  # fmt: skip
def test_values_that_yaml_might_read_as_numbers_are_quoted(setting: str, line: str | None, file: Path) -> None:
    file.write_text(KINDS["Pod"][0].replace("nvidia.com/gpu: 1", "cpu: 1"))
    if line is None:
        assert "from 1 to 10000000" in refusal_of_settings(setting)
        return
    annotate(file, "share=true", "gpu-memory=1Gi", setting)
    assert f"vramcast.dev/{line}\n" in file.read_text()


def refusal_of_settings(*settings: str) -> str:
    with pytest.raises(InvalidInput) as caught:
        parse_settings(settings)
    return str(caught.value)


def test_the_file_keeps_its_mode_and_a_symlink_stays(file: Path) -> None:
    file.write_text(KINDS["Job"][0])
    file.chmod(0o640)
    link = file.parent / "link.yaml"
    link.symlink_to(file)
    annotate(link, *SUMMARY)
    assert link.is_symlink()
    assert "batch-size" in file.read_text()
    assert stat.S_IMODE(file.stat().st_mode) == 0o640


# --- output


def test_without_in_place_the_result_is_on_standard_output(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file.write_text(KINDS["Job"][0])
    assert run_annotate([file], AnnotateOptions(parse_settings(SUMMARY)), in_place=False, check=None, diff=False) == 0
    assert set(added(KINDS["Job"][0], capsys.readouterr().out)) >= SUMMARY_LINES
    assert file.read_text() == KINDS["Job"][0]


def test_a_diff_shows_what_changes_and_changes_nothing(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file.write_text(KINDS["Job"][0])
    run_annotate([file], AnnotateOptions(parse_settings(SUMMARY)), in_place=False, check=None, diff=True)
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith(("+ ", "- "))]
    assert {line[1:].strip() for line in lines} >= SUMMARY_LINES
    assert all(line.startswith("+") for line in lines)
    assert file.read_text() == KINDS["Job"][0]


def test_in_place_shows_the_diff(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file.write_text(KINDS["Job"][0])
    annotate(file, *SUMMARY)
    out, err = capsys.readouterr()
    assert out == ""
    assert {line[1:].strip() for line in err.splitlines() if line.startswith("+ ")} >= SUMMARY_LINES
    assert err.endswith(f"annotated: {file}\n")


def test_standard_input_can_be_read_but_not_edited(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(KINDS["Job"][0]))
    run_annotate([Path("-")], AnnotateOptions(parse_settings(SUMMARY)), in_place=False, check=None, diff=False)
    assert "vramcast.dev/batch-size" in capsys.readouterr().out
    with pytest.raises(InvalidInput, match="cannot write to standard input"):
        run_annotate([Path("-")], AnnotateOptions(parse_settings(SUMMARY)), in_place=True, check=None, diff=False)


def test_every_mistake_in_the_settings_is_reported_at_once() -> None:
    reported = refusal_of_settings("batch_size=8", "gpu-memory=16GB", "precision", "task=train").splitlines()
    assert [line.split(": ")[1] for line in reported] == [
        "vramcast.dev/batch_size", "vramcast.dev/gpu-memory", "vramcast.dev/precision", "vramcast.dev/task",
    ]  # fmt: skip
    assert "did you mean vramcast.dev/batch-size?" in reported[0]
    assert "did you mean 16G? or 16Gi" in reported[1]
    assert "KEY=VALUE" in reported[2]
    assert "did you mean training?" in reported[3]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("kind: [", "not YAML"),
        ("", "it is empty"),
        ("kind: ConfigMap\nmetadata: {name: x}\n", "it contains ConfigMap"),
        ("- a\n- b\n", "no pod and no pod template"),
    ],
)
def test_a_file_without_pods_is_refused_with_the_reason(text: str, expected: str, file: Path) -> None:
    file.write_text(text)
    assert expected in refusal(file, *SUMMARY)


def test_a_pod_that_asks_for_no_gpu_relies_on_the_webhook(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file.write_text(KINDS["Job"][0].replace("nvidia.com/gpu: 1", "cpu: 1"))
    code, reported = check(file, capsys, *SUMMARY)
    assert code == 0
    assert "asks for no GPU: it shares one where the webhook fills that in" in reported
    assert "schedulerName" not in reported


def test_an_incomplete_description_is_refused_with_the_missing_keys(file: Path) -> None:
    file.write_text(KINDS["Job"][0])
    assert "a summary also needs activations, batch-size" in refusal(file, "parameters=7B")


def test_one_bad_file_leaves_all_files_as_they_were(tmp_path: Path) -> None:
    good, bad = tmp_path / "good.yaml", tmp_path / "bad.yaml"
    good.write_text(KINDS["Job"][0])
    bad.write_text("kind: ConfigMap\n")
    with pytest.raises(InvalidInput, match=r"bad\.yaml"):
        run_annotate([good, bad], AnnotateOptions(parse_settings(SUMMARY)), in_place=True, check=None, diff=False)
    assert good.read_text() == KINDS["Job"][0]


# --- misplaced annotations


_WRONG = "    vramcast.dev/gpu-memory: 16Gi  # measured\n    vramcast.dev/max-oom-risk: 0.01\n"
ON_THE_JOB = KINDS["Job"][0].replace("  name: task\n", f"  name: task\n  annotations:\n{_WRONG}")


def test_annotations_on_the_job_are_reported_as_misplaced(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file.write_text(ON_THE_JOB)
    code, reported = check(file, capsys)
    assert code == 1
    assert "Job/task: metadata.annotations: vramcast.dev/gpu-memory, vramcast.dev/max-oom-risk: no pod gets" in reported
    assert f"spec.template.metadata.annotations: `vramcast annotate -f {file} --move --in-place` moves them" in reported


def test_misplaced_annotations_are_moved(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file.write_text(ON_THE_JOB)
    annotate(file, move=True)
    document = yaml.safe_load(file.read_text())
    assert document["metadata"] == {"name": "task"}
    assert document["spec"]["template"]["metadata"]["annotations"] == {
        "vramcast.dev/gpu-memory": "16Gi", "vramcast.dev/max-oom-risk": "0.01",
    }  # fmt: skip
    assert check(file, capsys)[0] == 0


def test_misplaced_annotations_of_a_list_item_are_reported_and_moved(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    item = "- kind: Job\n  metadata: {name: other}\n  spec: {template: {spec: {containers: [{name: x}]}}}\n"
    text = KINDS["List"][0] + item
    wrong = "  metadata:\n    name: task\n    annotations:\n      vramcast.dev/gpu-memory: 16Gi\n"
    file.write_text(text.replace("  metadata: {name: task}\n", wrong))
    code, reported = check(file, capsys)
    assert code == 1
    assert "Job/task: items[1].metadata.annotations: vramcast.dev/gpu-memory" in reported
    assert "they belong in items[1].spec.template.metadata.annotations" in reported
    annotate(file, move=True)
    first, second = yaml.safe_load(file.read_text())["items"][1:]
    assert first["spec"]["template"]["metadata"]["annotations"] == {"vramcast.dev/gpu-memory": "16Gi"}
    assert "metadata" not in second["spec"]["template"]


def test_annotations_among_the_labels_are_reported_as_misplaced(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file.write_text(KINDS["Pod"][0].replace("  name: task\n", "  name: task\n  labels: {vramcast.dev/model: x}\n"))
    code, reported = check(file, capsys)
    assert code == 1
    assert "metadata.labels: vramcast.dev/model" in reported
    assert "they belong in metadata.annotations" in reported


# --- checking


def described(*lines: str) -> str:
    inside = "".join(f"    {line}\n" for line in lines)
    return KINDS["Pod"][0].replace("  name: task\n", f"  name: task\n  annotations:\n{inside}")


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (['vramcast.dev/batch_size: "8"'], "did you mean vramcast.dev/batch-size?"),
        (["vramcast.dev/gpu-memory: 16GB"], "did you mean 16G? or 16Gi"),
        (['vramcast.dev/gpu-memory: "16"'], "did you mean 16Gi?"),
        (["vramcast.dev/gpu-memory: 16"], 'write it in quotes, "16"'),
        (["vramcast.dev/share: true"], 'write it in quotes, "true"'),
        (["vramcast.dev/gpu-memory: 16Gi", 'vramcast.dev/share: "true"'], "contradicts resources.limits"),
        (["vramcast.dev/parameters: 7B"], "a summary also needs activations, batch-size"),
        (["vramcast.dev/profile: v1:nonsense"], "`vramcast profile`"),
        ([], "`vramcast annotate -f"),
    ],
)
def test_a_check_reports_every_kind_of_mistake_with_its_fix(
    lines: list[str], expected: str, file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file.write_text(described(*lines))
    code, reported = check(file, capsys)
    assert code == 1
    assert expected in reported
    assert all(line.startswith(f"error: {file}: ") for line in reported.splitlines())


def test_a_check_without_mistakes_reports_ok(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file.write_text(described("vramcast.dev/gpu-memory: 16Gi"))
    code, reported = check(file, capsys)
    assert code == 0
    assert f"ok: {file}: 1 described pod template\n" in reported
    assert f"note: {file}: Pod/task: has no schedulerName" in reported


def test_a_sharing_pod_that_would_see_every_gpu_is_noted(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = described("vramcast.dev/gpu-memory: 16Gi", 'vramcast.dev/share: "true"')
    file.write_text(text.replace("nvidia.com/gpu: 1", "cpu: 1"))
    code, reported = check(file, capsys)
    assert code == 0
    assert "NVIDIA_VISIBLE_DEVICES" in reported


def test_a_check_of_settings_writes_nothing(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file.write_text(KINDS["Job"][0])
    assert check(file, capsys, *SUMMARY)[0] == 0
    assert check(file, capsys, "parameters=7B")[0] == 1
    assert file.read_text() == KINDS["Job"][0]


def test_without_anything_to_do_the_error_names_the_options(file: Path) -> None:
    with pytest.raises(InvalidInput, match="--set KEY=VALUE"):
        run_annotate([file], AnnotateOptions({}), in_place=False, check=None, diff=False)


# ------------------------------------------------------------------ tolerations

TOLERATION = {"key": "vramcast.dev/gpu-sharing", "operator": "Exists", "effect": "NoSchedule"}
SHARING_JOB = KINDS["Job"][0].replace("nvidia.com/gpu: 1", "cpu: 1")


def tolerations(file: Path) -> object:
    return yaml.safe_load(file.read_text())["spec"]["template"]["spec"].get("tolerations")


def test_a_sharing_pod_tolerates_the_taint_of_sharing_nodes(file: Path) -> None:
    file.write_text(SHARING_JOB)
    annotate(file, "share=true", "gpu-memory=1Gi")
    assert tolerations(file) == [TOLERATION]
    once = file.read_text()
    annotate(file, "share=true", "gpu-memory=1Gi")
    assert file.read_text() == once


def test_a_pod_that_does_not_share_gets_no_toleration(file: Path) -> None:
    file.write_text(KINDS["Job"][0])
    annotate(file, *SUMMARY)
    assert tolerations(file) is None


@pytest.mark.parametrize(
    "layout",
    [
        "      tolerations:\n        - key: nvidia.com/gpu\n          operator: Exists\n",
        "      tolerations:\n      - key: nvidia.com/gpu\n        operator: Exists\n",
        "      tolerations: [{key: nvidia.com/gpu, operator: Exists}]\n",
        '      tolerations: [{"key": "nvidia.com/gpu", "operator": "Exists"}]\n',
    ],
)
def test_other_tolerations_stay(layout: str, file: Path) -> None:
    file.write_text(SHARING_JOB.replace("      containers:\n", f"{layout}      containers:\n", 1))
    annotate(file, "share=true", "gpu-memory=1Gi")
    assert tolerations(file) == [{"key": "nvidia.com/gpu", "operator": "Exists"}, TOLERATION]


@pytest.mark.parametrize(
    "given",
    [
        {"operator": "Exists"},
        {"key": "vramcast.dev/gpu-sharing", "operator": "Exists"},
        {"key": "vramcast.dev/gpu-sharing", "value": "true", "effect": "NoSchedule"},
    ],
)
def test_a_pod_that_tolerates_the_taint_already_stays_as_it_is(given: dict[str, str], file: Path) -> None:
    layout = f"      tolerations: [{json.dumps(given)}]\n"
    file.write_text(SHARING_JOB.replace("      containers:\n", f"{layout}      containers:\n", 1))
    annotate(file, "share=true", "gpu-memory=1Gi")
    assert tolerations(file) == [given]
