"""The result of `vramcast profile`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from vramcast.forecast.report import ProductReport
from vramcast.forecast.summary import Summary
from vramcast.profile.profiling import Traced


@dataclass(frozen=True, slots=True)
class ProfiledLoop:
    """Of a user's own loop; arguments by the names that its function gives them."""

    optimizer: str
    trained_parameters: int
    usual: Mapping[str, int]
    fixed: Mapping[str, str]  # arguments that the recording cannot vary, and why
    answers: str


@dataclass(frozen=True, slots=True)
class Profiled:
    summary: Summary
    annotations: dict[str, str]
    summary_annotations: dict[str, str]
    reports: list[ProductReport]
    traced: Traced | None = None
    loop: ProfiledLoop | None = None
    why_no_trace: str = ""
    why_no_recording: str = ""
