"""The claims of docs/architecture.md: the path of a pod, how many files it crosses, and one meaning for each name."""

from __future__ import annotations

import asyncio
import importlib
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from tests.api.client import Client
from tests.controllers.observed import FakeTelemetry, stamp
from tests.fakes import FakeClock, FakeCluster, listed, pod_manifest, sharing_node
from tests.tracing import ROOT, traced
from vramcast.api.http import new_http_app
from vramcast.app import App, build
from vramcast.cluster.readers import PodReader
from vramcast.controllers.telemetry import poll
from vramcast.forecast.forecast import Forecaster
from vramcast.placement.changes import Change, NodeSeen
from vramcast.settings import load_settings
from vramcast.task.pod import Pod
from vramcast.workers import Workers

PAGE = (ROOT.parents[1] / "docs/architecture.md").read_text()
MAX_STEPS = 15
MAX_FILES_CACHED = 14
MAX_FILES_UNCACHED = 31
MAX_GLOSSARY = 25
TASK = {"share": "true", "model": "timm/resnet50", "batch-size": "64", "optimizer": "sgd-momentum"}


async def offload(call: Callable[..., Any], *arguments: Any) -> Any:
    return call(*arguments)


def at_once(forecaster: Forecaster) -> Callable[..., None]:
    def forecast_ahead(task: Any, products: Any) -> None:
        for product in products:
            forecaster.forecast(task, product)

    return forecast_ahead


def new_app(clock: FakeClock) -> App:
    """Wired as in production, with the artifact that ships."""
    settings = load_settings({"telemetry_interval_seconds": 15, "telemetry_lag_seconds": 10, "min_run_seconds": 30}, {})
    app = build(settings, FakeCluster(), Workers.all(offload), forecast_ahead=at_once, clock=clock, wall=clock)
    asyncio.run(app.learned_state.load())
    nodes = [sharing_node(name, 2) for name in "abc"]
    app.service.apply([*(NodeSeen(node) for node in nodes), *listed([node.name for node in nodes])])
    return app


def test_every_function_on_the_path_of_a_pod_is_called_in_the_documented_order() -> None:
    steps = re.findall(r"^\| \d+ \| .* \| `([\w.]+)` \|$", PAGE, re.MULTILINE)
    functions = [_function(name) for name in steps]
    assert 0 < len(steps) <= MAX_STEPS
    clock = FakeClock()
    clock.now = 1_700_000_000.0
    app = new_app(clock)
    with traced() as trace:
        _walk(app, clock)
    names = dict(zip(functions, steps, strict=True))
    assert [names[function] for function in trace.order(functions)] == steps


def _function(name: str) -> Callable[..., Any]:
    """`placement.ledger.Ledger.hold`, without the package."""
    module, *rest = name.split(".")
    found: Any = importlib.import_module(f"vramcast.{module}")
    for part in rest:
        found = getattr(found, part, None) or importlib.import_module(f"{found.__name__}.{part}")
    assert callable(found), name
    return found  # type: ignore[no-any-return]


def _walk(app: App, clock: FakeClock) -> None:
    """One pod from its creation to its outcome."""
    client, reader, telemetry = Client(app.service), PodReader(), FakeTelemetry(clock, {0: 0.0, 1: 0.0})
    app.service.tracker.telemetry.configured = True
    manifest = pod_manifest("p", TASK)

    def watch(**status: Any) -> None:
        change: Change | None = reader.seen(msgspec.convert(manifest | {"status": status}, Pod))
        assert change is not None
        app.service.apply([change])

    def live(seconds: float, used_mib: float) -> None:
        telemetry.used_mib[0] = used_mib
        for _ in range(int(seconds / 15)):
            clock.now += 15
            telemetry.tick()
            asyncio.run(poll(app.service, telemetry))

    async def schedule() -> None:
        nodes = ["a", "b", "c"]
        assert (await client.filter(manifest, nodes))["NodeNames"] == nodes
        await client.verb("prioritize", {"Pod": manifest, "Nodes": None, "NodeNames": nodes})
        assert await client.bind(manifest, "a") == ""

    watch(phase="Pending")
    asyncio.run(schedule())
    manifest["metadata"]["annotations"] |= client.cluster.writes[-1].annotations
    manifest["spec"]["nodeName"] = "a"
    started = stamp(clock.now)
    watch(phase="Running", startTime=started)
    live(120, 5_000.0)
    ended = {"state": {"terminated": {"exitCode": 0, "finishedAt": stamp(clock.now)}}}
    watch(phase="Succeeded", startTime=started, containerStatuses=[ended])
    live(60, 0.0)
    assert client.metric('vramcast_runs{phase="ended"}') == 0


def test_a_filter_call_crosses_few_files() -> None:
    """Files are what a newcomer opens to follow one call. The second call is the same task again."""
    client, task = Client(new_app(FakeClock()).service), TASK | {"batch-size": "96"}
    # Without the server's limits, which are the same for every call.
    client.app = new_http_app(client.service)
    crossed = []
    for name in ("first", "second"):
        with traced() as trace:
            assert client.feasible(pod_manifest(name, task), ["a", "b", "c"]) == ["a", "b", "c"]
        crossed.append(trace.files)
    uncached, cached = crossed
    assert len(cached) <= MAX_FILES_CACHED, cached
    assert len(uncached) <= MAX_FILES_UNCACHED, uncached


def test_every_class_name_is_defined_once() -> None:
    """Two classes of one name make every search and every log line ambiguous. Private ones are out of reach."""
    classes = (re.findall(r"^class ([A-Z]\w*)", path.read_text(), re.MULTILINE) for path in _sources())
    twice = [name for name, count in Counter(name for found in classes for name in found).items() if count > 1]
    assert not twice


def test_no_file_is_longer_than_a_reader_can_keep_in_mind() -> None:
    """400 lines, as the house style has it."""
    assert [path.name for path in _sources() if len(path.read_text().splitlines()) > 400] == []


def test_the_glossary_is_short_and_its_words_are_used() -> None:
    start, end = PAGE.index("## Glossary"), PAGE.index("## Decisions")
    table = PAGE[start:end]
    words = re.findall(r"^\| ([a-zA-Z -]+) \| ", table, re.MULTILINE)[1:]
    assert 0 < len(words) <= MAX_GLOSSARY
    text = re.sub(r"[\s_-]+", " ", " ".join(path.read_text() for path in _sources()).lower())
    unused = [word for word in words if word.lower().replace("-", " ") not in text]
    assert not unused


def test_every_file_that_the_page_names_exists() -> None:
    named = re.findall(r"`((?:[a-z_]+/)+[a-z_]+\.py|[a-z_]+\.py)`", PAGE)
    assert named
    missing = [name for name in named if not (ROOT / name).exists() and not (ROOT.parents[1] / name).exists()]
    assert not missing


def _sources() -> list[Path]:
    return sorted(ROOT.rglob("*.py"))
