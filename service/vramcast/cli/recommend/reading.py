"""One window of history, from Prometheus: peaks per step, how busy the GPUs were, and what made the pods.

The server condenses the samples (`max_over_time` per step), so an answer has one number per GPU, pod and step. If it
refuses a question as too large, the window is halved and asked again.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from vramcast.cli.recommend.asking import PatientApi, QuestionTooLarge
from vramcast.hardware.products import memory_mib
from vramcast.hardware.vendors import NVIDIA, VENDORS
from vramcast.names import Product
from vramcast.outcomes.readings import Series
from vramcast.recommend.pods import CHAIN, POD_SERIES, read_chain, read_pods, root_of
from vramcast.recommend.stretches import KEPT, MODEL, NAMES, PodName, Usage, add_busy, place_of, read_usage, stretches
from vramcast.recommend.window import PodFacts, PodOwner, Window, joined

# (series, what it shows when the GPU is busy all the time), the better one first.
BUSY: Final = (("DCGM_FI_PROF_GR_ENGINE_ACTIVE", 1.0), *((vendor.exporter.utilization, 100.0) for vendor in VENDORS))
_FREE: Final = "DCGM_FI_DEV_FB_FREE"
# URLs of proxies end at 8 kB, and `|` takes three characters in them.
_MOST_CHARACTERS: Final = 3000
_LEAST_STEPS: Final = 2
# Less than what a window must be old to be stored, so that nothing is stored before it is known.
_AFTERMATH_SECONDS: Final = 600.0


@dataclass(frozen=True, slots=True)
class Scope:
    """What to look at. `selector`: more matchers for every series, such as `cluster="a"`."""

    namespaces: tuple[str, ...] = ()
    selector: str = ""
    step_seconds: float = 300.0


class WindowReader:
    """Reads windows one by one and holds the series of one question at a time."""

    def __init__(self, api: PatientApi, scope: Scope, halved: Callable[[], None] = lambda: None) -> None:
        self._api = api
        self._scope = scope
        self._halved = halved

    def read(self, start: float, end: float) -> Window:
        """Raises PrometheusAway, or QuestionTooLarge if even two steps are too much."""
        self._api.most_series = 0
        window = joined(start, end, list(self._parts(start, end)))
        window.most_series = self._api.most_series
        return window

    def _parts(self, start: float, end: float) -> Iterator[Window]:
        step = self._scope.step_seconds
        try:
            yield self._read(start, end)
        except QuestionTooLarge:
            steps = round((end - start) / step)
            if steps < 2 * _LEAST_STEPS:
                raise
            self._halved()
            middle = start + step * (steps // 2)
            yield from self._parts(start, middle)
            yield from self._parts(middle, end)

    def _read(self, start: float, end: float) -> Window:
        usage, exporters = self._usage(start, end)
        # How a pod ended shows a little after its last sample.
        facts = self._facts(usage.pods, start, end + _AFTERMATH_SECONDS)
        found = stretches(usage, facts, self._scope.step_seconds)
        window = Window(start, end, found, facts, len(usage.gpus), usage.nameless, dict(usage.faults))
        window.sizes_mib = self._sizes({one.product for one in found if not one.profile}, start, end)
        if found:
            for metric, unit in BUSY:
                sums, counts = (self._busy(metric, function, start, end) for function in ("sum", "count"))
                if counts:
                    add_busy(found, sums, counts, unit, exporters)
                    break
        return window

    # ------------------------------------------------------------------ GPUs

    def _usage(self, start: float, end: float) -> tuple[Usage, set[PodName]]:
        step = self._scope.step_seconds
        series: list[Series] = []
        for vendor in VENDORS:
            expression = self._of_pods(f"max_over_time({vendor.exporter.memory}{{}}[{step:.0f}s])", "max")
            series += self._api.query_range(expression, start + step, end, step)
        exporters = self._exporters({one.labels.get("job", "") for one in series}, start, end) if series else set()
        return read_usage(series, exporters), exporters

    def _exporters(self, jobs: set[str], start: float, end: float) -> set[PodName]:
        """The pods that Prometheus scrapes for these series. A GPU without a pod is labelled with its exporter."""
        matchers = ",".join(filter(None, (f"job=~{_quoted(sorted(jobs - {''}))}", self._scope.selector)))
        up = self._api.query(f"group by (namespace, pod) (last_over_time(up{{{matchers}}}[{end - start:.0f}s]))", end)
        return {(one.labels.get("namespace", ""), one.labels.get("pod", "")) for one in up}

    def _busy(self, metric: str, function: str, start: float, end: float) -> list[Series]:
        expression = f"{function}_over_time({metric}{{}}[{end - start:.0f}s])"
        return self._api.query(self._of_pods(expression, "sum"), end)

    def _sizes(self, products: set[str], start: float, end: float) -> dict[str, int]:
        """Of GPUs that the table lacks: free and used memory together."""
        unknown = {product for product in products if memory_mib(Product(product)) is None}
        if not unknown:
            return {}
        both = f"({_FREE}{self._matchers()} + {NVIDIA.exporter.memory}{self._matchers()})"
        span = f"[{end - start:.0f}s:{self._scope.step_seconds:.0f}s]"
        expression = f"max by ({', '.join(MODEL)}) (max_over_time({both}{span}))"
        sizes = {}
        for one in self._api.query(expression, end):
            place = place_of({**one.labels, "gpu": "0"})
            if place is not None and place.product in unknown and one.samples:
                sizes[place.product] = int(one.samples[-1][1])
        return sizes

    def _of_pods(self, inner: str, aggregation: str) -> str:
        """Only the labels that count. Namespaces are in one label or the other, depending on honorLabels."""
        kept = ", ".join(dict.fromkeys(KEPT))

        def one(*more: str) -> str:
            return f"{aggregation} by ({kept}) ({inner.replace('{}', self._matchers(*more))})"

        if not self._scope.namespaces:
            return one()
        wanted = _quoted(self._scope.namespaces)
        renamed, as_exported = (
            one(f"exported_namespace=~{wanted}"),
            one('exported_namespace=""', f"namespace=~{wanted}"),
        )
        return f"{renamed} or {as_exported}"

    def _matchers(self, *more: str) -> str:
        return "{" + ",".join(filter(None, (self._scope.selector, *more))) + "}"

    # ------------------------------------------------------------------ pods

    def _facts(self, pods: set[PodName], start: float, end: float) -> list[PodFacts]:
        names = {name for _, name in pods}
        found = self._labelled("|".join(POD_SERIES), NAMES.pod, names, start, end)
        facts = [known for known in read_pods(found) if (known.namespace, known.pod) in pods]
        chain: dict[tuple[str, str, str], PodOwner] = {}
        for kind, (metric, label) in CHAIN.items():
            owners = {known.owner.name for known in facts if known.owner is not None and known.owner.kind == kind}
            chain |= read_chain(self._labelled(metric, (label,), owners, start, end))
        for known in facts:
            known.root = root_of(known.namespace, known.owner, chain) if known.owner is not None else None
        return facts

    def _labelled(
        self, metrics: str, labels: Sequence[str], values: Iterable[str], start: float, end: float
    ) -> Iterator[Series]:
        """The newest sample of each series in which one of the labels has one of the values."""
        for part in chunks(sorted(values)):
            selectors = [self._matchers(f'__name__=~"{metrics}"', f"{label}=~{_quoted(part)}") for label in labels]
            # Unlike other functions, last_over_time keeps the name, by which these series are told apart.
            asked = [f"last_over_time({selector}[{end - start:.0f}s])" for selector in selectors]
            yield from self._api.query(" or ".join(asked), end)


def chunks(names: Sequence[str], most_characters: int = _MOST_CHARACTERS) -> Iterator[list[str]]:
    part: list[str] = []
    size = 0
    for name in names:
        if part and size + len(name) + 3 > most_characters:
            yield part
            part, size = [], 0
        part.append(name)
        size += len(name) + 3
    if part:
        yield part


def _quoted(values: Iterable[str]) -> str:
    """A regular expression that matches exactly these, as a PromQL string."""
    text = "|".join(re.escape(value).replace(r"\-", "-") for value in values)
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
