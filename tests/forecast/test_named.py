"""A task that names a model is answered from the catalog's recordings, or is told why not."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from tests.forecast.recordings import LANGUAGE, B, L, R, S, Size, recorded
from vramcast.forecast.catalog import Line, builtin_catalog
from vramcast.forecast.forecast import Forecast, Source
from vramcast.forecast.forecaster import CachingForecaster
from vramcast.forecast.model import BUILTIN, choose_forecaster
from vramcast.forecast.named import KnownSteps, NoSteps, named_steps, steps_of
from vramcast.forecast.recording import Recording, Span
from vramcast.forecast.recordings import Recordings, builtin_recordings, key_of, read_recordings, write_recordings
from vramcast.forecast.step_curve import step_curve
from vramcast.forecast.storage import pack
from vramcast.forecast.tape import Moment, Role
from vramcast.hardware.products import memory_mib
from vramcast.names import Product
from vramcast.profile.solving import solve
from vramcast.task.quantity import GIB, MIB
from vramcast.task.task import Task, parse_task
from vramcast.task.vocabulary import PREFIX

A100 = Product("NVIDIA-A100-SXM4-80GB")
LLAMA = "meta-llama/Llama-3.1-8B"
LLAMA_PARAMETERS = 8_030_261_248
LORA = {"model": LLAMA, "precision": "bf16", "lora_rank": "16", "batch_size": "4", "sequence_length": "4096"}
CHECKPOINTED = {**LORA, "gradient_checkpointing": "true"}


def task(**settings: str) -> Task:
    parsed = parse_task({PREFIX + name.replace("_", "-"): value for name, value in settings.items()})
    assert parsed is not None
    return parsed


@lru_cache
def learned() -> CachingForecaster:
    return choose_forecaster(BUILTIN, 0.05, physics_if_unusable=False)


def forecast(**settings: str) -> Forecast:
    return learned().forecast(task(**settings), A100)


def line(model: str) -> Line:
    found = builtin_catalog().find(model)
    assert found is not None
    return found


@pytest.fixture
def recordings(tmp_path: Path) -> Recordings:
    path = tmp_path / "recordings.bin"
    made = solve(recorded([lambda _: 1000, lambda at: 64 * at[B] * at[L], lambda at: 9 * at[R]], LANGUAGE))
    write_recordings(path, {key_of("hf/gpt2", "16-bit lora"): pack(made)})
    return read_recordings(path)


def test_a_recorded_model_is_found(recordings: Recordings) -> None:
    given = task(model="gpt2", precision="fp16", lora_rank="8", sequence_length="1024")
    assert named_steps(line("gpt2"), given, recordings) == KnownSteps(key_of("hf/gpt2", "16-bit lora"), given)


def test_a_length_that_nobody_said_is_the_catalogs_and_told(recordings: Recordings) -> None:
    steps = named_steps(line("gpt2"), task(model="gpt2", precision="fp16", lora_rank="8"), recordings)
    assert isinstance(steps, KnownSteps)
    assert steps.task.sequence_length == 512
    assert steps.task.assumptions[-1] == "sequence-length 512"


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"model": "gpt2", "precision": "bf16"}, "hf/gpt2, whose steps were not recorded with precision bf16;"),
        ({"model": "gpt2", "precision": "bf16", "lora_rank": "8", "attention": "eager"},
         "not recorded with precision bf16, lora-rank 8, lora-targets all-linear, attention eager;"),
        ({"model": "gpt2", "precision": "bf16", "lora_rank": "8", "sequence_length": "9000"},
         "whose steps were recorded for 128 to 4096 tokens;"),
        ({"model": "timm/resnet50", "precision": "bf16"}, "of timm/resnet50, whose steps are not in the catalog;"),
    ],
)  # fmt: skip
def test_what_was_not_recorded_is_told_with_what_helps(
    recordings: Recordings, settings: dict[str, str], why: str
) -> None:
    found = named_steps(line(settings["model"]), task(**settings), recordings)
    assert isinstance(found, NoSteps)
    assert why in found.why
    assert found.why.endswith("`vramcast profile` records the job's own steps, which is closer")


@pytest.fixture
def images(tmp_path: Path) -> Recordings:
    path = tmp_path / "images.bin"
    info = {"input-size": "3x224x224", "family": "cnn"}
    sizes: list[Size] = [lambda _: 1000, lambda at: 12 * at[B] * at[S] ** 2]
    sided = solve(recorded(sizes, {B: Span(2, 8), S: Span(96, 448, 32)}), info=info)
    fixed = solve(recorded([lambda at: 12 * at[B]], {B: Span(2, 8)}), info=info)
    packed = {"timm/resnet50": pack(sided), "timm/vit_base_patch16_224": pack(fixed)}
    write_recordings(path, {key_of(name, "amp full"): blob for name, blob in packed.items()})
    return read_recordings(path)


def test_an_image_size_that_nobody_said_is_the_catalogs_and_told(images: Recordings) -> None:
    for model in ("timm/resnet50", "timm/vit_base_patch16_224"):
        steps = named_steps(line(model), task(model=model, precision="amp-fp16"), images)
        assert isinstance(steps, KnownSteps)
        assert steps.task.input_size == (3, 224, 224)
        assert steps.task.assumptions[-1] == "input-size 3x224x224"


def test_images_of_a_recorded_size_are_answered_from_recorded_steps(images: Recordings) -> None:
    given = task(model="timm/resnet50", precision="amp-fp16", input_size="3x288x288")
    assert named_steps(line("timm/resnet50"), given, images) == KnownSteps(key_of("timm/resnet50", "amp full"), given)


def test_eager_attention_changes_nothing_where_there_is_none(images: Recordings) -> None:
    """A network that has some and is recorded only with fused attention is not answered from that recording."""
    model, settings = "timm/resnet50", {"precision": "amp-fp16", "attention": "eager"}
    found = named_steps(line(model), task(model=model, **settings), images)
    assert isinstance(found, KnownSteps)
    assert found.key == key_of(model, "amp full")
    attends = "timm/vit_base_patch16_224"
    assert isinstance(named_steps(line(attends), task(model=attends, **settings), images), NoSteps)


def test_upcasting_that_nobody_said_is_told(tmp_path: Path) -> None:
    path = tmp_path / "recordings.bin"
    made = pack(solve(recorded([lambda _: 1000, lambda at: 64 * at[B] * at[L], lambda at: 9 * at[R]], LANGUAGE)))
    write_recordings(path, {key_of("hf/gpt2", f"16-bit nf4 {up}lora"): made for up in ("", "upcast ")})
    nf4 = {"model": "gpt2", "precision": "bf16", "lora_rank": "8", "quantization": "nf4", "sequence_length": "256"}
    for said, variant, told in (
        ({}, "16-bit nf4 upcast lora", True),
        ({"upcast": "true"}, "16-bit nf4 upcast lora", False),
    ):
        found = named_steps(line("gpt2"), task(**nf4, **said), read_recordings(path))
        assert isinstance(found, KnownSteps)
        assert found.key == key_of("hf/gpt2", variant)
        assert any(note.startswith("upcast true: norms") for note in found.task.assumptions) is told


@pytest.mark.parametrize(
    ("model", "size", "recorded_for"),
    [
        ("timm/resnet50", "3x512x512", "square images from 3x96x96 to 3x448x448;"),
        ("timm/resnet50", "3x224x256", "square images from 3x96x96 to 3x448x448;"),
        ("timm/resnet50", "1x224x224", "square images from 3x96x96 to 3x448x448;"),
        ("timm/vit_base_patch16_224", "3x384x384", "input-size 3x224x224 only;"),
    ],
)
def test_images_that_were_not_recorded_are_told(images: Recordings, model: str, size: str, recorded_for: str) -> None:
    found = named_steps(line(model), task(model=model, precision="amp-fp16", input_size=size), images)
    assert isinstance(found, NoSteps)
    assert f"{model}, whose steps were recorded for {recorded_for}" in found.why


def test_a_size_that_the_model_cannot_have_is_for_the_next_level(images: Recordings) -> None:
    given = task(model="timm/resnet50", precision="amp-fp16", sequence_length="128")
    assert named_steps(line("timm/resnet50"), given, images) == NoSteps()


@pytest.mark.parametrize("model", ["timm/resnet50", "gpt2"])
def test_plain_fp32_training_of_measured_sizes_keeps_its_forecast(recordings: Recordings, model: str) -> None:
    assert named_steps(line(model), task(model=model), recordings) == NoSteps()


def test_a_damaged_recording_is_a_warning_and_the_layers_answer(recordings: Recordings, tmp_path: Path) -> None:
    file = tmp_path / "recordings.bin"
    data = bytearray(file.read_bytes())
    data[-5] ^= 0xFF
    file.write_bytes(data)
    with capture_logs() as logs:
        found = named_steps(line("gpt2"), task(model="gpt2", precision="fp16", lora_rank="8"), recordings)
    assert isinstance(found, NoSteps)
    assert "is damaged" in found.why
    assert [entry["log_level"] for entry in logs] == ["warning"]


def test_a_name_that_nobody_knows_is_for_the_next_level() -> None:
    assert steps_of(task(model="hf/no-such-model")) == NoSteps()


# ---------------------------------------------------------------------- what ships


def test_every_shipped_recording_has_the_weights_of_its_model_in_the_catalog() -> None:
    """Which are pinned by parameters.csv. LoRA and inference freeze them, and quantized ones have another size."""
    shipped = builtin_recordings()
    assert shipped.has_model("hf/Llama-3.1-8B")
    for key in shipped:
        model, _, variant = key.partition(" ")
        known = builtin_catalog().line(model)
        assert known is not None, key
        recording = shipped.read(key)
        assert recording.info["family"] == known.family
        frozen = "lora" in variant or "inference" in variant
        if not any(format_ in variant for format_ in ("nf4", "int4", "int8")):
            element_bytes = 2 if variant.startswith("16-bit") else 4
            trained = 0 if frozen else loaded_bytes(recording, Role.WEIGHT)
            # Some networks freeze a part of their own, as Whisper does the positions of its encoder.
            loaded = trained + loaded_bytes(recording, Role.FROZEN)
            assert loaded == element_bytes * known.parameters, key


def loaded_bytes(recording: Recording, role: Role) -> int:
    piece = recording.pieces[0]
    tape = piece.tape({variable: span.low for variable, span in piece.spans.items()})
    begin = next(mark.event for mark in tape.marks if mark.moment is Moment.STEP)
    loaded = slice(int((tape.events[:begin] >= 0).sum()))
    return int(tape.sizes[loaded][tape.roles[loaded] == role].sum())


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("meta-llama/Llama-3.1-8B", "meta-llama/Llama-3.1-8B-Instruct"),
        ("Qwen/Qwen2.5-7B", "deepseek-ai/DeepSeek-R1-Distill-Qwen-7B"),
        ("meta-llama/Llama-3.1-70B", "meta-llama/Llama-3.3-70B-Instruct"),
    ],
)
def test_models_of_one_configuration_share_a_recording(one: str, other: str) -> None:
    found = [steps_of(task(**{**LORA, "model": model})) for model in (one, other)]
    keys = {steps.key for steps in found if isinstance(steps, KnownSteps)}
    assert [type(steps) for steps in found] == [KnownSteps, KnownSteps]
    assert len(keys) == 1


@pytest.mark.parametrize("settings", [LORA, CHECKPOINTED])
def test_lora_of_an_8b_model_is_answered_from_its_recorded_steps(settings: dict[str, str]) -> None:
    found = forecast(**settings)
    assert found.source is Source.RECORDING
    parts = {part.name: part.size_bytes for part in found.parts}
    assert parts["frozen weights"] == pytest.approx(2 * LLAMA_PARAMETERS, rel=0.001)
    assert parts["optimizer states"] == 2 * parts["weights"]
    assert sum(parts.values()) == found.median_bytes
    assert found.median_bytes > 2 * LLAMA_PARAMETERS + 4 * parts["weights"]
    assert found.bound_bytes < 1.5 * found.median_bytes
    assert "lora-targets all-linear" in found.assumptions


def test_checkpointing_saves_most_of_what_activations_take() -> None:
    """At 16,384 tokens the logits take 2 x 4 bytes x 128,256 = 16 GiB; the blocks' activations more than the rest."""
    kept, computed_again = forecast(**LORA).median_bytes, forecast(**CHECKPOINTED).median_bytes
    assert 30 * GIB < computed_again < 60 * GIB
    assert kept > computed_again + 32 * GIB


