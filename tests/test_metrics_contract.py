"""Dashboards and alerts depend on these names. After changing one here, regenerate docs/metrics.md."""

from __future__ import annotations

import asyncio
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from tests.admission.pods import new_pod
from tests.api.admission import review, webhook
from tests.api.client import Client
from tests.fakes import FakeCluster, new_fake_app, new_fake_service, pod_manifest, shared_pod, sharing_node, whole_node
from vramcast.app import App
from vramcast.cluster.seam import BindingWrite, BindResult, Fate
from vramcast.controllers.candidate import Candidate
from vramcast.errors import NotLeading
from vramcast.forecast.forecast import Source
from vramcast.forecast.forecaster import PhysicsForecaster
from vramcast.hardware.utilization import Utilization
from vramcast.names import NodeName, PodUid, Product
from vramcast.outcomes.calibration import MAX_CELLS
from vramcast.outcomes.outcome import Outcome, Truth
from vramcast.placement.changes import PodGone
from vramcast.placement.gpus import read_node
from vramcast.placement.promises import State
from vramcast.placement.reasons import Reason
from vramcast.service import Service
from vramcast.settings import load_settings
from vramcast.task.regime import REGIMES
from vramcast.task.run_status import Ending
from vramcast.task.vocabulary import Architecture, Level

PAGE = Path(__file__).parents[1] / "docs/metrics.md"

