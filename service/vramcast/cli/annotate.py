"""`vramcast annotate`: writes a task's description into the right place of a manifest, or checks the one there."""

from __future__ import annotations

import difflib
import os
import sys
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.text import Text

from vramcast.cli.check import CheckOptions, check_files, mistakes
from vramcast.cli.manifests import (
    STDIN,
    FoundTemplate,
    Manifest,
    as_text,
    parse_manifest,
    read_text,
)
from vramcast.cli.yaml_edits import remove_value, set_value
from vramcast.errors import FieldError, InvalidInput
from vramcast.placement.gpus import SHARING_TAINT
from vramcast.task.task import unknown_key
from vramcast.task.vocabulary import KEYS, PREFIX
from vramcast.task.workloads import Template

SCHEDULER_NAME = "vramcast-scheduler"
_SHARE = PREFIX + "share"
_TOLERATION = {"key": SHARING_TAINT, "operator": "Exists", "effect": "NoSchedule"}


@dataclass(frozen=True, slots=True)
class AnnotateOptions:
    """Without `templates`, those that request GPUs or are already described."""

    settings: Mapping[str, str]
    templates: tuple[str, ...] = ()
    scheduler_name: str | None = None
    move: bool = False
    unset: tuple[str, ...] = ()

    @property
    def edits(self) -> bool:
        return bool(self.settings or self.scheduler_name or self.move or self.unset)


def run_annotate(
    paths: Iterable[Path], options: AnnotateOptions, *, in_place: bool, check: CheckOptions | None, diff: bool
) -> int:
    """The exit code, which only a check makes other than 0. If it raises InvalidInput, no file has changed."""
    paths = list(paths)
    if not (options.edits or check):
        raise InvalidInput("nothing to do: give --set KEY=VALUE (`vramcast annotations` lists the keys), or --check")
    if in_place and STDIN in paths:
        raise InvalidInput("--in-place: cannot write to standard input; without it, the result is on standard output")
    if len(paths) > 1 and not (in_place or check or diff):
        raise InvalidInput("several files need --in-place, --diff or --check")
    if check is not None:
        return check_files(paths, lambda text, source: _edited(text, source, options), check)
    # Edit all before writing any, so that a mistake in one file leaves every file as it was.
    edited = [_edit(read_text(path), str(path), options) for path in paths]
    for path, (before, after) in zip(paths, edited, strict=True):
        _deliver(path, before, after, in_place=in_place, diff=diff)
    return 0


def _edited(text: str, source: str, options: AnnotateOptions) -> Manifest:
    return _edit(text, source, options)[1] if options.edits else parse_manifest(text, source)


def parse_settings(pairs: Iterable[str]) -> dict[str, str]:
    """`KEY=VALUE` pairs, with or without the prefix. Raises InvalidInput with all mistakes."""
    settings: dict[str, str] = {}
    errors: list[FieldError] = []
    for pair in pairs:
        name, equals, value = pair.partition("=")
        name = PREFIX + name.strip().removeprefix(PREFIX)
        key = KEYS.get(name.removeprefix(PREFIX))
        try:
            if not equals:
                raise ValueError("expected KEY=VALUE, such as batch-size=32")
            if key is None:
                raise ValueError(unknown_key(name))
            key.parse(value)
            settings[name] = value.strip()
        except ValueError as error:
            errors.append(FieldError(name, value, str(error)))
    if errors:
        raise InvalidInput("\n".join(f"--set: {error}" for error in errors))
    return settings


def parse_names(names: Iterable[str]) -> tuple[str, ...]:
    """Annotations to remove, with or without the prefix. Unknown ones are allowed, so that typos can be removed."""
    return tuple(PREFIX + name.strip().removeprefix(PREFIX) for name in names)


def _edit(text: str, source: str, options: AnnotateOptions) -> tuple[Manifest, Manifest]:
    before = parse_manifest(text, source)
    for found in _select(before, options):
        for place, value in found.template.required.items():
            text = set_value(text, found.document, place, value, source)
        written = {**_moved(before, found, options), **options.settings}
        for name, value in written.items():
            text = set_value(text, found.document, (*found.template.annotations_place, name), value, source)
        for name in options.unset:
            if name in found.template.annotations:
                text = remove_value(text, found.document, (*found.template.annotations_place, name), source)
        described = {**found.template.annotations, **written}
        if described.get(_SHARE) == "true" and _SHARE not in options.unset and _must_tolerate(found.template):
            text = set_value(text, found.document, found.template.toleration_place, _TOLERATION, source)
        if options.scheduler_name is not None:
            _check_scheduler(found.template, source)
            text = set_value(text, found.document, found.template.scheduler_place, options.scheduler_name, source)
    if options.move:
        for document, misplaced in before.misplaced():
            text = remove_value(text, document, (*misplaced.place, misplaced.name), source)
    after = parse_manifest(text, source)
    known = mistakes(before)
    added = [line for line in mistakes(after) if line not in known or options.move]
    if added:
        raise InvalidInput("\n".join(added))
    return before, after


