"""Networks that need more than a class and its arguments."""

from __future__ import annotations

from bench.profiles.drawing import Drawn
from torch import nn

from vramcast.profile.inputs import Inputs
from vramcast.profile.recording.settings import RunSettings
from vramcast.profile.sources import ModelSource, all_sources
from vramcast.task.vocabulary import Precision


def sdxl_unet() -> nn.Module:
    name = "diffusers/stable-diffusion-xl-base-1.0"
    source = next(source for source in all_sources() if source.name == name)
    return source.make(source.base)


_TOKENS, _WINDOW = 4096, 1024


def windowed() -> Drawn:
    """A language model whose window is shorter than the recorded lengths: its mask is made for the longer ones only."""
    source = ModelSource(
        "hf/a small Mistral with a window of 1,024", _windowed, lambda tokens: Inputs(sequence_length=tokens), _TOKENS,
        (), tokens=True,
    )  # fmt: skip
    return Drawn(source, RunSettings(precision=Precision.BF16))


def _windowed(_tokens: int) -> nn.Module:
    import transformers  # noqa: PLC0415  # slow

    config = transformers.MistralConfig(
        num_hidden_layers=4, sliding_window=_WINDOW, hidden_size=1024, num_attention_heads=8, num_key_value_heads=2,
        intermediate_size=3584, max_position_embeddings=32768,
    )  # fmt: skip
    model: nn.Module = transformers.MistralForCausalLM(config)
    return model
