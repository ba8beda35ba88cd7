"""What a training process leaves in its termination message, however it ends.

Each case runs a real process. Without a GPU, a torch of our own plays the allocator's counters; tests/train runs the
same with the real torch.
"""

from __future__ import annotations

import ast
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

import vramcast
from tests.controlplane.eventually import eventually
from vramcast.report.message import MOST_BYTES, add, split

PACKAGE = Path(vramcast.__file__).parent
FAKE_TORCH = Path(__file__).parent / "fake_torch"
GIB = 1 << 30
TRAIN = "import torch; torch.cuda.use(0, 3 << 30, 4 << 30)\n"

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def message_file(tmp_path: Path) -> Path:
    """As the kubelet mounts it: there, and empty."""
    path = tmp_path / "termination-log"
    path.touch()
    return path


@pytest.fixture
def environment(message_file: Path) -> dict[str, str]:
    return {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": f"{PACKAGE.parent}:{FAKE_TORCH}",
        "VRAMCAST_REPORT_FILE": str(message_file),
    }


@pytest.fixture
def run(tmp_path: Path, environment: dict[str, str]) -> Run:
    def run_script(
        script: str, *arguments: str, wrapped: bool = True, env: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        (tmp_path / "train.py").write_text(script)
        wrapper = ["-m", "vramcast.report"] if wrapped else []
        command = [sys.executable, *wrapper, str(tmp_path / "train.py"), *arguments]
        return subprocess.run(
            command, check=False, capture_output=True, text=True, env={**environment, **(env or {})}, cwd=tmp_path
        )

    return run_script


def processes(message_file: Path) -> dict[str, Any]:
    report = split(message_file.read_bytes())[1]
    found = report.get("processes", {})
    assert isinstance(found, dict)
    return found


def the_process(message_file: Path) -> dict[str, Any]:
    (only,) = processes(message_file).values()
    assert isinstance(only, dict)
    return only


def test_peaks_steps_and_versions_arrive_when_a_script_ends(run: Run, message_file: Path) -> None:
    script = TRAIN + (
        "import time, vramcast.report.reporter as r\n"
        "while not r._reporter._steps._counting: time.sleep(0.01)\n"
        "optimizer = torch.optim.SGD()\n"
        "for _ in range(5): optimizer.step(); time.sleep(0.01)\n"
    )
    assert run(script).returncode == 0
    facts = the_process(message_file)
    gpu = facts["gpus"]["GPU-0000-0"]
    assert (gpu["allocated"], gpu["reserved"], gpu["total"]) == (3 * GIB, 4 * GIB, 40 * GIB)
    assert facts["ended"] == "exited"
    assert facts["steps"] == 5
    assert 0 < facts["steps_per_second"] <= 100
    assert facts["versions"]["torch"] == "2.9.0"


def test_one_import_in_the_script_does_the_same(run: Run, message_file: Path) -> None:
    assert run("import vramcast.report\n" + TRAIN, wrapped=False).returncode == 0
    assert the_process(message_file)["gpus"]["GPU-0000-0"]["reserved"] == 4 * GIB


def test_a_job_without_torch_says_how_it_ended(run: Run, message_file: Path) -> None:
    assert run("print('trained')").stdout == "trained\n"
    facts = the_process(message_file)
    assert facts["ended"] == "exited"
    assert facts["gpus"] == {}


def test_out_of_memory_is_told_apart_from_other_errors(run: Run, message_file: Path) -> None:
    ended = run(TRAIN + "raise torch.OutOfMemoryError('CUDA out of memory')")
    assert ended.returncode == 1
    assert "OutOfMemoryError: CUDA out of memory" in ended.stderr
    facts = the_process(message_file)
    assert facts["ended"] == "oom"
    assert facts["gpus"]["GPU-0000-0"]["reserved"] == 4 * GIB


def test_an_error_keeps_its_exit_code_and_traceback(run: Run, message_file: Path) -> None:
    ended = run(TRAIN + "raise KeyError('loss')")
    assert ended.returncode == 1
    assert "KeyError: 'loss'" in ended.stderr
    assert the_process(message_file) | {"seconds": 0} == the_process(message_file) | {
        "ended": "raised",
        "error": "KeyError",
        "seconds": 0,
    }


def test_the_exit_code_is_the_scripts(run: Run) -> None:
    assert run("import sys; sys.exit(7)").returncode == 7


def test_the_script_sees_what_python_would_show_it(run: Run) -> None:
    script = "import sys; print(__name__, sys.argv[1:], sys.path[0] == __file__.rpartition('/')[0])"
    assert run(script, "--epochs", "3").stdout == "__main__ ['--epochs', '3'] True\n"


def test_a_module_runs_as_with_python_m(run: Run, tmp_path: Path, environment: dict[str, str]) -> None:
    (tmp_path / "job").mkdir()
    (tmp_path / "job" / "__init__.py").touch()
    (tmp_path / "job" / "main.py").write_text("import sys; print(__name__, sys.argv[1:])")
    command = [sys.executable, "-m", "vramcast.report", "-m", "job.main", "--fast"]
    ended = subprocess.run(command, check=True, capture_output=True, text=True, env=environment, cwd=tmp_path)
    assert ended.stdout == "__main__ ['--fast']\n"


def test_without_a_script_it_says_what_to_write(environment: dict[str, str]) -> None:
    command = [sys.executable, "-m", "vramcast.report"]
    ended = subprocess.run(command, check=False, capture_output=True, text=True, env=environment)
    assert ended.returncode == 1
    assert "usage: python -m vramcast.report SCRIPT" in ended.stderr


@pytest.mark.parametrize("death", ["os.kill(os.getpid(), 9)", "os.kill(os.getpid(), 15)", "os._exit(3)", "os.abort()"])
def test_a_process_that_dies_without_a_word_leaves_its_last_look(
    run: Run, tmp_path: Path, environment: dict[str, str], message_file: Path, death: str
) -> None:
    """The script waits until a look has seen its memory; then it dies."""
    script = TRAIN + f"import os, sys; sys.stdin.readline(); {death}"
    (tmp_path / "train.py").write_text(script)
    command = [sys.executable, "-m", "vramcast.report", str(tmp_path / "train.py")]
    with subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, text=True) as process:
        eventually(lambda: any(facts["gpus"] for facts in processes(message_file).values()), what="a look")
        process.communicate("\n")
    assert process.returncode in (-signal.SIGKILL, -signal.SIGTERM, -signal.SIGABRT, 3)
    facts = the_process(message_file)
    assert facts["ended"] == "running"
    assert facts["gpus"]["GPU-0000-0"]["reserved"] == 4 * GIB


