"""Workloads from names, where nothing else says what made a pod.

Kubernetes builds the names of pods from those of their owners: `server-7d4b9c6f5d-x2x9k` is a Deployment's, `train-28`
a StatefulSet's or a numbered Job's. Generated suffixes have no vowels, so that they spell no words.
"""

from __future__ import annotations

import re

from vramcast.recommend.window import PodOwner

_RANDOM = "[bcdfghjklmnpqrstvwxz2456789]"
_DEPLOYMENT = re.compile(rf"(?P<name>.+)-{_RANDOM}{{6,10}}-{_RANDOM}{{5}}")
_CRON_JOB = re.compile(rf"(?P<name>.+)-[0-9]{{8}}(-[0-9]+)?-{_RANDOM}{{5}}")
_KUBEFLOW = re.compile(r"(?P<name>.+)-(master|worker|launcher|chief|ps|evaluator)-[0-9]+")
_GENERATED = re.compile(rf"(?P<name>.+)-{_RANDOM}{{5}}")
_INDEXED = re.compile(r"(?P<name>.+)-[0-9]{1,4}")
_PATTERNS = (
    ("CronJob", _CRON_JOB), ("Deployment", _DEPLOYMENT), ("Job", _KUBEFLOW), ("Job", _GENERATED),
    ("StatefulSet", _INDEXED),
)  # fmt: skip
# What makes the name of one run: a random suffix, a date, or a count of minutes or seconds.
_RUN_SUFFIX = re.compile(rf"[-._]({_RANDOM}{{5}}|[0-9]{{6,}}([-._t]?[0-9]{{4,}})?)$")


def guess_owner(pod: str) -> PodOwner:
    """A guess: a kind and a name that pods of one workload share."""
    for kind, pattern in _PATTERNS:
        if found := pattern.fullmatch(pod):
            name = found["name"]
            return PodOwner(kind, without_run(name) if kind == "Job" else name)
    return PodOwner("Pod", without_run(pod))


def without_run(name: str) -> str:
    """`train-x2x9k` and `train-20261105-1200` are runs of `train`."""
    shorter = _RUN_SUFFIX.sub("", name)
    return shorter or name
