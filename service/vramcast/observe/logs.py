"""Logs: one line per decision, as JSON or, on a terminal, as coloured text."""

from __future__ import annotations

import logging
import sys
from typing import Any

import msgspec
import structlog

from vramcast.settings import LogFormat, LogLevel


def configure_logs(log_format: LogFormat, level: LogLevel) -> None:
    """Logs go to standard error, because standard output is for results."""
    as_json = log_format is LogFormat.JSON or (log_format is LogFormat.AUTO and not sys.stderr.isatty())
    shared: list[Any] = [
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    renderers: list[Any] = (
        [structlog.processors.dict_tracebacks, structlog.processors.JSONRenderer(serializer=_to_json)]
        if as_json
        else [_console_renderer()]
    )
    structlog.configure(
        processors=shared + renderers,
        wrapper_class=structlog.make_filtering_bound_logger(getattr(logging, level.upper())),
        logger_factory=structlog.BytesLoggerFactory(sys.stderr.buffer)
        if as_json
        else structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )
    root = logging.getLogger()
    root.handlers = [_ToStructlog()]
    root.setLevel(logging.WARNING)


def _console_renderer() -> structlog.dev.ConsoleRenderer:
    return structlog.dev.ConsoleRenderer(
        colors=sys.stderr.isatty(), pad_event_to=10, exception_formatter=structlog.dev.plain_traceback
    )


def _to_json(event: Any, **_options: Any) -> bytes:
    return msgspec.json.encode(event, enc_hook=str)


class _ToStructlog(logging.Handler):
    """Sends the standard library's log records, as other libraries write them, to structlog."""

    def emit(self, record: logging.LogRecord) -> None:
        name = logging.getLevelName(record.levelno).lower()
        write = getattr(structlog.get_logger("vramcast"), name, None)
        if write is not None:
            write(record.getMessage(), logger=record.name)
