"""The arguments of `vramcast profile`, parsed before torch is imported: if torch is missing, the command says so."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from vramcast.errors import InvalidInput
from vramcast.task.vocabulary import PREFIX


@dataclass(frozen=True, slots=True)
class ProfileArguments:
    target: str
    shapes: Sequence[str] = ()
    sequence_length: int | None = None
    inputs: str | None = None
    args: str | None = None
    settings: Mapping[str, str] | None = None  # the run's annotations, without the prefix
    gpu: str | None = None
    measure: Path | None = None
    plot: Path | None = None


def need_torch() -> None:
    if importlib.util.find_spec("torch") is None:
        raise InvalidInput(
            "torch is not installed: run this command in your training environment (pip install vramcast there), or "
            "pip install 'vramcast[profile]'"
        )


def run_settings(named: Mapping[str, object | None], more: Sequence[str]) -> dict[str, str]:
    """The run's annotations, from dedicated options and from `--set`."""
    settings = {name: str(value) for name, value in named.items() if value is not None}
    for text in more:
        name, equals, value = text.partition("=")
        if not equals or not name.strip():
            raise InvalidInput(f"--set {text!r}: expected KEY=VALUE, such as gradient-checkpointing=true")
        settings[name.strip().removeprefix(PREFIX)] = value.strip()
    return settings
