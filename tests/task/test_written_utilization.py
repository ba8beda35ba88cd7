"""What bind writes about utilization can be read again, and so can what earlier versions wrote."""

from __future__ import annotations

import pytest

from vramcast.hardware.utilization import FORECAST_COUNTERS, UNKNOWN_UTILIZATION, Utilization
from vramcast.task.run_status import read_run
from vramcast.task.vocabulary import PREFIX, Written
from vramcast.task.written_utilization import ANNOTATIONS, read_utilization, write_utilization

FORECAST = Utilization(gpu_util=0.93, sm_active=0.41, sm_occupancy=0.2)


def test_every_counter_that_is_forecast_has_an_annotation_and_utilization_is_gpu_util() -> None:
    assert list(ANNOTATIONS) == list(FORECAST_COUNTERS)
    assert write_utilization(FORECAST) == {
        f"{PREFIX}forecast-utilization": "0.93",
        f"{PREFIX}forecast-sm-active": "0.41",
        f"{PREFIX}forecast-sm-occupancy": "0.20",
    }


def test_what_was_written_is_read_again() -> None:
    assert read_run(None, write_utilization(FORECAST)).utilization == FORECAST


def test_the_only_annotation_of_earlier_versions_is_sm_active() -> None:
    assert read_utilization({Written.FORECAST_UTILIZATION: "0.64"}) == Utilization(sm_active=0.64)


def test_counters_that_are_not_forecast_are_left_out() -> None:
    known = Utilization(gpu_util=0.97, sm_active=0.88)
    assert read_utilization(write_utilization(known)) == known


def test_one_counter_alone_is_not_written_because_it_would_be_misread() -> None:
    assert write_utilization(Utilization(gpu_util=0.9)) == {}
    assert write_utilization(UNKNOWN_UTILIZATION) == {}
    assert read_utilization({}) == UNKNOWN_UTILIZATION


@pytest.mark.parametrize("edited", ["lots", "-0.1", "1.01", "nan", "inf", ""])
def test_an_edited_annotation_counts_as_absent(edited: str) -> None:
    for counter, annotation in ANNOTATIONS.items():
        read = read_utilization({**write_utilization(FORECAST), annotation: edited})
        assert read.of(counter) is None
        assert [read.of(other) for other in ANNOTATIONS if other is not counter] == [
            FORECAST.of(other) for other in ANNOTATIONS if other is not counter
        ]
    assert read_utilization({Written.FORECAST_UTILIZATION: edited}) == UNKNOWN_UTILIZATION
