"""Reading the history: in windows, again only where it must, and from a Prometheus at its worst."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from tests.cli.recommend.fake_prometheus import HOUR, NOW, FakePod, FakePrometheus, running
from tests.controlplane import PATIENCE_SECONDS
from vramcast.cli.recommend.asking import WAITS_SECONDS, PatientApi
from vramcast.cli.recommend.collecting import WINDOW_SECONDS, collect, server_clock, span
from vramcast.cli.recommend.reading import Scope, chunks
from vramcast.cli.recommend.store import WindowStore
from vramcast.cluster.prometheus import PrometheusApi
from vramcast.cluster.telemetry import HttpReader
from vramcast.errors import InvalidInput, WorldUnavailable
from vramcast.recommend.runs import History

DAY = 24 * HOUR
WHOLE = Scope()
PODS = [
    FakePod("train-0", 5_000, NOW - 40 * HOUR, NOW - 30 * HOUR, ("StatefulSet", "train")),
    FakePod("serve-7d4b9c6f5d-x2x9k", 9_000, NOW - 20 * HOUR, NOW, ("Deployment", "serve")),
]


class Watched:
    """Progress that a test can look at, and that may stop everything."""

    def __init__(self, stop_after: int | None = None) -> None:
        self.seen: list[tuple[int, int, int]] = []
        self.stop_after = stop_after

    def windows(self, done: int, total: int, *, stored: int) -> None:
        self.seen.append((done, total, stored))
        if done == self.stop_after:
            raise KeyboardInterrupt


class Clock:
    def __init__(self) -> None:
        self.slept: list[float] = []

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)


def api(url: str, clock: Clock | None = None, timeout_seconds: float = 60.0) -> PatientApi:
    return PatientApi(PrometheusApi(HttpReader(timeout_seconds), url), (clock or Clock()).sleep)


def history(
    fake: FakePrometheus,
    cache: Path,
    watched: Watched | None = None,
    scope: Scope = WHOLE,
    clock: Clock | None = None,
) -> History:
    with running(fake) as url:
        store = WindowStore(cache, "the same server", scope)
        return collect(api(url, clock), scope, span(fake.now, 2 * DAY), store, watched or Watched())


def peaks(found: History) -> dict[str, int]:
    return {run.workload.name: run.peak_mib for run in found.runs}


def test_windows_lie_on_a_grid_and_join_without_a_gap(tmp_path: Path) -> None:
    fake = FakePrometheus(PODS)
    found = history(fake, tmp_path)
    asked = sorted(set(fake.windows_asked))
    assert all(start % WINDOW_SECONDS == 0 for start, _ in asked)
    assert [end for _, end in asked[:-1]] == [start for start, _ in asked[1:]]
    assert (asked[0][0] <= NOW - 2 * DAY, asked[-1][1]) == (True, NOW)
    assert peaks(found) == {"train": 5_000, "serve": 9_000}
    assert [round(run.last_at - run.first_at) // HOUR for run in found.runs] == [10, 20]


def test_an_interrupted_run_goes_on_where_it_stopped(tmp_path: Path) -> None:
    first, whole = FakePrometheus(PODS), FakePrometheus(PODS)
    with pytest.raises(KeyboardInterrupt):
        history(first, tmp_path, Watched(stop_after=5))
    again, watched = FakePrometheus(PODS), Watched()
    assert peaks(history(again, tmp_path, watched)) == peaks(history(whole, tmp_path / "other"))
    assert watched.seen[-1] == (9, 9, 5)
    assert set(first.windows_asked) | set(again.windows_asked) == set(whole.windows_asked)
    assert not set(first.windows_asked) & set(again.windows_asked)


def test_the_next_day_only_new_windows_are_read(tmp_path: Path) -> None:
    history(FakePrometheus(PODS), tmp_path)
    tomorrow = FakePrometheus(PODS, now=NOW + DAY)
    history(tomorrow, tmp_path)
    # The unfinished one of the first day is read again.
    assert min(start for start, _ in tomorrow.windows_asked) == NOW - 1_800
    assert len(set(tomorrow.windows_asked)) == 5


def test_damaged_files_are_read_again(tmp_path: Path) -> None:
    history(FakePrometheus(PODS), tmp_path)
    (directory,) = tmp_path.iterdir()
    for number, path in enumerate(sorted(directory.iterdir())[:3]):
        path.write_bytes((b"", b"{", b'{"start": 0, "end": 1}')[number])
    fake = FakePrometheus(PODS)
    assert peaks(history(fake, tmp_path)) == {"train": 5_000, "serve": 9_000}
    assert len(set(fake.windows_asked)) == 3 + 1


def test_other_questions_do_not_share_what_is_stored(tmp_path: Path) -> None:
    history(FakePrometheus(PODS), tmp_path)
    fake = FakePrometheus(PODS)
    history(fake, tmp_path, scope=Scope(("ml",)))
    assert len(set(fake.windows_asked)) == 9


def test_only_the_user_may_read_what_is_stored(tmp_path: Path) -> None:
    history(FakePrometheus(PODS), tmp_path)
    assert [path.stat().st_mode & 0o077 for path in tmp_path.iterdir()] == [0]


def test_a_question_that_is_too_large_is_halved_until_it_is_answered(tmp_path: Path) -> None:
    fake = FakePrometheus(PODS, most_seconds=HOUR)
    assert peaks(history(fake, tmp_path)) == {"train": 5_000, "serve": 9_000}
    assert min(end - start for start, end in fake.windows_asked) < HOUR
    assert history(FakePrometheus(PODS), tmp_path / "b").runs == history(fake, tmp_path / "c").runs


def test_a_server_that_refuses_everything_says_what_to_do_and_keeps_what_it_has(tmp_path: Path) -> None:
    fake = FakePrometheus(PODS)
    with pytest.raises(KeyboardInterrupt):
        history(fake, tmp_path, Watched(stop_after=2))
    with pytest.raises(WorldUnavailable, match=r"2 of 9 windows are kept.*--namespace.*--query.max-samples"):
        history(FakePrometheus(PODS, most_seconds=1), tmp_path)


@pytest.mark.parametrize("status", [502, 429])
def test_a_server_that_is_away_for_a_while_is_waited_for(tmp_path: Path, status: int) -> None:
    clock, left = Clock(), [3]

    def refuse(_: str) -> tuple[int, bytes] | None:
        left[0] -= 1
        return (status, b"not now") if left[0] >= 0 else None

    assert peaks(history(FakePrometheus(PODS, refuse=refuse), tmp_path, clock=clock)) == {
        "train": 5_000,
        "serve": 9_000,
    }
    assert clock.slept == list(WAITS_SECONDS[:3])


def test_a_server_that_stays_away_says_how_to_go_on(tmp_path: Path) -> None:
    clock = Clock()
    store = WindowStore(tmp_path, "u", Scope())
    with pytest.raises(WorldUnavailable, match="0 of 9 windows are kept: the same command goes on from there"):
        collect(api("http://127.0.0.1:9", clock), Scope(), span(NOW, 2 * DAY), store, Watched())
    assert clock.slept == list(WAITS_SECONDS)


def test_a_slow_server_is_asked_for_less(tmp_path: Path) -> None:
    answered = threading.Event()
    hung: list[str] = []

    def hang(expression: str) -> None:
        if "DCGM_FI_DEV_FB_USED" in expression and not hung:
            hung.append(expression)
            answered.wait(PATIENCE_SECONDS)

    fake = FakePrometheus(PODS, refuse=hang)
    with running(fake) as url:
        store = WindowStore(tmp_path, "slow", WHOLE)
        found = collect(api(url, timeout_seconds=1.0), WHOLE, span(NOW, 2 * DAY), store, Watched())
        answered.set()
    assert peaks(found) == {"train": 5_000, "serve": 9_000}
    assert len(set(fake.windows_asked)) > 9


def test_a_mistake_in_a_selector_is_told_at_once(tmp_path: Path) -> None:
    fake = FakePrometheus(PODS, refuse=lambda _: (400, b'{"error":"invalid parameter: parse error: unexpected"}'))
    with pytest.raises(WorldUnavailable, match="parse error"):
        history(fake, tmp_path)
    assert len(fake.asked) == 1


def test_no_samples_and_no_pod_labels_are_told_apart(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"no GPU samples: .*dcgm-exporter scraped"):
        history(FakePrometheus([]), tmp_path / "a")
    with pytest.raises(InvalidInput, match=r"no series of a GPU names a pod: set DCGM_EXPORTER_KUBERNETES=true"):
        history(FakePrometheus(PODS, pod_labels=False), tmp_path / "b")


def test_a_pod_that_fails_with_the_last_sample_of_a_window_has_failed(tmp_path: Path) -> None:
    edge = NOW - 1_800 - 2 * int(WINDOW_SECONDS)
    pod = FakePod("train-0", 5_000, edge - HOUR, edge, ("StatefulSet", "train"), failed=True)
    (run,) = history(FakePrometheus([pod]), tmp_path).runs
    assert (run.last_at, run.failed) == (edge, True)


def test_without_kube_state_metrics_workloads_come_from_names(tmp_path: Path) -> None:
    found = history(FakePrometheus(PODS, states=False), tmp_path)
    assert (peaks(found), found.unknown_pods) == ({"train": 5_000, "serve": 9_000}, 2)
    assert all(run.workload.guessed for run in found.runs)


@pytest.mark.parametrize(("ahead", "said"), [(0, []), (3_600, ["ahead of"]), (-500, ["behind"])])
def test_prometheus_clock_counts_and_a_difference_is_told(ahead: int, said: list[str]) -> None:
    with running(FakePrometheus(PODS)) as url:
        now, notes = server_clock(api(url), lambda: NOW + ahead)
    assert now == NOW
    assert len(notes) == len(said)
    assert all(words in note for words, note in zip(said, notes, strict=True))


def test_an_address_that_is_no_prometheus_is_told_at_once() -> None:
    clock = Clock()
    with pytest.raises(WorldUnavailable, match="is --prometheus the address of a Prometheus"):
        server_clock(api("http://127.0.0.1:9", clock), lambda: NOW)
    fake = FakePrometheus([], refuse=lambda _: (200, b"<html>log in</html>"))
    with running(fake) as url, pytest.raises(WorldUnavailable, match="not a response from Prometheus"):
        server_clock(api(url, clock), lambda: NOW)
    assert clock.slept == []


def test_names_are_asked_for_in_parts_that_fit_into_a_url() -> None:
    names = [f"pod-{number}" for number in range(1_000)]
    parts = list(chunks(names, 500))
    assert [name for part in parts for name in part] == names
    assert max(sum(len(name) + 3 for name in part) for part in parts) <= 500
    assert list(chunks(["x" * 900], 500)) == [["x" * 900]]
