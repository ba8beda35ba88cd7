"""From runs to what each workload should ask for."""

from __future__ import annotations

from typing import Any

import pytest

from vramcast.recommend.advice import RecommendedAction
from vramcast.recommend.report import Report, make_report
from vramcast.recommend.runs import History, RunBook
from vramcast.recommend.window import PodFacts, PodOwner, Stretch, Window, joined

A100 = "NVIDIA-A100-SXM4-80GB"
STEP = 300.0
HOUR = 3600.0
END = 6 * HOUR


def stretch(pod: str, mib: int, *, start: float = 0.0, hours: float = 1.0, **more: Any) -> Stretch:
    gpus = more.pop("gpus", None) or {"g0": mib}
    steps = round(hours * HOUR / STEP) * len(gpus)
    values: dict[str, Any] = {"uid": f"uid-{pod}", "node": "n", "product": A100, "profile": "", "busy_sum": 10.0,
                              "busy_weight": 100.0}  # fmt: skip
    return Stretch("ml", pod, **{**values, "first_at": start, "last_at": start + hours * HOUR, "peaks_mib": gpus,
                                 "steps": steps, **more})  # fmt: skip


def facts(pod: str, owner: PodOwner | None = None, root: PodOwner | None = None, **more: Any) -> PodFacts:
    asks = {"devices": {"nvidia.com/gpu": 1}, "containers": ("main",)}
    return PodFacts("ml", pod, f"uid-{pod}", owner=owner, root=root or owner, **{**asks, **more})


def report(stretches: list[Stretch], known: list[PodFacts], risk: float = 0.05, **more: Any) -> Report:
    book = RunBook(0.0, END, STEP)
    book.add(Window(0.0, END, stretches, known, gpus=8, **more))
    return make_report(book.history, risk)


def test_a_small_job_can_share_a_gpu_or_have_the_smallest_slice_that_holds_it() -> None:
    found = report([stretch("a", 8_000)], [facts("a")])
    (one,) = found.recommendations
    assert (one.verdict, one.mig and one.mig.name) == (RecommendedAction.SHARE, "1g.20gb")
    assert one.need.margin > 0.2  # above the only run
    assert one.share == pytest.approx(max(one.need.mib / one.usable_mib, 0.1))
    assert one.spare_gpu_hours == pytest.approx(1.0 - one.share)


def test_a_busy_job_gets_a_slice_that_has_the_compute() -> None:
    found = report([stretch("a", 8_000, busy_sum=50.0)], [facts("a")])
    (one,) = found.recommendations
    assert (one.mig and one.mig.name, one.share) == ("4g.40gb", 0.5)


def test_a_job_that_keeps_its_gpu_busy_keeps_it() -> None:
    (one,) = report([stretch("a", 8_000, busy_sum=99.0)], [facts("a")]).recommendations
    assert (one.verdict, one.mig, one.share, one.spare_gpu_hours) == (RecommendedAction.KEEP, None, None, 0.0)


def test_a_job_that_needs_the_whole_gpu_keeps_it() -> None:
    (one,) = report([stretch("a", 75_000)], [facts("a")]).recommendations
    assert (one.verdict, one.mig) == (RecommendedAction.KEEP, None)


def test_gpus_that_were_never_used_are_not_needed() -> None:
    found = report(
        [stretch("a", 0, gpus={"g0": 30_000, "g1": 3, "g2": 3, "g3": 3})], [facts("a", devices={"nvidia.com/gpu": 4})]
    )
    (one,) = found.recommendations
    assert (one.verdict, one.asked, one.used) == (RecommendedAction.FEWER, 4, 1)
    assert one.spare_gpu_hours == pytest.approx(0.75 * one.gpu_hours) == pytest.approx(3.0)
    assert (found.as_it_was.most, found.shared.most) == (4, 1)


