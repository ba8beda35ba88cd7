"""Forecasts from recordings: what they say, what they honour, and what they refuse."""

from __future__ import annotations

import pytest

from tests.forecast.recordings import B, L
from tests.forecast.steps import MIB, Model
from tests.forecast.steps import recorded as tape_of
from tests.forecast.tapes import tape_of as by_hand
from vramcast.errors import InvalidTask
from vramcast.forecast.forecast import Forecast, Source
from vramcast.forecast.forecaster import CalibratedForecaster, PhysicsForecaster
from vramcast.forecast.peaks import peaks
from vramcast.forecast.recording import Span
from vramcast.forecast.sizes import Point
from vramcast.forecast.storage import encode
from vramcast.forecast.update import with_update
from vramcast.names import Product
from vramcast.outcomes.calibration import Calibrator
from vramcast.profile.solving import points_for, solve
from vramcast.task.task import parse_task
from vramcast.task.vocabulary import PREFIX, Optimizer

A100 = Product("NVIDIA-A100-SXM4-40GB")
INFO = {"family": "llama", "sequence-length": "1024", "precision": "bf16", "attention": "flash", "task": "training"}


def model_at(point: Point) -> Model:
    tokens = point[B] * point[L]
    return Model(units=4, steps=3, hidden_bytes=2048 * tokens, inner_bytes=8192 * tokens)


def text_of(info: dict[str, str] | None = None) -> str:
    points = points_for({B: Span(2, 8), L: Span(128, 4096)})
    recording = solve([(point, tape_of(model_at(point))) for point in points], info=INFO if info is None else info)
    return encode(recording)


TEXT = text_of()


def forecast(text: str = TEXT, product: Product = A100, **annotations: str) -> Forecast:
    named = {PREFIX + name.replace("_", "-"): value for name, value in annotations.items()}
    task = parse_task({PREFIX + "profile": text, **named})
    assert task is not None
    return PhysicsForecaster(0.05).forecast(task, product)


def size_of(found: Forecast, part: str) -> int:
    return sum(one.size_bytes for one in found.parts if one.name == part)


def test_the_median_is_what_the_replay_reserves_and_the_context() -> None:
    found = forecast(batch_size="4", sequence_length="2000")
    replayed = peaks(with_update(tape_of(model_at({B: 4, L: 2000})), Optimizer.ADAMW, element_bytes=2))
    assert found.median_bytes == replayed.reserved_bytes + size_of(found, "CUDA context")
    assert found.source is Source.RECORDING
    assert found.family == "llama"
    assert found.bound_bytes > found.median_bytes


def test_the_parts_add_up_and_name_the_peaks_moment() -> None:
    found = forecast(batch_size="16")
    assert sum(part.size_bytes for part in found.parts) == found.median_bytes
    assert size_of(found, "optimizer states") == 2 * size_of(found, "weights")
    (saved,) = (part for part in found.parts if part.name == "saved activations")
    assert saved.because.endswith(", at batch 16, length 1024; peak: the backward pass of step 2")


def test_what_the_job_did_not_say_is_as_recorded_and_told() -> None:
    assumptions = forecast(batch_size="4").assumptions
    assert "sequence-length 1024, as recorded" in assumptions
    assert not any(note.startswith("precision") for note in assumptions)
    assert "optimizer adamw" in assumptions


@pytest.mark.parametrize("name", ["batch_size", "sequence_length"])
def test_larger_values_need_more(name: str) -> None:
    usual = {"batch_size": "8", "sequence_length": "1024"}
    needs = [forecast(**{**usual, name: str(value)}).need_mib for value in (256, 512, 1024, 2048, 4000)]
    assert needs == sorted(set(needs))


def test_settings_that_change_the_tape_are_counted() -> None:
    plain = forecast(batch_size="4").median_bytes
    assert forecast(batch_size="4", optimizer="sgd").median_bytes < plain
    assert forecast(batch_size="4", gradient_accumulation="4").median_bytes >= plain
    assert forecast(batch_size="64", allocator="expandable-segments") != forecast(batch_size="64")
    sharded = forecast(batch_size="4", zero_stage="3", data_parallel_size="8", offload="optimizer")
    assert "sharding as zero-3 does it, seen from one of 8 GPUs" in sharded.assumptions


@pytest.mark.parametrize(
    ("said", "scheme"),
    [
        ({"zero_stage": "3"}, "zero-3"),
        ({"zero_stage": "3", "framework": "deepspeed==0.15"}, "zero-3"),
        ({"zero_stage": "3", "framework": "fsdp,torch==2.4"}, "fsdp"),
        ({"zero_stage": "2", "framework": "fsdp"}, "fsdp-gradients"),
        ({"zero_stage": "3", "master_weights": "false"}, "fsdp"),
        ({"zero_stage": "1", "framework": "fsdp"}, "zero-1"),
    ],
)
def test_the_framework_that_shards_is_the_one_that_the_task_names(said: dict[str, str], scheme: str) -> None:
    found = forecast(batch_size="4", data_parallel_size="8", **said)
    assert f"sharding as {scheme} does it, seen from one of 8 GPUs" in found.assumptions