# Scraped name, type, labels.
CONTRACT = {
    ("vramcast_request_duration_seconds", "histogram", ("verb",)),
    ("vramcast_request_errors_total", "counter", ("verb", "cause")),
    ("vramcast_connections_closed_total", "counter", ("limit",)),
    ("vramcast_node_rejections_total", "counter", ("reason",)),
    ("vramcast_pods_rejected_total", "counter", ("reason",)),
    ("vramcast_binds_total", "counter", ("fate",)),
    ("vramcast_forecasts_total", "counter", ("source",)),
    ("vramcast_invalid_tasks_total", "counter", ()),
    ("vramcast_hold_waits_total", "counter", ("outcome",)),
    ("vramcast_defects_total", "counter", ()),
    ("vramcast_hold_expirations_total", "counter", ()),
    ("vramcast_requeues_total", "counter", ()),
    ("vramcast_takeovers_total", "counter", ()),
    ("vramcast_leading", "gauge", ()),
    ("vramcast_promises", "gauge", ("state",)),
    ("vramcast_promised_bytes", "gauge", ("state",)),
    ("vramcast_holds", "gauge", ()),
    ("vramcast_held_bytes", "gauge", ()),
    ("vramcast_unschedulable_pods", "gauge", ()),
    ("vramcast_nodes", "gauge", ("kind",)),
    ("vramcast_overpromised_gpus", "gauge", ()),
    ("vramcast_untainted_sharing_nodes", "gauge", ()),
    ("vramcast_misplaced_pods", "gauge", ()),
    ("vramcast_gpu_memory_bytes", "gauge", ("product", "kind")),
    ("vramcast_cluster_synced", "gauge", ()),
    ("vramcast_cluster_stale_seconds", "gauge", ()),
    ("vramcast_watch_events_total", "counter", ()),
    ("vramcast_watch_lists_total", "counter", ()),
    ("vramcast_watch_reconnects_total", "counter", ()),
    ("vramcast_dropped_events_total", "counter", ()),
    ("vramcast_admissions_total", "counter", ("decision",)),
    ("vramcast_invalid_admissions_total", "counter", ()),
    ("vramcast_observed_placements_total", "counter", ("verdict",)),
    ("vramcast_unmanaged_bytes", "gauge", ()),
    ("vramcast_outcomes_total", "counter", ("family", "level", "product", "truth", "ending")),
    ("vramcast_promises_kept_total", "counter", ("family", "level", "product", "truth")),
    ("vramcast_ooms_total", "counter", ("family", "level", "product", "truth")),
    ("vramcast_truth_agreement_ratio", "histogram", ("truth", "other_truth")),
    ("vramcast_forecast_error_ratio", "histogram", ("family", "level", "product", "truth")),
    ("vramcast_over_reservation_ratio", "histogram", ("family", "level", "product", "truth")),
    ("vramcast_utilization_error_ratio", "histogram", ("family", "level", "product", "truth", "counter")),
    ("vramcast_utilization_scraped", "gauge", ("counter",)),
    ("vramcast_step_time_error_ratio", "histogram", ("family", "level", "product", "truth")),
    ("vramcast_forecast_bias_ratio", "gauge", ("family", "level", "product", "truth")),
    ("vramcast_coverage_ratio", "gauge", ("family", "level", "product", "truth")),
    ("vramcast_coverage_promised_ratio", "gauge", ("family", "level", "product", "truth")),
    ("vramcast_coverage_outcomes", "gauge", ("family", "level", "product", "truth")),
    ("vramcast_unmeasured_runs_total", "counter", ("why",)),
    ("vramcast_runs", "gauge", ("phase",)),
    ("vramcast_telemetry_age_seconds", "gauge", ()),
    ("vramcast_telemetry_polls_total", "counter", ("result",)),
    ("vramcast_telemetry_faults_total", "counter", ("fault",)),
    ("vramcast_calibration_factor", "gauge", ("product", "family", "risk")),
    ("vramcast_calibration_level", "gauge", ("product", "family")),
    ("vramcast_calibration_outcomes_total", "counter", ("product", "family")),
    ("vramcast_calibration_misses_total", "counter", ("product", "family")),
    ("vramcast_calibration_shifts_total", "counter", ("product", "family")),
    ("vramcast_calibration_mode", "gauge", ("mode",)),
    ("vramcast_oom_history_tasks", "gauge", ()),
    ("vramcast_remembered_tasks", "gauge", ()),
    ("vramcast_drift_ratio", "gauge", ("product", "family")),
    ("vramcast_drift_coverage_ratio", "gauge", ("product", "family")),
    ("vramcast_drift_deviations", "gauge", ("product", "family")),
    ("vramcast_learned_state_saves_total", "counter", ("result",)),
    ("vramcast_learned_state_unsaved_seconds", "gauge", ()),
    ("vramcast_model_info", "gauge", ("version", "source", "role")),
    ("vramcast_candidate_standing", "gauge", ("standing",)),
    ("vramcast_candidate_loads_total", "counter", ("result",)),
    ("vramcast_promotions_total", "counter", ()),
    *(
        (f"vramcast_comparison_{name}", "gauge", ("role",))
        for name in (
            "outcomes",
            "loss_ratio",
            "coverage_ratio",
            "promised_ratio",
            "error_ratio",
            "over_reservation_ratio",
        )
    ),
    ("vramcast_tls_certificate_expiry_timestamp_seconds", "gauge", ()),
    ("vramcast_tls_reloads_total", "counter", ("result",)),
    ("vramcast_build_info", "gauge", ("version",)),
}
# Only with the setting detail_metrics.
DETAIL = {
    ("vramcast_pod_predicted_bytes", "gauge", ("task_namespace", "task_pod", "quantile")),
    ("vramcast_pod_observed_bytes", "gauge", ("task_namespace", "task_pod")),
    ("vramcast_gpu_room_bytes", "gauge", ("gpu_node", "gpu")),
    ("vramcast_gpu_promised_bytes", "gauge", ("gpu_node", "gpu")),
    ("vramcast_gpu_unmanaged_bytes", "gauge", ("gpu_node", "gpu")),
}

