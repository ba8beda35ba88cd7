"""Every annotation as a flag, made from the vocabulary: `--batch-size 4 --gradient-checkpointing`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Annotated, Any

import typer

from vramcast.task.forms import flag
from vramcast.task.vocabulary import KEYS, Key
from vramcast.task.words import word

# Told by the argument NAME.
_BY_NAME = "model"
# These are in `--help`; the others are named below it, so that it fits a screen.
_SHOWN = (
    "batch-size", "sequence-length", "input-size", "precision", "optimizer", "gradient-checkpointing", "lora-rank",
)  # fmt: skip
PANEL = "The task (every annotation is a flag)"
OTHERS = ", ".join(f"--{name}" for name in KEYS if name not in (*_SHOWN, _BY_NAME))

# The flags that were given, as annotations without prefix.
Flags = Mapping[str, str]


def with_task_flags(command: Callable[..., None]) -> Callable[..., None]:
    """A command whose parameter `flags` gets what was given."""
    signature = inspect.signature(command, eval_str=True)
    own = [parameter for parameter in signature.parameters.values() if parameter.name != "flags"]
    keys = [key for key in KEYS.values() if key.name != _BY_NAME]

    def called(**given: Any) -> None:
        flags = {key.name: word(given.pop(_parameter(key))) for key in keys if _was_given(given, key)}
        command(**{name: given[name] for name in (each.name for each in own)}, flags=flags)

    parameters = [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in [*own, *map(_option, keys)]]
    called.__name__, called.__doc__ = command.__name__, command.__doc__
    called.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    called.__annotations__ = {each.name: each.annotation for each in parameters}
    return called


def _parameter(key: Key) -> str:
    return f"task_{key.name.replace('-', '_')}"


def _was_given(given: Mapping[str, Any], key: Key) -> bool:
    return given[_parameter(key)] is not None


def _option(key: Key) -> inspect.Parameter:
    """A flag of yes or no takes no value. One that is usually yes can be said to be no."""
    details: dict[str, Any] = {"rich_help_panel": PANEL, "hidden": key.name not in _SHOWN, "show_default": False}
    help_text = f"{key.meaning[0].upper()}{key.meaning[1:]}."
    if key.form is flag:
        spelled = f"--{key.name}/--no-{key.name}" if key.default == "true" else f"--{key.name}"
        annotation: Any = Annotated[bool | None, typer.Option(spelled, help=help_text, **details)]
        return inspect.Parameter(_parameter(key), inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)
    shown = key.example.strip('"')
    annotation = Annotated[str | None, typer.Option(f"--{key.name}", metavar=shown, help=help_text, **details)]
    return inspect.Parameter(_parameter(key), inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)