def test_resetting_torchs_peaks_does_not_lower_the_report(run: Run, message_file: Path) -> None:
    script = (
        "import vramcast.report.reporter as r\n" + TRAIN + "r._reporter.look(); torch.cuda.reset_peak_memory_stats()"
    )
    assert run(script).returncode == 0
    assert the_process(message_file)["gpus"]["GPU-0000-0"]["reserved"] == 4 * GIB


def test_ranks_of_one_container_share_one_report(run: Run, message_file: Path) -> None:
    for rank in range(3):
        run(f"import torch; torch.cuda.use({rank % 2}, 1 << 30, {rank + 1} << 30)", env={"RANK": str(rank)})
    reserved = {
        name: {gpu: figures["reserved"] // GIB for gpu, figures in facts["gpus"].items()}
        for name, facts in processes(message_file).items()
    }
    assert reserved == {"rank 0": {"GPU-0000-0": 1}, "rank 1": {"GPU-0000-1": 2}, "rank 2": {"GPU-0000-0": 3}}


def test_children_that_train_report_and_data_loaders_do_not(run: Run, message_file: Path) -> None:
    script = (
        "import multiprocessing, torch, vramcast.report\n"
        "def train(): torch.cuda.use(1, 1 << 30, 2 << 30)\n"
        "def load(): pass\n"
        "context = multiprocessing.get_context('fork')\n"
        "children = [context.Process(target=work) for work in (train, load)]\n"
        "[child.start() for child in children]; [child.join() for child in children]\n"
    )
    assert run(script, wrapped=False).returncode == 0
    gpus = [facts["gpus"] for facts in processes(message_file).values()]
    assert sorted(list(each) for each in gpus) == [[], ["GPU-0000-1"]]


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_spawned_children_report_where_the_script_imports_it(run: Run, message_file: Path, method: str) -> None:
    script = (
        "import multiprocessing, vramcast.report\n"
        "def train():\n    import torch; torch.cuda.use(1, 1 << 30, 2 << 30)\n"
        "if __name__ == '__main__':\n"
        f"    child = multiprocessing.get_context('{method}').Process(target=train)\n"
        "    child.start(); child.join()\n"
    )
    assert run(script, wrapped=False).returncode == 0
    gpus = [facts["gpus"] for facts in processes(message_file).values()]
    assert sorted(list(each) for each in gpus) == [[], ["GPU-0000-1"]]


def test_what_the_job_wrote_stays_in_front_of_the_report(run: Run, message_file: Path) -> None:
    script = TRAIN + "import os; open(os.environ['VRAMCAST_REPORT_FILE'], 'w').write('loss became NaN')"
    assert run(script).returncode == 0
    said, report = split(message_file.read_bytes())
    assert said == b"loss became NaN\n"
    assert report["processes"]


def test_the_message_never_exceeds_what_the_kubelet_keeps(message_file: Path) -> None:
    message_file.write_text("x" * 10_000)
    for rank in range(64):
        gpus = {f"GPU-{rank}": {"allocated": 1, "reserved": rank, "ooms": 0, "total": 40 * GIB}}
        add(str(message_file), f"rank {rank}", {"ended": "exited", "gpus": gpus})
    message = message_file.read_bytes()
    assert len(message) <= MOST_BYTES
    _, report = split(message)
    assert report["left_out"] == 64 - len(report["processes"])
    assert "rank 63" in report["processes"]
    assert "rank 0" not in report["processes"]


@pytest.mark.parametrize(
    "path", ["/proc/version", "/no/such/folder/log", "/"], ids=["read-only", "missing", "a folder"]
)
def test_a_message_that_cannot_be_written_does_not_fail_the_job(run: Run, path: str) -> None:
    ended = run(TRAIN + "print('trained')", env={"VRAMCAST_REPORT_FILE": path})
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "trained\n", "")


