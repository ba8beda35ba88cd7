"""The ONNX model behind one small call: features in, medians, spreads and utilization out."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import onnxruntime

from vramcast.forecast.artifact import Artifact
from vramcast.forecast.conformal import Spreads
from vramcast.forecast.features import Features
from vramcast.forecast.forecast import Utilization

INPUTS = ("facts", "tokens", "kinds")
OUTPUTS = ("quantiles", "utilization", "network_quantiles")


@dataclass(frozen=True, slots=True)
class Prediction:
    median_bytes: float
    network_median_bytes: float  # before the trees, for comparison
    spreads: Spreads
    utilization: Utilization


class ModelSession:
    def __init__(self, artifact: Artifact) -> None:
        options = onnxruntime.SessionOptions()
        # One row at a time: threads would only wait for each other.
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        options.log_severity_level = 3
        self._session = onnxruntime.InferenceSession(artifact.model, options, providers=["CPUExecutionProvider"])
        self._quantiles = artifact.quantiles
        self._median = artifact.quantiles.index(0.5)

    def predict(self, features: Features) -> Prediction:
        quantiles, utilization, network = self._session.run(
            OUTPUTS,
            {"facts": features.facts[None], "tokens": features.tokens[None], "kinds": features.kinds[None]},
        )
        # With each unfamiliar setting physics counts for more.
        trust = 1.0 / (1.0 + features.unfamiliar)
        return self.interpret(features.prior.total_bytes, quantiles[0], utilization[0], network[0], trust)

    def interpret(
        self, prior_bytes: float, quantiles: np.ndarray, utilization: np.ndarray, network: np.ndarray, trust: float
    ) -> Prediction:
        median = float(quantiles[self._median])
        spreads = {
            round(1.0 - level, 6): float(quantiles[index]) - median
            for index, level in enumerate(self._quantiles)
            if level > 0.5
        }
        gpu, sm_active, sm_occupancy = (float(value) for value in utilization)
        return Prediction(
            prior_bytes * math.exp(trust * median),
            prior_bytes * math.exp(trust * float(network[self._median])),
            Spreads(spreads),
            Utilization(gpu=gpu, sm_active=sm_active, sm_occupancy=sm_occupancy),
        )
