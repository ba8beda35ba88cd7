"""`vramcast export-records` as a user calls it, against a real process."""

from __future__ import annotations

from pathlib import Path

from tests.serve.running import Serve, run_to_the_end


def test_an_export_from_a_service_that_has_seen_nothing_yet_says_so(service: Serve, tmp_path: Path) -> None:
    done = run_to_the_end("export-records", "--url", service.url, "--out", str(tmp_path / "out"))
    assert (done.returncode, done.stdout) == (0, f"0 runs added to {tmp_path / 'out'}, 0 were there\n")
    assert not (tmp_path / "out").exists()


def test_an_address_without_records_is_one_message(service: Serve, tmp_path: Path) -> None:
    done = run_to_the_end("export-records", "--url", f"{service.url}/elsewhere", "--out", str(tmp_path))
    assert done.returncode == 2
    assert "/elsewhere/records answers 404 without records" in done.stderr
