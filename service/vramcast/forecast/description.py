"""What is known about a network, layer by layer: the input of the physics prior and of the features.

There are two kinds of description. A *traced* one lists leaf modules with their shapes, and the bytes that autograd
saves, but not the functional operations between modules. A *replayable* one is the whole graph: every operation and its
inputs, so a training step can be replayed allocation by allocation.

As an annotation, a profile is `v1:` and its JSON, compressed, in URL-safe base64. The number is the version of the
format; `v2:` is a recording (`storage.py`). A newer version is refused by name: a description that is only half
understood gives a wrong forecast.
"""

from __future__ import annotations

import base64
import binascii
import json
import math
import re
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vramcast import __version__
from vramcast.errors import FieldError, InvalidInput, InvalidTask
from vramcast.forecast.profile_figures import check_figures
from vramcast.task.vocabulary import PREFIX


class OpKind(IntEnum):
    """Decides what an operation saves for the backward pass."""

    CONV = 0
    DEPTHWISE = 1
    POINTWISE = 2
    GROUPED = 3
    LINEAR = 4
    BATCH_NORM = 5
    LAYER_NORM = 6
    KEEPS_OUTPUT = 7  # ReLU, tanh, sigmoid: the gradient needs the result
    KEEPS_INPUT = 8  # GELU, SiLU, ...: the gradient needs the argument
    DROPOUT = 9
    POOL = 10
    VIEW = 11
    SOFTMAX = 12
    EMBEDDING = 13
    OTHER = 14


CONVOLUTIONS = (OpKind.CONV, OpKind.DEPTHWISE, OpKind.POINTWISE, OpKind.GROUPED)


def among(*kinds: OpKind) -> NDArray[np.bool_]:
    """A lookup table, indexed by kind. Much faster than a search per layer."""
    table = np.zeros(len(OpKind), dtype=np.bool_)
    table[list(kinds)] = True
    return table


IS_CONVOLUTION = among(*CONVOLUTIONS)

_KEEPS_OUTPUT = frozenset({"ReLU", "Tanh", "Sigmoid", "ReLU6", "Hardsigmoid"})
_KEEPS_INPUT = frozenset({
    "GELU", "SiLU", "Mish", "Softplus", "ELU", "SELU", "LeakyReLU", "PReLU", "Hardswish", "GELUTanh", "QuickGELU",
    "GammaAct", "NewGELUActivation",
})  # fmt: skip
# Real networks have thousands of layers at most; more means a damaged or hostile profile.
MAX_LAYERS = 100_000
_LONGEST_BLOCK = 64
_FORMAT = 1
_NEWEST = 2  # recordings
_MARK = f"v{_FORMAT}:"
_ANY_MARK = re.compile(r"v(\d{1,4}):")
# No network's profile fits into 64 KiB and unpacks to more than this.
_MAX_JSON_BYTES = 8 << 20
_VIEWS = frozenset({"Identity", "Flatten", "Permute"})


@dataclass(frozen=True, slots=True)
class Op:
    """One operation; elements are per sample."""

    type: str
    kind: OpKind
    in_elements: int
    out_elements: int
    parameters: int = 0
    kernel: int = 0
    area: int = 0  # weights of the kernel for one channel
    groups: int = 1
    stride: int = 1
    in_place: bool = False
    channels_in: int = 0
    channels_out: int = 0
    positions: int = 0  # output pixels or tokens
    shape: tuple[int, ...] = ()
    inputs: tuple[int, ...] = ()  # indices of the operations it reads; -1 is the network's input


@dataclass(frozen=True, slots=True)
class CountedWork:
    """Of one sample's forward pass, functional operations included. Attention is apart: kernels may fuse it."""

    macs: float  # multiply-accumulates, those of attention included
    elements: float  # read and written
    kernels: float
    attention_macs: float
    attention_elements: float  # moved where no kernel fuses it
    attention_kernels: float


@dataclass(frozen=True, slots=True, eq=False)
class Description:
    """A network; `saved_bytes_per_sample` is None if it was not traced.

    Compared by identity: it is a cache key, and comparing layers would cost as much as the cached work.
    """

    ops: tuple[Op, ...]
    parameters: int
    input_elements: int
    family: str
    buffers: int = 0
    saved_bytes_per_sample: int | None = None
    largest_saved_bytes_per_sample: int | None = None
    fused_attention_bytes_per_sample: int | None = None  # part of the saved bytes, if the trace separated them
    sequence_length: int | None = None
    work: CountedWork | None = None  # None: it was not counted
    replayable: bool = False


