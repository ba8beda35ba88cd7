"""Measured runs kept as training data: bounded, once per pod, and described so that they can be parsed again."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st
from tests.outcomes.laws import LAWS, finish, runs

from vramcast.forecast.forecast import UNADJUSTED
from vramcast.names import PodUid
from vramcast.outcomes.outcome import Outcome
from vramcast.outcomes.records import ObservedRuns, run_json
from vramcast.task.task import Task, parse_task
from vramcast.task.vocabulary import (
    PREFIX,
    Allocator,
    Architecture,
    Attention,
    Kernels,
    Kind,
    Level,
    LoraTargets,
    Offload,
    Optimizer,
    Precision,
    Quantization,
)
from vramcast.task.words import task_words

SUMMARY = Task(Level.SUMMARY, parameters=10**8, activations=10**7, batch_size=8, architecture=Architecture.CNN)


def outcome(number: int) -> Outcome:
    seen = finish(next(runs(LAWS[0], 1, 1)), LAWS[0], UNADJUSTED)
    return replace(seen, uid=PodUid(f"uid-{number}"), pod=f"team/secret-{number}")


def profiled(text: str) -> Task:
    return Task(Level.PROFILE, profile=text, batch_size=4)


def test_only_the_latest_runs_are_kept_once_per_pod() -> None:
    observed = ObservedRuns(3)
    for number in (1, 2, 2, 3, 4):
        observed.add(outcome(number), SUMMARY)
    assert [run.outcome.uid for run in observed] == ["uid-2", "uid-3", "uid-4"]


def test_equal_profiles_are_stored_once_and_their_total_size_is_bounded() -> None:
    observed = ObservedRuns(100, most_profile_bytes=25)
    for number in range(5):
        observed.add(outcome(number), profiled("a" * 10))
    assert len(observed) == 5
    observed.add(outcome(5), profiled("b" * 10))
    assert len(observed) == 6
    observed.add(outcome(6), profiled("c" * 10))
    assert [run.task.profile for run in observed] == ["b" * 10, "c" * 10]


def test_undescribed_runs_are_not_kept_and_a_capacity_of_zero_keeps_none() -> None:
    observed = ObservedRuns(3)
    observed.add(outcome(1), Task(Level.GIVEN, gpu_memory_mib=1000))
    assert len(observed) == 0
    disabled = ObservedRuns(0)
    disabled.add(outcome(1), SUMMARY)
    assert len(disabled) == 0


def test_a_run_is_anonymous_unless_names_are_requested() -> None:
    observed = ObservedRuns(3)
    observed.add(outcome(1), SUMMARY)
    (run,) = observed
    assert "secret" not in str(run_json(run, named=False))
    assert "uid-1" not in str(run_json(run, named=False))
    assert run_json(run, named=True)["pod"] == "team/secret-1"


@given(
    st.builds(
        Task,
        level=st.just(Level.SUMMARY),
        kind=st.sampled_from([Kind.TRAINING, Kind.FINE_TUNING]),
        architecture=st.none() | st.sampled_from(Architecture),
        parameters=st.integers(1, 10**13),
        layers=st.none() | st.integers(1, 10**5),
        activations=st.integers(1, 10**13),
        batch_size=st.integers(1, 10**7),
        input_size=st.none() | st.lists(st.integers(1, 999), min_size=1, max_size=5).map(tuple),
        precision=st.sampled_from(Precision),
        optimizer=st.sampled_from(Optimizer),
        gradient_checkpointing=st.booleans(),
        gradient_accumulation=st.integers(1, 64),
        attention=st.none() | st.sampled_from([Attention.SDPA, Attention.EAGER]),
        kernels=st.sampled_from(Kernels),
        lora_rank=st.integers(1, 512),
        lora_targets=st.sampled_from([*LoraTargets, "down_proj,up_proj"]),
        quantization=st.sampled_from(Quantization),
        zero_stage=st.integers(0, 3),
        data_parallel_size=st.integers(2, 64),
        offload=st.sampled_from([Offload.NONE, Offload.OPTIMIZER]),
        allocator=st.sampled_from(Allocator),
    )
)
def test_a_task_written_as_annotations_parses_to_the_same_task(task: Task) -> None:
    read = parse_task({PREFIX + name: text for name, text in task_words(task).items()})
    assert read is not None
    assert replace(read, assumptions=()) == task
