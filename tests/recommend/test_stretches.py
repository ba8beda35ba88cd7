"""Series as exporters leave them, with all their labels, as pods on GPUs."""

from __future__ import annotations

from typing import Any

import pytest

from vramcast.outcomes.readings import Series
from vramcast.recommend.stretches import add_busy, read_usage, stretches
from vramcast.recommend.window import PodFacts, Stretch

STEP = 300.0
EXPORTER = ("gpu-operator", "dcgm-exporter-x2x9k")


def series(values: dict[int, float], pod: str | None = "train", **labels: str) -> Series:
    """`values`: MiB by step."""
    gpu = {"Hostname": "n", "UUID": "GPU-1", "gpu": "0", "modelName": "NVIDIA A100-SXM4-40GB", **labels}
    named = {"exported_pod": pod, "exported_namespace": "ml"} if pod else {}
    target = {"pod": EXPORTER[1], "namespace": EXPORTER[0], "job": "dcgm"}
    return Series({**target, **gpu, **named}, tuple((step * STEP, mib) for step, mib in values.items()))


def read(*found: Series, facts: tuple[PodFacts, ...] = (), exporters: Any = (EXPORTER,)) -> list[Stretch]:
    return stretches(read_usage(found, set(exporters)), facts, STEP)


def test_the_peak_and_the_time_of_a_pod() -> None:
    (one,) = read(series({1: 100, 2: 900, 4: 50}))
    assert (one.namespace, one.pod, one.node, one.product) == ("ml", "train", "n", "NVIDIA-A100-SXM4-40GB")
    assert (one.peaks_mib, one.first_at, one.last_at, one.steps) == ({"GPU-1": 900}, 0.0, 4 * STEP, 3)


def test_labels_may_come_with_or_without_honor_labels() -> None:
    honored = Series({"Hostname": "n", "gpu": "0", "pod": "train", "namespace": "ml"}, ((STEP, 5.0),))
    (one,) = read(honored)
    assert (one.namespace, one.pod, one.peaks_mib) == ("ml", "train", {"0": 5})


@pytest.mark.parametrize("exporters", [(EXPORTER,), ()])
def test_a_gpu_without_a_pod_is_counted_and_its_exporter_is_no_workload(exporters: Any) -> None:
    usage = read_usage([series({1: 4}, pod=None), series({1: 900}, UUID="GPU-2")], set(exporters))
    assert (len(usage.gpus), usage.nameless, usage.pods) == (2, 1, {("ml", "train")})


def test_several_gpus_and_restarts_of_the_exporter_are_one_pod() -> None:
    found = read(
        series({1: 10, 2: 20}), series({2: 30, 3: 20}, pod="train", instance="after the restart"),
        series({1: 7, 2: 9}, UUID="GPU-2"),
    )  # fmt: skip
    assert [(one.peaks_mib, one.steps) for one in found] == [({"GPU-1": 30, "GPU-2": 9}, 5)]


def test_pods_on_one_gpu_at_the_same_time_cannot_be_told_apart() -> None:
    together = read(series({1: 10, 2: 20, 3: 30, 4: 40}, pod="a"), series({1: 10, 2: 20, 3: 30, 4: 40}, pod="b"))
    assert [one.shared_steps for one in together] == [2, 2]
    one_after_the_other = read(series({1: 10, 2: 20}, pod="a"), series({2: 5, 3: 30}, pod="b"))
    assert [one.shared_steps for one in one_after_the_other] == [0, 0]


def test_a_mig_slice_is_a_device_of_its_own() -> None:
    slices = [
        series({1: 10, 2: 10, 3: 10}, pod=pod, GPU_I_ID=mig, GPU_I_PROFILE="1g.5gb")
        for pod, mig in (("a", "7"), ("b", "8"))
    ]
    found = read(*slices)
    assert [(one.profile, list(one.peaks_mib), one.shared_steps) for one in found] == [
        ("1g.5gb", ["GPU-1/7"], 0), ("1g.5gb", ["GPU-1/8"], 0),
    ]  # fmt: skip


def test_a_name_that_is_used_again_is_another_run() -> None:
    facts = (PodFacts("ml", "train", "old", 10.0), PodFacts("ml", "train", "new", 2.5 * STEP))
    found = read(series({1: 100, 2: 900, 3: 50, 4: 60}), facts=facts)
    assert [(one.uid, one.peaks_mib["GPU-1"], one.steps) for one in found] == [("old", 900, 2), ("new", 60, 2)]


def test_samples_before_a_pod_was_created_are_its_own_because_clocks_differ() -> None:
    (one,) = read(series({1: 100, 2: 200}), facts=(PodFacts("ml", "train", "u", 10 * STEP),))
    assert (one.uid, one.steps) == ("u", 2)


def test_a_finished_pod_that_the_kubelet_still_names_uses_nothing() -> None:
    done = PodFacts("ml", "train", "u", 10.0, completed_at=2.2 * STEP)
    found = read(series({1: 100, 2: 200, 3: 150, 4: 9000, 5: 9000}), facts=(done,))
    assert [(one.peaks_mib["GPU-1"], one.steps) for one in found] == [(200, 3)]


@pytest.mark.parametrize(("value", "fault"), [(float("nan"), "not_a_number"), (-1.0, "negative"), (3e9, "unit")])
def test_a_value_that_no_gpu_has_is_skipped_and_counted(value: float, fault: str) -> None:
    usage = read_usage([series({1: 100, 2: value})], {EXPORTER})
    assert usage.faults == {fault: 1}
    assert [one.peaks_mib for one in stretches(usage, (), STEP)] == [{"GPU-1": 100}]


def test_a_series_without_a_gpu_is_counted() -> None:
    usage = read_usage([Series({"exported_pod": "train"}, ((STEP, 5.0),))], set())
    assert (usage.faults, usage.pods) == ({"no_gpu": 1}, set())


def test_how_busy_a_pod_was_is_the_mean_of_all_its_samples() -> None:
    found = read(series({1: 100}), series({1: 100}, UUID="GPU-2"))
    labels = {"exported_pod": "train", "exported_namespace": "ml"}
    sums = [Series({**labels, "UUID": "GPU-1"}, ((0, 300.0),)), Series({**labels, "UUID": "GPU-2"}, ((0, 100.0),))]
    counts = [Series({**labels, "UUID": uuid}, ((0, 4.0),)) for uuid in ("GPU-1", "GPU-2")]
    add_busy(found, sums, counts, 100.0, {EXPORTER})
    assert [one.busy_sum / one.busy_weight for one in found] == [0.5]
