"""What each policy asks for a job, and how it ranks. Every policy decides with the same ledger."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from random import Random

from bench.cluster.described import NETWORKS, PREFIX, horus_mib
from bench.cluster.jobs import Kind

from vramcast.placement.board import DEFAULT_RANKING, Ranking

GPU_MIB = 24576 - 320
PACKING_ONLY = Ranking(slowdown_weight=0.0)
EQUAL = 1.5  # the typical margin with which people have about as few OOMs as vramcast
_SLICE_MIB = 3072  # an eighth of the GPU
_BIN_MIB = {"mlp": 1024}
_OTHER_BIN_MIB = 8192

# Annotations of a job's pod, by what it is, how often it has died of OOM, and its name, which seeds what is drawn.
Ask = Callable[[Kind, int, str], dict[str, str]]


@dataclass(frozen=True, slots=True)
class Policy:
    name: str
    ask: Ask
    ranking: Ranking = PACKING_ONLY
    learns: bool = False  # calibration and OOM history
    sees: bool = False  # telemetry: memory beyond promises, and utilization of jobs alone on a GPU
    warm: bool = False  # it has learned from as many other jobs before the first one that counts
    sees_memory: bool = True  # telemetry has memory_util
    # The oracle places by the measured slowdown. It shares a GPU rather than take an empty one if all jobs there
    # together lose no more than this.
    harmless_loss: float | None = None
    number: Ask | None = None  # the memory comes from here, and only the utilization from the description


def _given(need_mib: float) -> dict[str, str]:
    return {PREFIX + "share": "true", PREFIX + "gpu-memory": f"{max(1, min(math.ceil(need_mib), GPU_MIB))}Mi"}


def whole(_kind: Kind, _deaths: int, _name: str) -> dict[str, str]:
    return _given(GPU_MIB)


def oracle(kind: Kind, _deaths: int, _name: str) -> dict[str, str]:
    return _given(kind.memory_mib)


def human(typical: float, spread: float = 0.4) -> Ask:
    """The true need times a margin, rounded up to slices. After an OOM people double it."""

    def ask(kind: Kind, deaths: int, name: str) -> dict[str, str]:
        margin = typical * math.exp(Random(name).gauss(0.0, spread))
        slices = math.ceil(kind.memory_mib * margin * 2**deaths / _SLICE_MIB)
        return _given(slices * _SLICE_MIB)

    return ask


def horus(kind: Kind, deaths: int, _name: str) -> dict[str, str]:
    return _given(horus_mib(kind.model, kind.batch_size) * 2**deaths)


def gpumemnet(kind: Kind, deaths: int, _name: str) -> dict[str, str]:
    """The upper edge of the right class: as if it never classified wrongly."""
    bin_mib = _BIN_MIB.get(NETWORKS[kind.model].architecture, _OTHER_BIN_MIB)
    return _given((kind.memory_mib // bin_mib + 1 + deaths) * bin_mib)


def described(risk: float, max_slowdown: float | None = None) -> Ask:
    extra = {PREFIX + "max-oom-risk": f"{risk:g}"}
    if max_slowdown is not None:
        extra[PREFIX + "max-slowdown"] = f"{max_slowdown:g}"
    return lambda kind, _deaths, _name: kind.annotations | extra


ORACLE = Policy("oracle", oracle, harmless_loss=0.4)


def ours(name: str, risk: float, ranking: Ranking = DEFAULT_RANKING, limit: float | None = None) -> Policy:
    warm = "learned" in name
    return Policy(f"vramcast {name}", described(risk, limit), ranking, learns=True, sees=True, warm=warm)


def policies() -> list[Policy]:
    same_ranking = Policy(
        f"human, typically x {EQUAL:g}, ranked by vramcast", described(0.05), DEFAULT_RANKING, sees=True, warm=True,
        number=human(EQUAL),
    )  # fmt: skip

    return [
        Policy("whole GPUs", whole),
        *(Policy(f"human, typically x {margin:g}", human(margin)) for margin in (1.0, EQUAL, 2.0, 3.0)),
        same_ranking,
        Policy("GPUMemNet, always the right class", gpumemnet),
        Policy("Horus's formula", horus),
        ours("0.05, packing only, cold", 0.05, PACKING_ONLY),
        ours("0.05, packing only, learned", 0.05, PACKING_ONLY),
        ours("0.05, cold", 0.05),
        ours("0.05, learned", 0.05),
        ours("0.01, cold", 0.01),
        ours("0.01, learned", 0.01),
        ours("0.05, learned, max-slowdown 1.3", 0.05, limit=1.3),
        replace(ours("0.05, learned", 0.05), name="vramcast 0.05, learned, without memory_util", sees_memory=False),
        ORACLE,
    ]
