"""Recordings as text: nothing is lost, and hostile text is refused in bounded time and memory."""

from __future__ import annotations

import base64
import lzma
import zlib
from dataclasses import replace

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.forecast.recordings import B, L, R, language_recording
from tests.forecast.tapes import random_tapes, tape_of
from vramcast.errors import InvalidInput
from vramcast.forecast import storage
from vramcast.forecast.peaks import peaks
from vramcast.forecast.recording import Recording
from vramcast.forecast.storage import MARK, decode, encode, pack, unpack
from vramcast.forecast.tape import Mark, Moment, Role, Tape
from vramcast.profile.solving import solve


def same_tape(one: Tape, other: Tape) -> bool:
    arrays = ((getattr(one, name), getattr(other, name)) for name in ("roles", "units", "events", "streams"))
    return all(np.array_equal(mine, its) for mine, its in arrays) and one.marks == other.marks


def test_a_recording_survives() -> None:
    recording = language_recording({"family": "llama"})
    again = decode(encode(recording))
    assert (again.variables, again.info) == (recording.variables, recording.info)
    (mine,), (its,) = recording.pieces, again.pieces
    assert (mine.spans, mine.error, mine.table.monomials) == (its.spans, its.error, its.table.monomials)
    assert same_tape(mine.template, its.template)
    point = {B: 5, L: 777, R: 4}
    assert again.at(point).tape.sizes.tolist() == recording.at(point).tape.sizes.tolist()


@given(random_tapes(streams=3), st.booleans())
def test_any_tape_survives(tape: Tape, small: bool) -> None:
    point = {B: 4}
    again = unpack(pack(solve([(point, tape)]), small=small)).at(point).tape
    assert again.sizes.tolist() == tape.sizes.tolist()
    assert same_tape(again, tape if tape.streams.any() else replace(tape, streams=np.zeros(0, np.uint8)))


def test_units_and_marks_survive() -> None:
    marks = (Mark(0, Moment.STEP), Mark(1, Moment.ENTER, 12), Mark(1, Moment.LEAVE, 3), Mark(2, Moment.END))
    tape = tape_of([512, 1024], [0, 1], marks, units=[7, 0])
    assert same_tape(decode(encode(solve([({B: 1}, tape)]))).at({B: 1}).tape, tape)


def repeated_layers(layers: int) -> Tape:
    """Three steps in which each layer saves five tensors, with a temporary, and frees them in backward."""
    sizes: list[int] = []
    events: list[int] = []
    for _ in range(3):
        first = len(sizes)
        for _ in range(layers):
            events += [*range(len(sizes), len(sizes) + 6), ~(len(sizes) + 5)]
            sizes += [1 << 20, 2 << 20, 3 << 20, 4 << 20, 5 << 20, 6 << 20]
        events += [~(first + 6 * layer + at) for layer in reversed(range(layers)) for at in range(5)]
    return tape_of(sizes, events)


def test_repeated_layers_and_steps_collapse() -> None:
    text = encode(solve([({B: 1}, repeated_layers(300))]))
    assert len(text) < 2048
    assert len(decode(text).pieces[0].template.events) == 3 * 300 * 12


def layers_with_gradients(layers: int) -> Tape:
    """Three steps in which each layer saves two tensors; its backward frees them and leaves a gradient."""
    sizes: list[int] = []
    events: list[int] = []
    roles: list[Role] = []
    gradients: list[int] = []
    for _ in range(3):
        events += [~gradient for gradient in reversed(gradients)]
        gradients, first = [], len(sizes)
        for _ in range(2 * layers):
            events.append(len(sizes))
            sizes.append(1 << 20)
            roles.append(Role.SAVED)
        for layer in reversed(range(layers)):
            events += [len(sizes), ~(first + 2 * layer + 1), ~(first + 2 * layer)]
            gradients.append(len(sizes))
            sizes.append(1 << 16)
            roles.append(Role.GRADIENT)
    return tape_of(sizes, events, roles=roles)


def test_layers_collapse_though_gradients_pile_up_between_them() -> None:
    recording = solve([({B: 1}, layers_with_gradients(500))])
    assert len(pack(recording, small=True)) < len(pack(recording)) / 2
    assert len(encode(recording)) < 600
    assert same_tape(decode(encode(recording)).at({B: 1}).tape, recording.at({B: 1}).tape)


def test_frees_from_the_oldest_on_are_stored_by_age() -> None:
    """By stack, reading them would move every other storage each time."""
    tape = tape_of([512] * 9_000, [*range(9_000), *(~storage for storage in range(9_000))])
    assert same_tape(decode(encode(solve([({B: 1}, tape)]))).at({B: 1}).tape, tape)


