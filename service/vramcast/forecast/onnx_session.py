"""A trained graph, as the service runs it."""

from __future__ import annotations

from pathlib import Path
from typing import Any


def open_session(model: Path | bytes) -> Any:
    """`model`: better its path, because a session keeps the bytes that it was made from."""
    import onnxruntime  # noqa: PLC0415 - takes a fifth of a second, and what a recording answers does without

    options = onnxruntime.SessionOptions()
    # Forecasts run one row at a time: more threads would only wait for each other.
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
