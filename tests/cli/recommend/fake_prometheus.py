"""A Prometheus with the history of a few pods that can refuse, be slow, or go away. The real one is in tests/e2e."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from tests.cluster.telemetry_server import serving

NOW = 1_790_000_000 // 21_600 * 21_600 + 1_800
HOUR = 3600


@dataclass(frozen=True, slots=True)
class FakePod:
    name: str
    mib: int
    start: int
    end: int
    owner: tuple[str, str] = ("", "")
    failed: bool = False


@dataclass(slots=True)
class FakePrometheus:
    pods: list[FakePod]
    now: float = NOW
    most_seconds: float = float("inf")  # of one question; more is answered with 422
    pod_labels: bool = True
    states: bool = True
    refuse: Callable[[str], tuple[int, bytes] | None] = lambda _: None
    asked: list[tuple[str, dict[str, str], dict[str, str]]] = field(default_factory=list)

    def answer(self, path: str, query: dict[str, str], headers: dict[str, str]) -> tuple[int, bytes]:
        self.asked.append((path, query, headers))
        expression = query["query"]
        refused = self.refuse(expression)
        if refused is not None:
            return refused
        if expression == "vector(time())":
            return _success("vector", [{"metric": {}, "value": [self.now, str(self.now)]}])
        if self._seconds(query) > self.most_seconds:
            text = {
                "status": "error",
                "error": "query processing would load too many samples into memory in query execution",
            }
            return 422, json.dumps(text).encode()
        if "DCGM_FI_DEV_FB_USED" in expression and path.endswith("query_range"):
            return _success("matrix", list(self._memory(query)))
        if "kube_pod_created" in expression and self.states:
            return _success("vector", list(self._states(query)))
        return _success("matrix" if path.endswith("query_range") else "vector", [])

    @staticmethod
    def _seconds(query: dict[str, str]) -> float:
        if "start" in query:
            return float(query["end"]) - float(query["start"])
        return max((float(found) for found in re.findall(r"\[([0-9]+)s\]", query["query"])), default=0.0)

    def _memory(self, query: dict[str, str]) -> Iterator[dict[str, Any]]:
        start, end, step = (float(query[name]) for name in ("start", "end", "step"))
        for number, pod in enumerate(self.pods):
            named = {"exported_pod": pod.name, "exported_namespace": "ml"} if self.pod_labels else {}
            metric = {"Hostname": "n", "UUID": f"GPU-{number}", "modelName": "NVIDIA A100-SXM4-80GB", **named}
            times = [start + step * n for n in range(int((end - start) / step) + 1)]
            values = [[at, str(pod.mib)] for at in times if pod.start < at and at - step < pod.end]
            if values:
                yield {"metric": metric, "values": values}

    def _states(self, query: dict[str, str]) -> Iterator[dict[str, Any]]:
        at = float(query["time"])
        for pod in self.pods:
            if pod.name in query["query"]:
                who = {"namespace": "ml", "pod": pod.name, "uid": f"uid-{pod.name}"}
                created = {"__name__": "kube_pod_created", **who}
                kind, name = pod.owner
                owner = {"__name__": "kube_pod_owner", **who, "owner_kind": kind, "owner_name": name}
                yield {"metric": created, "value": [at, str(pod.start)]}
                yield {"metric": owner, "value": [at, "1"]}
                phase = {"__name__": "kube_pod_status_phase", **who, "phase": "Failed"}
                yield {"metric": phase, "value": [at, str(int(pod.failed and at > pod.end))]}

    @property
    def windows_asked(self) -> list[tuple[float, float]]:
        """Of the questions about memory: from and to."""
        return [
            (float(query["start"]) - float(query["step"]), float(query["end"]))
            for path, query, _ in self.asked
            if path.endswith("query_range") and "DCGM_FI_DEV_FB_USED" in query["query"]
        ]


def _success(kind: str, result: list[dict[str, Any]]) -> tuple[int, bytes]:
    return 200, json.dumps({"status": "success", "data": {"resultType": kind, "result": result}}).encode()


@contextmanager
def running(fake: FakePrometheus) -> Iterator[str]:
    with serving(fake.answer) as url:
        yield url
