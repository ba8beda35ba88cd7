"""Whatever the API server does, the sink ends up with its objects, and gets changes in order."""

from __future__ import annotations

import random
import threading
from collections import defaultdict
from collections.abc import Sequence

import pytest

from tests.cluster.fake_apiserver import (
    Behaviour,
    Exchange,
    FakeApiServer,
    answers,
    breaks_after,
    event_line,
    gone_in_stream,
    resets,
)
from tests.cluster.manifests import node, plain_pod, shared_pod
from tests.cluster.watching import StateSink, starting, watching
from tests.controlplane import eventually
from vramcast.cluster.kubernetes import KubernetesCluster
from vramcast.cluster.pulse import StreamEnd
from vramcast.placement.changes import Change, NodeSeen, NodesListed, PodGone, PodSeen, PodsListed

# --- lists


def test_nodes_are_listed_before_pods_and_each_list_is_closed(server: FakeApiServer) -> None:
    server.put("nodes", node("n0"))
    server.put("pods", shared_pod("a"))
    server.put("pods", plain_pod("web"))
    with watching(server) as watch:
        kinds = [type(change) for change in watch.seen.changes]
        assert kinds == [NodeSeen, NodesListed, PodSeen, PodsListed]
        closing = watch.seen.changes[-1]
        assert isinstance(closing, PodsListed)
        assert closing.uids == {"uid-a", "uid-web"}


def test_lists_are_paged_and_never_from_a_cache(server: FakeApiServer) -> None:
    for i in range(1201):
        server.put("pods", shared_pod(f"p{i}"))
    with watching(server) as watch:
        requests = server.received("list pods")
        assert [request.query.get("limit") for request in requests] == ["500", "500", "500"]
        assert not any("resourceVersion" in request.query for request in requests)
        assert len(watch.seen.pods) == 1201
        assert sum(isinstance(change, PodsListed) for change in watch.seen.changes) == 1


def test_if_the_token_expires_between_pages_the_list_is_one_request(server: FakeApiServer) -> None:
    for i in range(700):
        server.put("pods", shared_pod(f"p{i}"))
    first_page: list[Behaviour] = [lambda fake, exchange: fake._list(exchange, "pods")]
    server.script("list pods", *first_page, answers(410))
    with watching(server) as watch:
        assert [request.query.get("limit") for request in server.received("list pods")] == ["500", "500", None]
        assert len(watch.seen.pods) == 700


@pytest.mark.parametrize("trouble", [answers(500), answers(503), resets, answers(403), answers(401), answers(429)])
def test_a_failed_list_is_retried(server: FakeApiServer, trouble: Behaviour) -> None:
    server.script("list nodes", trouble, trouble, trouble)
    server.put("nodes", node("n0"))
    with watching(server) as watch:
        assert watch.seen.nodes.keys() == {"n0"}
        assert watch.pauses.real[:3] == [0.1, 0.2, 0.4]


def test_an_answer_that_is_not_a_list_is_retried(server: FakeApiServer) -> None:
    server.script("list nodes", lambda _, exchange: exchange.answer(200, b"<html>a proxy's page</html>"))
    with watching(server) as watch:
        assert watch.pauses.real == [0.1]


def test_retry_after_is_honoured(server: FakeApiServer) -> None:
    server.script("list nodes", answers(429, Retry_After="7"))
    server.script("watch pods", answers(429, Retry_After="3"))
    with watching(server) as watch:
        assert watch.pauses.real == [7.0, 3.0]


def test_it_is_synced_after_both_lists(server: FakeApiServer) -> None:
    hold = threading.Event()

    def waits(fake: FakeApiServer, exchange: Exchange) -> None:
        hold.wait()
        fake._list(exchange, "pods")

    server.script("list pods", waits)
    with starting(server) as watch:
        assert not watch.cluster.health().synced
        eventually(lambda: server.received("list pods"))
        assert not watch.cluster.health().synced
        assert "pods: not listed yet" in watch.cluster.health().detail
        hold.set()
        watch.wait_synced()


# --- streams


def test_events_arrive_in_order(server: FakeApiServer) -> None:
    with watching(server) as watch:
        for memory in ("1Gi", "2Gi", "3Gi"):
            server.put("pods", shared_pod("a", memory))
        server.delete("pods", "a")
        server.put("pods", shared_pod("b"))
        watch.seen.until(lambda seen: "uid-b" in seen.pods)
        reported = [change for change in watch.seen.changes if isinstance(change, PodSeen | PodGone)]
        assert [type(change) for change in reported] == [PodSeen, PodSeen, PodSeen, PodGone, PodSeen]
        sizes = [
            change.pod.task.gpu_memory_mib for change in reported[:3] if isinstance(change, PodSeen) and change.pod.task
        ]
        assert sizes == [1024, 2048, 3072]


