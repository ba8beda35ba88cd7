"""Denoisers of the catalog: one recording over the number of latents answers every size, and says how it was made."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from math import prod

import numpy as np
import pytest

from vramcast.forecast.peaks import peaks
from vramcast.forecast.recording import Recording
from vramcast.forecast.sizes import Point, Variable
from vramcast.forecast.tape import Role, Tape
from vramcast.profile.inputs import Inputs
from vramcast.profile.networks.denoising import Denoiser, denoiser_source
from vramcast.profile.networks.diffusion_images import _prompted, _sd3_batch, _unet_batch
from vramcast.profile.networks.diffusion_videos import _cog_batch
from vramcast.profile.recording.network import NetworkSteps
from vramcast.profile.recording_models import denoiser_settings, record_denoiser_variant
from vramcast.profile.sources import ModelSource

LORA, QUANTIZED, FULL = "16-bit attention lora checkpointed", "16-bit int8 attention lora", "16-bit full"
BLOCKS = 9
_SD3 = {
    "sample_size": 32, "patch_size": 2, "in_channels": 16, "out_channels": 16, "num_layers": BLOCKS,
    "attention_head_dim": 16, "num_attention_heads": 4, "joint_attention_dim": 32, "caption_projection_dim": 64,
    "pooled_projection_dim": 24, "pos_embed_max_size": 192,
}  # fmt: skip
SD3 = Denoiser("SD3Transformer2DModel", _SD3, _sd3_batch, (16, 32, 32))
_COG = {
    "num_attention_heads": 2, "attention_head_dim": 64, "num_layers": BLOCKS, "in_channels": 16, "out_channels": 16,
    "text_embed_dim": 4096, "time_embed_dim": 16, "use_rotary_positional_embeddings": True,
}  # fmt: skip
COG = Denoiser("CogVideoXTransformer3DModel", _COG, _cog_batch, (16, 5, 16, 24))
_UNET = {
    "cross_attention_dim": 32, "block_out_channels": [32, 64], "layers_per_block": 1, "attention_head_dim": 8,
    "down_block_types": ["CrossAttnDownBlock2D", "DownBlock2D"], "up_block_types": ["UpBlock2D", "CrossAttnUpBlock2D"],
}  # fmt: skip
UNET = Denoiser("UNet2DConditionModel", _UNET, partial(_unet_batch, 77), (4, 64, 64), rows=64, width=8, blocks="")


def source(denoiser: Denoiser) -> ModelSource:
    return denoiser_source("tiny", denoiser)


def recording(model: ModelSource, variant: str) -> Recording:
    assert model.latents is not None
    return record_denoiser_variant(model.latents, model, variant)


def point(recorded: Recording, batch: int, latents: int, rank: int = 12) -> Point:
    given = {Variable.BATCH: batch, Variable.LENGTH: latents, Variable.RANK: rank}
    return {variable: given[variable] for variable in recorded.variables}


def fresh(model: ModelSource, denoiser: Denoiser, variant: str, batch: int, shape: tuple[int, ...]) -> Tape:
    """The whole network at this very shape."""
    inputs = Inputs(shapes=(shape,), make=lambda samples: denoiser.batch(denoiser.config, samples, shape))
    settings = denoiser_settings(variant)
    steps = NetworkSteps(partial(model.make, model.base), inputs, settings)
    rank = {} if settings.lora_rank is None else {Variable.RANK: 12}
    return steps.tape({Variable.BATCH: batch, **rank})


@pytest.mark.parametrize(
    ("denoiser", "shape", "variant"),
    [(SD3, (16, 48, 80), QUANTIZED), (COG, (16, 4, 40, 24), LORA), (UNET, (4, 48, 96), FULL)],
    ids=["an image of a transformer", "a video", "an image of a U-Net"],
)
def test_a_recording_by_latents_is_that_of_any_shape(denoiser: Denoiser, shape: tuple[int, ...], variant: str) -> None:
    model = source(denoiser)
    recorded = recording(model, variant)
    told, true = recorded.at(point(recorded, 3, prod(shape[1:]))), fresh(model, denoiser, variant, 3, shape)
    mine, right = peaks(told.tape), peaks(true)
    assert mine.active_bytes == pytest.approx(right.active_bytes, rel=0.005)
    assert mine.reserved_bytes == pytest.approx(right.reserved_bytes, rel=0.02)


def test_a_denoiser_of_equal_blocks_is_stretched_to_the_steps_of_the_whole() -> None:
    """Event by event. What attention pads is told nearly: it depends on the prompt's tokens too."""
    model = source(SD3)
    recorded = recording(model, LORA)
    shape = (16, 32, 96)
    told = recorded.at(point(recorded, 4, prod(shape[1:]))).tape
    true = fresh(model, SD3, LORA, 4, shape)
    assert np.array_equal(told.events, true.events)
    assert told.sizes == pytest.approx(true.sizes, rel=0.02)
    assert peaks(told).active_bytes == peaks(true).active_bytes


def test_adapters_of_a_denoiser_have_the_number_format_of_its_base() -> None:
    recorded = recording(source(SD3), LORA)
    trained = 12 * 64 * 2 * 2 * (8 * BLOCKS - 1)  # matrices of 64 x 12, in 16 bits; the last block adds no text
    tape = recorded.at(point(recorded, 2, 1024)).tape
    assert int(tape.sizes[tape.roles == Role.GRADIENT].sum()) <= trained + 512 * 16 * BLOCKS * 2
    assert (recorded.info["adapters"], recorded.info["length"]) == ("16-bit", "latents")


def test_int8_weights_of_a_denoiser_take_half_of_16_bits() -> None:
    plain, quantized = (recording(source(SD3), variant) for variant in ("16-bit attention lora", QUANTIZED))
    weights = []
    for recorded in (plain, quantized):
        tape = recorded.at(point(recorded, 2, 1024)).tape
        weights.append(int(tape.sizes[tape.roles == Role.FROZEN].sum()))
    assert 0.5 < weights[1] / weights[0] < 0.55


def test_a_strip_has_as_many_latents_as_were_asked_for() -> None:
    for denoiser in (SD3, COG, UNET, replace(COG, depth=2)):
        latents = source(denoiser).latents
        assert latents is not None
        for count in (latents.low, latents.low + latents.step, latents.high):
            assert prod(latents.at(count).shapes[0][1:]) == count


def test_prompts_are_part_of_every_batch() -> None:
    batch = _prompted(12, 8, lambda samples: {"more": samples}, {}, 3, (4, 8, 8))
    assert batch["encoder_hidden_states"].shape == (3, 12, 8)
    assert batch["more"] == 3