def test_pods_of_one_deployment_are_runs_and_workers_of_one_job_are_one_run() -> None:
    server = [facts(f"s{n}", PodOwner("ReplicaSet", "server-abc"), PodOwner("Deployment", "server")) for n in range(3)]
    workers = [facts(f"w{n}", PodOwner("Job", "train-x2x9k")) for n in range(3)]
    stretches = [stretch(known.pod, 9_000 + 100 * number) for number, known in enumerate([*server, *workers])]
    found = {one.workload.name: one for one in report(stretches, [*server, *workers]).recommendations}
    assert (found["server"].runs, found["server"].pods) == (3, 3)
    assert (found["train"].runs, found["train"].pods, found["train"].peak_mib) == (1, 3, 9_500)


def test_generated_jobs_are_runs_of_one_workload() -> None:
    known = [
        facts(f"p{n}", PodOwner("Job", f"train-{suffix}")) for n, suffix in enumerate(("x2x9k", "bcdfg", "29000001"))
    ]
    (one,) = report([stretch(f"p{n}", 1_000) for n in range(3)], known).recommendations
    assert (one.workload.kind, one.workload.name, one.runs) == ("Job", "train", 3)


def test_a_cron_job_keeps_its_name_whatever_it_ends_with() -> None:
    known = facts("p", PodOwner("Job", "sync-x2x9k-29000001"), PodOwner("CronJob", "sync-x2x9k"))
    assert report([stretch("p", 1_000)], [known]).recommendations[0].workload.name == "sync-x2x9k"


def test_a_pod_that_shares_its_gpu_is_unclear_and_not_counted() -> None:
    found = report([stretch("a", 8_000, shared_steps=4)], [facts("a")])
    (one,) = found.recommendations
    assert one.verdict is RecommendedAction.UNCLEAR
    assert "DCGM shows the memory of all of them" in one.notes[0]
    assert found.as_it_was.most == 0


def test_a_slice_that_is_larger_than_needed_is_told_and_not_counted() -> None:
    found = report([stretch("a", 5_000, profile="3g.40gb")], [facts("a", devices={"nvidia.com/mig-3g.40gb": 1})])
    (one,) = found.recommendations
    assert (one.verdict, one.mig and one.mig.name) == (RecommendedAction.SLICE, "1g.10gb")
    assert (found.as_it_was.most, one.spare_gpu_hours) == (0, 0.0)


def test_a_slice_that_fits_is_kept() -> None:
    (one,) = report([stretch("a", 5_000, profile="1g.10gb+me")], [facts("a")]).recommendations
    assert one.verdict is RecommendedAction.KEEP


@pytest.mark.parametrize(
    ("mib", "failed", "note"),
    [
        (80_900, True, "probably ran out of memory"),
        (60_900, False, "XLA_PYTHON_CLIENT_PREALLOCATE"),
        (73_000, False, "--gpu-memory-utilization"),
    ],
)
def test_a_peak_that_is_not_the_need_says_so(mib: int, failed: bool, note: str) -> None:
    (one,) = report([stretch("a", mib)], [facts("a", failed=failed)]).recommendations
    assert any(note in text for text in one.notes)


def test_a_gpu_that_the_table_lacks_has_the_size_that_the_exporter_shows() -> None:
    new = stretch("a", 8_000, product="NVIDIA-X900")
    assert report([new], [facts("a")], sizes_mib={"NVIDIA-X900": 100_000}).recommendations[0].share is not None
    (unknown,) = report([new], [facts("a")]).recommendations
    assert (unknown.verdict, unknown.usable_mib) == (RecommendedAction.UNCLEAR, 0)
    assert "DCGM_FI_DEV_FB_FREE" in unknown.notes[0]


def test_without_utilization_only_memory_counts_and_the_note_says_so() -> None:
    (one,) = report([stretch("a", 8_000, busy_weight=0.0)], [facts("a")]).recommendations
    assert (one.busy, one.mig and one.mig.name) == (None, "1g.20gb")
    assert "no utilization" in one.notes[0]


def test_without_kube_state_metrics_names_are_guessed_and_the_note_says_so() -> None:
    found = report([stretch("server-7d4b9c6f5d-x2x9k", 8_000, uid="")], [])
    (one,) = found.recommendations
    assert (one.workload.label, one.workload.kind, one.workload.guessed, one.asked) == (
        "ml/server",
        "Deployment",
        True,
        1,
    )
    assert any("kube-state-metrics does not know all pods" in note for note in found.notes)


