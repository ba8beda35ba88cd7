"""Mixtures of experts with even routes, and inference with a key-value cache."""

from __future__ import annotations

import pytest
import transformers
from torch import nn

from tests.profiling.recording.networks import HEADS, LAYERS, VOCABULARY, WIDTH, llama, tokens
from tests.profiling.recording.reading import bytes_of, live_bytes, made_between, marked
from vramcast.forecast.tape import Moment, Role
from vramcast.profile.recording.generation import generation
from vramcast.profile.recording.record import record_model
from vramcast.profile.recording.settings import RunSettings
from vramcast.task.vocabulary import Attention, Precision, Quantization

EXPERTS, CHOSEN, INNER = 4, 2, 96


def mixtral() -> nn.Module:
    return transformers.MixtralForCausalLM(
        transformers.MixtralConfig(
            vocab_size=VOCABULARY, hidden_size=WIDTH, num_hidden_layers=LAYERS, num_attention_heads=HEADS,
            num_key_value_heads=2, intermediate_size=INNER, num_local_experts=EXPERTS, num_experts_per_tok=CHOSEN,
            use_cache=False,
        )
    )  # fmt: skip


def test_experts_are_recorded_without_values_and_all_get_gradients() -> None:
    tape = record_model(mixtral, tokens(), RunSettings())
    assert bytes_of(tape, Role.WEIGHT) == 4 * sum(weight.numel() for weight in mixtral().parameters())
    assert bytes_of(tape, Role.GRADIENT) == 3 * bytes_of(tape, Role.WEIGHT)
    assert {int(unit) for unit in tape.units[tape.roles == Role.WEIGHT]} == {0, 1, 2, 3}


def test_quantized_experts_are_unpacked_one_at_a_time_for_an_even_share_of_the_tokens() -> None:
    settings = RunSettings(
        Precision.BF16, attention=Attention.FLASH, quantization=Quantization.NF4, lora_rank=8, lora_targets="q_proj"
    )
    tape = record_model(mixtral, tokens(4, 40), settings)
    forward = made_between(tape, marked(tape, Moment.FORWARD)[-1], marked(tape, Moment.BACKWARD)[-1])
    assert forward.count(WIDTH * INNER * 2) == 3 * EXPERTS * LAYERS
    assert forward.count(4 * 40 * CHOSEN // EXPERTS * INNER * 2) >= 3 * EXPERTS * LAYERS
    assert {int(unit) for unit in tape.units[tape.roles == Role.FROZEN]} == {0, 1, 2, 3}


@pytest.mark.parametrize("length", [16, 64])
def test_generation_holds_keys_and_values_of_every_token(length: int) -> None:
    samples = 2
    tape = record_model(llama, lambda: generation(samples, length), RunSettings(inference=True))
    cache = 2 * LAYERS * samples * 2 * length * (WIDTH // HEADS) * 4
    loaded = bytes_of(tape, Role.FROZEN) + bytes_of(tape, Role.BUFFER)
    assert live_bytes(tape).max() >= loaded + cache
    last = made_between(tape, marked(tape, Moment.FORWARD)[-1], marked(tape, Moment.END)[-1])
    assert last.count(cache // (2 * LAYERS)) >= 2 * LAYERS
    assert not bytes_of(tape, Role.SAVED)


def test_generation_needs_a_prompt() -> None:
    with pytest.raises(ValueError, match="at least one token"):
        generation(1, 1)
