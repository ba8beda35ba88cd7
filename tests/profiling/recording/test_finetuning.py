"""LoRA, frozen bases in few bits and fused kernels keep what PEFT, bitsandbytes, AutoGPTQ and Liger keep."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from tests.profiling.recording.networks import LAYERS, VOCABULARY, WIDTH, Tower, llama, sequences, tokens
from tests.profiling.recording.reading import bytes_of, made_between, marked, peak_bytes
from vramcast.forecast.tape import Moment, Role, Tape
from vramcast.profile.recording.errors import Unrecordable
from vramcast.profile.recording.record import prepared, record_model
from vramcast.profile.recording.settings import RunSettings
from vramcast.task.vocabulary import Attention, Kernels, LoraTargets, Optimizer, Precision, Quantization

RANK, TOKENS = 8, 4 * 32
KEYS = WIDTH // 2  # two of four heads have keys and values
INNER = 2 * WIDTH
ATTENTION = RANK * (2 * (WIDTH + WIDTH) + 2 * (WIDTH + KEYS))  # query and output; keys and values
ALL_LINEAR = ATTENTION + RANK * 3 * (WIDTH + INNER)


def lora(**fields: Any) -> RunSettings:
    given = {"precision": Precision.BF16, "attention": Attention.FLASH, "lora_rank": RANK, **fields}
    return RunSettings(**given)


def between(tape: Tape, begin: Moment, end: Moment) -> list[int]:
    return made_between(tape, marked(tape, begin)[-1], marked(tape, end)[-1])


def parts(build: Any, settings: RunSettings) -> dict[str, nn.Module]:
    with torch.device("meta"):
        return dict(prepared(build(), settings)[0].named_modules())


@pytest.mark.parametrize(
    ("targets", "adapted"),
    [
        (LoraTargets.QV, RANK * (2 * WIDTH + WIDTH + KEYS)),
        (LoraTargets.ATTENTION, ATTENTION),
        (LoraTargets.ALL_LINEAR, ALL_LINEAR),
        ("down_proj", RANK * (WIDTH + INNER)),
        ("q_proj, up_proj", RANK * (2 * WIDTH + WIDTH + INNER)),
    ],
)
def test_only_the_adapters_of_the_targets_are_trained_in_32_bits(targets: str, adapted: int) -> None:
    tape = record_model(llama, tokens(), lora(lora_targets=targets, optimizer=Optimizer.ADAMW))
    assert bytes_of(tape, Role.WEIGHT) == LAYERS * adapted * 4
    assert bytes_of(tape, Role.GRADIENT) == 3 * LAYERS * adapted * 4
    assert bytes_of(tape, Role.STATE) == 2 * LAYERS * adapted * 4
    assert bytes_of(tape, Role.FROZEN) == 2 * sum(weight.numel() for weight in llama().parameters())


def test_an_adapter_keeps_its_input_in_32_bits_and_a_byte_for_dropout() -> None:
    plain = record_model(llama, tokens(), lora(lora_dropout=0.0, lora_targets="q_proj"))
    dropped = record_model(llama, tokens(), lora(lora_dropout=0.1, lora_targets="q_proj"))
    assert between(plain, Moment.FORWARD, Moment.BACKWARD).count(TOKENS * WIDTH * 4) >= LAYERS
    masks = between(dropped, Moment.FORWARD, Moment.BACKWARD).count(TOKENS * WIDTH)
    assert masks - between(plain, Moment.FORWARD, Moment.BACKWARD).count(TOKENS * WIDTH) == LAYERS


def test_targets_that_the_network_does_not_have_are_refused_with_names_that_it_has() -> None:
    with pytest.raises(Unrecordable, match=r"qqq_proj: the network has no such linear layer.* q_proj"):
        record_model(llama, tokens(), lora(lora_targets="qqq_proj"))


def test_gradients_reach_the_first_adapter_through_checkpointed_blocks() -> None:
    for reentrant in (True, False):
        tape = record_model(llama, tokens(), lora(gradient_checkpointing=True, reentrant=reentrant))
        gradients = {int(unit) for unit in tape.units[tape.roles == Role.GRADIENT]}
        assert gradients == {1, 2, 3}, reentrant


LINEAR = LAYERS * (WIDTH * (2 * WIDTH + 2 * KEYS) + 3 * WIDTH * INNER)
REST = 2 * VOCABULARY * WIDTH + (2 * LAYERS + 1) * WIDTH  # embedding, head and norms
LAYERS_PER_BLOCK = 7
WIDTHS = LAYERS * (6 * WIDTH + INNER)
OUTPUTS = LAYERS * (3 * WIDTH + 2 * KEYS + 2 * INNER)


def nf4_bytes() -> int:
    scales = LINEAR // 64
    nested = LAYERS * sum(-(-size // 64 // 256) for size in (4096, 2048, 2048, 4096, 8192, 8192, 8192))
    return LINEAR // 2 + scales + 4 * nested + LAYERS * LAYERS_PER_BLOCK * 4 * (256 + 16 + 1)


@pytest.mark.parametrize(
    ("kind", "quantized"),
    [
        (Quantization.NF4, nf4_bytes()),
        (Quantization.INT8, LINEAR + 4 * OUTPUTS),
        (Quantization.INT4, LINEAR // 2 + OUTPUTS // 8 * 4 + OUTPUTS * 2 + WIDTHS * 4),  # one group of at most 128
    ],
)
def test_a_frozen_base_takes_the_bytes_of_its_format(kind: Quantization, quantized: int) -> None:
    tape = record_model(llama, tokens(), lora(quantization=kind))
    assert bytes_of(tape, Role.FROZEN) == quantized + 2 * REST


def test_upcasting_puts_embeddings_norms_and_head_into_32_bits() -> None:
    tape = record_model(llama, tokens(), lora(quantization=Quantization.NF4, upcast=True))
    assert bytes_of(tape, Role.FROZEN) == nf4_bytes() + 4 * REST


def test_nf4_weights_appear_in_16_bits_in_forward_and_backward_and_gptq_weights_never() -> None:
    wide = lambda: llama(intermediate_size=40 * WIDTH)  # noqa: E731
    weight_bytes = 40 * WIDTH * WIDTH * 2
    for kind, times in ((Quantization.NF4, 3), (Quantization.INT4, 0)):
        tape = record_model(wide, tokens(1, 8), lora(quantization=kind))
        for begin, end in ((Moment.FORWARD, Moment.BACKWARD), (Moment.BACKWARD, Moment.UPDATE)):
            assert between(tape, begin, end).count(weight_bytes) == times * LAYERS, (kind, begin)


def test_int8_sums_in_32_bit_integers_and_backward_needs_the_weight_in_16_bits() -> None:
    wide = lambda: llama(intermediate_size=40 * WIDTH)  # noqa: E731
    tape = record_model(wide, tokens(1, 8), lora(quantization=Quantization.INT8))
    assert between(tape, Moment.FORWARD, Moment.BACKWARD).count(8 * 40 * WIDTH * 4) >= 2 * LAYERS
    assert between(tape, Moment.BACKWARD, Moment.UPDATE).count(40 * WIDTH * WIDTH * 2) == 3 * LAYERS


def test_adapters_beside_a_quantized_base_are_in_32_bits() -> None:
    tape = record_model(llama, tokens(), lora(quantization=Quantization.NF4))
    assert bytes_of(tape, Role.WEIGHT) == LAYERS * ATTENTION * 4


def test_fused_norms_keep_their_input_and_one_number_a_row() -> None:
    build = lambda: llama(intermediate_size=3 * WIDTH, vocab_size=100)  # noqa: E731
    plain = record_model(build, tokens(), RunSettings(Precision.BF16, attention=Attention.FLASH))
    fused = record_model(build, tokens(), RunSettings(Precision.BF16, attention=Attention.FLASH, kernels=Kernels.FUSED))
    assert between(plain, Moment.FORWARD, Moment.BACKWARD).count(TOKENS * WIDTH * 4) > 2 * LAYERS
    assert between(fused, Moment.FORWARD, Moment.BACKWARD).count(TOKENS * WIDTH * 4) == 0
    assert bytes_of(fused, Role.SAVED) < bytes_of(plain, Role.SAVED)


def test_the_fused_loss_writes_its_gradient_over_the_logits() -> None:
    large = lambda: llama(vocab_size=8192)  # noqa: E731
    tape = record_model(large, tokens(), RunSettings(kernels=Kernels.FUSED, attention=Attention.FLASH))
    logits = TOKENS * 8192 * 4
    assert between(tape, Moment.FORWARD, Moment.BACKWARD).count(logits) == 1
    assert between(tape, Moment.BACKWARD, Moment.UPDATE).count(logits) == 0


def test_ligers_loss_never_has_the_logits_of_all_tokens() -> None:
    large = lambda: llama(vocab_size=8192)  # noqa: E731
    tape = record_model(large, tokens(), RunSettings(kernels=Kernels.LIGER, attention=Attention.FLASH))
    assert max(between(tape, Moment.FORWARD, Moment.UPDATE)) < TOKENS * 8192 * 4
    assert bytes_of(tape, Role.GRADIENT) == 3 * bytes_of(tape, Role.WEIGHT)


def test_fused_kernels_train_the_same_weights() -> None:
    for kernels in Kernels:
        tape = record_model(llama, tokens(), RunSettings(kernels=kernels, attention=Attention.FLASH))
        assert bytes_of(tape, Role.GRADIENT) == 3 * bytes_of(tape, Role.WEIGHT), kernels


def test_each_saving_lowers_the_peak() -> None:
    full = record_model(llama, tokens(16, 64), RunSettings(Precision.BF16, optimizer=Optimizer.ADAMW))
    adapted = record_model(llama, tokens(16, 64), lora(optimizer=Optimizer.ADAMW, gradient_checkpointing=True))
    liger = record_model(
        llama, tokens(16, 64), lora(optimizer=Optimizer.ADAMW, gradient_checkpointing=True, kernels=Kernels.LIGER)
    )
    assert peak_bytes(full) > peak_bytes(adapted) > peak_bytes(liger)


def test_a_network_of_no_library_can_be_adapted_by_the_names_of_its_layers() -> None:
    tape = record_model(Tower, sequences(), RunSettings(lora_rank=RANK, lora_targets="project"))
    assert bytes_of(tape, Role.WEIGHT) == LAYERS * RANK * (WIDTH + 3 * WIDTH) * 4


def test_the_head_is_neither_quantized_nor_adapted() -> None:
    found = parts(llama, lora(lora_targets=LoraTargets.ALL_LINEAR, quantization=Quantization.NF4))
    assert type(found["lm_head"]) is nn.Linear
