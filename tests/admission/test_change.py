"""The patch adds what is missing, with its parents, and never touches what is there."""

from __future__ import annotations

from typing import Any

import pytest

from tests.admission.json_patch import patched
from vramcast.admission.change import APPEND, Change, apply, tell
from vramcast.errors import InvalidRequest


@pytest.mark.parametrize(
    "raw",
    [{}, {"metadata": None}, {"metadata": {}}, {"metadata": {"annotations": None}}, {"metadata": {"annotations": {}}}],
)
def test_missing_parents_are_made_once(raw: Any) -> None:
    changes = [
        Change(("metadata", "annotations", "a/b"), "1", "one"),
        Change(("metadata", "annotations", "c~d"), "2", "two"),
        Change(("spec", "tolerations", APPEND), {"key": "x"}, "one"),
        Change(("spec", "tolerations", APPEND), {"key": "y"}, "one"),
    ]
    changed, operations = apply(raw, tell(raw, changes))
    assert changed == {
        "metadata": {"annotations": {"a/b": "1", "c~d": "2", "vramcast.dev/injected": "one,two"}},
        "spec": {"tolerations": [{"key": "x"}, {"key": "y"}]},
    }
    assert patched(raw, operations) == changed


def test_the_object_itself_stays_as_it_is() -> None:
    raw: Any = {"spec": {"containers": [{"name": "a"}]}}
    apply(raw, [Change(("spec", "containers", 0, "env", APPEND), {"name": "X"}, "X")])
    assert raw == {"spec": {"containers": [{"name": "a"}]}}


def test_what_is_there_is_replaced_only_on_purpose() -> None:
    raw = {"spec": {"schedulerName": "default-scheduler"}}
    path = ("spec", "schedulerName")
    with pytest.raises(InvalidRequest, match="/spec/schedulerName is set already"):
        apply(raw, [Change(path, "mine", "schedulerName")])
    changed, operations = apply(raw, [Change(path, "mine", "schedulerName", replaces=True)])
    assert changed == {"spec": {"schedulerName": "mine"}}
    assert operations == [{"op": "replace", "path": "/spec/schedulerName", "value": "mine"}]


def test_words_of_an_earlier_call_are_kept() -> None:
    raw = {"metadata": {"annotations": {"vramcast.dev/injected": "share,X"}}}
    changed, _ = apply(raw, tell(raw, [Change(("a",), 1, "X"), Change(("b",), 1, "Y")]))
    assert changed["metadata"]["annotations"]["vramcast.dev/injected"] == "share,X,Y"


def test_without_a_change_nothing_is_told() -> None:
    assert tell({}, []) == []


@pytest.mark.parametrize(
    ("raw", "path"),
    [
        ({"spec": 3}, ("spec", "a")),
        ({"spec": [1]}, ("spec", "a", "b")),
        ({"spec": {"containers": {}}}, ("spec", "containers", 0, "env")),
        ({"spec": {"containers": []}}, ("spec", "containers", 0, "env")),
    ],
)
def test_an_object_without_a_place_for_a_change_is_no_valid_request(raw: Any, path: Any) -> None:
    with pytest.raises(InvalidRequest, match="the object has no place for"):
        apply(raw, [Change(path, 1, "x")])