# A label whose values come from outside could create any number of series.
CLOSED = {
    "verb": {
        "filter", "prioritize", "bind", "preempt", "forecast", "explain", "state", "records", "cluster", "pods", "pod",
        "pod_nodes", "models", "sweep", "step", "accuracy", "advise", "admit",
    },
    "cause": {
        "bad_request", "not_found", "too_large", "not_synced", "not_leading", "gone", "defect", "not_bound", "no_room",
        "incomplete", "overloaded", "slow_forecast", Fate.REFUSED, Fate.UNKNOWN,
    },
    "limit": {"max_connections", "request_timeout_seconds", "head_size"},
    "reason": {reason.label for reason in Reason} - {"fits"},
    "fate": {"bound", "refused", "unknown"},
    "decision": {"changed", "unchanged", "refused"},
    "source": {"given", "physics", "model", "recording"},
    "truth": {*Truth, "other"},
    "other_truth": {*Truth},
    "outcome": {"fits", "timed_out"},
    "state": {"binding", "unconfirmed", "bound"},
    "kind": {"sharing", "device_plugin", "unreadable", "none"},
    "verdict": {reason.label for reason in Reason},
    "family": {
        *(f"{name}/{kind}".removesuffix("/") for name in (*Architecture, "unknown") for kind in REGIMES), "other",
    },
    "level": {*Level, "other"},
    "ending": {"succeeded", "failed", "oom", "stopped"},
    "counter": {"gpu_util", "sm_active", "sm_occupancy"},
    "why": {"too_short", "no_telemetry", "partly_seen", "unused", "unclear", "unknown_end"},
    "phase": {"running", "ended"},
    "result": {"ok", "failed", "saved", "conflict"},
    "risk": {"0.5", "0.1", "0.05", "0.01", "0.001"},
    "mode": {"learn", "frozen", "off"},
    "role": {"active", "candidate"},
    "standing": {"none", "unusable", "waiting", "ready", "worse"},
    "fault": {
        "not_a_number", "negative", "unit", "no_node", "unknown_node", "no_gpu", "duplicate", "stale", "ahead",
        "report",
    },
}  # fmt: skip
ALWAYS_SEEN = (
    "verb", "cause", "counter", "fate", "state", "kind", "ending", "why", "phase", "result", "fault", "risk", "mode",
    "role", "standing",
)  # fmt: skip
# As many values as the cluster has GPU products (product), and one (version).
OPEN = {"product", "version"}
GPU = {"nvidia.com/gpu": "1"}


def scraped(client: Client) -> list[Metric]:
    return list(text_string_to_metric_families(client.request("GET", "/metrics").body.decode()))


def scraped_name(family: Metric) -> str:
    """The parser strips the suffix that the format requires for counters."""
    return f"{family.name}_total" if family.type == "counter" else family.name


def values(client: Client, label: str) -> set[str]:
    """Every value of the label across all metrics."""
    samples = [sample for family in scraped(client) for sample in family.samples]
    return {sample.labels[label] for sample in samples if label in sample.labels}


@pytest.fixture(scope="module")
def client() -> Client:
    """A service in which everything that is counted has happened."""
    cluster = FakeCluster()
    unreadable = read_node(NodeName("odd"), {"nvidia.com/gpu.count": "1"}, {}, {})
    bare = read_node(NodeName("bare"), {}, {}, {})
    nodes = [sharing_node("a", 1), whole_node("w", 1), unreadable, bare]
    settings = load_settings({"hold_wait_seconds": 0, "max_body_mib": 1, "max_bodies_mib": 1, "log_level": "error"}, {})
    app = new_fake_app(nodes, cluster=cluster, settings=settings)
    client = Client(app.service)
    asyncio.run(cause_every_event(client, cluster))
    learn_from_every_ending(app)
    return client


class Standby:
    fenced = True
    leading = False

    async def await_lead(self) -> None: ...

    def check(self) -> None:
        raise NotLeading("on standby")


async def cause_every_event(client: Client, cluster: FakeCluster) -> None:
    nodes = ["a", "w", "odd", "bare", "unknown"]
    pods = [
        shared_pod("given", "30Gi"),
        shared_pod("no-room", "30Gi"),
        shared_pod("too-small", "90Gi"),
        shared_pod("too-many", "1Gi", gpus="2"),
        shared_pod("misspelt", "-1Gi"),
        pod_manifest("summary", {"parameters": "1M", "activations": "1k", "batch-size": "8"}, GPU),
        pod_manifest("undescribed", limits=GPU),
    ]
    for pod in pods:
        await client.filter(pod, nodes)
        await client.verb("prioritize", {"Pod": pod, "Nodes": None, "NodeNames": nodes})
    await bind_with_every_fate(client, cluster)
    for verb in ("filter", "prioritize", "bind", "preempt", "forecast", "explain"):
        await client.send("POST", f"/{verb}", b"{")
    await client.send("POST", "/filter", chunks=[b"x" * 600_000] * 3)
    await client.send("POST", "/filter", chunks=[b"x", None])
    await asyncio.gather(*(client.send("POST", "/filter", chunks=[b"x" * 500_000] * 2) for _ in range(3)))
    await client.send("POST", "/no/such/address", b"{}")
    await client.send("BREW", "/filter")
    await client.send("GET", "/state")
    for path in ("records", "cluster", "pods", "pods/no/such", "pods/no/such/nodes", "models", "accuracy"):
        await client.send("GET", f"/{path}")
    for path in ("sweep", "step", "advise"):
        await client.send("POST", f"/{path}", b"{}")
    gone = shared_pod("gone")
    client.service.apply([PodGone(PodUid("uid-gone"))])
    await client.filter(gone, nodes)
    await Client(replace(client.service, leadership=Standby())).filter(shared_pod("standby"), nodes)
    await admit_slowly(client.service)
    # Only mode observe counts these.
    client.service.metrics.observed_placements.labels(Reason.FITS.label).inc()


