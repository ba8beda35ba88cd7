"""Child processes that never outlive the test run, and whose logs are shown when something fails."""

from __future__ import annotations

import ctypes
import os
import random
import shutil
import signal
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from pathlib import Path

_LIBC = ctypes.CDLL(None, use_errno=True)
_PR_SET_PDEATHSIG = 1
_CLOCK_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_ABSENT = Path(__file__).parent / "absent"

# The kernel sends the parent-death signal when the *thread* that forked ends. So one thread, which lives as long as
# the interpreter, does all the forking, and tests may restart a process from any thread.
_SPAWNER = ThreadPoolExecutor(max_workers=1, thread_name_prefix="spawner")


class ProcessError(RuntimeError):
    """A process ended or did not become ready; the message includes the end of its log."""


class Process:
    """A program that can be restarted with the same arguments. All its runs append to one log."""

    def __init__(
        self, name: str, command: Sequence[str], log: Path, environment: Mapping[str, str] | None = None
    ) -> None:
        self.name = name
        self.log = log
        self._command = [str(part) for part in command]
        self.environment = {**os.environ, **(environment or {})}
        self._popen: subprocess.Popen[bytes] | None = None
        self._paused = False

    def start(self) -> None:
        if self.alive:
            raise RuntimeError(f"{self.name} is already running")
        self._paused = False
        self._popen = _SPAWNER.submit(self._spawn).result()

    def _spawn(self) -> subprocess.Popen[bytes]:
        parent = os.getpid()

        def die_with_parent() -> None:
            _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != parent:  # the parent died before the line above
                os._exit(1)

        with self.log.open("ab") as log:
            return subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=self.environment,
                # In its own process group, so that ctrl-C reaches only the test run, which then stops it.
                process_group=0,
                preexec_fn=die_with_parent,  # noqa: PLW1509 -- two system calls, no locks
            )

    @property
    def pid(self) -> int:
        if self._popen is None:
            raise RuntimeError(f"{self.name} was never started")
        return self._popen.pid

    @property
    def alive(self) -> bool:
        return self._popen is not None and self._popen.poll() is None

    def check_alive(self) -> None:
        if not self.alive:
            code = self._popen.returncode if self._popen else None
            raise ProcessError(f"{self.name} ended with code {code}\n{self.log_tail()}")

    def pause(self) -> None:
        """SIGSTOP: connections stay open and nothing answers, as in a network partition."""
        self._signal(signal.SIGSTOP)
        self._paused = True

    def resume(self) -> None:
        self._signal(signal.SIGCONT)
        self._paused = False

    def kill(self) -> None:
        """SIGKILL, as in a crash."""
        if self._popen is not None and self.alive:
            self._popen.kill()
            self._popen.wait()

    def terminate(self, grace_seconds: float = 5.0) -> None:
        """SIGTERM, then SIGKILL after the grace period."""
        if self._popen is None or not self.alive:
            return
        if self._paused:
            self.resume()
        self._popen.terminate()
        try:
            self._popen.wait(grace_seconds)
        except subprocess.TimeoutExpired:
            self.kill()

    def cpu_seconds(self) -> float:
        """User and system time of all threads."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / _CLOCK_TICKS

    def resident_bytes(self) -> int:
        return int(Path(f"/proc/{self.pid}/statm").read_text().split()[1]) * _PAGE_BYTES

    def log_tail(self, lines: int = 30) -> str:
        if not self.log.exists():
            return f"--- {self.name}: no log"
        tail = self.log.read_text(errors="replace").splitlines()[-lines:]
        return "\n".join((f"--- {self.name}: end of {self.log}", *tail))

    def _signal(self, number: signal.Signals) -> None:
        self.check_alive()
        os.kill(self.pid, number)


def environment_as_in_the_image() -> dict[str, str]:
    """For a vramcast that starts as fast as in the image: without the development tools that slow it down."""
    return {"PYTHONPATH": os.pathsep.join(filter(None, (str(_ABSENT), os.environ.get("PYTHONPATH"))))}


def under_host_name(name: str) -> tuple[str, ...]:
    """A command prefix that runs a program with its own host name."""
    return (*_host_name_prefix(), name)


@cache
def _host_name_prefix() -> tuple[str, ...]:
    for options in (("--uts",), ("--user", "--map-root-user", "--uts")):
        command = (
            shutil.which("unshare") or "unshare",
            *options,
            "--",
            "sh",
            "-c",
            '{ hostname "$0" || echo "$0" >/proc/sys/kernel/hostname; } 2>/dev/null && exec "$@"',
        )
        if subprocess.run([*command, "probe", "true"], capture_output=True, check=False).returncode == 0:
            return command
    raise RuntimeError("replicas on one machine need their own host names, but unshare --uts is not allowed here")


@contextmanager
def kubelet(revive: Callable[[], object]) -> Iterator[None]:
    """Calls `revive` all the time: on a machine that is busy enough, a kube-scheduler loses its Lease and exits."""
    over = threading.Event()

    def keep() -> None:
        while not over.wait(0.2):
            revive()

    thread = threading.Thread(target=keep, name="kubelet")
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def free_port() -> int:
    """A loopback port that nothing listens on.

    It is below the ephemeral range. Otherwise an outgoing connection could take the port of a server that a test
    restarts.
    """
    for _ in range(200):
        port = random.SystemRandom().randrange(20_000, 32_000)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise RuntimeError("no free loopback port between 20000 and 32000")
