"""`vramcast export-records` against a real service."""

from __future__ import annotations

from pathlib import Path

from tests.serve.running import Serve, run_to_the_end


def test_an_export_without_runs_adds_nothing(service: Serve, tmp_path: Path) -> None:
    done = run_to_the_end("export-records", "--url", service.url, "--out", str(tmp_path / "out"))
    assert (done.returncode, done.stdout) == (0, f"0 runs added to {tmp_path / 'out'}, 0 already present\n")
    assert not (tmp_path / "out").exists()


def test_a_url_without_records_is_an_error(service: Serve, tmp_path: Path) -> None:
    done = run_to_the_end("export-records", "--url", f"{service.url}/elsewhere", "--out", str(tmp_path))
    assert done.returncode == 2
    assert "/elsewhere/records answers 404 without records" in done.stderr
