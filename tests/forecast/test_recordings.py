"""The file of recordings: read lazily, and never a reason to crash."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from structlog.testing import capture_logs

from tests.forecast.recordings import LANGUAGE, B, L, R, recorded
from vramcast.forecast.recording import Recording
from vramcast.forecast.recordings import (
    MAGIC,
    RecordingsUnusable,
    builtin_recordings,
    key_of,
    read_recordings,
    usable_recordings,
    write_recordings,
)
from vramcast.forecast.storage import encode, pack
from vramcast.profile.solving import solve

POINT = {B: 4, L: 512, R: 8}
KEY = key_of("hf/small", "16-bit lora")
OTHER = key_of("hf/large", "16-bit full")


def recording(weight_bytes: int) -> Recording:
    return solve(recorded([lambda _: weight_bytes, lambda at: 64 * at[B] * at[L], lambda at: 9 * at[R]], LANGUAGE))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "recordings.bin"
    write_recordings(path, {KEY: pack(recording(1000)), OTHER: pack(recording(7000))})
    return path


def test_what_was_written_is_read(file: Path) -> None:
    known = read_recordings(file)
    assert (len(known), sorted(known)) == (2, [OTHER, KEY])
    assert KEY in known
    assert known.models == {"hf/small", "hf/large"}
    assert known.has_model("hf/large")
    assert not known.has_model("hf/medium")
    for key, weight_bytes in ((KEY, 1000), (OTHER, 7000)):
        assert np.array_equal(known.read(key).at(POINT).tape.sizes, recording(weight_bytes).at(POINT).tape.sizes)


def test_a_recording_is_unpacked_once(file: Path) -> None:
    known = read_recordings(file)
    assert known.read(KEY) is known.read(KEY)


def test_equal_recordings_take_no_more_room(tmp_path: Path) -> None:
    one, two = tmp_path / "one.bin", tmp_path / "two.bin"
    packed = pack(recording(1000))
    write_recordings(one, {KEY: packed})
    write_recordings(two, {KEY: packed, OTHER: packed})
    assert two.stat().st_size - one.stat().st_size < len(packed) / 2
    assert read_recordings(two).packed(OTHER) == packed


def test_the_order_of_recordings_does_not_change_the_file(tmp_path: Path, file: Path) -> None:
    other = tmp_path / "other.bin"
    write_recordings(other, {OTHER: pack(recording(7000)), KEY: pack(recording(1000))})
    assert other.read_bytes() == file.read_bytes()


@pytest.mark.parametrize(
    ("damage", "why"),
    [
        (lambda data: b"", "no recordings of this version"),
        (lambda data: b"something else entirely, and long enough", "no recordings of this version"),
        (lambda data: data[: len(MAGIC) + 2], "no recordings of this version"),
        (lambda data: data[: len(MAGIC) + 10], "no recordings of this version"),
        (lambda data: data[:-30], "is truncated"),
    ],
)  # fmt: skip
def test_a_damaged_file_is_told(file: Path, damage: object, why: str) -> None:
    assert callable(damage)
    file.write_bytes(damage(file.read_bytes()))
    with pytest.raises(RecordingsUnusable, match=why):
        read_recordings(file)
    with capture_logs() as logs:
        assert len(usable_recordings(file)) == 0
    assert [(entry["log_level"], str(file) in entry["reason"]) for entry in logs] == [("warning", True)]


def test_a_missing_file_is_told(tmp_path: Path) -> None:
    with pytest.raises(RecordingsUnusable, match="no recordings at"):
        read_recordings(tmp_path / "recordings.bin")


def test_one_damaged_recording_leaves_the_others(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[-5] ^= 0xFF  # the last one
    file.write_bytes(data)
    known = read_recordings(file)
    damaged, whole = (KEY, OTHER) if known.packed(KEY).endswith(bytes(data[-5:])) else (OTHER, KEY)
    with pytest.raises(RecordingsUnusable, match="is damaged"):
        known.read(damaged)
    assert known.read(whole).variables


def test_a_file_that_is_gone_is_told(file: Path) -> None:
    known = read_recordings(file)
    file.unlink()
    with pytest.raises(RecordingsUnusable, match="cannot be read"):
        known.read(KEY)


LORA_OF_8B = [key for key in sorted(builtin_recordings()) if key.startswith("hf/Llama-3.1-8B ") and "lora" in key]


@pytest.mark.parametrize("key", LORA_OF_8B)
def test_lora_of_an_8b_model_takes_at_most_4_kb_of_an_annotation(key: str) -> None:
    assert len(encode(builtin_recordings().read(key))) <= 4 << 10


def test_the_largest_recordings_of_the_catalog_take_at_most_16_kb_of_an_annotation() -> None:
    known = builtin_recordings()
    assert LORA_OF_8B
    for key in sorted(known, key=lambda key: len(known.packed(key)))[-5:]:
        assert len(encode(known.read(key))) <= 16 << 10, key
