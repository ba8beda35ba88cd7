"""A world whose forecasts tell utilization, as the artifact's do."""

from __future__ import annotations

from dataclasses import replace

from tests.controllers.observed import World

from vramcast.forecast.description import Description
from vramcast.forecast.forecast import Forecast
from vramcast.forecast.forecaster import PhysicsForecaster
from vramcast.hardware.utilization import Utilization
from vramcast.names import Product
from vramcast.task.task import Task

FORECAST = Utilization(gpu_util=0.93, sm_active=0.64, sm_occupancy=0.31)


class BusyForecaster(PhysicsForecaster):
    def forecast_network(self, network: Description | None, task: Task, product: Product, risk: float) -> Forecast:
        return replace(super().forecast_network(network, task, product, risk), utilization=FORECAST)


class BusyWorld(World):
    def start(self, **settings: object) -> None:
        self.base = BusyForecaster(0.05)
        super().start(**settings)
