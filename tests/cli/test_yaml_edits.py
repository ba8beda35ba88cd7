"""An edit changes what was asked for, in the style of the text, and nothing else."""

from __future__ import annotations

from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from vramcast.cli.yaml_edits import load_documents, remove_value, scalar, set_value
from vramcast.errors import InvalidInput
from vramcast.task.workloads import Place

_WORDS = st.text("abcdefgh: #'\"|-{}[],&*?\n", min_size=1, max_size=8)
_LEAVES = st.one_of(_WORDS, st.integers(), st.booleans(), st.none())
_DATA = st.dictionaries(
    st.from_regex(r"[a-z]{1,5}", fullmatch=True),
    st.recursive(
        _LEAVES,
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("pqrs"), inner, max_size=3),
        max_leaves=8,
    ),
    min_size=1,
    max_size=4,
)


def is_kept(before: str, after: str) -> bool:
    """Was text only inserted?"""
    following = iter(after)
    return all(letter in following for letter in before)


@settings(max_examples=150, deadline=None)
@given(_DATA, st.sampled_from([True, False, None]), st.sampled_from([2, 4]), st.sampled_from(["\n", "\n# end\n"]))
def test_setting_a_value_changes_nothing_else_in_any_layout(
    data: dict[str, Any], flow: bool | None, indent: int, end: str
) -> None:
    text = yaml.safe_dump({**data, "metadata": {"name": "x"}}, default_flow_style=flow, indent=indent, width=60)
    text = f"# first\n{text.rstrip()}{end}---\n# second\nkind: Other\n"
    after = set_value(text, 0, ("metadata", "annotations", "vramcast.dev/batch-size"), "32", "x.yaml")
    assert is_kept(text, after)
    first, second = yaml.safe_load_all(after)
    assert first == {**data, "metadata": {"name": "x", "annotations": {"vramcast.dev/batch-size": "32"}}}
    assert second == {"kind": "Other"}


@pytest.mark.parametrize(
    ("text", "place", "after"),
    [
        ("a:\n  b: 1\n  c: 2\n", ("a", "b"), "a:\n  c: 2\n"),
        ("a:\n  b: 1  # one\n# two\nc: 2\n", ("a", "b"), "# two\nc: 2\n"),
        ("x: 1\na:\n  b: |\n    many\n    lines\n  c: 2\n", ("a", "c"), "x: 1\na:\n  b: |\n    many\n    lines\n"),
        ("a: 1\nb: 2", ("b",), "a: 1\n"),
    ],
)
def test_removing_an_entry_removes_its_line_and_an_emptied_mapping(text: str, place: Place, after: str) -> None:
    assert remove_value(text, 0, place, "x.yaml") == after


def test_an_entry_that_cannot_be_removed_cleanly_is_refused() -> None:
    with pytest.raises(InvalidInput, match=r"x\.yaml: a\.b: cannot be edited here"):
        remove_value("a: {b: 1, c: 2}\n", 0, ("a", "b"), "x.yaml")


@pytest.mark.parametrize("text", ["a: &x {b: 1}\nc: *x\n", "c: &x\n  b: 1\na: *x\n"])
def test_shared_values_are_not_changed_for_one_user(text: str) -> None:
    with pytest.raises(InvalidInput, match="an alias or an anchor"):
        set_value(text, 0, ("a", "new"), "value", "x.yaml")


def test_invalid_yaml_is_one_message_with_its_line() -> None:
    with pytest.raises(InvalidInput) as caught:
        load_documents("a: [\nb: }", "x.yaml")
    assert str(caught.value).startswith("x.yaml: not YAML: ")
    assert "line 2" in str(caught.value)


def test_a_recursive_document_is_refused() -> None:
    with pytest.raises(InvalidInput, match=r"x\.yaml: not YAML"):
        load_documents("a: &a [*a]", "x.yaml")


@given(st.text(max_size=12))
def test_every_string_survives_a_round_trip(text: str) -> None:
    printable = text.encode("utf-8", "replace").decode()
    assert yaml.safe_load(scalar(printable)) == printable
