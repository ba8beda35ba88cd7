"""Breaks request bodies in every way that a seed draws."""

from __future__ import annotations

import random
from typing import Any

import msgspec

JUNK: tuple[Any, ...] = (
    None, True, -1, 0, 1.5, 1e308, 2**70, "", "x", "\ud7ff\x00", "9" * 400, [], {}, [None], {"": None}, [[[[]]]],
    {"metadata": None}, {"annotations": {"vramcast.dev/gpu-memory": "-1Gi"}}, {"vramcast.dev/share": "maybe"},
)  # fmt: skip


def damaged(body: Any, draw: random.Random) -> bytes:
    """One value replaced or deleted and, of some bodies, the bytes too."""
    encoded = msgspec.json.encode(damage(body, draw))
    return damage_bytes(encoded, draw) if draw.random() < 0.4 else encoded


def damage(value: Any, draw: random.Random) -> Any:
    """Replace or delete one value somewhere in the tree."""
    if isinstance(value, dict) and value and draw.random() < 0.85:
        key = draw.choice(list(value))
        changed = dict(value)
        if draw.random() < 0.1:
            del changed[key]
        else:
            changed[key] = damage(value[key], draw)
        return changed
    if isinstance(value, list) and value and draw.random() < 0.85:
        position = draw.randrange(len(value))
        return [*value[:position], damage(value[position], draw), *value[position + 1 :]]
    return draw.choice(JUNK)


def damage_bytes(body: bytes, draw: random.Random) -> bytes:
    match draw.randrange(5):
        case 0:
            return body[: draw.randrange(len(body) + 1)]
        case 1:
            return body + draw.randbytes(3)
        case 2:
            position = draw.randrange(len(body) + 1)
            return body[:position] + draw.randbytes(2) + body[position + 2 :]
        case 3:
            return b"[" * 5000
        case _:
            return draw.randbytes(draw.randrange(60))
