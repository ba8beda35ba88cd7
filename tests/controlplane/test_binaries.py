"""A machine that cannot build the programs gets a clear error before any build starts."""

from __future__ import annotations

from pathlib import Path

import pytest

from .binaries import ACTIONLINT, ALL, BinarySet, BuildError, built_binaries, built_program


def put_on_path(monkeypatch: pytest.MonkeyPatch, directory: Path, go: str | None) -> None:
    if go is not None:
        (directory / "go").write_text(f"#!/bin/sh\n{go}\n")
        (directory / "go").chmod(0o755)
    monkeypatch.setenv("PATH", f"{directory}")
    monkeypatch.setenv("XDG_CACHE_HOME", f"{directory}")


def test_without_go_the_error_names_the_version_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    put_on_path(monkeypatch, tmp_path, None)
    with pytest.raises(BuildError, match=r"needs Go 1\.26\.0 or newer, but there is no 'go' on PATH"):
        built_binaries()


def test_with_an_old_go_the_error_names_both_versions(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    put_on_path(monkeypatch, tmp_path, "echo go version go1.22.5 linux/amd64")
    with pytest.raises(BuildError, match=r"needs Go 1\.26\.0 or newer, found 1\.22\.5"):
        built_binaries()


def test_a_failed_build_shows_its_output_and_leaves_nothing_in_the_cache(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    put_on_path(
        monkeypatch,
        tmp_path,
        '[ "$1" = version ] && echo go version go1.99.0 linux/amd64 || { echo no space left >&2; exit 1; }',
    )
    (tmp_path / "nice").symlink_to("/usr/bin/nice")
    with pytest.raises(BuildError, match="no space left"):
        built_binaries(lambda line: None)
    cache = tmp_path / "vramcast" / "controlplane"
    assert [path.name for path in cache.iterdir() if path.is_dir()] == []


@pytest.mark.parametrize("binary_set", ALL, ids=lambda one: str(one.name))
def test_every_pinned_module_has_checksums(binary_set: BinarySet) -> None:
    assert binary_set.module in (binary_set.directory / "go.sum").read_text()


def test_a_single_tool_is_built_without_the_control_plane(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    put_on_path(
        monkeypatch,
        tmp_path,
        '[ "$1" = version ] && echo go version go1.99.0 linux/amd64 || echo "$@" >> "$XDG_CACHE_HOME/builds"',
    )
    (tmp_path / "nice").symlink_to("/usr/bin/nice")
    program = built_program(ACTIONLINT, "actionlint", lambda line: None)
    assert program.parent.parent.name.startswith("actionlint-v")
    (build,) = (tmp_path / "builds").read_text().splitlines()
    assert build.startswith("build ")
    assert build.endswith(" github.com/rhysd/actionlint/cmd/actionlint")
