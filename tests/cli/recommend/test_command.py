"""`vramcast recommend` as a shell runs it, on a fake Prometheus."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

from tests.cli.recommend.fake_prometheus import HOUR, NOW, FakePod, FakePrometheus, running
from tests.controlplane import PATIENCE_SECONDS
from tests.serve.running import command, run_to_the_end
from vramcast.cli.main import app
from vramcast.errors import InvalidInput, WorldUnavailable

PODS = [FakePod("train-0", 5_000, NOW - 4 * HOUR, NOW - 2 * HOUR, ("StatefulSet", "train"))]


def recommend(url: str, cache: Path, *arguments: str, **environ: str) -> Result:
    """In this process, which is faster than one of its own."""
    environment = {"XDG_CACHE_HOME": str(cache), "TERM": "dumb", "COLUMNS": "100", **environ}
    return CliRunner().invoke(app, ["recommend", "--prometheus", url, *arguments], env=environment)


def test_the_report_is_on_standard_output_and_everything_else_is_not(tmp_path: Path) -> None:
    with running(FakePrometheus(PODS)) as url:
        done = run_to_the_end(
            "recommend", "--prometheus", url, "--since", "1d", "-o", "json", "--patch", str(tmp_path / "patches"),
            environ={"XDG_CACHE_HOME": str(tmp_path)},
        )  # fmt: skip
    assert done.returncode == 0, done.stderr
    (one,) = json.loads(done.stdout)["workloads"]
    assert (one["kind"], one["name"], one["peak_mib"]) == ("StatefulSet", "train", 5_000)
    assert "1 patches in" in done.stderr
    assert (tmp_path / "vramcast/recommend").is_dir()


@contextmanager
def interruptible() -> Iterator[None]:
    """A shell starts what runs in its background with SIGINT ignored, and every child would inherit that."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def test_ctrl_c_keeps_what_was_read_and_says_so(tmp_path: Path) -> None:
    fake = FakePrometheus(PODS)
    with running(fake) as url:
        arguments = ("recommend", "--prometheus", url, "--since", "2d", "-o", "json")
        environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path)}
        with interruptible():
            process = subprocess.Popen(command(*arguments), env=environment, stderr=subprocess.PIPE, text=True)

        def interrupt(_: str) -> None:
            if len(set(fake.windows_asked)) == 4:
                process.send_signal(signal.SIGINT)

        fake.refuse = interrupt
        _, said = process.communicate(timeout=PATIENCE_SECONDS)
        assert process.returncode == 130, said
        assert "the same command goes on from there" in said
        assert "Traceback" not in said
        fake.refuse = lambda _: None
        again = run_to_the_end(*arguments, environ={"XDG_CACHE_HOME": str(tmp_path)})
    assert "9 of 9 windows (3 from the last run)" in again.stderr
    assert json.loads(again.stdout)["pods"] == 1


def test_credentials_and_headers_are_sent(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("secret\n")
    fake = FakePrometheus(PODS)
    with running(fake) as url:
        recommend(url, tmp_path, "--since", "1h", "--token-file", str(token), "--header", "X-Scope-OrgID: a")
        assert fake.asked[-1][2]["authorization"] == "Bearer secret"
        assert fake.asked[-1][2]["x-scope-orgid"] == "a"
        recommend(url, tmp_path, "--since", "1h", PROMETHEUS_USERNAME="me", PROMETHEUS_PASSWORD="pass")
    assert fake.asked[-1][2]["authorization"] == "Basic bWU6cGFzcw=="


def test_a_refused_login_says_how_to_log_in(tmp_path: Path) -> None:
    with running(FakePrometheus([], refuse=lambda _: (401, b"who are you?"))) as url:
        done = recommend(url, tmp_path)
    assert isinstance(done.exception, WorldUnavailable)
    assert "give --token-file, --header, or PROMETHEUS_USERNAME" in str(done.exception)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--since", "yesterday"), "--since: 'yesterday' is not valid: expected a number and s, m, h, d or w"),
        (("--since", "0d"), "--since: '0d' is not valid"),
        (("--step", "7m"), "--step: '7m' is not valid: expected 15s to 1h that divides 6h"),
        (("--header", "nonsense"), "--header: 'nonsense' is not valid: expected 'Name: value'"),
        (("-o", "xml"), "--output: 'xml' is not valid: expected one of table, json, csv, markdown, html"),
        (("--token-file", "/nowhere"), "--token-file: '/nowhere' is not valid: there is no such file"),
        (("--prometheus", "prom:9090"), "--prometheus: 'prom:9090' is not valid: expected a URL"),
    ],
)
def test_a_bad_flag_is_told_with_its_fix_before_anything_is_asked(
    tmp_path: Path, arguments: tuple[str, ...], said: str
) -> None:
    fake = FakePrometheus(PODS)
    with running(fake) as url:
        done = recommend(url, tmp_path, *arguments)
    assert isinstance(done.exception, InvalidInput)
    assert said in str(done.exception)
    assert fake.asked == []


def test_help_fits_a_screen_and_shows_an_example() -> None:
    done = run_to_the_end("recommend", "--help", environ={"COLUMNS": "100", "TERM": "dumb"})
    assert done.stdout.count("\n") <= 40
    assert max(map(len, done.stdout.splitlines())) <= 100
    assert "vramcast recommend --prometheus http://127.0.0.1:9090 -o html > report.html" in done.stdout