@pytest.mark.parametrize(
    ("name", "values"),
    [("batch_size", (1, 2, 4, 8, 16)), ("sequence_length", (128, 512, 2048, 8192)), ("lora_rank", (4, 16, 64, 256))],
)
def test_more_needs_more(name: str, values: tuple[int, ...]) -> None:
    needs = [forecast(**{**CHECKPOINTED, name: str(value)}).need_mib for value in values]
    assert needs == sorted(set(needs))


def test_optimizer_and_sharding_are_counted() -> None:
    plain = forecast(**CHECKPOINTED)
    assert forecast(**CHECKPOINTED, optimizer="sgd").median_bytes < plain.median_bytes
    sharded = forecast(**CHECKPOINTED, zero_stage="3", data_parallel_size="8")
    assert sharded.source is Source.RECORDING
    assert sharded.median_bytes < plain.median_bytes - 4 * GIB


def test_a_named_models_step_can_be_drawn() -> None:
    curve = step_curve(task(**CHECKPOINTED))
    assert curve is not None
    assert max(curve.reserved_bytes) < forecast(**CHECKPOINTED).median_bytes
    assert step_curve(task(model="timm/resnet50", batch_size="8")) is None


def test_what_has_no_recording_is_answered_from_the_layers_and_says_so() -> None:
    found = forecast(**{**LORA, "precision": "amp-bf16"})
    assert found.source is Source.MODEL
    assert any("`vramcast profile` records the job's own steps" in note for note in found.assumptions)


