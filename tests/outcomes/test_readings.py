"""From series to readings: every form of labels, and which samples are skipped for which reason."""

from __future__ import annotations

import math

import pytest

from vramcast.hardware.utilization import UtilizationCounter
from vramcast.outcomes.readings import Device, Fault, Interpreter, LabelNames, Series, Unit

NOW = 1_000_000.0
DCGM = {"gpu": "1", "UUID": "GPU-1", "Hostname": "a"}


def series(value: float = 1024.0, at: float = NOW - 5, **labels: str) -> Series:
    return Series({**DCGM, **labels}, ((at, value),))


@pytest.mark.parametrize(
    ("labels", "pod"),
    [
        ({}, ""),
        ({"pod": "train", "namespace": "ml"}, "ml/train"),
        # Prometheus without honorLabels: the exporter's own pod replaces the task's.
        (
            {"exported_pod": "train", "exported_namespace": "ml", "pod": "dcgm-x", "namespace": "gpu-operator"},
            "ml/train",
        ),
    ],
)
def test_the_pod_is_read_from_either_pair_of_labels(labels: dict[str, str], pod: str) -> None:
    (reading,) = Interpreter().read([series(**labels)], {}, NOW).memory
    assert (reading.node, reading.device, reading.pod, reading.value) == ("a", Device(1), pod, 1024.0)


def test_label_names_are_configurable() -> None:
    names = LabelNames(node=("machine",), pod=("task",), namespace=("space",))
    given = Series({"gpu": "0", "machine": "m", "task": "t", "space": "s"}, ((NOW, 1.0),))
    (reading,) = Interpreter(names).read([given], {}, NOW).memory
    assert (reading.node, reading.pod) == ("m", "s/t")


def test_each_mig_device_is_a_separate_device() -> None:
    frame = Interpreter().read([series(GPU_I_ID="3"), series(GPU_I_ID="4")], {}, NOW)
    assert {reading.device for reading in frame.memory} == {Device(1, "3"), Device(1, "4")}


def test_values_are_read_as_bytes_if_so_configured() -> None:
    (reading,) = Interpreter(unit=Unit.BYTES).read([series(10 * 2**30)], {}, NOW).memory
    assert reading.value == 10 * 1024


@pytest.mark.parametrize(("percent", "value"), [(frozenset(UtilizationCounter), 87.0), (frozenset(), 0.87)])
def test_every_counter_of_utilization_is_a_share_in_either_unit(
    percent: frozenset[UtilizationCounter], value: float
) -> None:
    given = {counter: [series(value)] for counter in UtilizationCounter}
    read = Interpreter(percent=percent).read([], given, NOW).utilization
    assert {counter: [reading.value for reading in found] for counter, found in read.items()} == {
        counter: [pytest.approx(0.87)] for counter in UtilizationCounter
    }


BAD = {
    Fault.NOT_A_NUMBER: series(math.nan),
    Fault.NEGATIVE: series(-1.0),
    Fault.UNIT: series(10.0 * 2**30),  # bytes instead of MiB
    Fault.NO_NODE: series(Hostname=""),
    Fault.NO_GPU: series(gpu="nvidia0"),
    Fault.AHEAD: series(at=NOW + 3600),
}


@pytest.mark.parametrize("fault", BAD)
def test_untrustworthy_samples_are_skipped_and_counted_by_reason(fault: Fault) -> None:
    frame = Interpreter().read([BAD[fault], series(7.0)], {}, NOW)
    assert [reading.value for reading in frame.memory] == [7.0]
    assert frame.faults == {fault: 1}


@pytest.mark.parametrize("value", [math.inf, -math.inf])
def test_infinity_is_not_a_number_either(value: float) -> None:
    assert Interpreter().read([series(value)], {}, NOW).faults == {Fault.NOT_A_NUMBER: 1}


def test_the_largest_value_of_duplicate_series_counts() -> None:
    frame = Interpreter().read([series(5.0, job="a"), series(9.0, job="b"), series(7.0, job="c")], {}, NOW)
    assert [reading.value for reading in frame.memory] == [9.0]
    assert frame.faults == {Fault.DUPLICATE: 2}
