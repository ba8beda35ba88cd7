"""Prometheus and the vendors' exporters over real HTTP: queries, responses and failures."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.cluster.telemetry_server import serving
from vramcast.cluster.exporters import ExporterTelemetry, read_exposition
from vramcast.cluster.prometheus import PrometheusApi, PrometheusTelemetry, SeriesNames
from vramcast.cluster.sources import choose_telemetry
from vramcast.cluster.telemetry import HttpReader, TelemetryUnavailable
from vramcast.hardware.utilization import UtilizationCounter
from vramcast.hardware.vendors import NVIDIA
from vramcast.names import NodeName
from vramcast.outcomes import agent_series
from vramcast.outcomes.readings import Device, Interpreter, Reading, Series
from vramcast.settings import load_settings

NOW = 1_700_000_000.0
LABELS = {"Hostname": "a", "gpu": "0"}
GPU_UTIL, SM_ACTIVE = UtilizationCounter.GPU_UTIL, UtilizationCounter.SM_ACTIVE
METRICS = SeriesNames(
    "FB_USED", {GPU_UTIL: "GPU_UTIL", SM_ACTIVE: "PROF_SM", UtilizationCounter.SM_OCCUPANCY: ""}, 'cluster="x"'
)

# As dcgm-exporter 4.x writes it.
EXPOSITION = """
# HELP DCGM_FI_DEV_FB_USED Framebuffer memory used (in MiB).
# TYPE DCGM_FI_DEV_FB_USED gauge
DCGM_FI_DEV_FB_USED{gpu="0",UUID="GPU-7f1e",modelName="A100",Hostname="a",namespace="ml",pod="train"} 10240
DCGM_FI_DEV_FB_USED{gpu="1",UUID="GPU-7f1f",device="nvidia1",modelName="NVIDIA \\"A100\\"",Hostname="a"} 0
DCGM_FI_DEV_FB_USED{gpu="2",Hostname="a"} NaN
DCGM_FI_DEV_FB_USED{gpu="2",Hostname="a"} what
DCGM_FI_DEV_FB_USED{gpu="3",Hostname="a"
DCGM_FI_DEV_FB_USED_PERCENT{gpu="0",Hostname="a"} 0.25
DCGM_FI_DEV_GPU_UTIL{gpu="0",UUID="GPU-7f1e",Hostname="a",pod="train",namespace="ml"} 87 1700000000000
DCGM_FI_PROF_SM_ACTIVE{gpu="0",UUID="GPU-7f1e",Hostname="a",pod="train",namespace="ml"} 0.412
DCGM_FI_DEV_MEM_COPY_UTIL{gpu="0",UUID="GPU-7f1e",Hostname="a",pod="train",namespace="ml"} 31
"""


def answer(result: object, kind: str = "matrix") -> bytes:
    return json.dumps({"status": "success", "data": {"resultType": kind, "result": result}}).encode()


def telemetry(url: str, timeout_seconds: float = 5.0) -> PrometheusTelemetry:
    return PrometheusTelemetry(PrometheusApi(HttpReader(timeout_seconds), url), METRICS, Interpreter(), 15.0)


def test_a_poll_queries_every_sample_since_the_last_one_with_its_own_time() -> None:
    asked: list[dict[str, str]] = []

    def prometheus(path: str, query: dict[str, str], _: dict[str, str]) -> tuple[int, bytes]:
        asked.append({"path": path, **query})
        if "agent" in query["query"]:
            return 200, answer([])
        value = "50" if "UTIL" in query["query"] else "0.25" if "PROF" in query["query"] else "1024"
        return 200, answer([{"metric": LABELS, "values": [[NOW - 20, value], [NOW - 5, value]]}])

    with serving(prometheus) as url:
        frame = telemetry(url).poll(NOW - 30, NOW)
    assert asked == [
        {"path": "/api/v1/query", "query": 'FB_USED{cluster="x"}[45s]'},
        {"path": "/api/v1/query", "query": 'GPU_UTIL{cluster="x"}[45s]'},
        {"path": "/api/v1/query", "query": 'PROF_SM{cluster="x"}[45s]'},
        {"path": "/api/v1/query", "query": 'vramcast_agent_memory_used_mib{cluster="x"}[45s]'},
    ]
    assert [(reading.at, reading.value) for reading in frame.memory] == [(NOW - 20, 1024.0), (NOW - 5, 1024.0)]
    assert [reading.value for reading in frame.utilization[GPU_UTIL]] == [0.5, 0.5]
    assert [reading.value for reading in frame.utilization[SM_ACTIVE]] == [0.25, 0.25]


def test_history_is_read_as_the_peaks_of_steps() -> None:
    asked: list[dict[str, str]] = []

    def prometheus(path: str, query: dict[str, str], _: dict[str, str]) -> tuple[int, bytes]:
        asked.append({"path": path, **query})
        return 200, answer([{"metric": LABELS, "values": [[NOW - 3600, "7"]]}])

    with serving(prometheus) as url:
        telemetry(url).history(NOW - 24 * 3600, NOW)
    assert asked[0]["path"] == "/api/v1/query_range"
    assert asked[0]["query"] == 'max_over_time(FB_USED{cluster="x"}[87s])'
    assert float(asked[0]["step"]) == pytest.approx(86.4)
    assert asked[1]["query"].startswith("avg_over_time(GPU_UTIL")


@pytest.mark.parametrize("asked", ["poll", "history"])
def test_the_agents_series_are_read_too(asked: str) -> None:
    values = {
        "FB_USED": "900",
        "GPU_UTIL": "50",
        "PROF_SM": "0.1",
        agent_series.MEMORY: "400",
        agent_series.UTILIZATION: "20",
    }
    labels = {**LABELS, "pod_uid": "uid-1", "told_apart": "yes", "pod": "vramcast-agent-x", "namespace": "gpus"}

    def prometheus(_: str, query: dict[str, str], __: dict[str, str]) -> tuple[int, bytes]:
        (name,) = [name for name in values if name in query["query"]]
        metric = labels if "agent" in name else LABELS
        return 200, answer([{"metric": metric, "values": [[NOW, values[name]]]}])

    with serving(prometheus) as url:
        source = telemetry(url)
        frame = source.poll(NOW - 30, NOW) if asked == "poll" else source.history(NOW - 3600, NOW)
    assert frame.memory == [
        Reading(NodeName("a"), Device(0), "", NOW, 900.0),
        Reading(NodeName("a"), Device(0), "uid-1", NOW, 400.0, told_apart=True),
    ]
    assert [(reading.pod, reading.value) for reading in frame.utilization[GPU_UTIL]] == [("", 0.5), ("uid-1", 0.2)]
    assert [(reading.pod, reading.value) for reading in frame.utilization[SM_ACTIVE]] == [("", 0.1)]


def test_without_utilization_memory_is_still_read() -> None:
    def prometheus(_: str, query: dict[str, str], __: dict[str, str]) -> tuple[int, bytes]:
        bad = b'{"status":"error","errorType":"bad_data","error":"no such thing"}'
        broken = any(word in query["query"] for word in ("UTIL", "PROF", "agent"))
        return (400, bad) if broken else (200, answer([{"metric": LABELS, "values": [[NOW, "7"]]}]))

    with serving(prometheus) as url:
        frame = telemetry(url).poll(NOW - 30, NOW)
    assert len(frame.memory) == 1


@pytest.mark.parametrize(
    ("status", "body", "expected"),
    [
        (503, b"starting up", "answered 503: starting up"),
        (401, b"", "see setting prometheus_token_file"),
        (200, b"<html>log in</html>", "not a response from Prometheus"),
        (200, b'{"status":"error","error":"query timed out"}', "query timed out"),
        (200, answer([1, "7"], "scalar"), "expected series, got a scalar"),
        (200, b'{"status":"success","data":{"resultType":"matrix","result":[{"metric":3}]}}', "not a response"),
        (302, b"", "answered 302"),
    ],
)
def test_an_unusable_response_is_quoted_in_the_error(status: int, body: bytes, expected: str) -> None:
    with (
        serving(lambda _path, _query, _headers: (status, body)) as url,
        pytest.raises(TelemetryUnavailable, match=expected),
    ):
        telemetry(url).poll(NOW - 30, NOW)


def test_an_unreachable_server_is_named_in_the_error() -> None:
    with serving(lambda _path, _query, _headers: (200, b"")) as url:
        pass
    with pytest.raises(TelemetryUnavailable, match="api/v1/query: no answer"):
        telemetry(url).poll(NOW - 30, NOW)


def test_values_that_are_no_numbers_do_not_stop_the_others() -> None:
    result = [
        {"metric": LABELS, "values": [[NOW, "NaN"], [NOW - 1, "+Inf"], [NOW - 2, "7"]]},
        {"metric": {**LABELS, "gpu": "1"}, "values": [[NOW, "lots"]]},
    ]
    with serving(lambda _path, query, _headers: (200, answer([] if "agent" in query["query"] else result))) as url:
        frame = telemetry(url).poll(NOW - 30, NOW)
    assert [reading.value for reading in frame.memory] == [7.0]
    assert frame.faults["not_a_number"] == 3 + 3 + 3  # in every metric


def test_the_token_is_read_again_for_every_request(tmp_path: Path) -> None:
    seen: list[str] = []

    def prometheus(_: str, __: dict[str, str], headers: dict[str, str]) -> tuple[int, bytes]:
        seen.append(headers["authorization"])
        return 200, answer([])

    token = tmp_path / "token"
    token.write_text("first\n")
    with serving(prometheus) as url:
        source = choose_telemetry(load_settings({"prometheus_url": url, "prometheus_token_file": token}, {}))
        assert source is not None
        source.poll(NOW - 30, NOW)
        token.write_text("second\n")
        source.poll(NOW - 30, NOW)
    assert [seen[0], seen[-1]] == ["Bearer first", "Bearer second"]


# --- exporters


def dcgm(*urls: str, hosts: tuple[str, ...] = ("127.0.0.1",)) -> ExporterTelemetry:
    counters = NVIDIA.exporter.counters
    return ExporterTelemetry(HttpReader(5.0), urls, "DCGM_FI_DEV_FB_USED", counters, Interpreter(), lambda _host: hosts)


def test_an_exporters_own_format_is_read_and_malformed_lines_are_skipped() -> None:
    with serving(lambda _path, _query, _headers: (200, EXPOSITION.encode())) as url:
        frame = dcgm(url).poll(0.0, NOW)
    assert [(reading.device, reading.pod, reading.value) for reading in frame.memory] == [
        (Device(0), "ml/train", 10240.0), (Device(1), "", 0.0),
    ]  # fmt: skip
    assert frame.faults == {"not_a_number": 1}
    shares = {counter: [reading.value for reading in found] for counter, found in frame.utilization.items()}
    assert shares == {
        GPU_UTIL: [0.87], SM_ACTIVE: [0.412], UtilizationCounter.SM_OCCUPANCY: [],
        UtilizationCounter.MEMORY_UTIL: [0.31],
    }  # fmt: skip
    assert frame.newest_at == NOW


@given(st.lists(st.one_of(st.text(), st.text().map("m{".__add__), st.text().map("m ".__add__))))
def test_malformed_lines_never_break_a_scrape(lines: list[str]) -> None:
    (*_, last) = read_exposition([*lines, f"m {'9' * 400}", 'm{gpu="0"} 1'], "m", NOW)
    assert last == Series({"gpu": "0"}, ((NOW, 1.0),))


def test_a_host_name_means_every_exporter_that_it_resolves_to() -> None:
    asked: list[str] = []

    def exporter(path: str, _: dict[str, str], headers: dict[str, str]) -> tuple[int, bytes]:
        asked.append(headers["host"].partition(":")[0] + path)
        return 200, EXPOSITION.encode()

    with serving(exporter) as url:
        dcgm(url, hosts=("127.0.0.1", "localhost")).poll(0.0, NOW)
    assert sorted(asked) == ["127.0.0.1/metrics", "localhost/metrics"]


def test_an_unreachable_exporter_does_not_affect_the_others() -> None:
    with serving(lambda _path, _query, _headers: (200, b"")) as gone:
        pass
    with serving(lambda _path, _query, _headers: (200, EXPOSITION.encode())) as url:
        assert len(dcgm(gone, url).poll(0.0, NOW).memory) == 2
    with pytest.raises(TelemetryUnavailable):
        dcgm(gone).poll(0.0, NOW)


def test_an_exporter_has_no_history() -> None:
    assert dcgm("http://127.0.0.1:1").history(0.0, NOW).memory == []


@pytest.mark.parametrize(
    ("flags", "kind"),
    [
        ({}, type(None)),
        ({"prometheus_url": "http://p:9090"}, PrometheusTelemetry),
        ({"exporter_urls": "http://d:9400"}, ExporterTelemetry),
    ],
)
def test_the_settings_choose_where_telemetry_comes_from(flags: dict[str, str], kind: type) -> None:
    assert isinstance(choose_telemetry(load_settings(flags, {})), kind)
