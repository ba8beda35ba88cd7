"""What one window of history says, condensed: a few numbers per pod, whatever the number of samples."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class PodOwner:
    kind: str
    name: str


@dataclass(slots=True)
class PodFacts:
    """What kube-state-metrics says about one pod. Times are seconds since the epoch; 0: unknown."""

    namespace: str
    pod: str
    uid: str
    created_at: float = 0.0
    completed_at: float = 0.0
    failed: bool = False
    owner: PodOwner | None = None
    root: PodOwner | None = None  # the end of the owner chain
    devices: dict[str, int] = field(default_factory=dict)  # GPU resources that it requests
    containers: tuple[str, ...] = ()  # those that request them


def merged(before: PodFacts | None, after: PodFacts) -> PodFacts:
    """Of one pod. What was known stays known: an owner may be deleted before its pod."""
    if before is None:
        return after
    led_up = after.root is not None and after.root != after.owner
    return PodFacts(
        after.namespace, after.pod, after.uid, after.created_at or before.created_at,
        after.completed_at or before.completed_at, after.failed or before.failed, after.owner or before.owner,
        after.root if led_up or before.root is None else before.root, after.devices or before.devices,
        after.containers or before.containers,
    )  # fmt: skip


@dataclass(slots=True)
class Stretch:
    """One pod on its GPUs within one window.

    `steps`: samples of one step each, over all its GPUs. `shared_steps`: those with another pod on the same GPU, whose
    memory cannot be told apart. `busy`: share of the time that its GPUs worked, summed over `busy_weight` samples.
    """

    namespace: str
    pod: str
    uid: str
    node: str
    product: str
    profile: str  # of a MIG slice; empty for a whole GPU
    first_at: float
    last_at: float
    peaks_mib: dict[str, int] = field(default_factory=dict)  # by GPU
    steps: int = 0
    shared_steps: int = 0
    busy_sum: float = 0.0
    busy_weight: float = 0.0


@dataclass(slots=True)
class Window:
    """From `start` to `end`. `nameless`: GPUs that no series names a pod for. `gpus`: all GPUs seen."""

    start: float
    end: float
    stretches: list[Stretch] = field(default_factory=list)
    facts: list[PodFacts] = field(default_factory=list)
    gpus: int = 0
    nameless: int = 0
    faults: dict[str, int] = field(default_factory=dict)  # samples that were skipped, by reason
    sizes_mib: dict[str, int] = field(default_factory=dict)  # of products that the table of GPUs lacks
    most_series: int = 0  # held at once while it was read


def joined(start: float, end: float, parts: list[Window]) -> Window:
    """One window of parts that were asked one by one. Merging runs joins their stretches later."""
    whole = Window(start, end)
    facts: dict[tuple[str, str, str], PodFacts] = {}
    for part in parts:
        whole.stretches += part.stretches
        for known in part.facts:
            key = (known.namespace, known.pod, known.uid)
            facts[key] = merged(facts.get(key), known)
        whole.gpus, whole.nameless = max(whole.gpus, part.gpus), max(whole.nameless, part.nameless)
        whole.most_series = max(whole.most_series, part.most_series)
        for fault, count in part.faults.items():
            whole.faults[fault] = whole.faults.get(fault, 0) + count
        for product, size_mib in part.sizes_mib.items():
            whole.sizes_mib[product] = max(size_mib, whole.sizes_mib.get(product, 0))
    whole.facts = list(facts.values())
    return whole
