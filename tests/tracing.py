"""Records which functions of the package a call runs, and in which order they are first entered."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import vramcast

ROOT = Path(vramcast.__file__).parent


@dataclass(slots=True)
class Trace:
    codes: dict[CodeType, None] = field(default_factory=dict)

    @property
    def files(self) -> list[str]:
        return sorted({str(Path(code.co_filename).relative_to(ROOT)) for code in self.codes})

    def order(self, functions: list[Callable[..., Any]]) -> list[Callable[..., Any]]:
        """The given functions that ran, in the order of their first call."""
        by_code = {function.__code__: function for function in functions}
        return [by_code[code] for code in self.codes if code in by_code]


@contextmanager
def traced() -> Iterator[Trace]:
    trace, root = Trace(), str(ROOT)

    def record(frame: FrameType, event: str, _argument: Any) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(root):
            trace.codes.setdefault(frame.f_code)

    before = sys.getprofile()
    sys.setprofile(record)
    try:
        yield trace
    finally:
        sys.setprofile(before)
