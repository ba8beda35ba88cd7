"""From a task to a forecast: by the level of its description, cached, and calibrated by this cluster's runs."""

from __future__ import annotations

import math
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Protocol

from vramcast.errors import FieldError, InvalidTask
from vramcast.forecast import physics
from vramcast.forecast.catalog import Catalog, CatalogUnusable, builtin_catalog
from vramcast.forecast.description import Description, decode_profile
from vramcast.forecast.duty import duty
from vramcast.forecast.features import unfamiliar_settings
from vramcast.forecast.forecast import UNADJUSTED, Adjustment, Basis, Forecast, Part, Source, steady_bound
from vramcast.forecast.latents import shown_size
from vramcast.forecast.lengths import at_longest
from vramcast.forecast.named import KnownSteps, NoSteps, lower_level, steps_of
from vramcast.forecast.physics import bound_factor
from vramcast.forecast.recorded import forecast_recording
from vramcast.forecast.recorded_bounds import UNCALIBRATED, RecordedCalibration
from vramcast.forecast.rules import has_master
from vramcast.forecast.summary import MATCH_MARGIN, catalog_match, layers_of, summarized
from vramcast.forecast.totals import bounded_totals
from vramcast.hardware.products import PRODUCTS, calibration_note
from vramcast.hardware.utilization import UNKNOWN_UTILIZATION, Utilization
from vramcast.names import Product
from vramcast.task.quantity import MIB
from vramcast.task.regime import regime
from vramcast.task.task import Task
from vramcast.task.vocabulary import PREFIX, Allocator, Attention, Kernels, Kind, Level, LoraTargets, Offload

_CACHE_SIZE = 20_000
CALIBRATION_PART = "this cluster"


class CachingForecaster(ABC):
    """The user's own number, or a forecast. Forecasts are deterministic, so they are cached by task and product."""

    def __init__(self, default_risk: float) -> None:
        self._default_risk = default_risk
        self._cache: dict[tuple[Task, Product], Forecast] = {}
        # Other threads fill the cache; the event loop reads it.
        self._lock = threading.Lock()

    def is_cached(self, task: Task, product: Product) -> bool:
        """False: `forecast` would take milliseconds. The user's own number takes no time."""
        return task.level is Level.GIVEN or (task, product) in self._cache

    def forecast(self, task: Task, product: Product) -> Forecast:
        key = (task, product)
        known = self._cache.get(key)
        if known is None:
            known = steady_bound(task, self._forecast(task, product), lambda other: self.forecast(other, product))
            with self._lock:
                if len(self._cache) >= _CACHE_SIZE:
                    # The oldest entry: a dict keeps the order of insertion.
                    del self._cache[next(iter(self._cache))]
                self._cache[key] = known
        return known

    def _forecast(self, task: Task, product: Product) -> Forecast:
        risk = task.max_oom_risk if task.max_oom_risk is not None else self._default_risk
        if task.level is Level.GIVEN and task.gpu_memory_mib is not None:
            return _given(task.gpu_memory_mib * MIB, product, risk)
        task = at_longest(task)
        if product not in PRODUCTS and (note := calibration_note(product)) is not None:
            task = replace(task, assumptions=(*task.assumptions, note))
        steps = steps_of(task)
        if isinstance(steps, KnownSteps):
            try:
                known = replace(steps.task, assumptions=(*steps.task.assumptions, *_with_masters(steps.task)))
                said = forecast_recording(steps.key, known, product, risk, self.recorded_calibration)
                return replace(said, utilization=_duty(task, product))
            except InvalidTask as error:
                if task.level is Level.PROFILE:
                    raise
                steps = NoSteps(f"forecast from {lower_level(task)}: {error.errors[0].expected}")
        if steps.why:
            task = replace(task, assumptions=(*task.assumptions, steps.why))
        described = described_network(task)
        task = _with_length(task, described.network)
        if notes := (*described.assumptions, *_without_effect(task), *_with_masters(task)):
            task = replace(task, assumptions=(*task.assumptions, *notes))
        forecast = self.forecast_network(described.network, task, product, risk)
        doubted = replace(forecast, bound_bytes=round(described.doubt * forecast.bound_bytes))
        return bounded_totals(doubted, task, layers=described.network is not None)

    @property
    def recorded_calibration(self) -> RecordedCalibration:
        """How measured runs missed their recordings."""
        return UNCALIBRATED

    @property
    @abstractmethod
    def version(self) -> str:
        """Written into each forecast."""

    @abstractmethod
    def forecast_network(self, network: Description | None, task: Task, product: Product, risk: float) -> Forecast:
        """From the layers, or from the task's summary if there are none."""