def test_several_gpus_talk_through_buffers_that_no_counter_of_torch_shows() -> None:
    alone, together = (forecast(batch_size="4", **said) for said in ({}, {"data_parallel_size": "2"}))
    assert size_of(together, "CUDA context") - size_of(alone, "CUDA context") == 1024 * MIB
    assert together.context_bytes == size_of(together, "CUDA context")


@pytest.mark.parametrize(
    ("said", "loss", "cache"),
    [
        ({}, False, False),
        ({"framework": "transformers==4.45"}, True, True),
        ({"framework": "transformers==4.48"}, False, True),
        ({"framework": "transformers==4.53"}, False, False),
        ({"framework": "torch==2.4"}, False, False),
    ],
)
def test_older_versions_of_transformers_are_told_by_the_framework(
    said: dict[str, str], loss: bool, cache: bool
) -> None:
    older = {**INFO, "loss": "next token", "kept-for-cache": "2304", "gradient-checkpointing": "true"}
    text = text_of(older)
    notes = " ".join(forecast(text, batch_size="4", gradient_checkpointing="true", **said).assumptions)
    assert ("the loss as transformers computed it before 4.46" in notes) is loss
    assert ("checkpointed blocks keep a cache, as in transformers before 4.53" in notes) is cache


@pytest.mark.parametrize("kept", ["many", "-1", "2.5", "9" * 40])
def test_what_a_profile_says_about_its_cache_is_no_number_and_counts_as_nothing(kept: str) -> None:
    """Anybody can edit a profile, and a forecast must not fail for it."""
    text = text_of({**INFO, "kept-for-cache": kept, "gradient-checkpointing": "true"})
    said = {"batch_size": "4", "gradient_checkpointing": "true", "framework": "transformers==4.45"}
    assert "keep a cache" not in " ".join(forecast(text, **said).assumptions)


def first_then_second(first: float, second: float, batch: int) -> str:
    """Steps of two tensors of so many MiB a sample, of which the first one is freed before the second one is made."""
    tapes = [({B: b}, by_hand([round(first * b * MIB), round(second * b * MIB)], [0, ~0, 1])) for b in (2, 4, 6, 8)]
    return encode(solve(tapes, info={"batch-size": str(batch)}))


def test_the_bound_is_at_most_the_gpu_where_cached_memory_is_enough() -> None:
    """Together the tensors take 38 GiB and their bound would be beyond the GPU, but only one of them is ever in use."""
    found = forecast(first_then_second(10, 11, 1), batch_size="1800")
    assert found.median_bytes < found.bound_bytes < 1.1 * found.median_bytes
    assert found.bound_bytes == forecast(first_then_second(10, 11, 1), batch_size="1830").bound_bytes
    assert f"the bound is all of {A100}: the allocator gives cached memory back" in found.assumptions


def test_a_shared_gpu_has_no_such_bound() -> None:
    alone = forecast(first_then_second(10, 11, 1), batch_size="1800")
    shared = forecast(first_then_second(10, 11, 1), batch_size="1800", share="true")
    assert shared.bound_bytes > alone.bound_bytes
    assert not any("all of" in note for note in shared.assumptions)


def test_tensors_that_may_be_larger_than_the_gpu_have_no_such_bound() -> None:
    found = forecast(first_then_second(0.1, 20, 1), batch_size="1900")
    assert found.bound_bytes >= 1.1 * (found.median_bytes - 1)