async def admit_slowly(service: Service) -> None:
    never: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def offload(*_: Any) -> None:
        await never

    impatient = service.settings.model_copy(update={"webhook_forecast_seconds": 0.001})
    slow = replace(service, settings=impatient, workers=replace(service.workers, admission=offload))
    await review(webhook(slow), new_pod())


def learn_from_every_ending(app: App) -> None:
    tracker, calibrator, trial = app.service.tracker, app.learner.calibrator, app.learner.trial
    tracker.telemetry.configured = True
    calibrator.model_version = "m"
    for ending in Ending:
        tracker.accuracy.record(outcome(ending))
        calibrator.record(outcome(ending))
    assert trial is not None
    trial.candidate = Candidate(PhysicsForecaster(0.05), calibrator)
    trial.candidate.comparison.add(outcome(Ending.SUCCEEDED), outcome(Ending.OOM))


def outcome(ending: Ending, family: str = "cnn", product: str = "NVIDIA-L40S") -> Outcome:
    return Outcome(
        PodUid(f"{ending}-{family}-{product}"), "ns/p", "", "f", family, Level.SUMMARY, Product(product), "m", 0.05,
        10 << 30, 12 << 30, 11 << 30, ending, 0.0, Utilization(0.5), Utilization(0.4),
        peaks_bytes=dict.fromkeys(Truth, 11 << 30),
    )  # fmt: skip


async def bind_with_every_fate(client: Client, cluster: FakeCluster) -> None:
    def raise_defect(_write: BindingWrite) -> None:
        raise RuntimeError("a defect")

    pods = [shared_pod(f"small-{number}", "1Gi") for number in range(4)]
    cluster.results.extend(BindResult(fate) for fate in Fate)
    for pod in pods:
        await client.filter(pod, ["a"])
    for pod in pods[: len(Fate)]:
        await client.bind(pod, "a")
    await client.bind(shared_pod("too-small", "90Gi"), "a")
    await client.bind(shared_pod("never-seen"), "a")
    cluster.before_bind = raise_defect
    metadata = pods[-1]["metadata"]
    keys: dict[str, Any] = {"PodName": metadata["name"], "PodNamespace": "default", "PodUID": metadata["uid"]}
    assert (await client.send("POST", "/bind", msgspec.json.encode({**keys, "Node": "a"}))).status == 500
    cluster.stale_seconds = 1e6
    await client.filter(pods[0], ["a"])
    cluster.stale_seconds = 0.0


# --- the contract


def test_names_types_and_labels_match_the_contract(client: Client) -> None:
    found = {
        (scraped_name(family), family.type, frozenset(key for s in family.samples for key in s.labels) - {"le"})
        for family in scraped(client)
    }
    assert found == {(name, kind, frozenset(labels)) for name, kind, labels in CONTRACT}


def test_a_service_without_any_request_exposes_the_same_names() -> None:
    fresh = {(scraped_name(family), family.type) for family in scraped(Client(new_fake_service()))}
    assert fresh == {(name, kind) for name, kind, _ in CONTRACT}


def test_every_metric_has_a_help_text(client: Client) -> None:
    assert [family.name for family in scraped(client) if not family.documentation] == []


def test_counters_end_in_total_and_nothing_else_does(client: Client) -> None:
    text = client.request("GET", "/metrics").body.decode()
    types = dict(re.findall(r"^# TYPE (\w+) (\w+)$", text, re.MULTILINE))
    assert {name for name in types if name.endswith("_total")} == {n for n, kind in types.items() if kind == "counter"}


