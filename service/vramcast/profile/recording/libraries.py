"""Places where libraries look at values only to save work, which the meta device cannot answer."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from vramcast.profile.recording.patching import patched


@contextmanager
def libraries_without_values(device: str) -> Iterator[None]:
    """Batches are taken to be what most are: neither packed nor padded."""
    with patched(_patches() if device == "meta" else []):
        yield


def _patches() -> list[tuple[Any, str, Any]]:
    try:
        masking = importlib.import_module("transformers.masking_utils")
    except ImportError:
        return []
    return [(masking, "find_packed_sequence_indices", _not_packed)]


def _not_packed(_positions: Any) -> None:
    return None
