"""Why a step could not be recorded, with what to do instead."""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from contextlib import contextmanager

from vramcast.errors import InvalidInput


class Unrecordable(InvalidInput):
    """The step cannot be recorded; the message says why, and what to use instead."""


class NeedsValues(Unrecordable):
    """The step looks at values, which the meta device does not have: record it on the CPU."""


class NeedsGpu(Unrecordable):
    """The step calls something that exists on a GPU only."""


class NeedsOneGpu(Unrecordable):
    """The function starts a process group, which a recording of one GPU does not have."""


class NoBackward(Unrecordable):
    """Nothing in the step can be differentiated."""


class TooManyEvents(Unrecordable):
    """The step allocates more often than a recording may hold."""


_VALUES = (
    "meta tensors", "_local_scalar_dense", "data-dependent", "aten::nonzero", "torch.nonzero", "aten::equal",
    "is_nonzero", "meta tensor", "aten::item", "unique", "masked_select", "bincount",
)  # fmt: skip
_GPU = ("cuda", "nvidia", "triton", "gpu", "flash_attn", "no kernel image", "bitsandbytes", "nccl")
_NO_BACKWARD = ("does not require grad", "must implement either the backward", "derivative for", "not differentiable")
_OURS = ("/torch/", "/vramcast/profile/recording/")


@contextmanager
def explained() -> Iterator[None]:
    """Translates what a network or loop raises while it is recorded."""
    try:
        yield
    except InvalidInput:
        raise
    except SystemExit as error:
        raise Unrecordable(
            f"{_where(error)} ends the program (exit code {error.code}): what is recorded must not parse the "
            "command line or exit"
        ) from error
    except Exception as error:
        raise _explanation(error) from error


def _explanation(error: Exception) -> Unrecordable:
    text, where = _first_line(error), _where(error)
    if any(words in text for words in _NO_BACKWARD):
        return NoBackward(
            f"{where} has no backward pass ({text}): train at least one weight outside of no_grad and detach, and give "
            "custom functions a backward"
        )
    if any(word in text.lower() for word in _VALUES) and "expected all tensors to be on the same device" not in text:
        return NeedsValues(
            f"{where} looks at the values of a tensor ({text}), and a recording without a GPU has only shapes: pad to "
            "fixed shapes, read values outside of the network's forward pass, or describe the task by parameters and "
            "activations"
        )
    if isinstance(error, NotImplementedError | ImportError) or any(word in text.lower() for word in _GPU):
        return NeedsGpu(
            f"{where} needs a GPU or a kernel that is not here ({text}): record a version without it, give a "
            "custom operator its shapes with torch.library.register_fake, or measure one run and set gpu-memory"
        )
    return Unrecordable(
        f"{where} failed while a step was recorded ({text}): check that it runs, or describe the task by parameters "
        "and activations"
    )


def _first_line(error: Exception) -> str:
    text = str(error).strip().split("\n", maxsplit=1)[0][:300]
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _where(error: BaseException) -> str:
    """The innermost line of the network or loop itself, not of torch or of the recorder."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if not any(part in frame.filename for part in _OURS)]
    return f"{own[-1].filename}:{own[-1].lineno}" if own else "the step"
