"""Temporary changes of torch: attributes, and kernels of its dispatcher."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Self

import torch


@contextmanager
def patched(patches: Iterable[tuple[Any, str, Any]]) -> Iterator[None]:
    """Each patch is a holder, the name of its attribute, and what replaces it."""
    originals: list[tuple[Any, str, Any]] = []
    try:
        for holder, name, replacement in patches:
            originals.append((holder, name, getattr(holder, name)))
            setattr(holder, name, replacement)
        yield
    finally:
        for holder, name, original in reversed(originals):
            setattr(holder, name, original)


class Library:
    """Kernels of aten operators, until the context ends."""

    def __init__(self) -> None:
        self._library: Any = None

    def __enter__(self) -> Self:
        self._library = torch.library.Library("aten", "IMPL")
        return self

    def implement(self, name: str, kernel: Callable[..., Any], key: str) -> None:
        self._library.impl(name, kernel, key, allow_override=True)

    def __exit__(self, *_raised: object) -> None:
        self._library._destroy()
