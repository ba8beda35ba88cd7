"""GPU memory forecasts. In a notebook, call the package: `vramcast.forecast(model, inputs, batch_size=...)`."""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import Any


class _Callable(ModuleType):
    def __call__(self, model: Any, inputs: Any = None, **settings: Any) -> Any:
        # Imported by name, because the profile package needs torch and serving must not depend on it.
        return import_module("vramcast.profile.notebook").forecast(model, inputs, **settings)


sys.modules[__name__].__class__ = _Callable
