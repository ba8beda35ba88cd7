"""Tests wait for conditions, with one patience for all: a number of their own fails on a busy machine."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
FILES = sorted(TESTS.rglob("*.py"))


def calls(path: Path, name: str) -> Iterator[ast.Call]:
    """`eventually(...)` or `time.sleep(...)`."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == name:
            yield node


def own_limit(call: ast.Call) -> bool:
    arguments = [*call.args[1:2], *(keyword.value for keyword in call.keywords if keyword.arg == "timeout_seconds")]
    return any(isinstance(argument, ast.Constant) for argument in arguments)


def test_no_wait_has_a_limit_of_its_own() -> None:
    found = [(path, call) for path in FILES for call in calls(path, "eventually")]
    assert len(found) > 100
    assert [f"{path.relative_to(TESTS)}:{call.lineno}" for path, call in found if own_limit(call)] == []


def test_only_eventually_sleeps() -> None:
    sleeping = {path.relative_to(TESTS).as_posix() for path in FILES for _ in calls(path, "time.sleep")}
    assert sleeping == {"controlplane/eventually.py"}


@pytest.mark.parametrize(
    ("source", "limited"),
    [
        ("eventually(probe)", False),
        ("eventually(probe, what='x', interval_seconds=1)", False),
        ("eventually(probe, PATIENCE_SECONDS)", False),
        ("eventually(probe, 5)", True),
        ("eventually(probe, timeout_seconds=5)", True),
    ],
)
def test_a_limit_is_a_number(source: str, limited: bool) -> None:
    (expression,) = ast.parse(source).body
    assert isinstance(expression, ast.Expr)
    assert isinstance(expression.value, ast.Call)
    assert own_limit(expression.value) is limited
