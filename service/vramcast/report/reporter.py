"""One process's report: measured now and then, and written when it changes and when the process ends."""

from __future__ import annotations

import atexit
import os
import sys
import threading
import time
from multiprocessing.util import Finalize, register_after_fork
from typing import Any

from vramcast.report import devices, message

# A process that is killed leaves what it wrote last. Looks are close together at first: a job that is too large dies
# in its first steps.
_FIRST_LOOK_SECONDS = 0.5
_SECONDS_BETWEEN_LOOKS = 10.0

RUNNING, EXITED, RAISED, OUT_OF_MEMORY = "running", "exited", "raised", "oom"


class Reporter:
    """`_gpus`: the highest figures seen so far, because a job may reset torch's own."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._process = _name_of_process()
        self._main = True
        self._started = time.monotonic()
        self._gpus: dict[str, dict[str, Any]] = {}
        self._steps = Steps()
        self._ended = RUNNING
        self._error: str | None = None
        self._written: dict[str, Any] | None = None
        self._lock = threading.Lock()

    def raised(self, kind: type) -> None:
        names = {base.__name__ for base in kind.__mro__}
        self._ended = OUT_OF_MEMORY if "OutOfMemoryError" in names else RAISED
        self._error = kind.__name__[:64]

    def exited(self) -> None:
        if self._ended == RUNNING:
            self._ended = EXITED
        self.look()

    def look(self) -> None:
        """Measure, and write what is new. Never raises: a report is not worth a job."""
        try:
            with self._lock:
                self._measure()
                facts = self._facts()
                if facts is not None and _changed(facts, self._written):
                    message.add(self._path, self._process, facts)
                    self._written = facts
        except Exception:  # noqa: S110  (there is nobody to tell)
            pass

    def watch(self) -> None:
        """Of a thread that ends with the process."""
        pause = _FIRST_LOOK_SECONDS
        while True:
            time.sleep(pause)
            if self._steps.begin():
                self.look()
                pause = min(2 * pause, _SECONDS_BETWEEN_LOOKS)

    def forked(self) -> None:
        """In a child: its memory is its own, and its parent's thread and lock are gone."""
        Reporter.__init__(self, self._path)
        self._process += " pid " + str(os.getpid())
        self._main = False

    def began_in_multiprocessing(self) -> None:
        """Its children end by os._exit, and atexit does not run there."""
        Finalize(None, self.exited, exitpriority=0)

    def _measure(self) -> None:
        torch = devices.torch_in_use()
        for name, seen in (devices.measure(torch) if torch is not None else {}).items():
            known = self._gpus.setdefault(name, {})
            for figure, value in seen.items():
                known[figure] = max(value, known.get(figure, 0))

    def _facts(self) -> dict[str, Any] | None:
        """None: a child that used no GPU, such as a data loader's worker."""
        if not self._main and not self._gpus:
            return None
        facts = {
            "ended": self._ended,
            "seconds": round(time.monotonic() - self._started, 1),
            "gpus": {name: dict(figures) for name, figures in self._gpus.items()},
            "versions": devices.versions(),
            **self._steps.facts(),
        }
        if self._error is not None:
            facts["error"] = self._error
        return facts


class Steps:
    """Counts the steps of the first optimizer. A GAN has two, and steps with both."""

    def __init__(self) -> None:
        self._counting = False
        self._optimizer: int | None = None
        self._count = 0
        self._first = self._last = 0.0

    def begin(self) -> bool:
        """False until torch is imported. Versions before 2.0 cannot tell of steps."""
        if not self._counting and hasattr(sys.modules.get("torch.optim"), "SGD"):
            self._counting = True
            optimizers = sys.modules.get("torch.optim.optimizer")
            register = getattr(optimizers, "register_optimizer_step_post_hook", None)
            if register is not None:
                register(self._stepped)
        return self._counting

    def _stepped(self, optimizer: Any, *_: Any) -> None:
        if self._optimizer is None:
            self._optimizer = id(optimizer)
        if self._optimizer == id(optimizer):
            now = time.monotonic()
            self._first = self._first or now
            self._last = now
            self._count += 1

    def facts(self) -> dict[str, Any]:
        if not self._count:
            return {}
        elapsed = self._last - self._first
        rate = {"steps_per_second": round((self._count - 1) / elapsed, 3)} if elapsed > 0 else {}
        return {"steps": self._count, **rate}


def _changed(facts: dict[str, Any], written: dict[str, Any] | None) -> bool:
    """Time and steps alone are not worth a write."""
    return written is None or any(facts.get(key) != written.get(key) for key in ("ended", "gpus", "error"))


def _name_of_process() -> str:
    rank = os.environ.get("RANK", "")
    return "rank " + rank if rank.isdigit() else "pid " + str(os.getpid())


_reporter: Reporter | None = None


def start() -> None:
    """Once per process, however often it is imported. Does nothing outside of Kubernetes."""
    global _reporter  # noqa: PLW0603  (the process has one)
    path = message.path_of_message()
    if _reporter is not None or path is None:
        return
    reporter = _reporter = Reporter(path)
    _watch_exceptions(reporter)
    atexit.register(reporter.exited)
    os.register_at_fork(after_in_child=reporter.forked)
    register_after_fork(reporter, Reporter.began_in_multiprocessing)
    threading.Thread(target=reporter.watch, name="vramcast-report", daemon=True).start()


def _watch_exceptions(reporter: Reporter) -> None:
    before = sys.excepthook

    def hook(kind: Any, error: Any, traceback: Any) -> None:
        reporter.raised(kind)
        before(kind, error, traceback)

    sys.excepthook = hook