def test_a_stream_that_ends_is_resumed_at_once(server: FakeApiServer) -> None:
    with watching(server) as watch:
        version = server.put("pods", shared_pod("a"))["metadata"]["resourceVersion"]
        watch.seen.until(lambda seen: "uid-a" in seen.pods)
        server.end_streams()
        eventually(lambda: len(server.received("watch pods")) == 2)
        server.put("pods", shared_pod("b"))
        watch.seen.until(lambda seen: "uid-b" in seen.pods)
        assert server.received("watch pods")[-1].query["resourceVersion"] == version
        assert len(server.received("list pods")) == 1
        pods = watch.cluster.watch_stats()[1]
        assert pods.renewals == 1
        assert pods.events == 2


def test_a_bookmark_advances_the_resource_version_without_a_change(server: FakeApiServer) -> None:
    with watching(server) as watch:
        reported = len(watch.seen.changes)
        server.bookmark("pods")
        eventually(lambda: watch.cluster.watch_stats()[1].events == 1)
        server.end_streams()
        eventually(lambda: len(server.received("watch pods")) == 2)
        assert server.received("watch pods")[-1].query["resourceVersion"] == "101"
        assert len(watch.seen.changes) == reported


def test_a_watch_requests_bookmarks_and_a_timeout(server: FakeApiServer) -> None:
    with watching(server):
        query = server.received("watch pods")[0].query
        assert query["allowWatchBookmarks"] == "true"
        assert 16 <= int(query["timeoutSeconds"]) <= 24
        assert query["fieldSelector"] == "status.phase!=Succeeded,status.phase!=Failed"


@pytest.mark.parametrize("gone", [gone_in_stream, answers(410)])
def test_an_expired_resource_version_means_a_new_list(server: FakeApiServer, gone: Behaviour) -> None:
    server.put("pods", shared_pod("old"))
    with watching(server) as watch:
        server.script("watch pods", gone)
        server.forget_history()
        server.end_streams()
        server.delete("pods", "old")
        server.put("pods", shared_pod("new"))
        watch.seen.until(lambda seen: seen.pods.keys() == {"uid-new"})
        assert watch.cluster.watch_stats()[1].reconnects[StreamEnd.GONE] >= 1


def test_a_server_that_always_answers_410_is_not_hammered(server: FakeApiServer) -> None:
    server.script("watch pods", *[gone_in_stream] * 4)
    with watching(server) as watch:
        eventually(lambda: len(server.received("watch pods")) == 5, what="a watch that lasts")
        assert watch.pauses.real == [0.1, 0.2, 0.4]
        assert len(server.received("list pods")) == 5


def test_a_server_that_ends_every_watch_at_once_is_not_hammered(server: FakeApiServer) -> None:
    ends_at_once = breaks_after(0, orderly=True)
    server.script("watch nodes", *[ends_at_once] * 3)
    with watching(server) as watch:
        eventually(lambda: len(server.received("watch nodes")) == 4)
        assert watch.pauses.real == [0.1, 0.2, 0.4]


@pytest.mark.parametrize("mid_line", [False, True])
def test_a_broken_connection_loses_and_repeats_nothing(server: FakeApiServer, mid_line: bool) -> None:
    server.script("watch pods", breaks_after(3, mid_line=mid_line), breaks_after(2, mid_line=mid_line))
    with watching(server) as watch:
        for i in range(8):
            server.put("pods", shared_pod(f"p{i}"))
        watch.seen.until(lambda seen: len(seen.pods) == 8)
        reported = [change.pod.name for change in watch.seen.changes if isinstance(change, PodSeen)]
        assert reported == [f"p{i}" for i in range(8)]
        assert watch.cluster.watch_stats()[1].reconnects[StreamEnd.BROKEN] == 2
        assert len(server.received("list pods")) == 1


@pytest.mark.parametrize("trouble", [answers(500), answers(503), resets, answers(403)])
def test_a_failed_watch_is_retried_without_a_new_list(server: FakeApiServer, trouble: Behaviour) -> None:
    server.script("watch pods", trouble, trouble)
    with watching(server) as watch:
        server.put("pods", shared_pod("a"))
        watch.seen.until(lambda seen: "uid-a" in seen.pods)
        assert watch.pauses.real == [0.1, 0.2]
        assert len(server.received("list pods")) == 1


def test_invalid_data_in_a_stream_restarts_it(server: FakeApiServer) -> None:
    def garbage(_: FakeApiServer, exchange: Exchange) -> None:
        exchange.begin()
        exchange.write(b"not json\n")
        exchange.end()

    server.script("watch pods", garbage)
    with watching(server) as watch:
        server.put("pods", shared_pod("a"))
        watch.seen.until(lambda seen: "uid-a" in seen.pods)


# --- efficiency


def test_lines_that_arrive_together_are_delivered_together(server: FakeApiServer) -> None:
    def burst(_: FakeApiServer, exchange: Exchange) -> None:
        exchange.begin()
        lines = b"".join(event_line("ADDED", shared_pod(f"p{i}", resourceVersion=str(200 + i))) for i in range(20))
        exchange.write(lines)
        server.stopping.wait()

    server.script("watch pods", burst)
    with watching(server) as watch:
        watch.seen.until(lambda seen: len(seen.pods) == 20)
        assert len(watch.seen.batches[-1]) == 20


