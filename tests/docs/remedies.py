"""The table of reasons in docs/troubleshooting.md. Its words come from the code."""

from __future__ import annotations

from vramcast.placement.reasons import Reason, reason_text
from vramcast.placement.remedies import REMEDIES

_NEED_MIB = 53_350


def reasons_table() -> str:
    rows = (f"| {_shown(reason)} | {REMEDIES[reason]} |" for reason in Reason if reason is not Reason.FITS)
    return "\n".join(["| reason | what to do |", "|---|---|", *rows, ""])


def _shown(reason: Reason) -> str:
    if reason is Reason.INVALID_TASK:
        return "`task description: …`"
    return f"`{reason_text(reason, _NEED_MIB, 2 if reason is Reason.TOO_FEW_GPUS else 1, 'nvidia.com/gpu')}`"
