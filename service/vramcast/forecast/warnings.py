"""Warnings of the forecast, which are rare: what writes them is loaded with the first one."""

from __future__ import annotations


def warn(event: str, **facts: str) -> None:
    import structlog  # noqa: PLC0415 - takes as long to load as a forecast takes

    structlog.get_logger("vramcast").warning(event, **facts)