def kind_of(type_name: str, groups: int, channels_in: int, kernel: int) -> OpKind:
    """The kind of an operation, from its class name."""
    lowered = type_name.lower()
    if "conv" in lowered and "norm" not in lowered:
        return _convolution(groups, channels_in, kernel)
    if type_name in _KEEPS_OUTPUT:
        return OpKind.KEEPS_OUTPUT
    if type_name in _KEEPS_INPUT:
        return OpKind.KEEPS_INPUT
    if type_name in _VIEWS:
        return OpKind.VIEW
    for part, kind in _BY_PART:
        if part in lowered:
            return kind
    return OpKind.OTHER


_BY_PART = (
    ("batchnorm", OpKind.BATCH_NORM),
    ("evonorm", OpKind.BATCH_NORM),
    ("filterresponse", OpKind.BATCH_NORM),
    ("norm", OpKind.LAYER_NORM),
    ("linear", OpKind.LINEAR),
    ("softmax", OpKind.SOFTMAX),
    ("drop", OpKind.DROPOUT),
    ("pool", OpKind.POOL),
    ("embed", OpKind.EMBEDDING),
)


def _convolution(groups: int, channels_in: int, kernel: int) -> OpKind:
    if groups > 1:
        return OpKind.DEPTHWISE if groups >= channels_in > 0 else OpKind.GROUPED
    return OpKind.POINTWISE if kernel <= 1 else OpKind.CONV


def parse_profile(profile: Mapping[str, Any]) -> Description:
    """A profile as JSON: `layers` have six fields (a plain chain) or nine (traced leaf modules with shapes).

    `[count, [layer, ...]]` is a block that repeats `count` times.
    """
    try:
        layers = unfold_layers(profile["layers"])
        check_figures(profile)
        traced = bool(layers) and len(layers[0]) >= 9
        ops = _traced(layers) if traced else _chain(layers, math.prod(profile["input_shape"]))
        return Description(
            ops=tuple(ops),
            parameters=int(profile["parameters"]),
            input_elements=_input_elements(profile),
            family=str(profile.get("family", "")),
            buffers=int(profile.get("buffers") or 0),
            saved_bytes_per_sample=profile.get("saved_bytes_per_sample"),
            largest_saved_bytes_per_sample=profile.get("largest_saved_bytes_per_sample"),
            fused_attention_bytes_per_sample=profile.get("fused_attention_bytes_per_sample"),
            sequence_length=profile.get("sequence_length"),
            work=CountedWork(*map(float, profile["work"])) if profile.get("work") else None,
            replayable=not traced,
        )
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise InvalidInput(f"profile {profile.get('id', '')!r} is malformed: {error!r}") from error


def unfold_layers(layers: Sequence[Sequence[Any]]) -> list[Sequence[Any]]:
    """Writes out every repeated block."""
    unfolded: list[Sequence[Any]] = []
    for layer in layers:
        if isinstance(layer[0], int):
            count, block = layer
            if count * len(block) > MAX_LAYERS:
                raise ValueError(f"a block of {len(block)} layers repeats {count} times")
            unfolded.extend(list(block) * count)
        else:
            unfolded.append(layer)
        if len(unfolded) > MAX_LAYERS:
            raise ValueError(f"more than {MAX_LAYERS} layers")
    return unfolded


def fold_layers(layers: Sequence[Sequence[Any]]) -> list[Sequence[Any]]:
    """Merges equal neighbouring blocks into a count and one block: most deep networks repeat a few blocks."""
    keys = [hash(repr(layer)) for layer in layers]
    folded: list[Sequence[Any]] = []
    at = 0
    while at < len(layers):
        size, count = _longest_repeat(keys, at)
        if count > 1:
            folded.append([count, list(layers[at : at + size])])
        else:
            folded.append(layers[at])
        at += size * count
    return folded