def test_a_guess_that_names_a_known_workload_is_that_workload() -> None:
    owners = (PodOwner("ReplicaSet", "server-7d4b9c6f5d"), PodOwner("Deployment", "server"))
    found = report(
        [stretch("known", 8_000), stretch("server-7d4b9c6f5d-x2x9k", 9_000, uid="")], [facts("known", *owners)]
    )
    (one,) = found.recommendations
    assert (one.workload.guessed, one.pods, one.peak_mib) == (False, 2, 9_000)


def test_without_a_request_gpus_count_that_it_had_at_a_time() -> None:
    both = report([stretch("db-0", 0, gpus={"g0": 5_000, "g1": 5_000}, uid="")], []).recommendations
    later = report(
        [stretch("db-0", 5_000, uid=""), stretch("db-0", 0, gpus={"g1": 5_000}, start=1.5 * HOUR, uid="")], []
    )
    assert (both[0].asked, later.recommendations[0].asked, later.recommendations[0].used) == (2, 1, 1)


def windows(*found: Window) -> History:
    book = RunBook(0.0, found[-1].end, STEP)
    for window in found:
        book.add(window)
    return book.history


def test_a_pod_over_several_windows_is_one_run() -> None:
    history = windows(
        Window(0.0, END, [stretch("a", 5_000, start=END - HOUR)], [facts("a")], 1),
        Window(END, 2 * END, [stretch("a", 7_000, start=END)], [facts("a", failed=True)], 1),
    )
    (run,) = history.runs
    assert (run.peak_mib, run.steps, run.failed, run.last_at - run.first_at) == (7_000, 24, True, 2 * HOUR)


@pytest.mark.parametrize("order", [1, -1])
def test_an_owner_chain_that_shows_in_one_window_only_is_enough(order: int) -> None:
    job, cron_job = PodOwner("Job", "nightly-29000001"), PodOwner("CronJob", "nightly")
    known = [facts("a", job, cron_job), facts("a", job)][::order]
    windows_of = [Window(n * END, (n + 1) * END, [stretch("a", 1, start=n * END)], [known[n]], 1) for n in range(2)]
    assert [run.workload.kind for run in windows(*windows_of).runs] == ["CronJob"]
    halves = [windows(joined(0.0, 2 * END, windows_of))]
    assert [run.workload.kind for history in halves for run in history.runs] == ["CronJob"]


def test_without_a_uid_a_long_gap_is_a_new_run_and_a_short_one_is_not() -> None:
    def seen(gap_hours: float) -> int:
        later = stretch("a", 1, start=HOUR + gap_hours * HOUR, uid="")
        return len(windows(Window(0.0, END, [stretch("a", 1, uid=""), later], [], 1)).runs)

    assert (seen(0.5), seen(2.0)) == (1, 2)


def test_a_step_counts_only_as_far_as_the_pod_lived_in_it() -> None:
    known = facts("a", created_at=100.0, completed_at=3_400.0)
    (run,) = windows(Window(0.0, END, [stretch("a", 1)], [known], 1)).runs
    assert (run.first_at, run.last_at) == (100.0, 3_400.0)


def test_half_empty_and_idle_and_vanished_and_skipped_are_told_with_what_to_do() -> None:
    history = windows(
        Window(0.0, END, [stretch("a", 5_000)], [facts("a")], gpus=1),
        *(Window(n * END, (n + 1) * END, gpus=8, nameless=8, faults={"negative": 2}) for n in range(1, 40)),
        Window(40 * END, 41 * END),
    )
    text = "\n".join(make_report(history, 0.05).notes)
    assert "1 of 41 windows have no GPU samples" in text
    assert "--storage.tsdb.retention.time" in text
    assert "DCGM_EXPORTER_KUBERNETES=true" in text
    assert "78 samples were skipped (negative)" in text
    assert "1 workloads were last seen more than 7 days ago" in text