@pytest.mark.parametrize("filler_bytes", [0, 8_000, 100_000])
def test_an_event_does_not_wait_for_the_next(server: FakeApiServer, filler_bytes: int) -> None:
    """The end of a chunk may arrive separately and contains no event: the watch must not wait for it."""

    def one_event_and_no_more(_: FakeApiServer, exchange: Exchange) -> None:
        line = event_line("ADDED", shared_pod("a", labels={"filler": "x" * filler_bytes}, resourceVersion="200"))
        exchange.begin()
        exchange.write_raw(b"%x\r\n" % len(line))
        exchange.write_raw(line)
        exchange.write_raw(b"\r\n")
        server.stopping.wait()

    server.script("watch pods", one_event_and_no_more)
    with watching(server) as watch:
        watch.seen.until(lambda seen: "uid-a" in seen.pods)


def test_a_node_heartbeat_is_dropped(server: FakeApiServer) -> None:
    server.put("nodes", node("n0"))
    with watching(server) as watch:
        server.put("nodes", node("n0", heartbeat="1"))
        server.put("nodes", node("n0", gpus=4))
        server.put("nodes", node("n0", gpus=4, heartbeat="2"))
        server.put("nodes", node("last"))
        watch.seen.until(lambda seen: "last" in seen.nodes)
        reported = [change.node.pools[0].count for change in watch.seen.changes if isinstance(change, NodeSeen)]
        assert reported == [8, 4, 8]
        server.delete("nodes", "n0")
        watch.seen.until(lambda seen: seen.nodes.keys() == {"last"})


def test_pods_without_gpus_are_dropped(server: FakeApiServer) -> None:
    with watching(server) as watch:
        server.put("pods", plain_pod("web"))
        server.delete("pods", "web")
        server.put("pods", shared_pod("task"))
        server.put("pods", plain_pod("task"))  # its owner removed the annotations
        server.delete("pods", "task")
        server.put("pods", shared_pod("last"))
        watch.seen.until(lambda seen: "uid-last" in seen.pods)
        reported = [change for change in watch.seen.changes if isinstance(change, PodSeen | PodGone)]
        names = [change.pod.name if isinstance(change, PodSeen) else change.uid for change in reported]
        assert names == ["task", "task", "uid-task", "last"]


# --- everything together


def test_a_sink_that_fails_gets_everything_again(server: FakeApiServer) -> None:
    seen, failures = StateSink(), iter([True])

    def failing_sink(changes: Sequence[Change]) -> None:
        if any(isinstance(change, NodeSeen) for change in changes) and next(failures, False):
            raise RuntimeError("dropped it")
        seen(changes)

    server.put("nodes", node("n0"))
    with watching(server, failing_sink) as watch:
        assert seen.nodes.keys() == {"n0"}
        assert watch.cluster.watch_stats()[0].reconnects[StreamEnd.DEFECT] == 1


@pytest.mark.parametrize("seed", range(4))
def test_nothing_is_lost_whatever_happens(server: FakeApiServer, seed: int) -> None:
    chance = random.Random(seed)
    troubles: list[Behaviour] = [answers(500), answers(410), resets, gone_in_stream, answers(429, Retry_After="1")]
    for i in range(30):
        breaks = breaks_after(chance.randrange(6), mid_line=chance.random() < 0.5, orderly=chance.random() < 0.3)
        server.script("watch pods", breaks if i % 2 else chance.choice(troubles))
        server.script("list pods", *chance.choices([answers(503), resets], k=chance.randrange(2)))
    with watching(server) as watch:
        for i in range(300):
            name = f"p{chance.randrange(40)}"
            if name in server.stores["pods"].objects and chance.random() < 0.4:
                server.delete("pods", name)
            else:
                server.put("pods", shared_pod(name, f"{1 + i}Mi", uid=f"{name}-{i % 3}"))
        truth = {
            item["metadata"]["uid"]: item["metadata"]["resourceVersion"]
            for item in server.stores["pods"].objects.values()
        }
        watch.seen.until(lambda s: {uid: pod.resource_version for uid, pod in s.pods.items()} == truth, "the truth")
        revisions: dict[str, list[int]] = defaultdict(list)
        for change in watch.seen.changes:
            if isinstance(change, PodSeen):
                revisions[change.pod.uid].append(int(change.pod.resource_version))
        assert all(seen == sorted(seen) for seen in revisions.values())
        assert sum(watch.cluster.watch_stats()[1].reconnects.values()) >= 10


def test_health_describes_both_watches(server: FakeApiServer) -> None:
    with watching(server) as watch:
        assert watch.cluster.health().detail == "watching nodes; watching pods"


def test_stop_ends_the_threads(server: FakeApiServer) -> None:
    with watching(server):
        names = {thread.name for thread in threading.enumerate()}
        assert {"watch-nodes", "watch-pods", "events"} <= names
    names = {thread.name for thread in threading.enumerate()}
    assert not {"watch-nodes", "watch-pods", "events"} & names


def test_stop_before_start_is_allowed(server: FakeApiServer) -> None:
    cluster = KubernetesCluster(server.transport())
    assert not cluster.health().synced
    cluster.stop()
