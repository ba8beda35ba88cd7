"""The end of a burst: no pending pod has a GPU with room."""

from __future__ import annotations

from .eventually import PATIENCE_SECONDS, eventually
from .history import History
from .recorder import Recorder


def await_rest(recorder: Recorder, reserve_bytes: int, timeout_seconds: float = PATIENCE_SECONDS) -> History:
    """Waits until no pending pod has a GPU with room. `reserve_bytes` is the driver's reserve on each GPU."""

    def at_rest() -> History | None:
        history = recorder.sync()
        waiting = history.final().pending_that_fit(lambda pod: (pod.asked_bytes or 0) + reserve_bytes)
        assert not waiting, f"{len(waiting)} pending pods have room: {dict(list(waiting.items())[:3])}"
        return history

    history: History = eventually(at_rest, timeout_seconds, "every pod that fits to be bound")
    return history
