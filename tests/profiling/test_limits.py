"""torch's own parser reads the limit that bind writes, alone and behind what a pod sets itself."""

from __future__ import annotations

import pytest
import torch

from vramcast.admission.limits import ProcessContext, limit, limit_annotations
from vramcast.settings import Runtime


@pytest.mark.parametrize("own", ["", "expandable_segments:True,", "roundup_power2_divisions:[256:1,512:2,>:4],"])
@pytest.mark.parametrize("need_mib", [600, 10_000, 40_510])
def test_torch_accepts_the_limit(own: str, need_mib: int) -> None:
    limited = limit(need_mib, [40_510], ProcessContext(430, 430), slack=0.1)
    assert limited is not None
    (value,) = limit_annotations(limited, (Runtime.TORCH,)).values()
    torch._C._accelerator_setAllocatorSettings(own + value)


@pytest.mark.parametrize("own", ["", "expandable_segments:True,"])
def test_torch_accepts_a_limit_that_is_empty(own: str) -> None:
    torch._C._accelerator_setAllocatorSettings(own)


def test_torch_refuses_what_it_does_not_know() -> None:
    """Otherwise the tests above would show nothing."""
    with pytest.raises(ValueError, match="Unrecognized key"):
        torch._C._accelerator_setAllocatorSettings("per_process_memory_part:0.5")