@pytest.mark.parametrize(
    ("tape", "info", "message"),
    [
        (
            repeated_layers(12_000),
            {},
            r"cannot be stored: it has 432,000 events, more than 400,000\. Record fewer micro-",
        ),
        (tape_of([512], [0], (Mark(0, Moment.STEP),) * 20_000), {}, "it has 20,000 marks, more than 16,384"),
        (tape_of([512], [0], units=[5_000]), {}, "units do not match"),
        (tape_of([512], [0]), {"name": "x" * 300}, "header is invalid"),
    ],
)
def test_what_could_not_be_read_is_not_written(tape: Tape, info: dict[str, str], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        encode(solve([({B: 1}, tape)], info=info))


# ---------------------------------------------------------------------- hostile text


def packed(data: bytes) -> str:
    body = zlib.crc32(data).to_bytes(4, "little") + lzma.compress(data, lzma.FORMAT_RAW, filters=storage._FILTERS)
    return MARK + base64.urlsafe_b64encode(body).decode()


PIECE: dict[str, object] = {
    "spans": [[1, 8, 1]], "error": 0.0, "monomials": [[["batch", 1, 1, True]]], "rows": [[1, [[0, 512]]]],
    "kinds": [[0, 0, 0, False]], "events": 1, "units": 0, "marks": 0, "stacked": False,
}  # fmt: skip


def with_header(body: bytes = b"", **changes: object) -> str:
    """A recording of one storage, with changes to its only piece's header, or to the header itself."""
    piece = dict(PIECE)
    header: dict[str, object] = {"variables": ["batch"], "info": {}}
    for name, value in changes.items():
        (piece if name in piece else header)[name] = value
    text = msgspec.json.encode({"pieces": [piece], **header})
    return packed(len(text).to_bytes(4, "little") + text + (body or b"\x01\x00" + b"\x01" * 4))


def test_the_plain_header_is_a_recording() -> None:
    assert decode(with_header()).at({B: 3}).tape.sizes.tolist() == [1536]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("v1:abc", "starts with 'v1:abc' instead of 'v2:'"),
        ("v3:abc", "starts with 'v3:abc' instead of 'v2:'"),
        ("v2:", "truncated"),
        ("v2:!!!", "not base64"),
        ("v2:" + "A" * (128 << 10), "characters, more than 131,072"),
        (encode(language_recording())[:-40], "truncated|not base64|cannot be unpacked"),
        (packed(b"\0" * (100 << 20)), "unpacks to more than any recording"),
        (packed(b""), "header is invalid"),
        (packed(b"\xff\xff\xff\xff{}"), "header is invalid"),
        (packed(b"\x10\x27\x00\x00" + b"[" * 10000), "header is invalid"),
        (with_header(events=10**9), "header is invalid"),
        (with_header(events=-1), "header is invalid"),
        (with_header(events=400_000), "numbers are truncated"),
        (with_header(marks=1 << 15), "it has 32,768 marks, more than 16,384"),
        (with_header(rows=[[1, []]] * 2000, monomials=[[]] * 200), "it has 400,000 terms of sizes, more than 262,144"),
        (with_header(pieces=[PIECE | {"events": 300_000}] * 2), "it has 600,000 events, more than 400,000"),
        (with_header(pieces=[PIECE] * 65), "header is invalid"),
        (with_header(info={"name": "x" * 1000}), "header is invalid"),
        (with_header(pieces=[]), "header is invalid"),
        (with_header(rows=[[1, [[0, -512]]]]), "a size would be negative"),
        (with_header(rows=[[1, [[0, 10**18]]]]), "header is invalid"),
        (with_header(rows=[[0, [[0, 512]]]]), "header is invalid"),
        (with_header(rows=[]), "not in the table"),
        (with_header(rows=[[1, [[7, 512]]]]), "unknown term"),
        (with_header(kinds=[]), "unknown kind"),
        (with_header(kinds=[[0, 77, 0, False]]), "header is invalid"),
        (with_header(kinds=[[0, 0, 0, True]]), "units do not match"),
        (with_header(spans=[]), "spans do not match"),
        (with_header(spans=[[8, 1, 1]]), "ends before it begins"),
        (with_header(spans=[[0, 1, 1]]), "header is invalid"),
        (with_header(variables=["batch", "batch"], spans=[[1, 1, 1], [1, 1, 1]]), "spans do not match"),
        (with_header(monomials=[[["length", 1, 1, True]]]), "a variable that the recording does not have"),
        (with_header(monomials=[[["batch", 99, 1, True]]]), "header is invalid"),
        (with_header(b"\x01\x03" + b"\x01" * 4), "before the first one"),
        (with_header(b"\x01\x01" + b"\x01" * 4, stacked=True), "before the first one"),
        (with_header(b"\x01\x02" + b"\x01" * 4, stacked=True), "before the first one"),
        (with_header(b"\x01\x03" + b"\x01" * 4, stacked=True), "unknown kind"),
        (with_header(b"\x04\xfe\xff\xff\xff" + b"\x01" * 4, stacked=True), "too far from where they were made"),
        (with_header(b"\x01\x00" + b"\x01" * 5), "1 bytes are left over"),
        (with_header(b"\x09\x00" + b"\x01" * 4), "numbers are truncated"),
        (with_header(b"\x01\x00\x01\x01\x09\x01\x09\x01\x00", marks=1), "a mark is invalid"),
    ],
    ids=lambda value: value[:24] if isinstance(value, str) else "",
)
def test_hostile_text_is_refused_with_a_reason(text: str, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        decode(text).at({B: 3})


def test_a_changed_byte_is_noticed() -> None:
    data = bytearray(pack(language_recording()))
    data[0] ^= 1
    with pytest.raises(InvalidInput, match="checksum"):
        unpack(bytes(data))


@settings(deadline=None)
@given(st.binary(max_size=200))
def test_random_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(InvalidInput):
        unpack(data)


@settings(deadline=None)
@given(st.data())
def test_random_changes_behind_the_header_are_refused_or_harmless(data: st.DataObject) -> None:
    whole = storage._decompressed(pack(language_recording()))
    changed = bytearray(whole)
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(changed) - 1))
        changed[at] = data.draw(st.integers(0, 255))
    assert_refused_or_replays(packed(bytes(changed)))


def assert_refused_or_replays(text: str) -> None:
    try:
        recording: Recording = decode(text)
        point = {variable: recording.limits(variable)[0] for variable in recording.variables}
        found = peaks(recording.at(point).tape)
    except InvalidInput:
        return
    assert found.active_bytes <= found.reserved_bytes