def test_a_size_that_no_tape_can_hold_falls_back() -> None:
    found = forecast(**{**LORA, "batch_size": "10000000", "sequence_length": "131072"})
    assert found.source is Source.MODEL
    assert any(note.startswith("forecast from a summary") for note in found.assumptions)


def test_the_task_is_the_same_for_every_spelling() -> None:
    short = replace(forecast(**{**LORA, "model": "llama-3.1-8b-instruct"}), assumptions=())
    assert short == replace(forecast(**LORA), assumptions=())


@pytest.mark.parametrize(("batch", "published_gib"), [("4", 75.4), ("8", 71.3)])
def test_full_fine_tuning_that_ran_on_80_gb_fits_there(batch: str, published_gib: float) -> None:
    """Mistral-7B in bf16 with checkpointing and 4,096 tokens (fms-acceleration, nvidia-smi's peak less its start)."""
    run = {"model": "mistralai/Mistral-7B-v0.1", "precision": "bf16", "gradient_checkpointing": "true"}
    found = forecast(**run, batch_size=batch, sequence_length="4096")
    assert found.source is Source.RECORDING
    assert published_gib * GIB <= found.bound_bytes <= memory_mib(A100) * MIB


def test_settings_without_a_recording_are_answered_by_the_nearest_that_takes_no_less(recordings: Recordings) -> None:
    given = task(model="gpt2", precision="bf16", lora_rank="8", lora_targets="qv", kernels="liger",
                 sequence_length="1024")  # fmt: skip
    steps = named_steps(line("gpt2"), given, recordings)
    assert isinstance(steps, KnownSteps)
    assert steps.key == key_of("hf/gpt2", "16-bit lora")
    assert "lora-targets qv counted as all-linear" in steps.task.assumptions
    assert "kernels liger counted as none" in steps.task.assumptions
