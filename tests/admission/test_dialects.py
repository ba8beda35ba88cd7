"""The number for other systems: in their field and unit, for their pods, and never over what is there."""

from __future__ import annotations

from typing import Any

import pytest

from tests.admission.pods import MODEL, admitted, new_container, new_context, new_pod
from vramcast.admission.context import Context, Needs
from vramcast.admission.filling import read
from vramcast.names import Product
from vramcast.settings import System
from vramcast.task.quantity import GIB, MIB

A100, L40S = Product("NVIDIA-A100-SXM4-80GB"), Product("NVIDIA-L40S")
NEED_MIB = 10_001


def needs(gpus: int = 1, **by_product: int) -> Needs:
    given = {Product(name.replace("_", "-")): mib * MIB for name, mib in by_product.items()} or {A100: NEED_MIB * MIB}
    return Needs(given, given, dict.fromkeys(given, 79 * GIB), gpus, 0.05)


def context(dialects: str, found: Needs | None = None, **settings: Any) -> Context:
    return new_context({"webhook_dialects": dialects, "mode": "observe", **settings}, needs=found or needs())


def asking(*limits: dict[str, str]) -> list[dict[str, Any]]:
    return [new_container(f"c{index}", resources={"limits": each}) for index, each in enumerate(limits)]


def resources(pod: Any, index: int = 0) -> dict[str, str]:
    """Of a container: limits, which are equal to the requests for what was added."""
    asked = pod["spec"]["containers"][index]["resources"]
    assert all(asked["limits"][name] == value for name, value in asked.get("requests", {}).items())
    limits: dict[str, str] = asked.get("limits", {})
    return limits


@pytest.mark.parametrize(
    ("dialect", "spec", "written"),
    [
        ("hami", {"containers": asking({"nvidia.com/gpu": "1"})}, {"nvidia.com/gpumem": "10001"}),
        ("hami:10", {"containers": asking({"nvidia.com/gpu": "2"})}, {"nvidia.com/gpumem": "1001"}),
        ("volcano", {"containers": asking({"volcano.sh/vgpu-number": "1"})}, {"volcano.sh/vgpu-memory": "10001"}),
        ("volcano:10", {"containers": asking({"volcano.sh/vgpu-number": "2"})}, {"volcano.sh/vgpu-memory": "1001"}),
        ("volcano-share", {"schedulerName": "volcano"}, {"volcano.sh/gpu-memory": "10001"}),
        ("koordinator", {"schedulerName": "koord-scheduler"}, {"koordinator.sh/gpu-memory": "10001Mi"}),
        ("gpushare", {}, {"aliyun.com/gpu-mem": "10"}),
        ("gpushare:1", {}, {"aliyun.com/gpu-mem": "10001"}),
    ],
)
def test_a_system_that_reads_limits_gets_its_own_unit_rounded_up(
    dialect: str, spec: dict[str, Any], written: dict[str, str]
) -> None:
    pod = admitted(new_pod(**spec), context(dialect))
    assert resources(pod).items() >= written.items()
    assert pod["metadata"]["annotations"]["vramcast.dev/injected"] == next(iter(written))


def test_kai_reads_a_plain_integer_of_mib() -> None:
    pod = admitted(new_pod(schedulerName="kai-scheduler"), context("kai"))
    assert pod["metadata"]["annotations"]["gpu-memory"] == "10001"
    assert "gpu-fraction-num-devices" not in pod["metadata"]["annotations"]


def test_kai_is_told_how_many_gpus_have_that_memory() -> None:
    pod = admitted(new_pod({**MODEL, "gpus": "2"}, schedulerName="kai-scheduler"), context("kai", needs(2)))
    assert pod["metadata"]["annotations"]["gpu-fraction-num-devices"] == "2"


def test_koordinator_reads_the_total_over_the_gpus() -> None:
    shared = asking({"koordinator.sh/gpu.shared": "2"})
    pod = admitted(new_pod(containers=shared, schedulerName="koord-scheduler"), context("koordinator", needs(2)))
    assert resources(pod) == {"koordinator.sh/gpu.shared": "2", "koordinator.sh/gpu-memory": "20002Mi"}


def test_koordinator_is_told_how_many_gpus_where_the_pod_does_not_say() -> None:
    described = new_pod({**MODEL, "gpus": "2"}, schedulerName="koord-scheduler")
    assert resources(admitted(described, context("koordinator", needs(2)))) == {
        "koordinator.sh/gpu.shared": "2", "koordinator.sh/gpu-memory": "20002Mi"
    }  # fmt: skip


def test_tensorfusion_reads_quantities() -> None:
    pod = new_pod()
    pod["metadata"]["labels"] = {"tensor-fusion.ai/enabled": "true"}
    annotations = admitted(pod, context("tensorfusion"))["metadata"]["annotations"]
    assert {name: value for name, value in annotations.items() if name.startswith("tensor-fusion")} == {
        "tensor-fusion.ai/vram-request": "10001Mi", "tensor-fusion.ai/vram-limit": "10001Mi"
    }  # fmt: skip


