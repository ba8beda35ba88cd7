"""Jobs that run again and again, and what they say about themselves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tests.controlplane import quantity
from tests.controlplane.objects import A100_40GB
from tests.e2e.observing.world import SCHEDULER, Run, World, written
from tests.fakes import exit_report

MIB = 1 << 20
A100 = A100_40GB.product


@dataclass(frozen=True, slots=True)
class Kind:
    """Jobs with the same description. `need_mib`: of a typical run, its CUDA context included."""

    name: str
    task: Mapping[str, str]
    need_mib: int
    context_mib: int
    scheduler: str = SCHEDULER
    namespace: str = "default"

    def run(self, number: int, relative: float = 1.0, *, report: bool = True) -> Run:
        need_mib = round(relative * self.need_mib)
        message = self.report(need_mib) if report else ""
        return Run(
            f"{self.name}-{number}", self.task, need_mib, A100, message=message, scheduler=self.scheduler,
            namespace=self.namespace,
        )  # fmt: skip

    def report(self, need_mib: int, processes: int = 1) -> str:
        """torch does not count the CUDA context, but the driver does."""
        return exit_report(need_mib - self.context_mib, processes=processes)


def ask_kind(
    world: World, name: str, task: Mapping[str, str], takes: float, scheduler: str | None = None,
    namespace: str = "default",
) -> Kind:  # fmt: skip
    """`takes`: what it needs, relative to the service's forecast now."""
    forecast = world.forecast(Run(name, task, 0, A100, namespace=namespace).manifest(), A100)
    (context,) = (part["size_bytes"] for part in forecast["parts"] if part["name"] == "CUDA context")
    need_mib = round(takes * forecast["median_bytes"] / MIB)
    return Kind(name, task, need_mib, context // MIB, scheduler or SCHEDULER, namespace)


def reserved_mib(world: World, run: Run) -> float:
    return quantity(written(world.api.pod(run.name, run.namespace))["reserved-memory"]) / MIB


def over_used(world: World, runs: Sequence[Run]) -> list[float]:
    """What is reserved over what is used, of each run."""
    return [reserved_mib(world, run) / run.need_mib for run in runs]
