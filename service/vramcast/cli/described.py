"""The tasks that a command is asked about: by name and flags, in files, or a network of the user's own."""

# ruff: noqa: PLC0415 - files need the webhook's code and networks need torch; a name needs neither

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vramcast.cli.task_flags import Flags
from vramcast.errors import InvalidInput, InvalidTask
from vramcast.forecast.catalog import CatalogUnusable, builtin_catalog
from vramcast.forecast.forecast import Forecaster
from vramcast.task.task import Task, describes, parse_task
from vramcast.task.vocabulary import PREFIX

if TYPE_CHECKING:
    from vramcast.cli.manifests import FoundTemplate

_OWN_NETWORK = re.compile(r"[\w.]+:[\w.]+|.+\.json")
_NOTHING = (
    "nothing to forecast: give the name of a model, such as `vramcast forecast timm/resnet50 --batch-size 64` "
    "(`vramcast catalog` lists them), or a manifest with --file"
)


@dataclass(frozen=True, slots=True)
class DescribedTask:
    """`identity`: how JSON names it. `annotations`: what its pod has to carry, in full."""

    label: str
    task: Task
    identity: Mapping[str, Any]
    annotations: Mapping[str, str]
    by_flags: bool = False  # its mistakes are named by flag, not by annotation


def read_tasks(name: str | None, files: Sequence[Path], flags: Flags, forecaster: Forecaster) -> list[DescribedTask]:
    """With files, flags override their annotations. Raises InvalidInput with every mistake."""
    if name is not None and files:
        raise InvalidInput(f"{name} and --file {files[0]}: give one of them")
    if files:
        return _in_files(files, flags)
    if name is None and not flags:
        raise InvalidInput(_NOTHING)
    if name is not None and is_own_network(name):
        return [_own_network(name, flags, forecaster)]
    return [_named(name, flags)]


@contextmanager
def naming(described: DescribedTask) -> Iterator[None]:
    """Mistakes that only the forecast finds, in the words that the user typed."""
    try:
        yield
    except InvalidTask as error:
        if described.by_flags:
            raise InvalidInput(in_flags(error)) from None
        raise InvalidInput(f"{described.label}: {error}") from None


def in_flags(error: InvalidTask) -> str:
    return str(error).replace(f"{PREFIX}model: ", "NAME: ").replace(PREFIX, "--")


def note(text: str) -> None:
    from rich.console import Console
    from rich.text import Text

    Console(stderr=True, soft_wrap=True, highlight=False).print(Text.assemble(("note: ", "yellow"), text))


def _named(name: str | None, flags: Flags) -> DescribedTask:
    said = {"model": name, **flags} if name else flags
    annotations = {PREFIX + key: text for key, text in said.items()}
    try:
        task = parse_task(annotations)
    except InvalidTask as error:
        raise InvalidInput(in_flags(error)) from None
    assert task is not None  # noqa: S101 - there are annotations
    return DescribedTask(name or "task", task, {"name": name, "level": task.level}, annotations, by_flags=True)


def is_own_network(name: str) -> bool:
    """`module:callable` or a config.json, unless it is another spelling of a name."""
    if not _OWN_NETWORK.fullmatch(name):
        return False
    try:
        return builtin_catalog().find(name) is None
    except CatalogUnusable:
        return True


def _own_network(name: str, flags: Flags, forecaster: Forecaster) -> DescribedTask:
    from vramcast.profile.arguments import ProfileArguments, need_torch

    need_torch()
    from vramcast.profile.commands import profile_target  # torch is an extra

    sys.stderr.write(f"recording {name}, which takes some seconds ...\n")
    length, size = flags.get("sequence-length"), flags.get("input-size")
    arguments = ProfileArguments(
        name, (size,) if size else (), int(length) if length and length.isdecimal() else None, settings=flags
    )
    done = profile_target(arguments, forecaster)
    if not done.reports:
        raise InvalidInput(f"{name}: the network cannot be traced here: {done.why_no_trace}")
    task = parse_task(done.annotations)
    assert task is not None  # noqa: S101 - there are annotations
    return DescribedTask(name, task, {"name": name, "level": task.level}, done.annotations, by_flags=True)


# ---------------------------------------------------------------------- files


def _in_files(paths: Sequence[Path], flags: Flags) -> list[DescribedTask]:
    from vramcast.cli.manifests import notes, read_manifest, undescribed

    tasks, mistakes, warnings = [], [], []
    for path in paths:
        manifest = read_manifest(path)
        in_file = manifest.mistakes()
        described = [(found, found.record.task) for found in manifest.found if found.record and found.record.task]
        if not described and not in_file:
            in_file = [f"{path}: {manifest.found[0].template.label}: {undescribed(path)}"]
        mistakes += in_file
        tasks += described
        told = [found for found in manifest.found if not found.described or found.relies_on_webhook]
        warnings += [f"{path}: {found.template.label}: {line}" for found in told for line in notes(found)]
    if mistakes:
        raise InvalidInput("\n".join(mistakes))
    for warning in warnings:
        note(warning)
    return [_in_template(found, task, flags) for found, task in tasks]


def _in_template(found: FoundTemplate, task: Task, flags: Flags) -> DescribedTask:
    template = found.template
    annotations = {name: str(text) for name, text in template.annotations.items() if describes(name)}
    if flags:
        annotations |= {PREFIX + key: text for key, text in flags.items()}
        try:
            task = parse_task(annotations) or task
        except InvalidTask as error:
            raise InvalidInput(f"{template.label}: {in_flags(error)}") from None
    identity = {
        "pod": f"{template.namespace}/{template.name}", "kind": template.kind, "role": template.role,
        "level": task.level,
    }  # fmt: skip
    return DescribedTask(template.label, task, identity, annotations)
