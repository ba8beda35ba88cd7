"""A layer profile as an annotation: `v1:` and the profile's JSON, compressed, in URL-safe base64."""

from __future__ import annotations

import base64
import binascii
import json
import zlib
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from vramcast.core.errors import FieldError, InvalidInput, InvalidTask
from vramcast.core.vocabulary import PREFIX
from vramcast.forecast.description import Description, parse_profile

_MARK = "v1:"
# A profile of 64 KiB that unpacks to more than this is not one of a network.
_MAX_JSON_BYTES = 8 << 20


def encode_profile(profile: Mapping[str, Any]) -> str:
    packed = zlib.compress(json.dumps(profile, separators=(",", ":")).encode(), 9)
    return _MARK + base64.urlsafe_b64encode(packed).decode()


@lru_cache(maxsize=256)
def decode_profile(text: str) -> Description:
    """The network that the annotation describes; InvalidTask that names the annotation where it is damaged."""
    try:
        return parse_profile(unpack_profile(text))
    except (ValueError, binascii.Error, zlib.error, InvalidInput) as error:
        expected = f"expected what `vramcast profile` printed ({_MARK}…): {error}; or give {PREFIX}gpu-memory"
        raise InvalidTask([FieldError(f"{PREFIX}profile", text, expected)]) from error


def unpack_profile(text: str) -> dict[str, Any]:
    """The profile's JSON. Raises ValueError or zlib.error."""
    if not text.startswith(_MARK):
        raise ValueError(f"it starts with {text[:6]!r}")
    unpacked = zlib.decompressobj().decompress(base64.urlsafe_b64decode(text.removeprefix(_MARK)), _MAX_JSON_BYTES)
    profile = json.loads(unpacked)
    if not isinstance(profile, dict):
        raise ValueError("it holds no object")
    return profile