def test_outside_of_kubernetes_it_starts_nothing(run: Run, tmp_path: Path) -> None:
    script = "import threading, sys; print(threading.active_count(), sys.excepthook is sys.__excepthook__)"
    assert run(script, env={"VRAMCAST_REPORT_FILE": ""}).stdout == "1 True\n"


@pytest.mark.parametrize("message", [b"", b"{", b"[]", b'{"vramcast":2}', b'{"vramcast":1,"processes":3}', b"\xff\n"])
def test_another_message_is_no_report(message: bytes) -> None:
    assert split(message) == (message, {})


def test_the_package_needs_only_the_standard_library_and_python_3_8() -> None:
    for file in (PACKAGE / "report").glob("*.py"):
        tree = ast.parse(file.read_text(), feature_version=(3, 8))
        imports = [node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom)]
        names = {
            name.partition(".")[0] if not name.startswith("vramcast.report") else "vramcast.report"
            for node in imports
            for name in ([node.module or ""] if isinstance(node, ast.ImportFrom) else [a.name for a in node.names])
        }
        assert names <= {*sys.stdlib_module_names, "vramcast.report", "pynvml"}, file.name


def test_reports_are_json_on_one_line(run: Run, message_file: Path) -> None:
    run(TRAIN)
    (line,) = message_file.read_text().splitlines()
    assert json.loads(line)["vramcast"] == 1
