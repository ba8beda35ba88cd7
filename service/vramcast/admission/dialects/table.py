"""The dialects of pods, and the one that a pod is written in. The dialect `dra` is one of claims: see claims.py.

To add a system, add a file like its neighbours, and a row here and in settings.py.
"""

from __future__ import annotations

from typing import Final

from vramcast.admission.change import AdmittedPod, Change
from vramcast.admission.context import Context
from vramcast.admission.dialects.dialect import Dialect, number
from vramcast.admission.dialects.gpushare import GPUSHARE
from vramcast.admission.dialects.hami import HAMI
from vramcast.admission.dialects.kai import KAI
from vramcast.admission.dialects.koordinator import KOORDINATOR
from vramcast.admission.dialects.tensorfusion import TENSORFUSION
from vramcast.admission.dialects.volcano import VOLCANO, VOLCANO_SHARE
from vramcast.admission.inject import is_ours
from vramcast.settings import System

DIALECTS: Final[dict[str, Dialect]] = {
    dialect.name: dialect
    for dialect in (HAMI, KAI, VOLCANO, VOLCANO_SHARE, KOORDINATOR, GPUSHARE, TENSORFUSION)
}  # fmt: skip


def spoken(pod: AdmittedPod, context: Context) -> Dialect | None:
    """The first listed dialect that the pod is written in: two would ask for the memory twice."""
    if is_ours(pod.spec, context) or pod.spec.get("nodeName"):
        return None
    listed = (DIALECTS[name] for name in context.settings.dialect_units if name in DIALECTS)
    return next((dialect for dialect in listed if dialect.gpus(pod)), None)


def fill(pod: AdmittedPod, context: Context) -> list[Change]:
    needs, dialect = context.needs, spoken(pod, context)
    if needs is None or dialect is None or dialect.said(pod):
        return []
    unit_mib = context.settings.dialect_units[System(dialect.name)] or dialect.unit_mib
    return dialect.write(pod, number(needs, unit_mib))
