"""Reads manifest files for the commands: their pod templates, the tasks those describe, and all mistakes."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import msgspec

from vramcast.cli.yaml_edits import format_place, load_documents
from vramcast.cluster.manifest import shared_record
from vramcast.errors import InvalidInput
from vramcast.hardware.vendors import WHOLE_GPU
from vramcast.task.pod import PodRecord
from vramcast.task.vocabulary import PREFIX, Written
from vramcast.task.workloads import MisplacedAnnotation, Template, find_misplaced, find_templates

STDIN = Path("-")


@dataclass(frozen=True, slots=True)
class FoundTemplate:
    """A pod template in a file. `record` is None, or has no task, if there are mistakes.

    `relies_on_webhook`: it asks for no GPU in any way, so it works only where the webhook makes it share one.
    """

    document: int
    template: Template
    record: PodRecord | None
    mistakes: tuple[str, ...]
    relies_on_webhook: bool = False

    @property
    def described(self) -> bool:
        return any(str(name).startswith(PREFIX) for name in self.template.annotations)

    @property
    def asks_for_gpus(self) -> bool:
        return self.record is not None and self.record.ask is not None


@dataclass(frozen=True, slots=True)
class Manifest:
    source: str  # file name, for messages
    text: str
    documents: tuple[Any, ...]
    found: tuple[FoundTemplate, ...]

    def misplaced(self) -> Iterator[tuple[int, MisplacedAnnotation]]:
        for number, document in enumerate(self.documents):
            for misplaced in find_misplaced(document):
                yield number, misplaced

    def mistakes(self) -> list[str]:
        """One line for each: the place, the value and the fix."""
        lines = [*self._misplaced_lines(), *(line for found in self.found for line in found.mistakes)]
        return [f"{self.source}: {line}" for line in lines]

    def _misplaced_lines(self) -> Iterator[str]:
        for _, group in groupby(self.misplaced(), key=lambda pair: (pair[0], pair[1].place)):
            misplaced = [one for _, one in group]
            first, *others = misplaced[0].templates
            target = "the annotations of one of its pod templates" if others else format_place(first.annotations_place)
            choose = " --template ROLE" if others else ""
            names = ", ".join(one.name for one in misplaced)
            yield (
                f"{first.kind}/{first.name}: {format_place(misplaced[0].place)}: {names}: no pod gets annotations "
                f"from here; they belong in {target}: "
                f"`vramcast annotate -f {self.source} --move{choose} --in-place` moves them"
            )


def read_text(path: Path) -> str:
    """Keeps line endings. Raises InvalidInput."""
    try:
        if path == STDIN:
            return sys.stdin.read()
        with path.open(encoding="utf-8", newline="") as file:
            return file.read()
    except (OSError, UnicodeError) as error:
        raise InvalidInput(f"{path}: {getattr(error, 'strerror', None) or error}") from None


def read_manifest(path: Path) -> Manifest:
    """Raises InvalidInput if it is not YAML, or contains no pod."""
    return parse_manifest(read_text(path), str(path))


def parse_manifest(text: str, source: str) -> Manifest:
    documents = load_documents(text, source)
    found = tuple(
        _find(number, template)
        for number, document in enumerate(documents)
        for template in find_templates(document)
    )  # fmt: skip
    if not found:
        kinds = ", ".join(str(document.get("kind")) for document in documents if isinstance(document, dict))
        content = f"it contains {kinds}" if kinds else "it is empty"
        raise InvalidInput(f"{source}: no pod and no pod template ({content}): expected a Pod, Job, PyTorchJob, ...")
    return Manifest(source, text, tuple(documents), found)


def _find(document: int, template: Template) -> FoundTemplate:
    place = f"{template.label}: {format_place(template.annotations_place)}"
    unquoted = [
        f'{place}: {name}: {as_text(value)} is not a string: write it in quotes, "{as_text(value)}"'
        for name, value in template.annotations.items()
        if str(name).startswith(PREFIX) and not isinstance(value, str)
    ]
    if unquoted:
        return FoundTemplate(document, template, None, tuple(unquoted))
    pod = template.pod()
    try:
        record, shares = shared_record(pod)
    except (msgspec.ValidationError, RecursionError) as error:
        return FoundTemplate(document, template, None, (f"{template.label}: not a pod: {error}",))
    errors = record.invalid.errors if record.invalid else ()
    mistakes = tuple(f"{place}: {error}" for error in errors)
    return FoundTemplate(document, template, record, mistakes, relies_on_webhook=shares)


def as_text(value: Any) -> str:
    """The value as YAML spells it."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def undescribed(path: Path) -> str:
    return (
        f"no annotation {PREFIX}... describes a task: `vramcast annotate -f {path} --set KEY=VALUE --in-place` adds "
        "one, and `vramcast annotations` lists the keys"
    )


def notes(found: FoundTemplate) -> Iterator[str]:
    """Warnings about what is valid but rarely intended."""
    record, spec = found.record, found.template.spec
    if record is None or not found.described:
        if found.asks_for_gpus:
            yield "requests GPUs, but no annotation describes its task: it is scheduled without a forecast"
        return
    if found.relies_on_webhook:
        yield (
            "asks for no GPU: it shares one where the webhook fills that in, in namespaces with the label "
            f'vramcast.dev/managed=true; elsewhere set {PREFIX}share: "true", or request {WHOLE_GPU}'
        )
        return
    if found.template.names_scheduler and "schedulerName" not in spec:
        yield "has no schedulerName: if vramcast runs its own scheduler, add it with `vramcast annotate --scheduler`"
    if record.task and record.task.share and Written.GPU_INDICES not in str(spec.get("containers")):
        yield (
            "shares a GPU, but no container sets NVIDIA_VISIBLE_DEVICES from the annotation "
            f"{Written.GPU_INDICES.value}: it would see every GPU of its node"
        )
