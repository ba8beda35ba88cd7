"""What an older version of transformers did otherwise, from a tape of today's."""

from __future__ import annotations

from dataclasses import dataclass

from vramcast.forecast.older_cache import CACHE, KEEPS_NO_CACHE, with_older_cache
from vramcast.forecast.older_loss import LOSS, NEXT_TOKEN, NOT_UPCAST, SHIFTS_LABELS, with_older_loss
from vramcast.forecast.recording import Recording
from vramcast.forecast.tape import Tape
from vramcast.task.framework import FSDP, TRANSFORMERS, is_older, runs_with
from vramcast.task.task import Task
from vramcast.task.vocabulary import Precision, Quantization


@dataclass(frozen=True, slots=True)
class Older:
    loss: bool  # with a copy of the logits
    upcasts: bool  # and all of them in fp32
    kept_elements: int  # of each token, in each block that is checkpointed; 0: none

    @property
    def notes(self) -> tuple[str, ...]:
        version = ".".join(map(str, SHIFTS_LABELS))
        loss = (f"the loss as transformers computed it before {version}, with a copy of the logits",) * self.loss
        version = ".".join(map(str, KEEPS_NO_CACHE))
        return loss + (f"checkpointed blocks keep a cache, as in transformers before {version}",) * bool(
            self.kept_elements
        )

    def steps(self, tape: Tape, batch: int, length: int) -> Tape:
        if self.loss:
            tape = with_older_loss(tape, length, upcasts=self.upcasts)
        return with_older_cache(tape, batch * length, self.kept_elements) if self.kept_elements else tape


def older_libraries(recording: Recording, task: Task) -> Older | None:
    """None: the task says no version, or one that does what was recorded."""
    predicts = recording.info.get(LOSS, "")
    loss = predicts.startswith(NEXT_TOKEN) and is_older(task.framework, TRANSFORMERS, SHIFTS_LABELS)
    kept = _kept_elements(recording)
    keeps = kept > 0 and task.gradient_checkpointing and is_older(task.framework, TRANSFORMERS, KEEPS_NO_CACHE)
    if not (loss or keeps):
        return None
    return Older(loss, predicts != NOT_UPCAST or _loss_in_fp32(task), kept if keeps else 0)


def _kept_elements(recording: Recording) -> int:
    """0 for text that is no number: anybody can edit a profile."""
    text = recording.info.get(CACHE, "")
    return int(text) if text.isdecimal() and len(text) < 10 else 0


def _loss_in_fp32(task: Task) -> bool:
    """Whatever the network does with its logits: in fp32 itself, and under autocast, which computes every loss so.

    Autocast is what AMP is, what quantized networks are trained under, and what goes with FSDP's fp32 copies. Those
    copies are added to a recording of 16-bit steps, so the recording itself was made without it
    (`_autocasts_16_bits` in `profile/recording/network.py`).
    """
    fsdp_mixed = task.zero_stage > 0 and task.master_weights and runs_with(task.framework, FSDP)
    pure_16_bits = task.precision in (Precision.BF16, Precision.FP16) and task.quantization is Quantization.NONE
    return fsdp_mixed or not pure_16_bits
