from __future__ import annotations

from contextlib import suppress
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vramcast.task.quantity import (
    GIB,
    MAX_LENGTH,
    MIB,
    ceil_mib,
    format_mib,
    human_mib,
    parse_quantity,
    quantity_bytes,
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0", 0), ("1", 1), ("16Gi", 16 * GIB), ("512Mi", 512 * MIB), ("1Ki", 1024), ("1Ti", 1 << 40),
        ("1Pi", 1 << 50), ("1Ei", 1 << 60), ("1k", 10**3), ("1M", 10**6), ("16G", 16 * 10**9), ("1T", 10**12),
        ("1P", 10**15), ("1E", 10**18), ("1000m", 1), ("1000000u", 1), ("1000000000n", 1), ("2e9", 2 * 10**9),
        ("2E9", 2 * 10**9), ("2e+3", 2000), ("5e-1", Fraction(1, 2)), ("1.5Gi", 3 * GIB // 2), (".5Gi", GIB // 2),
        ("1.", 1), ("+2", 2), ("-1Gi", -GIB), (" 16Gi\n", 16 * GIB), ("0.1Ti", Fraction(1 << 40, 10)),
    ],
)  # fmt: skip
def test_every_form_of_a_kubernetes_quantity_is_read_exactly(text: str, expected: int | Fraction) -> None:
    assert parse_quantity(text) == expected


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("16GB", "16G"), ("16gb", "16G"), ("16GiB", "16Gi"), ("16 GB", "16G"), ("16g", "16G"), ("16gi", "16Gi"),
        ("512MB", "512M"), ("512MiB", "512Mi"), ("4KB", "4k"), ("1.5TB", "1.5T"), ("1tib", "1Ti"), ("100b", "100"),
    ],
)  # fmt: skip
def test_a_commonly_misspelt_unit_is_refused_with_the_right_one(text: str, meant: str) -> None:
    with pytest.raises(ValueError, match=rf"did you mean {meant.replace('.', '[.]')}\?"):
        parse_quantity(text)


@pytest.mark.parametrize("text", ["", " ", "Gi", "1.2.3", "1e", "1e5Gi", "0x10", "nan", "inf", "1,5Gi", "--1", "१६ Gi"])
def test_text_that_is_not_a_quantity_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(ValueError, match="a Kubernetes quantity such as 16Gi"):
        parse_quantity(text)


def test_an_overlong_quantity_is_refused_before_it_is_parsed() -> None:
    assert parse_quantity("9" * MAX_LENGTH) == int("9" * MAX_LENGTH)
    with pytest.raises(ValueError, match="at most 40 characters"):
        parse_quantity("9" * (MAX_LENGTH + 1))
    with pytest.raises(ValueError, match="at most 40 characters"):
        parse_quantity("9" * 1_000_000)


@given(st.integers(0, 10**12), st.sampled_from(["", "k", "M", "G", "Ki", "Mi", "Gi", "Ti"]))
def test_a_quantity_rounds_up_to_whole_bytes(thousandths: int, suffix: str) -> None:
    text = f"{thousandths // 1000}.{thousandths % 1000:03d}{suffix}"
    assert 0 <= quantity_bytes(text) - parse_quantity(text) < 1


@given(st.integers(0, 10**15))
def test_mib_round_up(size_bytes: int) -> None:
    assert (ceil_mib(size_bytes) - 1) * MIB < size_bytes <= ceil_mib(size_bytes) * MIB


@given(st.integers(0, 1 << 40))
def test_a_formatted_size_parses_to_the_same_size(mib: int) -> None:
    assert parse_quantity(format_mib(mib)) == mib * MIB


@given(st.text(max_size=60))
def test_any_text_is_a_quantity_or_a_value_error(text: str) -> None:
    with suppress(ValueError):
        assert isinstance(parse_quantity(text), Fraction)


@pytest.mark.parametrize(("mib", "shown"), [(0, "0 MiB"), (512, "512 MiB"), (1024, "1.0 GiB"), (11_674, "11.4 GiB")])
def test_people_see_gib_from_one_gib_up(mib: int, shown: str) -> None:
    assert human_mib(mib) == shown