class PhysicsForecaster(CachingForecaster):
    """The physics prior alone, with rule-of-thumb bounds."""

    @property
    def version(self) -> str:
        return physics.VERSION

    def forecast_network(self, network: Description | None, task: Task, product: Product, risk: float) -> Forecast:
        if network is None or unfamiliar_settings(task):
            return forecast_summary(task if network is None else summarized(task, network), product, risk)
        prior = physics.described_prior(network, task, product)
        return _from_prior(prior, task, product, risk, network.family)


def forecast_summary(task: Task, product: Product, risk: float) -> Forecast:
    """From parameters, activations and the settings of the run."""
    family = str(task.architecture or "")
    return _from_prior(physics.summary_prior(task, product), task, product, risk, family)


def _from_prior(prior: physics.Prior, task: Task, product: Product, risk: float, family: str) -> Forecast:
    median_bytes = sum(part.size_bytes for part in prior.parts)
    return Forecast(
        product=product,
        median_bytes=median_bytes,
        bound_bytes=round(median_bytes * bound_factor(risk)) if bound_factor(risk) > 1 else median_bytes,
        risk=risk,
        source=Source.PHYSICS,
        model_version=physics.VERSION,
        parts=prior.parts,
        assumptions=task.assumptions,
        family=family,
    )


# Settings that layers and totals say nothing about, with the values that their forecasts are right for.
_COUNTED_AS: dict[str, tuple[object, ...]] = {
    "attention": (None, Attention.SDPA, Attention.FLASH),
    "kernels": (Kernels.NONE,),
    "lora-targets": (LoraTargets.ALL_LINEAR,),
    "offload": (Offload.NONE,),
    "allocator": (Allocator.DEFAULT,),
}


def _without_effect(task: Task) -> tuple[str, ...]:
    """What was said in vain, so that nobody believes that the forecast includes it."""
    values = {name: getattr(task, name.replace("-", "_")) for name in _COUNTED_AS}
    return tuple(f"{name} {value} is not counted" for name, value in values.items() if value not in _COUNTED_AS[name])


def _with_length(task: Task, network: Description | None) -> Task:
    """The network's own length, where nobody said one: scores of eager attention go by it."""
    if task.attention is not Attention.EAGER or task.sequence_length is not None or network is None:
        return task
    return replace(task, sequence_length=network.sequence_length)


def _with_masters(task: Task) -> tuple[str, ...]:
    """The stage does not say whether DeepSpeed or FSDP shards."""
    if task.kind is Kind.INFERENCE or not has_master(task):
        return ()
    told = f"fp32 master weights, as DeepSpeed keeps them; FSDP of a model cast to {task.precision} has none"
    return (f"{told}: set {PREFIX}master-weights to false",)


@dataclass(frozen=True, slots=True)
class Described:
    """The layers, where the description tells them (None for a summary), and what had to be assumed to know them."""

    network: Description | None = None
    assumptions: tuple[str, ...] = ()
    doubt: float = 1.0  # what the bound is multiplied by, because the network may be another


