from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from vramcast.report.message import add
from vramcast.task.exit_report import ExitReport, read_report

GIB = 1 << 30


def process(gpus: dict[str, tuple[int, int]], **facts: Any) -> dict[str, Any]:
    """`gpus`: GiB allocated and reserved, by GPU."""
    used = {name: {"allocated": a * GIB, "reserved": r * GIB, "total": 40 * GIB} for name, (a, r) in gpus.items()}
    return {"ended": "exited", "seconds": 60.0, "gpus": used, "versions": {"torch": "2.9.0"}, **facts}


def message(**processes: dict[str, Any]) -> str:
    return json.dumps({"vramcast": 1, "processes": processes}, separators=(",", ":"))


def test_the_fullest_gpu_counts_with_all_processes_on_it() -> None:
    text = message(a=process({"x": (3, 4)}), b=process({"x": (1, 2), "y": (4, 5)}))
    assert read_report([text]) == ExitReport(6 * 1024, 4 * 1024, 2, framework="torch 2.9.0")


def test_containers_of_one_pod_add_up() -> None:
    report = read_report([message(a=process({"x": (1, 2)})), None, message(a=process({"x": (1, 3)}))])
    assert report is not None
    assert (report.reserved_mib, report.processes) == (5 * 1024, 2)


def test_it_is_what_the_job_wrote(tmp_path: Path) -> None:
    """The two ends do not share code, because the job's end has no dependencies."""
    file = tmp_path / "termination-log"
    file.write_text("loss became NaN\n")
    add(str(file), "rank 0", process({"x": (3, 4)}, ended="oom", steps_per_second=2.5))
    add(str(file), "rank 1", process({"y": (2, 3)}, steps_per_second=2.0))
    assert read_report([file.read_text()]) == ExitReport(
        4 * 1024, 3 * 1024, 1, out_of_memory=True, steps_per_second=2.0, framework="torch 2.9.0"
    )


@pytest.mark.parametrize(
    "text",
    [
        "", "RuntimeError: CUDA error", "{", '{"vramcast":', '{"vramcast":1}', '{"vramcast":2,"processes":{}}',
        '{"vramcast":1,"processes":{"a":{"gpus":{"x":{"reserved":"4Gi"}}}}}', message(a=process({})),
        message(a=process({"x": (-1, 2)})), message(a=process({"x": (3, 2)})), message(a=process({"x": (0, 0)})),
        message(a=process({"x": (1, 10**9)})), '{"vramcast":' + "[" * 5_000, message(a=process({"x": (1, 2)})) + "x",
    ],
)  # fmt: skip
def test_what_is_no_report_counts_as_none(text: str) -> None:
    assert read_report([text]) is None


def test_damaged_reports_never_raise() -> None:
    whole, draw = message(a=process({"x": (3, 4)}), b=process({"y": (1, 2)})), random.Random(7)
    for _ in range(2_000):
        cut = list(whole)
        for _ in range(draw.randint(1, 4)):
            cut[draw.randrange(len(cut))] = chr(draw.randrange(1, 256))
        report = read_report(["".join(cut)[: draw.randint(1, len(cut))]])
        assert report is None or report.reserved_mib > 0
