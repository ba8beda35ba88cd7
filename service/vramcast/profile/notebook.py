"""`vramcast.forecast(model, inputs, ...)`: forecasts a network in a notebook, or a catalog name."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from torch import Tensor, nn
from torch.utils import _pytree

from vramcast.errors import InvalidInput
from vramcast.forecast.description import encode_profile
from vramcast.forecast.forecaster import CachingForecaster
from vramcast.forecast.model import BUILTIN, choose_forecaster
from vramcast.forecast.report import COMMON_PRODUCTS, ProductReport, report
from vramcast.hardware.products import base_product
from vramcast.profile.inputs import Inputs
from vramcast.profile.loading import network_of
from vramcast.profile.profiling import Untraceable, profile_network
from vramcast.task.quantity import GIB
from vramcast.task.task import parse_task
from vramcast.task.vocabulary import PREFIX

_DEFAULT_RISK = 0.05


@dataclass(frozen=True, slots=True)
class NotebookForecast:
    """A forecast per product, and the annotations for a pod that runs the network."""

    annotations: dict[str, str]
    products: dict[str, ProductReport]

    def __getitem__(self, product: str) -> ProductReport:
        return self.products[product]

    def __repr__(self) -> str:
        lines = [f"{'GPU':24} {'median':>8} {'bound':>8}  holds it"]
        for name, line in self.products.items():
            holds = {True: "yes", False: "no", None: "?"}[line.holds_it]
            sizes = (size / GIB for size in (line.forecast.median_bytes, line.forecast.bound_bytes))
            lines.append(f"{name:24} {' '.join(f'{size:5.2f}GiB' for size in sizes)}  {holds}")
        return "\n".join(lines)


def forecast(
    model: nn.Module | str | Callable[[], nn.Module],
    inputs: Any = None,
    *,
    gpus: Iterable[str] = COMMON_PRODUCTS,
    **settings: Any,
) -> NotebookForecast:
    """Forecasts a network, or a function that builds one, or a catalog name.

    `inputs` is the shape of one sample, a number of tokens, an example batch, or a callable that makes a batch of n.
    Settings are annotations with underscores: batch_size=64, optimizer="adamw", precision="bf16".
    """
    described = _named(model, inputs) if isinstance(model, str) else {"profile": _profile(model, inputs)}
    run: dict[str, Any] = {name.replace("_", "-"): value for name, value in settings.items()}
    annotations = {PREFIX + name: _text(value) for name, value in {**described, **run}.items()}
    task = parse_task(annotations)
    assert task is not None  # noqa: S101 - there are annotations
    reports = report(_forecaster(), task, [base_product(name) for name in gpus])
    return NotebookForecast(annotations, {line.forecast.product: line for line in reports})


def _named(model: str, inputs: Any) -> dict[str, str]:
    if inputs is None:
        return {"model": model}
    if isinstance(inputs, int):
        return {"model": model, "sequence-length": str(inputs)}
    return {"model": model, "input-size": "x".join(map(str, inputs))}


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _profile(model: Any, inputs: Any) -> str:
    """A module is copied to the meta device and traced there."""
    build: Callable[[], nn.Module] = (
        (lambda: _copy(model)) if isinstance(model, nn.Module) else lambda: network_of(model())
    )
    try:
        return encode_profile(profile_network(build, parse_inputs(inputs), type(model).__name__).profile)
    except Untraceable as error:
        raise InvalidInput(
            f"the network cannot be traced here: {error}; describe it by its parameters and activations instead"
        ) from error


def _copy(model: nn.Module) -> nn.Module:
    """Copies the structure and the shapes only; the notebook's weights stay untouched."""
    memo: dict[int, Any] = {}
    for tensor in [*model.parameters(), *model.buffers()]:
        twin = tensor.detach().to("meta")
        memo[id(tensor)] = nn.Parameter(twin, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else twin
    return copy.deepcopy(model, memo)


def parse_inputs(inputs: Any) -> Inputs:
    if inputs is None:
        return Inputs()
    if isinstance(inputs, bool):
        raise InvalidInput(f"inputs {inputs!r}: expected a shape, a number of tokens, a batch or a callable")
    if isinstance(inputs, int):
        return Inputs(sequence_length=inputs)
    if isinstance(inputs, Tensor | dict):
        return Inputs(make=_like(inputs))
    if isinstance(inputs, Sequence) and all(isinstance(size, int) for size in inputs):
        return Inputs(shapes=(tuple(inputs),))
    if isinstance(inputs, tuple | list):
        return Inputs(make=_like(inputs))
    if callable(inputs):
        return Inputs(make=inputs)
    raise InvalidInput(f"inputs {inputs!r}: expected a shape, a number of tokens, a batch or a callable")


def _like(batch: Any) -> Callable[[int], Any]:
    """Makes batches of n like the example; the first dimension is the batch."""

    def make(samples: int) -> Any:
        return _pytree.tree_map_only(Tensor, lambda t: t.new_zeros(samples, *t.shape[1:]) if t.dim() else t, batch)

    return make


@lru_cache(maxsize=1)
def _forecaster() -> CachingForecaster:
    return choose_forecaster(BUILTIN, _DEFAULT_RISK, physics_if_unusable=False)
