"""Loads `package.module:callable`. This runs the user's code, so every failure gets a message that says what to do."""

from __future__ import annotations

import importlib
import json
import os
import sys
from collections.abc import Callable
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from typing import Any

from vramcast.errors import InvalidInput

_FORM = "expected package.module:callable, such as my_project.models:build_model, or a Hugging Face config.json"


def load_callable(target: str) -> Callable[..., Any]:
    """Raises InvalidInput."""
    module_name, colon, name = target.partition(":")
    if not colon or not module_name or not name:
        raise InvalidInput(f"{target!r}: {_FORM}")
    module = _import(module_name, target)
    found: Any = module
    for part in name.split("."):
        if not hasattr(found, part):
            raise InvalidInput(f"{target!r}: {module_name} has no {part!r}{_nearest(part, found)}")
        found = getattr(found, part)
    if not callable(found):
        kind = type(found).__name__
        raise InvalidInput(f"{target!r} is a {kind}: expected a class, or a function that returns the network")
    return found  # type: ignore[no-any-return]


def _import(module_name: str, target: str) -> Any:
    # Search the current directory, as `python -m` does.
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        return importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        raise InvalidInput(f"{target!r}: {_missing(module_name, error)}") from error
    except (Exception, SystemExit) as error:  # a script that parses the command line exits
        raise InvalidInput(
            f"{target!r}: importing {module_name} failed with {type(error).__name__}: {error}. Try `python -c "
            f"'import {module_name}'`, and run this command in your training environment"
        ) from error


def _missing(module_name: str, error: ModuleNotFoundError) -> str:
    if error.name and not module_name.startswith(error.name):
        return (
            f"importing {module_name} needs {error.name!r}, which is not installed: run this command in your training "
            "environment"
        )
    return (
        f"no module named {error.name!r} in {os.getcwd()}: run the command in the directory that contains it, or add "
        "that directory to PYTHONPATH"
    )


def _nearest(name: str, holder: Any) -> str:
    public = [known for known in dir(holder) if not known.startswith("_")]
    near = get_close_matches(name, public, n=3, cutoff=0.5)
    return f"; did you mean {' or '.join(near)}?" if near else f"; it has {', '.join(public[:8]) or 'nothing public'}"


def parse_arguments(text: str | None) -> tuple[list[Any], dict[str, Any]]:
    """`--args` as JSON: an object becomes keyword arguments, an array positional ones."""
    if text is None:
        return [], {}
    try:
        value = json.loads(text)
    except ValueError as error:
        raise InvalidInput(f"--args {text!r} is not JSON: {error}; expected '{{\"num_classes\": 10}}'") from None
    if isinstance(value, dict):
        return [], value
    if isinstance(value, list):
        return value, {}
    raise InvalidInput(f"--args {text!r}: expected a JSON object or array")


def load_function(target: str, args: str | None) -> Callable[..., Any]:
    """The user's function with the arguments of `--args`; or one that makes the network of a configuration."""
    if target.endswith(".json") and ":" not in target:
        return lambda: network_of(_read_config(Path(target)))
    positional, named = parse_arguments(args)
    return partial(load_callable(target), *positional, **named)


def _read_config(path: Path) -> Any:
    if not path.is_file():
        raise InvalidInput(f"{path}: no such file")
    transformers = _import("transformers", str(path))
    try:
        return transformers.AutoConfig.from_pretrained(str(path), local_files_only=True)
    except (OSError, ValueError, KeyError) as error:
        raise InvalidInput(f"transformers cannot read {path} as a configuration: {error}") from error


def network_of(made: Any) -> Any:
    """The network itself, or the one that a Hugging Face configuration describes."""
    from torch import nn  # noqa: PLC0415  # the messages above need no torch

    if isinstance(made, nn.Module):
        return made
    if hasattr(made, "model_type") and hasattr(made, "to_dict"):
        return _from_config(made)
    raise InvalidInput(
        f"the callable returned a {type(made).__name__}: expected a torch.nn.Module, a transformers "
        "configuration, or a loop as (model, optimizer, step)"
    )


def _from_config(config: Any) -> Any:
    transformers = importlib.import_module("transformers")
    if getattr(config, "is_encoder_decoder", False) and getattr(config, "decoder_start_token_id", None) is None:
        config.decoder_start_token_id = getattr(config, "pad_token_id", None) or 0
    named = [getattr(transformers, name, None) for name in getattr(config, "architectures", None) or []]
    for architecture in filter(None, named):
        return architecture(config)
    for auto in _AUTO_CLASSES:
        known = getattr(transformers, auto)
        if type(config) in known._model_mapping:
            return known.from_config(config)
    raise InvalidInput(f"transformers has no model for {type(config).__name__}: give a model class instead")


_AUTO_CLASSES = (
    "AutoModelForSpeechSeq2Seq", "AutoModelForSeq2SeqLM", "AutoModelForMaskedLM", "AutoModelForCausalLM",
    "AutoModelForImageClassification", "AutoModel",
)  # fmt: skip