def described_network(task: Task) -> Described:
    if task.level is Level.PROFILE and task.profile is not None:
        return Described(_profiled(decode_profile(task.profile), task), _only_totals(task))
    if task.level is Level.NAME and task.model is not None:
        named = _catalog(task.model).describe(task.model, task.input_size, task.sequence_length)
        return Described(named.network, named.assumptions)
    return _looked_up(task)


def _duty(task: Task, product: Product) -> Utilization:
    """A recording tells what a step holds, and a named network's layers tell how busy it keeps the GPU."""
    if task.level is not Level.NAME:
        return UNKNOWN_UTILIZATION
    try:
        network = described_network(task).network
    except InvalidTask:
        return UNKNOWN_UTILIZATION
    return UNKNOWN_UTILIZATION if network is None else duty(network, task, product)


def _only_totals(task: Task) -> tuple[str, ...]:
    if not unfamiliar_settings(task):
        return ()
    return (
        "forecast from the totals of the profile's layers; `vramcast profile` with these settings records the steps",
    )


def _profiled(network: Description, task: Task) -> Description:
    """A layer profile knows one size. Another one would be ignored, and the forecast would be of the wrong run."""
    again = f"run `vramcast profile` again with --{{}}, or leave {PREFIX}{{}} out"
    if task.input_size is not None and math.prod(task.input_size) != network.input_elements:
        shown = shown_size(task.input_size)
        made = f"the profile was made for samples of {network.input_elements} elements: "
        wrong = made + again.format(f"input {shown}", "input-size")
        raise InvalidTask([FieldError(f"{PREFIX}input-size", shown, wrong)])
    if task.sequence_length is not None and task.sequence_length != network.sequence_length:
        made = f"was made for {network.sequence_length} tokens" if network.sequence_length else "reads no tokens"
        wrong = f"the profile {made}: " + again.format(f"sequence-length {task.sequence_length}", "sequence-length")
        raise InvalidTask([FieldError(f"{PREFIX}sequence-length", str(task.sequence_length), wrong)])
    return network


def _looked_up(task: Task) -> Described:
    """A summary has the layers of the known network whose numbers it has, where layers tell more than totals."""
    if unfamiliar_settings(task):
        return Described()
    try:
        catalog = builtin_catalog()
    except CatalogUnusable:
        return Described()
    line = catalog_match(catalog.with_layers(task.layers or 0), task)
    if line is None:
        return Described()
    assumed = f"the layers of {line.name}, whose parameters, layers and activations these are"
    return Described(layers_of(catalog, line, task), (assumed,), MATCH_MARGIN)


def _catalog(model: str) -> Catalog:
    """Without one a name says nothing, and that is the pod's reason and nobody else's trouble."""
    try:
        return builtin_catalog()
    except CatalogUnusable as error:
        expected = f"names cannot be looked up ({error}): give {PREFIX}profile, a summary, or {PREFIX}gpu-memory"
        raise InvalidTask([FieldError(f"{PREFIX}model", model, expected)]) from error


def _given(size_bytes: int, product: Product, risk: float) -> Forecast:
    part = Part("given", size_bytes, f"annotation {PREFIX}gpu-memory")
    return Forecast(product, size_bytes, size_bytes, risk, Source.GIVEN, Source.GIVEN, parts=(part,))


class Calibrates(Protocol):
    """`revision` changes whenever an adjustment may have."""

    revision: int

    def adjustment_of(self, forecast: Forecast, regime: str) -> Adjustment: ...


class Remembers(Protocol):
    """`revision` changes whenever an adjustment may have."""

    revision: int

    def recall(
        self, task: Task, product: Product, forecast: Forecast, at: Callable[[Task], Forecast]
    ) -> Adjustment | None:
        """None: nothing like it has run."""
        ...

    def floor_mib(self, task: Task, product: Product) -> int:
        """What a run of this task is known to need at least."""
        ...


