"""The older loss that is made from a recording is the one that transformers had."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from tests.profiling.recording.networks import llama
from vramcast.forecast.older_loss import with_older_loss
from vramcast.forecast.peaks import AllocatorSettings, peaks
from vramcast.forecast.tape import Tape
from vramcast.profile.recording.record import record_model
from vramcast.profile.recording.settings import RunSettings
from vramcast.task.vocabulary import Precision

BATCH, TOKENS, VOCABULARY = 32, 64, 32_000


def wide() -> nn.Module:
    return llama(vocab_size=VOCABULARY)


def today(model: Any, ids: Tensor) -> Tensor:
    return model(input_ids=ids, labels=ids).loss  # type: ignore[no-any-return]


def before_4_46(model: Any, ids: Tensor) -> Tensor:
    logits = model(input_ids=ids).logits.float()
    shifted = logits[..., :-1, :].contiguous()
    return functional.cross_entropy(shifted.view(-1, VOCABULARY), ids[..., 1:].contiguous().view(-1))


@pytest.mark.parametrize("precision", [Precision.FP32, Precision.BF16, Precision.AMP_BF16])
def test_it_takes_what_the_library_took(precision: Precision) -> None:
    def tape(loss: Any) -> Tape:
        return record_model(wide, lambda: (torch.zeros(BATCH, TOKENS, dtype=torch.long), loss), RunSettings(precision))

    now = tape(today)
    tapes = (now, with_older_loss(now, TOKENS), tape(before_4_46))
    made, recorded = (peaks(one, AllocatorSettings()) for one in tapes[1:])
    assert made.active_bytes == pytest.approx(recorded.active_bytes, rel=0.005)
    assert made.reserved_bytes == pytest.approx(recorded.reserved_bytes, rel=0.005)
    copies_bytes = tapes[1].sizes.sum() - now.sizes.sum()
    assert copies_bytes > 3 * 2 * 0.9 * BATCH * TOKENS * VOCABULARY * 4  # two in each of three steps
