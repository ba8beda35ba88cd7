"""Builds a network and traces its profile: on the meta device, or on the CPU if the pass depends on values."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from vramcast.errors import InvalidInput
from vramcast.profile.inputs import Inputs, make_call
from vramcast.profile.tracing import Trace, leaves, trace

Build = Callable[[], nn.Module]

# A profile is traced with two samples. A trace with three shows what does not grow with the batch.
SAMPLES = 2
_MORE_SAMPLES = 3
# A laptop cannot run larger networks with real weights.
_MAX_REAL_PARAMETERS = 1_000_000_000
# A network with a larger share of its weights in attention modules is a transformer.
_ATTENTION_SHARE = 0.15
# Attention with fewer weights in convolutions than this share only cuts its images into patches with them.
_FEW_CONVOLUTIONS = 0.05
_ATTENTION_NAMES = ("attention", "attn", "mhsa", "gpsa", "xca")
_RECURRENT = (nn.RNNBase, nn.RNNCellBase)


class Untraceable(Exception):
    """No forward pass is possible here; `model` is the network without one."""

    def __init__(self, why: str, model: nn.Module) -> None:
        super().__init__(why)
        self.model = model


@dataclass(frozen=True, slots=True)
class Traced:
    """A profile as JSON, and figures that are only displayed."""

    profile: dict[str, Any]
    static_bytes: int  # independent of the batch
    trained_parameters: int
    on: str  # meta or cpu


def profile_network(build: Build, inputs: Inputs, name: str) -> Traced:
    """Raises InvalidInput if the pass fails with these inputs, Untraceable if no pass is possible here."""
    try:
        model = _built(build, "meta")
        first = trace(model, make_call(inputs, SAMPLES, "meta"), SAMPLES)
        more = trace(model, make_call(inputs, _MORE_SAMPLES, "meta"), _MORE_SAMPLES)
        on = "meta"
    except InvalidInput:
        raise
    except Exception as error:
        model, first = _on_cpu(build, inputs, error)
        more, on = first, "cpu"
    profile = make_profile(model, first, inputs, name)
    trained = sum(weight.numel() for weight in model.parameters() if weight.requires_grad)
    return Traced(profile, _static_bytes(first, more), trained, on)


def _on_cpu(build: Build, inputs: Inputs, error: Exception) -> tuple[nn.Module, Trace]:
    """For a pass that depends on values (boxes, routes, lengths), which the meta device does not have."""
    model = _sized(build)
    if sum(weight.numel() for weight in model.parameters()) > _MAX_REAL_PARAMETERS:
        raise Untraceable(f"{_short(error)} (and it is too large to run on the CPU)", model) from error
    try:
        model = _built(build, "cpu")
        return model, traced_on_cpu(model, inputs)
    except InvalidInput:
        raise
    except Exception as again:
        if _needs_gpu(again):
            raise Untraceable(_short(again), model) from again
        raise InvalidInput(
            f"the forward pass with {inputs or 'no input'} failed: {_short(again)}. Give the shape of one sample "
            "without the batch (--input 3x224x224), a number of tokens (--sequence-length 512), or a callable that "
            "makes a batch (--inputs my_module:make_batch)"
        ) from again


def traced_on_cpu(model: nn.Module, inputs: Inputs) -> Trace:
    """With one sample, because real arithmetic takes seconds. Batch norms may need a second one."""
    try:
        return trace(model, make_call(inputs, 1, "cpu"), 1)
    except ValueError:
        return trace(model, make_call(inputs, SAMPLES, "cpu"), SAMPLES)


def _sized(build: Build) -> nn.Module:
    try:
        return _built(build, "meta")
    except Exception:
        return _built(build, "cpu")


def _needs_gpu(error: Exception) -> bool:
    text = str(error).lower()
    return isinstance(error, NotImplementedError) or any(word in text for word in ("cuda", "triton", "gpu"))


def _short(error: Exception) -> str:
    text = str(error).strip().split("\n", maxsplit=1)[0]
    return f"{type(error).__name__}: {text[:300]}" if text else type(error).__name__


def _built(build: Build, device: str) -> nn.Module:
    with quiet(), without_weights(), torch.device(device):
        model = build()
    return model.to(device).train()


@contextmanager
def quiet() -> Iterator[None]:
    """Suppresses warnings about missing weights."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


