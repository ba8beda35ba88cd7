"""What the shell completes: names of models and GPUs. Loads neither the trained model nor what it runs on."""

# ruff: noqa: PLC0415 - a command that is run, not completed, needs none of it

from __future__ import annotations

_MOST = 100


def complete_model(incomplete: str) -> list[str]:
    """Names that begin as typed, with or without their source; a damaged catalog completes nothing."""
    from vramcast.forecast.catalog import CatalogUnusable, builtin_catalog

    try:
        names = [line.name for line in builtin_catalog().lines()]
    except CatalogUnusable:
        return []
    typed = incomplete.lower()
    full = [name for name in names if name.lower().startswith(typed)]
    bare = [name.partition("/")[2] for name in names if name.partition("/")[2].lower().startswith(typed)]
    return (full or bare)[:_MOST]


def complete_gpu(incomplete: str) -> list[str]:
    from vramcast.hardware.short_names import known_products, short_name

    typed = incomplete.lower()
    names = [*map(short_name, known_products()), *map(str, known_products())]
    return [name for name in dict.fromkeys(names) if name.lower().startswith(typed)]


def complete_key(incomplete: str) -> list[str]:
    """Of the annotations, after the last comma."""
    from vramcast.task.vocabulary import KEYS

    before, comma, typed = incomplete.rpartition(",")
    return [f"{before}{comma}{name}" for name in KEYS if name.startswith(typed)]
