"""Commands that are imported when they are called.

The first answer of `vramcast forecast` comes in under a second only because nothing imports what other commands need:
pydantic, structlog and the server take longer to load than a forecast.
"""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from importlib import import_module
from typing import Any

import typer
from typer.core import TyperGroup
from typer.main import get_command


class LazyCommands(MutableMapping[str, Any]):
    """Commands by name. `panels`: of `--help`, each with its commands as `module:function`."""

    def __init__(self, panels: dict[str, dict[str, str]]) -> None:
        self._places = {name: (panel, place) for panel, places in panels.items() for name, place in places.items()}
        self._loaded: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        if name not in self._loaded:
            panel, place = self._places[name]
            module, _, function = place.partition(":")
            alone = typer.Typer(rich_markup_mode="rich", pretty_exceptions_enable=False, add_completion=False)
            alone.command(name, rich_help_panel=panel)(getattr(import_module(module), function))
            self._loaded[name] = get_command(alone)
        return self._loaded[name]

    def __setitem__(self, name: str, command: Any) -> None:
        self._loaded[name] = command

    def __delitem__(self, name: str) -> None:
        del self._places[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)


def lazy_group(panels: dict[str, dict[str, str]]) -> type[TyperGroup]:
    """For `typer.Typer(cls=...)`."""

    class Group(TyperGroup):
        def __init__(self, **attributes: Any) -> None:
            super().__init__(**attributes)
            self.commands = LazyCommands(panels)

    return Group
