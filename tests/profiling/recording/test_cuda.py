"""The meta device does what CUDA does."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from tests.profiling.recording.networks import HEADS, LAYERS, WIDTH, Tower, llama, sequences, tokens
from tests.profiling.recording.reading import bytes_of, made_between, marked, peak_bytes
from vramcast.forecast.tape import Moment, Role, Tape
from vramcast.profile.recording.emulation import like_cuda
from vramcast.profile.recording.record import record_model
from vramcast.profile.recording.settings import RunSettings
from vramcast.task.vocabulary import Attention, Optimizer, Precision

SAMPLES, LENGTH = 4, 32


def forward_sizes(tape: Tape) -> list[int]:
    """Sizes made in the last forward pass."""
    return made_between(tape, marked(tape, Moment.FORWARD)[-1], marked(tape, Moment.BACKWARD)[-1])


def saved_once(tape: Tape) -> int:
    return bytes_of(tape, Role.SAVED) // 3


@pytest.mark.parametrize("attention", [Attention.FLASH, Attention.SDPA])
@pytest.mark.parametrize("precision", [Precision.FP32, Precision.BF16])
def test_fused_attention_writes_no_matrices(attention: Attention, precision: Precision) -> None:
    tape = record_model(Tower, sequences(2, 256), RunSettings(precision=precision, attention=attention))
    assert max(forward_sizes(tape)) < 2 * HEADS * 256 * 256 * 2


def test_eager_attention_writes_its_matrices() -> None:
    eager = record_model(llama, tokens(SAMPLES, 48), RunSettings(attention=Attention.EAGER))
    fused = record_model(llama, tokens(SAMPLES, 48), RunSettings(attention=Attention.FLASH))
    matrix_bytes = SAMPLES * HEADS * 48 * 48 * 4
    assert forward_sizes(eager).count(matrix_bytes) >= LAYERS * 2
    assert not forward_sizes(fused).count(matrix_bytes)


def test_flash_attention_does_not_repeat_grouped_keys() -> None:
    head = WIDTH // HEADS
    settings = RunSettings(Precision.BF16, attention=Attention.FLASH)
    one = record_model(lambda: llama(num_key_value_heads=1), tokens(), settings)
    all_heads = record_model(lambda: llama(num_key_value_heads=4), tokens(), settings)
    fewer = saved_once(all_heads) - saved_once(one)
    # Three heads less of keys and of values, kept once each by the kernel.
    assert fewer >= LAYERS * 2 * 3 * head * SAMPLES * LENGTH * 2


def test_older_libraries_repeat_grouped_keys_for_flash_attention() -> None:
    today = record_model(llama, tokens(), RunSettings(Precision.BF16, attention=Attention.FLASH))
    older = record_model(llama, tokens(), RunSettings(Precision.BF16, attention=Attention.FLASH, repeated_heads=True))
    repeated = LAYERS * 2 * 2 * (WIDTH // HEADS) * SAMPLES * LENGTH * 2  # two heads more of keys and of values
    assert saved_once(older) - saved_once(today) == repeated


@pytest.mark.parametrize("checkpointing", [False, True])
def test_dropout_keeps_one_byte_an_element_also_when_computed_again(checkpointing: bool) -> None:
    tape = record_model(lambda: Tower(dropout=0.1), sequences(), RunSettings(gradient_checkpointing=checkpointing))
    again = made_between(tape, marked(tape, Moment.FORWARD)[-1], marked(tape, Moment.UPDATE)[-1])
    assert again.count(SAMPLES * LENGTH * WIDTH) == LAYERS * (1 + checkpointing)


def test_autocast_keeps_activations_in_16_bits_and_weights_in_32() -> None:
    full = record_model(Tower, sequences(), RunSettings())
    mixed = record_model(Tower, sequences(), RunSettings(Precision.AMP_BF16))
    assert bytes_of(mixed, Role.WEIGHT) == bytes_of(full, Role.WEIGHT)
    assert bytes_of(mixed, Role.GRADIENT) == bytes_of(full, Role.GRADIENT)
    assert forward_sizes(mixed).count(SAMPLES * LENGTH * 4 * WIDTH * 2) >= LAYERS
    assert forward_sizes(full).count(SAMPLES * LENGTH * 4 * WIDTH * 4) >= LAYERS


class Twice(nn.Module):
    def __init__(self, trained: bool) -> None:
        super().__init__()
        self.linear, self.other = nn.Linear(16, 16, bias=False), nn.Linear(16, 16, bias=False)
        self.linear.requires_grad_(trained)

    def forward(self, given: torch.Tensor) -> torch.Tensor:
        return self.linear(self.linear(self.other(given)))  # type: ignore[no-any-return]


@pytest.mark.parametrize(("trained", "casts"), [(True, 2), (False, 3)])
def test_autocast_caches_the_casts_of_trained_weights_only(trained: bool, casts: int) -> None:
    def batch() -> object:
        return torch.zeros(512, 16), lambda model, given: model(given).sum()

    tape = record_model(lambda: Twice(trained), batch, RunSettings(Precision.AMP_FP16))
    assert forward_sizes(tape).count(16 * 16 * 2) == casts


@pytest.mark.parametrize("reentrant", [True, False])
def test_autocast_also_casts_what_checkpointing_computes_again(reentrant: bool) -> None:
    settings = RunSettings(Precision.AMP_BF16, gradient_checkpointing=True, reentrant=reentrant)
    tape = record_model(Tower, sequences(), settings)
    backward = made_between(tape, marked(tape, Moment.BACKWARD)[-1], marked(tape, Moment.UPDATE)[-1])
    assert backward.count(SAMPLES * LENGTH * 3 * WIDTH * 2) >= LAYERS
    assert not backward.count(SAMPLES * LENGTH * 3 * WIDTH * 4)


@pytest.mark.parametrize("reentrant", [True, False])
@pytest.mark.parametrize(("build", "batch"), [(Tower, sequences), (llama, tokens)])
def test_checkpointing_saves_less_and_computes_each_block_again(build, batch, reentrant: bool) -> None:  # type: ignore[no-untyped-def]
    plain = record_model(build, batch(), RunSettings())
    tape = record_model(build, batch(), RunSettings(gradient_checkpointing=True, reentrant=reentrant))
    assert saved_once(tape) < 0.5 * saved_once(plain)
    assert peak_bytes(tape) < peak_bytes(plain)
    entered = [mark.unit for mark in tape.marks if mark.moment is Moment.ENTER]
    assert entered == 3 * [1, 2, 3, 3, 2, 1]
    assert [mark.unit for mark in tape.marks if mark.moment is Moment.LEAVE] == entered
    for moment in (Moment.ENTER_BACKWARD, Moment.LEAVE_BACKWARD):
        assert [mark.unit for mark in tape.marks if mark.moment is moment] == 3 * [3, 2, 1], moment


@pytest.mark.parametrize(
    ("optimizer", "states"),
    [
        (Optimizer.SGD, 0), (Optimizer.SGD_MOMENTUM, 1), (Optimizer.ADAM, 2), (Optimizer.ADAMW, 2),
        (Optimizer.RMSPROP, 1), (Optimizer.ADAGRAD, 1), (Optimizer.LION, 1),
    ],
)  # fmt: skip
def test_each_optimizer_keeps_its_number_of_states(optimizer: Optimizer, states: int) -> None:
    tape = record_model(Tower, sequences(), RunSettings(optimizer=optimizer))
    assert bytes_of(tape, Role.STATE) == states * bytes_of(tape, Role.WEIGHT)


def test_adafactor_keeps_rows_and_columns() -> None:
    tape = record_model(Tower, sequences(), RunSettings(optimizer=Optimizer.ADAFACTOR))
    assert 0 < bytes_of(tape, Role.STATE) < 0.1 * bytes_of(tape, Role.WEIGHT)


def test_8_bit_states_have_a_scale_for_256_weights_and_small_tensors_stay_in_32_bits() -> None:
    def batch() -> object:
        return torch.zeros(2, 64), lambda model, given: model(given).sum()

    tape = record_model(lambda: nn.Linear(64, 128), batch, RunSettings(optimizer=Optimizer.ADAM8BIT))
    weights, biases = 64 * 128, 128
    assert bytes_of(tape, Role.STATE) == 2 * (weights + weights // 256 * 4 + 256 * 4 + biases * 4)


def test_adamw_over_lists_copies_everything_trained_and_the_fused_kernel_nothing() -> None:
    def update_bytes(fused: bool) -> int:
        tape = record_model(Tower, sequences(), RunSettings(optimizer=Optimizer.ADAMW, fused_optimizer=fused))
        return sum(made_between(tape, marked(tape, Moment.UPDATE)[-1], marked(tape, Moment.END)[-1]))

    weights = 4 * sum(weight.numel() for weight in Tower().parameters())
    assert weights <= update_bytes(fused=False) <= 2 * weights
    assert update_bytes(fused=True) == 0


def test_each_thread_takes_one_cublas_workspace() -> None:
    tape = record_model(Tower, sequences(), RunSettings())
    assert list(tape.sizes[tape.roles == Role.WORKSPACE]) == [8_519_680, 8_519_680]


def test_torch_is_as_before_after_a_recording() -> None:
    before = (torch.autocast.__init__, torch.clear_autocast_cache, torch.utils.checkpoint._infer_device_type)
    with like_cuda("meta"):
        assert torch.autocast.__init__ is not before[0]
    assert (torch.autocast.__init__, torch.clear_autocast_cache, torch.utils.checkpoint._infer_device_type) == before
    given = torch.zeros(2, 2, 8, 8, device="meta", requires_grad=True)
    assert "Flash" not in str(functional.scaled_dot_product_attention(given, given, given).grad_fn)


@pytest.mark.parametrize(("groups", "autotuned", "copies"), [(1, True, 3), (1, False, 0), (4, True, 0)])
def test_the_autotuners_kernels_copy_what_has_its_channels_first(groups: int, autotuned: bool, copies: int) -> None:
    samples, channels, side = 2, 4, 16

    def batch() -> Any:
        return torch.zeros(samples, channels, side, side), lambda model, images: model(images).sum()

    with torch.backends.cudnn.flags(benchmark=autotuned):
        tape = record_model(lambda: nn.Conv2d(channels, channels, 3, 1, 1, groups=groups), batch, RunSettings())
    image_bytes, weight_bytes = samples * channels * side * side * 4, channels * channels * 9 * 4
    assert tape.sizes.tolist().count(2 * image_bytes + weight_bytes) == copies  # in each of three steps