_ALL_KEYS_MATCH = nn.modules.module._IncompatibleKeys([], [])


@contextmanager
def without_weights() -> Iterator[None]:
    """Skips loading trained weights: the sizes do not depend on them."""
    patched: list[tuple[Any, str, Any]] = [
        (nn.Module, "load_state_dict", lambda *_args, **_named: _ALL_KEYS_MATCH),
        (torch.hub, "load_state_dict_from_url", lambda *_args, **_named: {}),
    ]
    torchvision = sys.modules.get("torchvision.models._api")
    if torchvision is not None:
        patched.append((torchvision.WeightsEnum, "get_state_dict", lambda *_args, **_named: {}))
    originals = [(holder, name, getattr(holder, name)) for holder, name, _ in patched]
    try:
        for holder, name, replacement in patched:
            setattr(holder, name, replacement)
        yield
    finally:
        for holder, name, original in originals:
            setattr(holder, name, original)


def make_profile(model: nn.Module, seen: Trace, inputs: Inputs, name: str) -> dict[str, Any]:
    """In the format that `forecast/description.py` parses."""
    profile: dict[str, Any] = {
        "id": name,
        "family": family(model),
        "parameters": sum(weight.numel() for weight in model.parameters()),
        "buffers": sum(buffer.numel() for buffer in model.buffers()),
        "saved_bytes_per_sample": seen.saved_bytes // seen.samples,
        "largest_saved_bytes_per_sample": seen.largest_saved_bytes // seen.samples,
        "layers": seen.layers,
    }
    if seen.fused_attention_bytes:
        profile["fused_attention_bytes_per_sample"] = seen.fused_attention_bytes // seen.samples
    if seen.work is not None:
        profile["work"] = seen.work
    if inputs.sequence_length:
        profile["sequence_length"] = inputs.sequence_length
    if inputs.shapes:
        profile["input_shape"] = list(inputs.shapes[0])
    return profile


def _static_bytes(first: Trace, more: Trace) -> int:
    """Separates what grows with the batch from what does not."""
    if more.samples == first.samples:
        return 0
    growth = (more.saved_bytes - first.saved_bytes) / (more.samples - first.samples)
    return max(0, round(first.saved_bytes - first.samples * growth))


def family(model: nn.Module) -> str:
    """Decided by what most of the weights do."""
    names = {type(module).__name__ for module in model.modules()}
    if "UNet2DConditionModel" in names or "UNet2DModel" in names:
        return "diffusion"
    if any(isinstance(module, _RECURRENT) for module in model.modules()):
        return "rnn"
    total = sum(weight.numel() for weight in model.parameters()) or 1
    attending = sum(weight.numel() for module in attention_modules(model) for weight in module.parameters())
    if attending > _ATTENTION_SHARE * total and _linear_weights(model) > 0.5 * total:
        return "transformer"
    convolving = sum(_weights(module) for module in leaves(model) if "Conv" in type(module).__name__)
    if convolving > (_FEW_CONVOLUTIONS * total if attending else 0):
        return "cnn"
    return "transformer" if attending else "mlp"


def attention_modules(model: nn.Module) -> Iterator[nn.Module]:
    """Only the outermost ones, so nested modules count once."""
    inside: set[nn.Module] = set()
    for module in model.modules():
        name = type(module).__name__.lower()
        if module not in inside and any(word in name for word in _ATTENTION_NAMES):
            inside.update(module.modules())
            yield module


def _linear_weights(model: nn.Module) -> int:
    return sum(_weights(module) for module in leaves(model) if "Conv2d" not in type(module).__name__)


def _weights(module: nn.Module) -> int:
    return sum(weight.numel() for weight in module.parameters(recurse=False))
