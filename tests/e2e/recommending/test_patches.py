"""The patches, applied by the real kubectl as their own comments say."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.controlplane import PATIENCE_SECONDS
from tests.controlplane.binaries import KUBERNETES, built_program
from tests.recommend.samples import sample_report
from vramcast.cli.recommend.patches import write_patches

pytestmark = pytest.mark.e2e
GPU = {"nvidia.com/gpu": "1", "cpu": "4"}
POD = {
    "metadata": {"annotations": {"team": "search"}, "labels": {"app": "serve"}},
    "spec": {
        "containers": [
            {"name": "main", "image": "train:1", "resources": {"limits": GPU, "requests": GPU}},
            {"name": "logs", "image": "logs:1"},
        ]
    },
}
SELECTOR = {"matchLabels": {"app": "serve"}}
MANIFESTS: dict[str, dict[str, Any]] = {
    "deployment": {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "serve"},
                   "spec": {"selector": SELECTOR, "template": POD}},
    "cronjob": {"apiVersion": "batch/v1", "kind": "CronJob", "metadata": {"name": "nightly"},
                "spec": {"schedule": "0 0 * * *", "jobTemplate": {"spec": {"template": POD}}}},
    "job": {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "train"}, "spec": {"template": POD}},
}  # fmt: skip


def patched(kind: str, patch: Path, directory: Path) -> dict[str, Any]:
    manifest = directory / f"{kind}.yaml"
    manifest.write_text(yaml.safe_dump(MANIFESTS[kind]))
    kubectl = str(built_program(KUBERNETES, "kubectl"))
    command = [kubectl, "patch", "--local", "--filename", str(manifest), "--patch-file", str(patch), "--output", "yaml"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = yaml.safe_load(done.stdout)
    spec = found["spec"]["jobTemplate"]["spec"] if kind == "cronjob" else found["spec"]
    return dict(spec["template"])


@pytest.mark.parametrize(("kind", "shares"), [("deployment", True), ("cronjob", True), ("job", False)])
def test_kubectl_adds_the_annotations_and_takes_the_device_of_a_pod_that_shares(
    tmp_path: Path, kind: str, shares: bool
) -> None:
    write_patches(sample_report(), tmp_path / "patches")
    (patch,) = (tmp_path / "patches").glob(f"ml.{kind}.*")
    pod = patched(kind, patch, tmp_path)
    assert pod["metadata"]["annotations"]["team"] == "search"
    assert pod["metadata"]["annotations"]["vramcast.dev/gpu-memory"].endswith("Mi")
    assert pod["metadata"]["annotations"].get("vramcast.dev/share") == ("true" if shares else None)
    main, logs = sorted(pod["spec"]["containers"], key=lambda one: -len(one))
    assert (main["image"], logs["image"]) == ("train:1", "logs:1")
    assert main["resources"]["limits"] == ({"cpu": "4"} if shares else GPU)
