"""`vramcast profile my_train:make`: the user's own loop, from the command to the forecast."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.profiling import loops
from tests.profiling.recording.networks import Tower, sequences
from tests.profiling.recording.reading import marked
from vramcast.errors import InvalidInput, InvalidTask
from vramcast.forecast.forecast import Forecast, Source
from vramcast.forecast.forecaster import PhysicsForecaster
from vramcast.forecast.peaks import peaks
from vramcast.forecast.sizes import Variable
from vramcast.forecast.storage import decode, encode
from vramcast.forecast.tape import Moment, Role, Tape
from vramcast.forecast.update import with_update
from vramcast.names import Product
from vramcast.profile.arguments import ProfileArguments, run_settings
from vramcast.profile.commands import profile_target, run_profile
from vramcast.profile.profiled import Profiled
from vramcast.profile.recording.errors import (
    NeedsGpu,
    NeedsOneGpu,
    NeedsValues,
    NoBackward,
    TooManyEvents,
    Unrecordable,
)
from vramcast.profile.recording.loop import record_loop
from vramcast.profile.recording.own_loop import loop_function, record_own_loop
from vramcast.profile.recording.record import record_model
from vramcast.profile.recording.settings import RunSettings
from vramcast.task.task import parse_task
from vramcast.task.vocabulary import PREFIX, Optimizer

LOOPS = "tests.profiling.loops"
PHYSICS = PhysicsForecaster(0.05)
A100 = Product("NVIDIA-A100-SXM4-40GB")


def profiled(name: str, **named: object) -> Profiled:
    return profile_target(ProfileArguments(f"{LOOPS}:{name}", gpu=A100, **named), PHYSICS)  # type: ignore[arg-type]


@cache
def done_once(name: str) -> Profiled:
    return profiled(name)


def forecast(done: Profiled, **said: str) -> Forecast:
    named = {PREFIX + name.replace("_", "-"): value for name, value in said.items()}
    task = parse_task({**done.annotations, **named})
    assert task is not None
    return PHYSICS.forecast(task, A100)


def reserved(found: Forecast) -> int:
    return found.median_bytes - sum(part.size_bytes for part in found.parts if part.name == "CUDA context")


def test_a_loop_without_arguments_is_recorded_at_one_point() -> None:
    done = done_once("make_fixed")
    assert reserved(forecast(done)) == peaks(record_loop(loops.make_fixed)).reserved_bytes
    assert done.reports[0].forecast.source is Source.RECORDING
    recording = decode(done.annotations[f"{PREFIX}profile"])
    assert recording.variables == ()
    assert recording.info["optimizer"] == "adamw"
    with pytest.raises(InvalidTask, match=r"batch-size: '8' is not valid: .*make_fixed, which does not vary it"):
        forecast(done, batch_size="8")


@pytest.mark.parametrize("batch", [1, 11, 64])
def test_arguments_of_the_function_become_variables(batch: int) -> None:
    fresh = record_loop(lambda: loops.make(batch_size=batch))
    assert reserved(forecast(done_once("make"), batch_size=str(batch))) == peaks(fresh).reserved_bytes


def test_what_the_pod_does_not_say_is_the_functions_default() -> None:
    found = forecast(done_once("make"))
    assert reserved(found) == peaks(record_loop(loops.make)).reserved_bytes
    assert "batch-size 8, as recorded" in found.assumptions


def test_lengths_come_from_the_options_and_vary() -> None:
    done = profiled("make_tokens", sequence_length=256, settings=run_settings({"batch-size": 4}, []))
    fresh = record_loop(lambda: loops.make_tokens(8, 384))
    assert reserved(forecast(done, batch_size="8", sequence_length="384")) == peaks(fresh).reserved_bytes
    assert reserved(forecast(done)) == peaks(record_loop(lambda: loops.make_tokens(4, 256))).reserved_bytes
    with pytest.raises(InvalidTask, match="optimizer: 'adamw' is not valid: the profile was recorded with sgd-mom"):
        forecast(done, optimizer="adamw")


def test_image_sides_vary() -> None:
    found = forecast(done_once("make_images"), batch_size="8", input_size="3x96x96")
    fresh = record_loop(lambda: loops.make_images(8, 96))
    assert reserved(found) == peaks(fresh).reserved_bytes


def test_adapter_ranks_vary() -> None:
    found = forecast(done_once("make_adapters"), batch_size="6", lora_rank="32")
    assert reserved(found) == peaks(record_loop(lambda: loops.make_adapters(6, 32))).reserved_bytes


def test_an_argument_that_changes_the_steps_is_recorded_at_one_value() -> None:
    done = done_once("make_unrolled")
    assert done.loop is not None
    assert "the steps differ from value to value" in done.loop.fixed["sequence_length"]
    assert decode(done.annotations[f"{PREFIX}profile"]).variables == (Variable.BATCH,)
    fresh = record_loop(lambda: loops.make_unrolled(6, 64))
    assert reserved(forecast(done, batch_size="6")) == peaks(fresh).reserved_bytes
    with pytest.raises(InvalidTask, match="sequence-length: '128' is not valid: the profile was recorded with 64 only"):
        forecast(done, sequence_length="128")


def test_a_required_argument_without_a_value_is_asked_for() -> None:
    with pytest.raises(InvalidInput, match=r"make_tokens takes sequence_length: .* --sequence-length 1024"):
        profiled("make_tokens", settings={"batch-size": "4"})


def test_several_optimizers_are_recorded() -> None:
    recording = decode(done_once("make_two_optimizers").annotations[f"{PREFIX}profile"])
    assert recording.info["optimizer"] == "adamw and sgd"
    states = recording.at({}).tape
    first = 4 * (loops.WIDTH * 4 * loops.WIDTH + 4 * loops.WIDTH)
    assert int(states.sizes[states.roles == Role.STATE].sum()) == 2 * first


def make_tower() -> Any:
    model = Tower().cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    (images, labels), loss_of = sequences()()

    def step() -> None:
        given = images.cuda(), labels.cuda()
        optimizer.zero_grad()
        loss_of(model, given).backward()
        optimizer.step()

    return model, optimizer, step


def test_a_loops_adamw_is_recorded_as_the_forecast_writes_it() -> None:
    """States, and the temporaries of the list kernels, which CUDA uses and the CPU does not."""
    own = record_loop(make_tower)
    written = with_update(record_model(Tower, sequences(), RunSettings()), Optimizer.ADAMW)
    assert updates(own) == updates(written)
    assert peaks(own).active_bytes == peaks(written).active_bytes


def updates(tape: Tape) -> list[list[tuple[int, Role]]]:
    """What each update makes, in order."""
    ends = [*marked(tape, Moment.STEP)[1:], *marked(tape, Moment.END)]
    return [
        [(int(tape.sizes[event]), Role(tape.roles[event])) for event in tape.events[begin:end] if event >= 0]
        for begin, end in zip(marked(tape, Moment.UPDATE), ends, strict=True)
    ]


def test_a_loop_may_ask_about_its_gpu() -> None:
    asking, silent = (peaks(record_loop(make)) for make in (loops.make_asking, loops.make_fixed))
    assert asking.active_bytes == silent.active_bytes


def test_a_recording_without_variables_survives_the_annotation() -> None:
    recording = record_own_loop(loop_function("own", loops.make_fixed, {}), {"loop": "own"}).recording
    again = decode(encode(recording))
    assert again.variables == ()
    assert np.array_equal(again.at({}).tape.sizes, recording.at({}).tape.sizes)


def test_the_step_of_a_loop_is_drawn(tmp_path: Path) -> None:
    picture = tmp_path / "step.png"
    profiled("make_fixed", plot=picture)
    assert picture.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("output", ["table", "json"])
def test_the_command_prints_what_a_loop_needs(output: str, capsys: pytest.CaptureFixture[str]) -> None:
    run_profile(ProfileArguments(f"{LOOPS}:make", gpu=A100), output, PHYSICS)
    shown = capsys.readouterr().out
    assert f"{PREFIX}profile" in shown
    assert "any batch_size" in shown
    assert "summary, which is shorter" not in shown


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("make_pair", r"returned \(Sequential, AdamW\): expected a module, or \(model, optimizer, step\)"),
        ("make_dict", "returned a dict of model, optimizer, step: expected"),
        ("make_dataclass", "returned a Bundle with model, optimizer: expected"),
        ("make_wrong_order", r"returned \(AdamW, Sequential, function\): expected"),
        ("make_step_with_arguments", "step takes batch, labels: it must take nothing"),
        ("make_generator", "step returned a generator, which runs nothing"),
    ],
)
def test_what_is_no_loop_says_what_was_expected(name: str, words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        profiled(name)


@pytest.mark.parametrize(
    ("name", "kind", "words"),
    [
        ("make_item_in_forward", NeedsValues, r"loops.py:\d+ looks at the values .* pad to fixed shapes"),
        ("make_dynamic_shapes", NeedsValues, r"loops.py:\d+ looks at the values"),
        ("make_custom_kernel", NeedsGpu, r"loops.py:\d+ needs a GPU .*register_fake"),
        ("make_choosing_its_batch", InvalidInput, r"loops.py:\d+ needs a GPU .*measure one run and set gpu-memory"),
        ("make_without_backward", NoBackward, "has no backward pass .*give custom functions a backward"),
        ("make_detached", NoBackward, r"loops.py:\d+ has no backward pass .*train at least one weight"),
        ("make_only_forward", Unrecordable, "runs no backward pass: .*--set task=inference"),
        ("make_raising", Unrecordable, r"loops.py:\d+ failed while a step was recorded \(KeyError: 'labels'\)"),
    ],
)
def test_what_cannot_be_recorded_names_the_line_and_the_remedy(name: str, kind: type[InvalidInput], words: str) -> None:
    with pytest.raises(kind, match=words):
        profiled(name)


@pytest.mark.parametrize("name", ["make_nccl", "make_nccl_by_its_own_name", "make_nccl_in_step"])
def test_a_process_group_is_refused_before_nccl_looks_for_a_gpu(name: str) -> None:
    words = "starts a process group, and a recording is of one GPU: .*set data-parallel-size"
    with pytest.raises(NeedsOneGpu, match=words):
        record_loop(getattr(loops, name))
    with pytest.raises(InvalidInput, match=words):
        profiled(name)


def test_a_function_that_exits_says_where() -> None:
    with pytest.raises(InvalidInput, match=r"loops.py:\d+ ends the program \(exit code 2\)"):
        profiled("make_exiting")


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (loops.make_endless, "make and free tensors more than 1,000 times. Record fewer micro-batches"),
        (loops.make_endless_in_place, "more than 10,000 operations. Record fewer"),
    ],
)
def test_a_step_that_does_not_end_is_stopped(make: object, words: str) -> None:
    with pytest.raises(TooManyEvents, match=words):
        record_loop(make, max_events=1000)  # type: ignore[arg-type]
