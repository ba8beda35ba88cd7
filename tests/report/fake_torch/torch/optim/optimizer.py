from collections.abc import Callable
from typing import Any

_hooks: list[Callable[..., None]] = []


def register_optimizer_step_post_hook(hook: Callable[..., None]) -> None:
    _hooks.append(hook)


class Optimizer:
    def step(self) -> None:
        for hook in _hooks:
            hook(self, (), {})


def __getattr__(name: str) -> Any:
    raise AttributeError(name)
