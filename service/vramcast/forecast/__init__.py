"""The forecast behind its seam, and a call for notebooks: `vramcast.forecast(model, inputs, batch_size=...)`."""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import Any


class _Callable(ModuleType):
    """The package is named as what it does, so calling it does that."""

    def __call__(self, model: Any, inputs: Any = None, **settings: Any) -> Any:
        # By name: what serves never imports what needs torch, and tracing is for who calls this.
        return import_module("vramcast.profile.notebook").forecast(model, inputs, **settings)


sys.modules[__name__].__class__ = _Callable
