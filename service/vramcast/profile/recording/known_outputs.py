"""What an operation returns on the meta device is computed once for each set of shapes, and then looked up.

Torch works out the shape of a product in Python, which takes longer than all else that recording does. A step repeats
the same few operations for every block, so nearly all of them have been seen. Only outputs that own their storage are
looked up: views and in-place operations always run.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

_MOST = 20_000
_PLAIN = (Tensor, nn.Parameter)
_VALUES = (int, float, bool, str, torch.dtype, torch.device, torch.layout, torch.memory_format)
_Output = tuple[torch.Size, tuple[int, ...], torch.dtype]  # its shape, stride and dtype
# Whether it is a single tensor, and the outputs, of which some may not be there.
_Outputs = tuple[bool, tuple[_Output | None, ...]]
_Key = tuple[Any, ...]


class KnownOutputs:
    """Of the meta device only."""

    def __init__(self) -> None:
        self._outputs: dict[_Key, _Outputs | None] = {}  # None: it always has to run

    def run(self, func: Any, args: Any, kwargs: Any) -> Any:
        """The same as `func(*args, **kwargs)`."""
        key = _key(func, args, kwargs)
        known = None if key is None else self._outputs.get(key)
        if known is None:
            out = func(*args, **(kwargs or {}))
            if key is not None and key not in self._outputs and len(self._outputs) < _MOST:
                self._outputs[key] = _described(out, args, kwargs)
            return out
        single, outputs = known
        made = [None if one is None else torch.empty_strided(*one[:2], dtype=one[2], device="meta") for one in outputs]
        return made[0] if single else tuple(made)


def _key(func: Any, args: Any, kwargs: Any) -> _Key | None:
    """None: has an argument that is not told by shape and value alone."""
    parts: list[Any] = [func]
    if not _add_to(parts, args) or (kwargs and not _add_to(parts, [part for pair in kwargs.items() for part in pair])):
        return None
    return tuple(parts)


def _add_to(parts: list[Any], values: Any) -> bool:
    for value in values:
        kind = type(value)
        if kind in _PLAIN:
            if not value.is_meta or value.dtype.is_complex:
                return False
            parts += (value.shape, value.stride(), value.dtype)
        elif value is None:
            parts.append(None)
        elif kind in _VALUES:
            parts += (kind, value)  # 1 and 1.0 are equal, and give other types
        elif kind in (list, tuple, torch.Size):
            parts.append(len(value))
            if not _add_to(parts, value):
                return False
        else:
            return False
    return True


def _described(out: Any, args: Any, kwargs: Any) -> _Outputs | None:
    """None for outputs that cannot be made anew from shapes: views, or anything else than tensors."""
    single = isinstance(out, Tensor)
    leaves = (out,) if single else out
    if not isinstance(leaves, tuple):
        return None
    taken = {tensor.untyped_storage()._cdata for tensor in _tensors((*args, *(kwargs or {}).values()))}
    outputs: list[_Output | None] = []
    for leaf in leaves:
        if leaf is None:
            outputs.append(None)
            continue
        if type(leaf) is not Tensor or not leaf.is_meta or leaf.dtype.is_complex or leaf.storage_offset():
            return None
        storage = leaf.untyped_storage()
        if storage._cdata in taken:
            return None
        taken.add(storage._cdata)
        anew = torch.empty_strided(leaf.shape, leaf.stride(), dtype=leaf.dtype, device="meta")
        if anew.untyped_storage().nbytes() != storage.nbytes():
            return None
        outputs.append((leaf.shape, leaf.stride(), leaf.dtype))
    return single, tuple(outputs)


def _tensors(values: Any) -> list[Tensor]:
    found: list[Tensor] = []
    for value in values:
        if isinstance(value, Tensor):
            found.append(value)
        elif isinstance(value, list | tuple):
            found += _tensors(value)
    return found
