"""The forecast of utilization as bind writes it onto a pod: an annotation for each counter."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from vramcast.hardware.utilization import UNKNOWN_UTILIZATION, Utilization, UtilizationCounter
from vramcast.task.vocabulary import Written

ANNOTATIONS: Final = {
    UtilizationCounter.GPU_UTIL: Written.FORECAST_UTILIZATION,
    UtilizationCounter.SM_ACTIVE: Written.FORECAST_SM_ACTIVE,
    UtilizationCounter.SM_OCCUPANCY: Written.FORECAST_SM_OCCUPANCY,
}


def write_utilization(forecast: Utilization) -> dict[str, str]:
    """What is known. `gpu_util` alone would be read as what earlier versions wrote, so it needs another counter."""
    shares = {annotation: forecast.of(counter) for counter, annotation in ANNOTATIONS.items()}
    written = {str(annotation): f"{share:.2f}" for annotation, share in shares.items() if share is not None}
    return written if len(written) > 1 else {}


def read_utilization(annotations: Mapping[str, str]) -> Utilization:
    """Never raises: unreadable values count as absent."""
    shares = {counter: _share(annotations.get(annotation)) for counter, annotation in ANNOTATIONS.items()}
    if annotations.keys().isdisjoint((Written.FORECAST_SM_ACTIVE, Written.FORECAST_SM_OCCUPANCY)):
        # Earlier versions wrote sm_active into the annotation that now has gpu_util.
        old = shares[UtilizationCounter.GPU_UTIL]
        return UNKNOWN_UTILIZATION if old is None else Utilization(sm_active=old)
    return Utilization(**{counter.value: share for counter, share in shares.items()})


def _share(text: str | None) -> float | None:
    try:
        share = float(text) if text else None
    except ValueError:
        return None
    return share if share is not None and 0 <= share <= 1 else None
