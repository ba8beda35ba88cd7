"""AdmissionReview v1 (admission.k8s.io): the question of the API server, and the answer."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from vramcast.errors import InvalidRequest

API_VERSION: Final = "admission.k8s.io/v1"
# kubectl prints every warning on a line. The API server drops what is longer, or too much in all.
MAX_WARNING_LENGTH: Final = 256
MAX_WARNINGS: Final = 8
_FORBIDDEN: Final = 403
_encode = msgspec.json.Encoder().encode


class GroupVersionKind(msgspec.Struct, frozen=True, gc=False):
    group: str = ""
    version: str = ""
    kind: str = ""


class AdmissionRequest(msgspec.Struct, frozen=True, rename="camel"):
    uid: str
    kind: GroupVersionKind
    operation: str = ""
    namespace: str | None = None
    name: str | None = None
    sub_resource: str | None = None
    object: dict[str, Any] | None = None


class AdmissionReview(msgspec.Struct, frozen=True, rename="camel"):
    api_version: str
    request: AdmissionRequest


_REVIEW = msgspec.json.Decoder(AdmissionReview)


def decode_review(body: bytes) -> AdmissionRequest:
    """Raises InvalidRequest."""
    try:
        review = _REVIEW.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidRequest(f"the body is not an AdmissionReview: {error}") from None
    if review.api_version != API_VERSION:
        raise InvalidRequest(f"apiVersion: {review.api_version[:60]!r} is not valid: expected {API_VERSION}")
    return review.request


def allow(uid: str, operations: Sequence[dict[str, Any]] = (), warnings: Sequence[str] = ()) -> bytes:
    """`operations`: of a JSON patch."""
    response: dict[str, Any] = {"uid": uid, "allowed": True}
    if operations:
        response |= {"patchType": "JSONPatch", "patch": b64encode(_encode(operations)).decode()}
    return _answer(response, warnings)


def refuse(uid: str, message: str, warnings: Sequence[str] = ()) -> bytes:
    status = {"code": _FORBIDDEN, "reason": "Forbidden", "message": message}
    return _answer({"uid": uid, "allowed": False, "status": status}, warnings)


def _answer(response: dict[str, Any], warnings: Sequence[str]) -> bytes:
    if warnings:
        response["warnings"] = [shorten(text) for text in warnings[:MAX_WARNINGS]]
    return _encode({"apiVersion": API_VERSION, "kind": "AdmissionReview", "response": response})


def shorten(text: str) -> str:
    return text if len(text) <= MAX_WARNING_LENGTH else text[: MAX_WARNING_LENGTH - 3] + "..."
