"""The pressures that vramcast forecasts of Lucid's jobs before it has seen any of them run."""

from __future__ import annotations

import numpy as np
from bench.cluster.described import annotations_of
from bench.interference.lucid import GPU, Alone
from bench.interference.recall import Floats

from vramcast.forecast.forecast import Source
from vramcast.forecast.model import BUILTIN, choose_forecaster
from vramcast.placement.interference import load_of
from vramcast.settings import Settings
from vramcast.task.task import parse_task

ASSUMED_UTILIZATION: float = Settings.model_fields["assumed_utilization"].default
_RISK = 0.05


def forecast_pressures(alone: Alone) -> tuple[Floats, Floats]:
    """By kind; and which of them were forecast from a recording, as 1 or 0."""
    forecaster = choose_forecaster(BUILTIN, _RISK, physics_if_unusable=False)
    pressures, recorded = [], []
    for model, batch, amp in zip(alone.models, alone.batch_sizes, alone.amp, strict=True):
        task = parse_task(annotations_of(str(model), int(batch), amp=bool(amp)))
        assert task is not None
        said = forecaster.forecast(task, GPU)
        pressures.append(load_of(said.utilization, ASSUMED_UTILIZATION, None).pressure)
        recorded.append(float(said.source is Source.RECORDING))
    return np.array(pressures), np.array(recorded)
