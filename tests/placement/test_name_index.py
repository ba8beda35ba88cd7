from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vramcast.placement.name_index import NameIndex, quote_all

# Long enough that a few dozen are worth the arrays.
PADDING = "x" * 120
# Of many lengths, and alike for most of them.
_NAMES = st.lists(st.integers(0, 10**12), min_size=42, max_size=50, unique=True).map(
    lambda numbers: [f"{PADDING[: 100 + n % 20]}-{n:x}" for n in numbers]
)


def index_of(names: list[str], seed: int = 7) -> NameIndex:
    index = NameIndex(seed)
    for column, name in enumerate(names):
        index.put(name, column)
    return index


@given(_NAMES, st.randoms(use_true_random=False), st.integers(0, 2**63 - 1))
def test_names_in_any_order_are_found_where_they_were_put(names: list[str], random: object, seed: int) -> None:
    shuffled = names.copy()
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    found = index_of(names, seed).find(quote_all(shuffled))
    assert found is not None
    assert found.columns.tolist() == [names.index(name) for name in shuffled]


@given(_NAMES, st.data())
def test_one_unknown_name_sends_the_whole_array_the_slow_way(names: list[str], data: st.DataObject) -> None:
    unknown = data.draw(st.sampled_from(names))
    index = index_of([name for name in names if name != unknown])
    assert index.find(quote_all(names)) is None


def names_of(count: int) -> list[str]:
    return [f"{PADDING}-{n}" for n in range(count)]


def test_a_name_that_was_dropped_is_unknown_and_its_column_can_be_another_names() -> None:
    names = names_of(50)
    index = index_of(names)
    assert index.find(quote_all(names)) is not None
    index.drop(names[3])
    assert index.find(quote_all(names)) is None
    index.put("newcomer", 3)
    found = index.find(quote_all(["newcomer", *names[4:]]))
    assert found is not None
    assert found.columns.tolist() == [3, *range(4, 50)]
    assert index.quoted(found.columns)[0] == b'"newcomer"'


@pytest.mark.parametrize(
    "spoil",
    [
        lambda text: text.replace(",", ", "),
        lambda text: " " + text,
        lambda text: text[:-1],
        lambda text: text[:-1] + ",]",
        lambda text: text.replace('"', "'"),
        lambda text: text[:-1] + ",5]",
        lambda text: text[:-1] + ',""]',
        lambda text: text.replace("x-1", "\\u0078-1", 1),
        lambda text: "[" + text + "]",
        lambda text: text.replace(",", ";"),
    ],
)
def test_what_is_not_gos_compact_form_is_left_to_a_real_parser(spoil: object) -> None:
    names = names_of(50)
    text = json.dumps(names, separators=(",", ":"))
    index = index_of(names)
    assert index.find(text.encode()) is not None
    assert index.find(spoil(text).encode()) is None  # type: ignore[operator]


@given(st.binary(max_size=300).map(lambda tail: b'["' + PADDING.encode() * 40 + tail))
def test_no_bytes_whatever_break_it(raw: bytes) -> None:
    assert index_of(names_of(3)).find(raw) is None


def test_a_short_array_is_not_worth_it() -> None:
    assert index_of(["a"]).find(b'["a"]') is None


def test_a_name_that_kubernetes_would_not_allow_switches_it_off() -> None:
    names = [*names_of(50), 'odd"name']
    assert index_of(names).find(quote_all(names_of(50))) is None
