"""Building the catalog: what is traced, what an interrupted build leaves, and what a later one adds."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from torch import nn

from vramcast.forecast.catalog import read_catalog
from vramcast.profile.building import build_catalog
from vramcast.profile.sources import ModelSource, image_inputs


class Counted:
    """Builds a small network and counts how often it was asked."""

    def __init__(self, width: int) -> None:
        self.width = width
        self.calls = 0

    def __call__(self, _size: int) -> nn.Module:
        self.calls += 1
        return nn.Sequential(
            nn.Conv2d(3, self.width, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(1), nn.Linear(self.width, 2)
        )


def source(name: str, width: int = 4) -> ModelSource:
    return ModelSource(f"timm/{name}", Counted(width), image_inputs(), 32, (), also=(f"{name}_old",))


def calls(one: ModelSource) -> int:
    assert isinstance(one.make, Counted)
    return one.make.calls


def broken(_size: int) -> nn.Module:
    raise RuntimeError("no such layer")


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "catalog.bin"


def quiet(_text: str) -> None: ...


def names(out: Path) -> list[str]:
    return [line.name for line in read_catalog(out).lines()]


def test_a_build_traces_every_source_and_keeps_its_other_names(out: Path) -> None:
    sources = [source("a"), source("b", 8)]
    built = build_catalog(out, sources, sources, quiet)
    assert (built.models, built.missing, built.failed) == (2, 0, ())
    catalog = read_catalog(out)
    found = catalog.find("timm/b_old")
    assert found is not None
    assert (found.name, found.parameters) == ("timm/b", 8 * 28 + 2 * 9)


def test_an_interrupted_build_resumes_where_it_stopped(out: Path) -> None:
    sources = [source("a"), source("b"), source("c")]

    def stopped() -> object:
        yield sources[0]
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        build_catalog(out, sources, stopped(), quiet)  # type: ignore[arg-type]
    assert not out.exists()
    assert build_catalog(out, sources, sources, quiet).models == 3
    assert calls(sources[0]) == 1


def test_what_the_catalog_has_is_not_traced_again_even_without_parts(out: Path) -> None:
    old, new = source("a"), source("b")
    build_catalog(out, [old], [old], quiet)
    before = read_catalog(out)
    for part in out.with_suffix(".parts").iterdir():
        part.unlink()
    traced = calls(old)
    build_catalog(out, [old, new], [old, new], quiet)
    assert calls(old) == traced
    after = read_catalog(out)
    assert names(out) == ["timm/a", "timm/b"]
    lines = [catalog.find("timm/a") for catalog in (before, after)]
    assert lines[0] is not None
    assert lines[1] is not None
    assert before.entry(lines[0]) == after.entry(lines[1])
    build_catalog(out, [old, new], [old], quiet, again=True)
    assert calls(old) == 2 * traced


def test_a_part_of_the_sources_adds_to_the_catalog_and_removes_nothing(out: Path) -> None:
    sources = [source("a"), source("b")]
    assert build_catalog(out, sources, sources[:1], quiet).missing == 1
    assert names(out) == ["timm/a"]
    assert build_catalog(out, sources, sources[1:], quiet).missing == 0
    assert names(out) == ["timm/a", "timm/b"]


def test_a_source_that_is_gone_leaves_the_catalog_and_new_names_enter_it(out: Path) -> None:
    sources = [source("a"), source("b")]
    build_catalog(out, sources, sources, quiet)
    renamed = replace(sources[0], also=("other",))
    build_catalog(out, [renamed], [renamed], quiet)
    assert names(out) == ["timm/a"]
    assert read_catalog(out).find("timm/other") is not None


def test_a_source_that_cannot_be_traced_is_said_once_and_counted_always(out: Path) -> None:
    sources = [source("a"), ModelSource("timm/bad", broken, image_inputs(), 32, ())]
    said: list[str] = []
    for _ in range(2):
        built = build_catalog(out, sources, sources, said.append)
        assert (built.models, built.missing, built.failed) == (1, 0, ("timm/bad",))
    assert said == ["skipping timm/bad: RuntimeError: no such layer"]
