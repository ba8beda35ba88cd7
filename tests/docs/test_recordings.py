"""What the documentation says about the recordings that ship is true of the file."""

from __future__ import annotations

import re
from pathlib import Path

from vramcast.forecast.recordings import FILE, read_recordings

ROOT = Path(__file__).parents[2]
_LARGEST_BYTES = 20_000_000  # the image and every clone carry it


def test_the_documentation_counts_the_recordings_that_ship() -> None:
    path = ROOT / "model_artifacts" / FILE
    said = re.search(
        r"The file that ships has ([\d,]+) recordings of ([\d,]+) models in ([\d,]+) kB",
        " ".join((ROOT / "docs" / "forecast.md").read_text(encoding="utf-8").split()),
    )
    assert said is not None
    shipped, size_bytes = read_recordings(path), path.stat().st_size
    counted = (len(shipped), len(shipped.models), round(size_bytes / 1000))
    assert tuple(int(number.replace(",", "")) for number in said.groups()) == counted
    assert size_bytes < _LARGEST_BYTES