def test_units_are_base_units_at_the_end_of_the_name(client: Client) -> None:
    for name, _, _ in CONTRACT:
        words = name.removesuffix("_total").split("_")
        assert not {"ms", "milliseconds", "minutes", "mib", "gib", "kb", "mb", "percent"} & set(words), name
        assert not {"seconds", "bytes"} & set(words[:-1]), name


def test_the_latency_buckets_range_from_under_a_millisecond_to_the_schedulers_timeout(client: Client) -> None:
    (histogram,) = [family for family in scraped(client) if family.name == "vramcast_request_duration_seconds"]
    bounds = {float(sample.labels["le"]) for sample in histogram.samples if "le" in sample.labels}
    assert min(bounds) < 0.001
    assert {0.001, 0.01, 0.1, 1.0, 5.0, float("inf")} <= bounds


# --- labels


def test_every_label_is_either_closed_or_bounded_by_the_cluster() -> None:
    assert {label for _, _, labels in CONTRACT for label in labels} == CLOSED.keys() | OPEN


@pytest.mark.parametrize("label", CLOSED)
def test_label_values_come_from_a_closed_set(client: Client, label: str) -> None:
    assert values(client, label) <= CLOSED[label]


@pytest.mark.parametrize("label", ALWAYS_SEEN)
def test_every_value_in_a_closed_set_occurs(client: Client, label: str) -> None:
    assert values(client, label) == CLOSED[label]


def test_the_pinned_label_values_match_the_enums() -> None:
    assert CLOSED["fate"] == set(Fate)
    assert CLOSED["source"] == set(Source)
    assert CLOSED["state"] == set(State)


def test_reason_labels_stay_the_same() -> None:
    assert CLOSED["reason"] == {
        "unknown_node", "no_gpu", "memory_unknown", "not_sharing", "sharing", "too_few_gpus", "too_small", "mixed",
        "held", "unmanaged", "no_room", "invalid_task", "undescribed", "too_slow",
    }  # fmt: skip


def test_arbitrary_products_and_families_create_a_bounded_number_of_series() -> None:
    service = new_fake_service()
    for number in range(300):
        service.tracker.accuracy.record(outcome(Ending.SUCCEEDED, f"family-{number}", f"product-{number}"))
    client = Client(service)
    assert values(client, "family") == {"unknown", "other"}
    assert len(values(client, "product")) <= 81
    assert sum(s.value for f in scraped(client) if f.name == "vramcast_outcomes" for s in f.samples) == 300


def test_calibration_cells_create_a_bounded_number_of_series_whatever_pods_claim() -> None:
    app = new_fake_app()
    app.learner.calibrator.model_version = "m"
    for number in range(300):
        app.learner.calibrator.record(outcome(Ending.SUCCEEDED, f"family-{number}", f"product-{number}"))
    client = Client(app.service)
    assert values(client, "family") == {"unknown"}
    assert len(values(client, "product")) == MAX_CELLS


def test_pod_and_gpu_details_are_exposed_only_with_their_setting() -> None:
    settings = load_settings({"detail_metrics": True}, {})
    shown = {(scraped_name(family), family.type) for family in scraped(Client(new_fake_service(settings=settings)))}
    assert shown == {(name, kind) for name, kind, _ in CONTRACT | DETAIL}


def test_unknown_paths_create_no_series(client: Client) -> None:
    before = client.request("GET", "/metrics").body.count(b"\n")
    for number in range(50):
        client.request("POST", f"/filter/{number}", b"{}")
    assert client.request("GET", "/metrics").body.count(b"\n") == before


# --- the docs


def test_the_docs_list_every_metric_with_its_type_and_labels() -> None:
    rows = re.findall(r"^\| `(vramcast_\w+)` \| (\w+) \| *(.*?) *\| .+ \|$", PAGE.read_text(), re.MULTILINE)
    documented = {(name, kind, frozenset(re.findall(r"\w+", labels))) for name, kind, labels in rows}
    assert documented == {(name, kind, frozenset(labels)) for name, kind, labels in CONTRACT | DETAIL}
    assert len(rows) == len(CONTRACT | DETAIL)