@pytest.mark.parametrize(
    ("dialect", "pod"),
    [
        ("hami", new_pod(containers=asking({"nvidia.com/gpu": "1", "nvidia.com/gpumem": "1"}))),
        ("hami", new_pod(containers=asking({"nvidia.com/gpu": "1", "nvidia.com/gpumem-percentage": "50"}))),
        (
            "hami",
            new_pod(containers=asking({"nvidia.com/gpu": "1"}, {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "1"})),
        ),
        ("kai", new_pod(schedulerName="kai-scheduler", annotations={"gpu-memory": "5"})),
        ("kai", new_pod(schedulerName="kai-scheduler", annotations={"gpu-fraction": "0.5"})),
        ("kai", new_pod(schedulerName="kai-scheduler", containers=asking({"nvidia.com/gpu": "1"}))),
        ("volcano", new_pod(containers=asking({"volcano.sh/vgpu-number": "1", "volcano.sh/vgpu-memory": "1"}))),
        (
            "volcano",
            new_pod(containers=asking({"volcano.sh/vgpu-number": "1", "volcano.sh/vgpu-memory-percentage": "1"})),
        ),
        ("volcano-share", new_pod(schedulerName="volcano", containers=asking({"volcano.sh/gpu-memory": "1"}))),
        (
            "koordinator",
            new_pod(schedulerName="koord-scheduler", containers=asking({"koordinator.sh/gpu-memory": "1Gi"})),
        ),
        ("koordinator", new_pod(schedulerName="koord-scheduler", containers=asking({"koordinator.sh/gpu": "50"}))),
        ("gpushare", new_pod(containers=asking({"aliyun.com/gpu-mem": "1"}))),
        ("tensorfusion", new_pod(annotations={"tensor-fusion.ai/vram-limit": "1Gi"})),
    ],
)
def test_a_pod_that_says_what_it_needs_is_left_alone(dialect: str, pod: Any) -> None:
    assert admitted(pod, context(dialect)) == pod


@pytest.mark.parametrize("dialect", System)
def test_a_pod_of_another_system_is_left_alone(dialect: str) -> None:
    pod = new_pod(schedulerName="some-scheduler")
    assert admitted(pod, context(dialect)) == pod


def test_a_dialect_that_is_not_listed_is_not_written() -> None:
    pod = new_pod(containers=asking({"nvidia.com/gpu": "1"}))
    assert admitted(pod, context("kai,gpushare")) == pod


def test_a_pod_that_vramcast_places_is_told_to_nobody_else() -> None:
    pod = new_pod(containers=asking({"nvidia.com/gpu": "1"}))
    placed = admitted(pod, context("hami", mode="decide"))
    assert resources(placed) == {"nvidia.com/gpu": "1"}


def test_every_gpu_container_is_told_and_no_other() -> None:
    pod = new_pod(
        containers=asking({"nvidia.com/gpu": "1"}, {"cpu": "1"}, {"nvidia.com/gpu": "1"}),
        initContainers=asking({"nvidia.com/gpu": "1"}),
    )
    made = admitted(pod, context("hami"))
    assert [resources(made, index).get("nvidia.com/gpumem") for index in range(3)] == ["10001", None, "10001"]
    assert made["spec"]["initContainers"][0]["resources"]["limits"]["nvidia.com/gpumem"] == "10001"


def test_where_needs_differ_the_largest_is_written_and_the_annotation_says_for_which_product() -> None:
    found = needs(**{A100.replace("-", "_"): 9_000, L40S.replace("-", "_"): 8_000})
    pod = admitted(new_pod(schedulerName="kai-scheduler"), context("kai", found))
    assert pod["metadata"]["annotations"]["gpu-memory"] == "9000"
    assert pod["metadata"]["annotations"]["vramcast.dev/injected"] == f"gpu-memory({A100})"


def test_a_product_that_is_too_small_does_not_raise_the_number() -> None:
    by_product = {A100: 9_000 * MIB, L40S: 9_500 * MIB}
    found = Needs(by_product, by_product, {A100: 79 * GIB, L40S: 9_400 * MIB}, 1, 0.05)
    pod = admitted(new_pod(schedulerName="kai-scheduler"), context("kai", found))
    assert pod["metadata"]["annotations"]["gpu-memory"] == "9000"


def test_without_a_forecast_nothing_is_written() -> None:
    pod = new_pod(schedulerName="kai-scheduler")
    assert admitted(pod, new_context({"webhook_dialects": "kai", "mode": "observe"})) == pod


@pytest.mark.parametrize(("dialect", "annotation"), [("kai", "gpu-memory"), ("kai", "gpu-fraction")])
def test_a_pod_that_tells_another_system_itself_has_made_no_mistake(dialect: str, annotation: str) -> None:
    pod = new_pod(schedulerName="kai-scheduler", annotations={annotation: "1"})
    assert read(pod, context(dialect)).record.invalid is None


@pytest.mark.parametrize("dialect", System)
def test_admitting_twice_is_admitting_once(dialect: str) -> None:
    raw = new_pod(containers=asking({"nvidia.com/gpu": "1", "volcano.sh/vgpu-number": "1"}))
    once = admitted(raw, context(dialect))
    assert admitted(once, context(dialect)) == once
