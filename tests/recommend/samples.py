"""A small report with every verdict in it, for the formats."""

from __future__ import annotations

from dataclasses import replace

from tests.recommend.test_report import A100, END, HOUR, STEP, facts, stretch
from vramcast.recommend.report import Report, make_report
from vramcast.recommend.runs import RunBook
from vramcast.recommend.window import PodFacts, PodOwner, Stretch, Window

_DEPLOYMENT = (PodOwner("ReplicaSet", "serve-abc"), PodOwner("Deployment", "serve"))
_CRON_JOB = (PodOwner("Job", "nightly-29000001"), PodOwner("CronJob", "nightly"))


def sample_report() -> Report:
    stretches: list[Stretch] = []
    known: list[PodFacts] = []

    def add(
        pod: str, mib: int, owner: tuple[PodOwner, ...] = (), devices: dict[str, int] | None = None, **more: object
    ) -> None:
        own = {"devices": devices} if devices else {}
        stretches.append(stretch(pod, mib, gpus=more.pop("gpus", None) or {f"g-{pod}": mib}, **more))
        known.append(facts(pod, *owner, **own))

    for number in range(3):
        add(f"serve-{number}", 9_000 + number, _DEPLOYMENT, hours=5.0)
    add("nightly-1", 30_000, _CRON_JOB, start=HOUR, hours=2.0)
    add("train-x2x9k", 70_000, (PodOwner("Job", "train-x2x9k"),), busy_sum=97.0)
    add("rank-0", 20_000, (PodOwner("PyTorchJob", "rank"),), start=2 * HOUR)
    add("idle", 0, (), {"nvidia.com/gpu": 4}, gpus={"i0": 5_000, "i1": 3, "i2": 3, "i3": 3})
    add("time-sliced <b>&", 4_000, shared_steps=5, product="Tesla-T4")
    add("sliced", 3_000, (PodOwner("StatefulSet", "sliced"),), {"nvidia.com/mig-3g.40gb": 1}, profile="3g.40gb")
    # Guessed: kube-state-metrics does not know it.
    stretches.append(replace(stretch("guess-7d4b9c6f5d-x2x9k", 2_000, product=A100), uid=""))
    book = RunBook(0.0, END, STEP)
    book.add(Window(0.0, END, stretches, known, gpus=16))
    return make_report(book.history, 0.05, ["the local clock is 90 s ahead of Prometheus's"])