def _must_tolerate(template: Template) -> bool:
    """Sharing nodes have a taint that keeps out all pods but those that share."""
    if not template.names_scheduler:
        return False  # a TrainJob does not show the tolerations of its runtime
    taint = {"key": SHARING_TAINT, "value": "true", "effect": "NoSchedule"}
    return not any(
        isinstance(given, Mapping) and all(given.get(field, value) == value for field, value in taint.items())
        for given in template.tolerations
    )


def _moved(manifest: Manifest, found: FoundTemplate, options: AnnotateOptions) -> dict[str, str]:
    """The misplaced annotations that belong in this template."""
    if not options.move:
        return {}
    return {
        misplaced.name: as_text(misplaced.value)
        for document, misplaced in manifest.misplaced()
        if document == found.document and found.template in misplaced.templates
    }


def _check_scheduler(template: Template, source: str) -> None:
    if not template.names_scheduler:
        raise InvalidInput(
            f"{source}: {template.label}: a {template.kind} cannot set schedulerName: set it in the pod template of "
            "its TrainingRuntime or ClusterTrainingRuntime (this command edits those too)"
        )


def _select(manifest: Manifest, options: AnnotateOptions) -> list[FoundTemplate]:
    if options.templates:
        return _chosen(manifest, options.templates)
    if len(manifest.found) == 1:
        return list(manifest.found)
    likely = [found for found in manifest.found if found.described or found.asks_for_gpus]
    if not likely:
        raise InvalidInput(
            f"{manifest.source}: several pod templates, and none requests a GPU: choose one with --template: "
            f"{_labels(manifest)}"
        )
    return likely


def _chosen(manifest: Manifest, roles: Iterable[str]) -> list[FoundTemplate]:
    chosen: list[FoundTemplate] = []
    for role in roles:
        matching = [found for found in manifest.found if role.casefold() in _names(found.template)]
        if not matching:
            raise InvalidInput(f"{manifest.source}: --template {role}: no such pod template: {_labels(manifest)}")
        chosen += [found for found in matching if found not in chosen]
    return chosen


def _names(template: Template) -> set[str]:
    """`RayJob/tune worker gpu` matches by its role, a word of the role, or the workload's name."""
    names = {template.role, *template.role.split(), template.name, f"{template.kind}/{template.name}", template.label}
    return {name.casefold() for name in names if name}


def _labels(manifest: Manifest) -> str:
    return ", ".join(dict.fromkeys(found.template.label for found in manifest.found))


def _deliver(path: Path, before: Manifest, after: Manifest, *, in_place: bool, diff: bool) -> None:
    console = Console(stderr=True, soft_wrap=True, highlight=False)
    if diff or in_place:
        _print_diff(before, after, Console(soft_wrap=True, highlight=False) if diff else console)
    else:
        sys.stdout.write(after.text)
    if in_place and after.text != before.text:
        _write(path.resolve(), after.text)
    for line in mistakes(after):
        console.print(Text.assemble(("remaining mistake: ", "yellow"), line))
    if in_place:
        done = "annotated" if after.text != before.text else "unchanged"
        console.print(Text.assemble((f"{done}: ", "green"), str(path)))


def _print_diff(before: Manifest, after: Manifest, console: Console) -> None:
    colors = {"+": "green", "-": "red", "@": "cyan"}
    lines = difflib.unified_diff(
        before.text.splitlines(), after.text.splitlines(), before.source, f"{after.source} (annotated)", lineterm=""
    )
    for line in lines:
        console.print(Text(line, style=colors.get(line[:1], "")))


def _write(path: Path, text: str) -> None:
    """Atomic: writes a temporary file next to it, then renames that."""
    try:
        mode = path.stat().st_mode
        descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        temporary = Path(name)
        try:
            with os.fdopen(descriptor, "w", encoding="utf-8", newline="") as file:
                file.write(text)
            temporary.chmod(mode)
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)
    except OSError as error:
        raise InvalidInput(f"{path}: cannot be written: {error}") from None