def _longest_repeat(keys: Sequence[int], at: int) -> tuple[int, int]:
    """(layers in the block, repetitions) of the repeat that covers the most layers from here."""
    best = (1, 1)
    for size in range(1, min(_LONGEST_BLOCK, (len(keys) - at) // 2) + 1):
        block, count = keys[at : at + size], 1
        while keys[at + count * size : at + (count + 1) * size] == block:
            count += 1
        if count > 1 and size * count > best[0] * best[1]:
            best = (size, count)
    return best


def _input_elements(profile: Mapping[str, Any]) -> int:
    shape = profile.get("input_shape")
    return math.prod(shape) if shape else int(profile.get("sequence_length") or 1)


def _chain(layers: Sequence[Sequence[Any]], input_elements: int) -> list[Op]:
    """Each layer reads the one before, as in a `Sequential`."""
    ops: list[Op] = []
    elements = input_elements
    for index, (type_name, out, parameters, *_rest) in enumerate(layers):
        linear = type_name == "Linear"
        ops.append(
            Op(
                type=type_name,
                kind=kind_of(type_name, 1, 0, 0),
                in_elements=elements,
                out_elements=out,
                parameters=parameters,
                in_place=bool(_rest[2]) if len(_rest) > 2 else False,
                channels_in=elements if linear else 0,
                channels_out=out if linear else 0,
                positions=1,
                shape=(out,) if linear else (),
                inputs=(index - 1,),
            )
        )
        elements = out
    return ops


def _traced(layers: Sequence[Sequence[Any]]) -> list[Op]:
    return [_traced_op(layer) for layer in layers]


def _traced_op(layer: Sequence[Any]) -> Op:
    type_name, out, parameters, kernel, groups, in_place, in_elements, shape, stride = layer[:9]
    groups = groups or 1
    channels_in = channels_out = positions = 0
    if "Conv" in type_name and len(shape) >= 2:
        channels_out = shape[0]
        positions = out // max(1, channels_out)
        area = (kernel[0] * (kernel[1] if len(kernel) > 1 else kernel[0])) if kernel else 1
        channels_in = _conv_inputs(parameters, channels_out, area) * groups
    elif type_name == "Linear":
        channels_out = shape[-1]
        positions = out // max(1, channels_out)
        channels_in = max(1, round(in_elements * channels_out / max(1, out)))
    size = kernel[0] if kernel else 0
    return Op(
        type=type_name,
        kind=kind_of(type_name, groups, channels_in, size),
        in_elements=in_elements,
        out_elements=out,
        parameters=parameters,
        kernel=size,
        area=_area(kernel, len(shape) - 1),
        groups=groups,
        stride=(stride[0] if stride else 1) or 1,
        in_place=bool(in_place),
        channels_in=channels_in,
        channels_out=channels_out,
        positions=positions,
        shape=tuple(shape),
    )


def _area(kernel: Sequence[int] | None, dimensions: int) -> int:
    if not kernel:
        return 0
    return math.prod(kernel) if len(kernel) > 1 else int(kernel[0] ** max(1, dimensions))


def _conv_inputs(parameters: int, channels_out: int, area: int) -> int:
    """Input channels per group, from the number of weights; a remainder is the bias."""
    row = max(1, channels_out * area)
    weights = parameters if parameters % row == 0 else parameters - channels_out
    return max(1, weights // row)


# ---------------------------------------------------------------------- a profile as an annotation


def encode_profile(profile: Mapping[str, Any]) -> str:
    """Folds the layers to keep the annotation short."""
    profile = {**profile, "layers": fold_layers(profile["layers"])}
    packed = zlib.compress(json.dumps(profile, separators=(",", ":")).encode(), 9)
    return _MARK + base64.urlsafe_b64encode(packed).decode()


@lru_cache(maxsize=256)
def decode_profile(text: str) -> Description:
    """Raises InvalidTask, which names the annotation, if the profile is damaged or too new."""
    _refuse_newer(text)
    try:
        return parse_profile(unpack_profile(text))
    except (ValueError, binascii.Error, zlib.error, InvalidInput) as error:
        expected = f"expected the output of `vramcast profile` ({_MARK}…): {error}; or set {PREFIX}gpu-memory"
        raise InvalidTask([FieldError(f"{PREFIX}profile", text, expected)]) from error


def unpack_profile(text: str) -> dict[str, Any]:
    """The profile's JSON. Raises ValueError or zlib.error."""
    if not text.startswith(_MARK):
        raise ValueError(f"it starts with {text[:6]!r}")
    unpacked = zlib.decompressobj().decompress(base64.urlsafe_b64decode(text.removeprefix(_MARK)), _MAX_JSON_BYTES)
    profile = json.loads(unpacked)
    if not isinstance(profile, dict):
        raise ValueError("it is not a JSON object")
    return profile


def _refuse_newer(text: str) -> None:
    mark = _ANY_MARK.match(text)
    if mark and int(mark[1]) > _NEWEST:
        expected = (
            f"written by a newer vramcast (v{mark[1]}; this is {__version__}, which reads up to v{_NEWEST}): upgrade "
            f"the service, or run `vramcast profile` of version {__version__} again"
        )
        raise InvalidTask([FieldError(f"{PREFIX}profile", text, expected)])
