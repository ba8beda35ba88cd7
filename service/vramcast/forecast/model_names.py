"""Names of models as people write them.

`hf/meta-llama/Llama-3.1-8B`, `meta-llama/Llama-3.1-8B`, `Llama-3.1-8B` and `llama-3.1-8b-instruct` are one network, and
so are `timm/resnet50`, `timm/resnet50.a1_in1k` and the names that timm's weights had before they became tags.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from difflib import get_close_matches

SOURCES = ("timm", "torchvision", "hf", "diffusers", "ultralytics")
# A name with an organization comes from the hub.
_ON_THE_HUB = ("hf", "diffusers", "ultralytics")
_WRITTEN_FOR = {
    "https://huggingface.co/": "", "huggingface.co/": "", "hf.co/": "", "hf-hub:": "", "hf_hub:": "",
    "torchvision.models.": "torchvision/", "timm:": "timm/",
}  # fmt: skip
# What the names of quantized copies end with.
_FORMATS = ("-unsloth-bnb-4bit", "-bnb-4bit", "-bnb-8bit", "-gptq", "-gptq-int4", "-gptq-int8", "-awq", "-gguf")
_NEAREST = 4
_ALIKE = 0.6


class ModelNames:
    """Every lookup is by dictionary; only `nearest` compares with all names."""

    def __init__(self, names: Iterable[tuple[str, Sequence[str]]]) -> None:
        """Full names, each with the bare names of other models that have the same network."""
        self._by_source: dict[tuple[str, str], str] = {}
        aliases: list[tuple[str, str, str]] = []
        for full, also in names:
            source, _, bare = full.lower().partition("/")
            self._by_source[source, bare] = full
            aliases += [(source, other.lower(), full) for other in also]
        for source, bare, full in aliases:
            self._by_source.setdefault((source, bare), full)

    def find(self, name: str) -> str | None:
        """The full name. None if no network has this name, or if networks of several sources have it.

        A name with a format of its weights (`Mistral-7B-v0.1-GPTQ`) is the network without it: what the weights take
        is for the task's `quantization` to say.
        """
        known = self._find(name)
        if known is None and (plain := _without_format(name)) != name:
            known = self._find(plain)
        return known

    def _find(self, name: str) -> str | None:
        source, bare, organized = _spelled(name)
        if source:
            return self._in_source(source, bare)
        found = {
            full for place in (_ON_THE_HUB if organized else SOURCES) if (full := self._in_source(place, bare))
        }  # fmt: skip
        return found.pop() if len(found) == 1 else None

    def nearest(self, name: str) -> list[str]:
        """Names to suggest, starting with the same model from another source."""
        source, bare, _ = _spelled(name)
        same = [full for place in SOURCES if (full := self._in_source(place, bare))]
        longer = sorted(
            {full for (place, at), full in self._by_source.items() if place == source and at.startswith(bare)}, key=len
        )
        return list(dict.fromkeys([*same, *self._alike(source, bare), *longer]))[:_NEAREST]

    def _alike(self, source: str, bare: str) -> list[str]:
        """In the named source, if there is one."""
        names = {at: full for (place, at), full in self._by_source.items() if source in ("", place)}
        return [names[at] for at in get_close_matches(bare, names, n=_NEAREST, cutoff=_ALIKE)]

    def _in_source(self, source: str, bare: str) -> str | None:
        known = self._by_source.get((source, bare))
        if known is None and source == "timm":
            known = self._by_source.get((source, bare.partition(".")[0]))
        return known


def _without_format(name: str) -> str:
    lower = name.strip().lower()
    cut = next((len(ending) for ending in _FORMATS if lower.endswith(ending)), 0)
    return name.strip()[:-cut] if cut else name


def _spelled(name: str) -> tuple[str, str, bool]:
    """(source or nothing, bare name in lower case, whether an organization came before it)."""
    text = name.strip().lower()
    for start, instead in _WRITTEN_FOR.items():
        if text.startswith(start):
            text = instead + text.removeprefix(start)
    source, slash, rest = text.partition("/")
    if source in SOURCES and slash:
        return source, rest.rsplit("/", maxsplit=1)[-1], "/" in rest
    return "", (rest or source).rsplit("/", maxsplit=1)[-1], bool(slash)