class CalibratedForecaster:
    """The active model with its calibrator. The two are always replaced together. `memory`: of former runs.

    `calibrator` None: the artifact's own bounds.
    """

    def __init__(self, base: CachingForecaster, calibrator: Calibrates | None, memory: Remembers | None = None) -> None:
        self._memory = memory
        self.use(base, calibrator)

    @property
    def base(self) -> CachingForecaster:
        return self._active[0]

    def is_cached(self, task: Task, product: Product) -> bool:
        # What was forecast for this namespace is at hand, whatever has been learned since.
        return (task, product) in self._active[2] or self.base.is_cached(_anybodys(task), product)

    def use(self, base: CachingForecaster, calibrator: Calibrates | None) -> None:
        # One reference, replaced as a whole, because several threads forecast.
        cache: dict[tuple[Task, Product], tuple[tuple[int, int], Forecast]] = {}
        self._active = base, calibrator, cache

    def forecast(self, task: Task, product: Product) -> Forecast:
        base, calibrator, cache = self._active
        if calibrator is None:
            return base.forecast(_anybodys(task), product)
        revision = calibrator.revision, self._memory.revision if self._memory is not None else 0
        cached = cache.get((task, product))
        if cached is not None and cached[0] == revision:
            return cached[1]
        forecast = base.forecast(_anybodys(task), product)
        forecast = adjust(forecast, self._learned(forecast, task, base, calibrator))
        if len(cache) >= _CACHE_SIZE:
            cache.clear()
        cache[task, product] = revision, forecast
        return forecast

    def _learned(self, forecast: Forecast, task: Task, base: CachingForecaster, calibrator: Calibrates) -> Adjustment:
        """By the runs that are most like it."""
        if forecast.source is Source.GIVEN:
            return UNADJUSTED
        product = forecast.product
        if self._memory is not None:
            recalled = self._memory.recall(
                task, product, forecast, lambda other: base.forecast(_anybodys(other), product)
            )
            if recalled is not None:
                return recalled
        # Calibration learns from forecasts of the active model only.
        adjustment = (
            UNADJUSTED if forecast.source is Source.RECORDING else calibrator.adjustment_of(forecast, regime(task))
        )
        floor_bytes = self._memory.floor_mib(task, product) * MIB if self._memory is not None else 0
        if floor_bytes > forecast.bound_bytes * adjustment.bound:
            return replace(adjustment, bound=round(floor_bytes / forecast.bound_bytes, 4))
        return adjustment


@lru_cache(maxsize=4096)  # copying a task takes longer than all else that a forecast does that is at hand
def _anybodys(task: Task) -> Task:
    """The artifact says the same to everybody."""
    return replace(task, namespace="") if task.namespace else task


def adjust(forecast: Forecast, adjustment: Adjustment) -> Forecast:
    """A bound never falls below its median, so the factor that was really applied may differ."""
    if adjustment == UNADJUSTED:
        return forecast
    median = round(forecast.median_bytes * adjustment.median)
    bound = max(median, round(forecast.bound_bytes * adjustment.bound))
    applied = replace(adjustment, bound=round(bound / max(forecast.bound_bytes, 1), 4))
    part = Part(CALIBRATION_PART, median - forecast.median_bytes, _explain_adjustment(forecast.product, applied))
    return replace(forecast, median_bytes=median, bound_bytes=bound, parts=(*forecast.parts, part), adjustment=applied)


def _explain_adjustment(product: Product, adjustment: Adjustment) -> str:
    share = abs(adjustment.median - 1.0)
    took = f"{share:.0%} {'more' if adjustment.median > 1.0 else 'less'} than" if share >= 0.005 else "as much as"
    bound = f"bound x {adjustment.bound:.2f}"
    if adjustment.basis is not Basis.CLUSTER:
        what = "this task" if adjustment.basis is Basis.SAME_TASK else "this network at other sizes"
        return f"{adjustment.outcomes} runs of {what} took {took} forecast, {bound}"
    if not adjustment.outcomes:
        return f"other runs on {product} took {took} forecast, {bound}"
    return f"this cluster's runs took {took} forecast, {bound}: {adjustment.outcomes} outcomes"