def test_a_full_gpu_gives_cached_memory_back() -> None:
    """Two tensors, one after the other: together they are too large, but the first one's segment can be given back."""
    tapes = [({B: batch}, by_hand([batch * MIB, 3 * batch * MIB // 2], [0, ~0, 1])) for batch in (2, 4, 6, 8)]
    text = encode(solve(tapes))
    assert forecast(text, batch_size="10000").median_bytes > 24 << 30
    squeezed = forecast(text, batch_size="20000")
    assert f"the allocator gives cached memory back to fit {A100}" in squeezed.assumptions
    assert 30_000 * MIB < squeezed.median_bytes < 40 << 30
    assert forecast(text, batch_size="40000").median_bytes > 100_000 * MIB  # does not fit in any case
    shared = forecast(text, batch_size="20000", share="true")
    assert shared.median_bytes > 50_000 * MIB  # others may use what it would give back


@pytest.mark.parametrize(
    ("annotations", "message"),
    [
        ({"sequence_length": "9000"}, "sequence-length: '9000' is not valid: the profile was recorded for 128 to 4096"),
        ({"precision": "fp32"}, "precision: 'fp32' is not valid: the profile was recorded with bf16: leave it out"),
        ({"precision": "amp-bf16"}, "recorded with bf16"),
        ({"attention": "eager"}, "attention: 'eager' is not valid: the profile was recorded with flash"),
        ({"task": "inference"}, "task: 'inference' is not valid: the profile was recorded with training"),
        ({"input_size": "3x224x224"}, "input-size: '224' is not valid: the profile does not depend on it"),
        ({"lora_rank": "8"}, "lora-rank: '8' is not valid: the profile does not depend on it"),
        ({"batch_size": "10000000"}, "profile: .* is not valid: .* more than"),
    ],
)
def test_what_the_recording_does_not_answer_is_refused(annotations: dict[str, str], message: str) -> None:
    with pytest.raises(InvalidTask, match=message):
        forecast(**annotations)


def test_fine_tuning_runs_the_recorded_training() -> None:
    assert forecast(batch_size="4", task="fine-tuning").median_bytes == forecast(batch_size="4").median_bytes


def test_a_length_that_nobody_said_is_asked_for() -> None:
    with pytest.raises(InvalidTask, match="sequence-length: '' is not valid: the profile depends on it"):
        forecast(text_of({}))


def test_a_recorded_optimizer_is_the_jobs_own() -> None:
    with pytest.raises(InvalidTask, match="optimizer: 'lion' is not valid: the profile was recorded with sgd"):
        forecast(text_of({**INFO, "optimizer": "sgd"}), optimizer="lion")
    own, open_slot = forecast(text_of({**INFO, "optimizer": "sgd"})), forecast(optimizer="sgd")
    assert own.median_bytes == open_slot.median_bytes


LOOP = {"loop": "my_train:make", "optimizer": "adamw", "family": "mlp", "task": "training"}


def loop_text(info: dict[str, str] | None = None) -> str:
    """A loop without arguments: one point, and an update of its own."""
    tape = with_update(tape_of(model_at({B: 4, L: 512})), Optimizer.ADAMW)
    return encode(solve([({}, tape)], info={**LOOP, **(info or {})}))


def test_a_loop_without_variables_is_forecast_as_it_was_recorded() -> None:
    found = forecast(loop_text())
    replayed = peaks(with_update(tape_of(model_at({B: 4, L: 512})), Optimizer.ADAMW))
    assert found.median_bytes == replayed.reserved_bytes + size_of(found, "CUDA context")
    assert found.assumptions == ("the steps of my_train:make, as recorded",)
    assert not any(part.because.endswith("for ") for part in found.parts)
    assert forecast(loop_text(), optimizer="adamw").median_bytes == found.median_bytes
    assert forecast(loop_text({"batch-size": "4"}), batch_size="4").median_bytes == found.median_bytes


def test_a_loop_on_several_gpus_has_gradient_buckets() -> None:
    alone, together = forecast(loop_text()), forecast(loop_text(), data_parallel_size="4")
    assert size_of(together, "library workspaces") > size_of(alone, "library workspaces")


@pytest.mark.parametrize(
    ("annotations", "message"),
    [
        ({"batch_size": "8"}, "batch-size: '8' is not valid: .* my_train:make, which does not vary it: leave it out"),
        ({"sequence_length": "8"}, "sequence-length: '8' is not valid: .*which does not vary it"),
        ({"lora_rank": "8"}, "lora-rank: '8' is not valid: .*which does not vary it"),
        ({"precision": "bf16"}, "precision: 'bf16' is not valid: .* my_train:make, which decides it: leave it out"),
        ({"gradient_checkpointing": "true"}, "gradient-checkpointing: 'true' is not valid: .*which decides it"),
        ({"gradient_accumulation": "4"}, "gradient-accumulation: '4' is not valid: .*which decides it"),
        ({"optimizer": "sgd"}, "optimizer: 'sgd' is not valid: the profile was recorded with adamw"),
        ({"zero_stage": "2", "data_parallel_size": "4"}, "zero-stage: '2' is not valid: .*which decides it"),
        ({"offload": "optimizer"}, "offload: 'optimizer' is not valid: .*which decides it"),
    ],
)
def test_what_a_loop_decides_cannot_be_said_otherwise(annotations: dict[str, str], message: str) -> None:
    with pytest.raises(InvalidTask, match=message):
        forecast(loop_text(), **annotations)


def test_a_loop_that_was_recorded_at_one_batch_says_which() -> None:
    with pytest.raises(InvalidTask, match="batch-size: '8' is not valid: the profile was recorded with 4 only"):
        forecast(loop_text({"batch-size": "4"}), batch_size="8")


def test_a_batch_that_nobody_said_is_the_recorded_one() -> None:
    text = text_of({**INFO, "batch-size": "16"})
    assert forecast(text).median_bytes == forecast(text, batch_size="16").median_bytes
    assert "batch-size 16, as recorded" in forecast(text).assumptions
    assert "batch-size 1" not in forecast(text).assumptions


def test_a_damaged_recording_names_the_annotation() -> None:
    with pytest.raises(InvalidTask, match=r"vramcast.dev/profile: .* expected the output of `vramcast profile`"):
        forecast(TEXT[:-20])


def test_calibration_of_the_model_does_not_move_it() -> None:
    task = parse_task({PREFIX + "profile": TEXT, PREFIX + "batch-size": "4"})
    assert task is not None
    base = PhysicsForecaster(0.05)
    assert CalibratedForecaster(base, Calibrator("physics")).forecast(task, A100) == base.forecast(task, A100)
