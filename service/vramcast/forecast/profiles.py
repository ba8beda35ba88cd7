"""A layer profile as an annotation: `v1:` and the profile's JSON, compressed, in URL-safe base64.

The number before the colon is the format's. A reader refuses what is newer than itself, by name: half of a description
that is understood would be a forecast that is wrong.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
import zlib
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from vramcast import __version__
from vramcast.errors import FieldError, InvalidInput, InvalidTask
from vramcast.forecast.description import Description, fold_layers, parse_profile
from vramcast.task.vocabulary import PREFIX

_FORMAT = 1
_MARK = f"v{_FORMAT}:"
_ANY_MARK = re.compile(r"v(\d{1,4}):")
# A profile of 64 KiB that unpacks to more than this is not one of a network.
_MAX_JSON_BYTES = 8 << 20


def encode_profile(profile: Mapping[str, Any]) -> str:
    """As short as it gets: equal blocks are written once."""
    profile = {**profile, "layers": fold_layers(profile["layers"])}
    packed = zlib.compress(json.dumps(profile, separators=(",", ":")).encode(), 9)
    return _MARK + base64.urlsafe_b64encode(packed).decode()


@lru_cache(maxsize=256)
def decode_profile(text: str) -> Description:
    """The network that the annotation describes; InvalidTask that names the annotation where it is damaged."""
    _refuse_newer(text)
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


def _refuse_newer(text: str) -> None:
    mark = _ANY_MARK.match(text)
    if mark and int(mark[1]) > _FORMAT:
        expected = (
            f"written by a newer vramcast (v{mark[1]}; this is {__version__}, which reads up to v{_FORMAT}): upgrade "
            f"the service, or run `vramcast profile` of version {__version__} again"
        )
        raise InvalidTask([FieldError(f"{PREFIX}profile", text, expected)])
