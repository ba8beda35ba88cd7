"""The index resolves a whole JSON array of node names at once, or leaves it to the JSON decoder."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vramcast.names import NodeName
from vramcast.placement.name_index import NameIndex

# All of one length, with most bytes the same.
_NAMES = st.lists(st.integers(0, 16**12 - 1), min_size=1, max_size=50, unique=True).map(
    lambda numbers: [f"node-pool-{n:012x}.example" for n in numbers]
)


def index_of(names: list[str]) -> NameIndex:
    index = NameIndex.build({NodeName(name): column for column, name in enumerate(names)})
    assert index is not None
    return index


def compact(names: list[str]) -> bytes:
    return json.dumps(names, separators=(",", ":")).encode()


@given(_NAMES, st.randoms(use_true_random=False))
def test_names_in_any_order_map_to_their_columns(names: list[str], random: object) -> None:
    shuffled = names.copy()
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    found = index_of(names).find(compact(shuffled))
    assert found is not None
    columns, rows = found
    assert columns.tolist() == [names.index(name) for name in shuffled]
    assert rows.tobytes().decode() == "".join(f'"{name}"' for name in shuffled)


@given(_NAMES.filter(lambda names: len(names) > 1), st.data())
def test_one_unknown_name_leaves_the_array_to_the_decoder(names: list[str], data: st.DataObject) -> None:
    unknown = data.draw(st.sampled_from(names))
    assert index_of([name for name in names if name != unknown]).find(compact(names)) is None


@given(st.text(alphabet="0123456789abcdef-.", min_size=8, max_size=60), st.integers(0, 59), st.sampled_from("xyz_"))
def test_a_name_that_differs_in_any_byte_is_unknown(name: str, position: int, other: str) -> None:
    position %= len(name)
    changed = name[:position] + other + name[position + 1 :]
    assert index_of([name]).find(compact([name])) is not None
    assert index_of([name]).find(compact([changed])) is None


def names_of(count: int) -> list[str]:
    return [f"gpu-worker-{n:05d}" for n in range(count)]


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: text.replace(",", ", "),
        lambda text: " " + text,
        lambda text: text[:-1],
        lambda text: text[:-1] + ",]",
        lambda text: text.replace('"', "'"),
        lambda text: text[:-1] + ",5]",
        lambda text: text[:-1] + ',""]',
        lambda text: text.replace("r-00001", "\\u0072-00001", 1),
        lambda text: "[" + text + "]",
        lambda text: text.replace(",", ";"),
        lambda text: text.replace("[", "{").replace("]", "}"),
    ],
)
def test_anything_but_gos_compact_form_is_left_to_the_decoder(damage: Callable[[str], str]) -> None:
    names = names_of(50)
    text = json.dumps(names, separators=(",", ":"))
    assert index_of(names).find(text.encode()) is not None
    assert index_of(names).find(damage(text).encode()) is None


@given(st.binary(max_size=300))
def test_arbitrary_bytes_are_left_to_the_decoder(raw: bytes) -> None:
    assert index_of(names_of(3)).find(raw) is None


@pytest.mark.parametrize("names", [[], ["short"], ["node-00001", "node-1"], ['node-"0001'], ["knoten-ä-00001"]])
def test_names_that_are_short_unequal_in_length_or_not_plain_get_no_index(names: list[str]) -> None:
    assert NameIndex.build({NodeName(name): 0 for name in names}) is None
