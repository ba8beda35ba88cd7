"""Everything that makes another device behave like CUDA while a step is recorded, composed in one place."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from vramcast.profile.recording.attention import cuda_attention
from vramcast.profile.recording.autocast import cuda_autocast
from vramcast.profile.recording.kernels import cuda_kernels
from vramcast.profile.recording.libraries import libraries_without_values
from vramcast.profile.recording.optimizers import cuda_optimizers


@contextmanager
def like_cuda(device: str) -> Iterator[None]:
    with ExitStack() as stack:
        for emulated in (cuda_kernels, cuda_attention, cuda_optimizers, cuda_autocast, libraries_without_values):
            stack.enter_context(emulated(device))
        yield


@contextmanager
def collecting_at_steps() -> Iterator[None]:
    """Python's collector runs when `collect` is called and never between, or two recordings would differ.

    What exists before is frozen, so that collecting looks only at what the recording made.
    """
    enabled = gc.isenabled()
    gc.disable()
    gc.freeze()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        gc.unfreeze()
        if enabled:
            gc.enable()


def collect() -> None:
    gc.collect()
