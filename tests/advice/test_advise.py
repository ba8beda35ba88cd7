"""Advice on twenty tasks: everything proposed fits, nothing cheaper was missed, and measured runs fit too."""

from __future__ import annotations

from functools import cache, lru_cache

import pytest

from tests.advice.cases import CASES, Case
from vramcast.advice.cost import cost_of
from vramcast.advice.lines import changed_annotations
from vramcast.advice.options import candidates, halved
from vramcast.advice.report import advice_json, smallest_text, why_and_what
from vramcast.advice.search import GpuAdvice, advise, parse_keep, whole
from vramcast.errors import InvalidInput, InvalidTask
from vramcast.forecast.forecaster import CachingForecaster
from vramcast.forecast.model import choose_forecaster
from vramcast.forecast.report import COMMON_PRODUCTS
from vramcast.hardware.short_names import find_product
from vramcast.task.task import Task, parse_task
from vramcast.task.vocabulary import KEYS, PREFIX
from vramcast.task.words import field_of

OTHERS = [whole(product) for product in COMMON_PRODUCTS]
MEASURED = [name for name, case in CASES.items() if case.measured is not None]
WITHOUT_ANSWER = {"nothing fits", "a number"}  # besides another GPU


@lru_cache(maxsize=1)
def forecaster() -> CachingForecaster:
    return choose_forecaster("builtin", 0.05, physics_if_unusable=False)


def prefixed(task: dict[str, str]) -> dict[str, str]:
    return {PREFIX + name: text for name, text in task.items()}


def parsed(task: dict[str, str]) -> Task:
    found = parse_task(prefixed(task))
    assert found is not None
    return found


@cache
def advice(name: str) -> GpuAdvice:
    case = CASES[name]
    return asked(case)


def asked(case: Case, **more: int) -> GpuAdvice:
    room = whole(find_product(case.gpu))
    return advise(forecaster(), parsed(case.task), room, parse_keep([case.keep]), OTHERS, **more)


def test_there_are_twenty_cases_and_five_of_them_were_measured() -> None:
    assert len(CASES) == 20
    assert len(MEASURED) == 5


@pytest.mark.parametrize("name", CASES)
def test_everything_proposed_is_forecast_again_from_its_annotations_and_fits(name: str) -> None:
    found, case = advice(name), CASES[name]
    assert not found.fits
    assert found.proposals
    for proposal in found.proposals:
        said = prefixed(case.task) | changed_annotations(proposal.task, proposal.changed)
        task = parse_task(said)
        assert task is not None
        again = forecaster().forecast(task, proposal.room.product)
        assert again.need_mib == proposal.forecast.need_mib <= proposal.room.mib, proposal


@pytest.mark.parametrize("name", CASES)
def test_an_exhaustive_search_finds_nothing_cheaper(name: str) -> None:
    """Every candidate is forecast here that costs less than the first proposal, also those that the search skips."""
    found, case = advice(name), CASES[name]
    changes = [proposal for proposal in found.proposals if proposal.changed]
    limit = changes[0].cost.points if changes else float("inf")
    task = found.task
    if name in WITHOUT_ANSWER:
        assert not changes
    if name == "a number":
        return
    for candidate in candidates(task, found.room.product, parse_keep([case.keep])):
        if not candidate.changed or cost_of(task, candidate.task).points >= limit:
            continue
        try:
            forecast = forecaster().forecast(candidate.task, found.room.product)
        except InvalidTask:
            continue
        counted = not any("is not counted" in note for note in forecast.assumptions)
        assert not counted or forecast.need_mib > found.room.mib, candidate


@pytest.mark.parametrize("name", ["CaiT", "README's Llama, on an L40S"])
def test_whatever_fits_and_is_not_proposed_changes_more_than_something_cheaper(name: str) -> None:
    found, case = advice(name), CASES[name]
    changes = [proposal for proposal in found.proposals if proposal.changed]
    for candidate in candidates(found.task, found.room.product, parse_keep([case.keep])):
        points = cost_of(found.task, candidate.task).points
        forecast = forecaster().forecast(candidate.task, found.room.product)
        if forecast.need_mib > found.room.mib or any("is not counted" in note for note in forecast.assumptions):
            continue
        trifles = {"allocator", "gradient-accumulation"}
        assert any(
            proposal.cost.points <= points and proposal.changed - trifles <= candidate.changed for proposal in changes
        ), candidate


@pytest.mark.parametrize("name", CASES)
def test_the_cheapest_comes_first(name: str) -> None:
    points = [proposal.cost.points for proposal in advice(name).proposals]
    assert points == sorted(points)
    assert all(each >= 0 for each in points)


@pytest.mark.parametrize("name", MEASURED)
def test_a_run_with_the_proposed_settings_was_measured_and_fits(name: str) -> None:
    case, first = CASES[name], advice(name).proposals[0]
    assert case.measured is not None
    assert first.changed, "another GPU is no change of settings"
    assert case.measured <= first.room.mib / 1024, case.source
    assert case.measured <= first.forecast.need_mib / 1024, "the bound covers the measured run"


@pytest.mark.parametrize("name", CASES)
def test_a_step_sees_as_many_samples_as_before(name: str) -> None:
    def samples(task: Task) -> int:
        return task.batch_size * task.gradient_accumulation * task.data_parallel_size

    before = advice(name).task
    for proposal in advice(name).proposals:
        grown = any("as many samples" in effect.why for effect in proposal.cost.effects)
        inference = before.kind == "inference"
        assert grown or inference or samples(proposal.task) == samples(before)


@pytest.mark.parametrize("kept", ["batch-size", "precision", "optimizer", "lora-rank", "gradient-checkpointing"])
def test_what_must_stay_stays(kept: str) -> None:
    task = parsed(CASES["gpt2 on a desktop"].task)
    for candidate in candidates(task, find_product("3060"), parse_keep([kept])):
        assert getattr(candidate.task, field_of(kept)) == getattr(task, field_of(kept))


def test_an_unknown_annotation_cannot_be_kept() -> None:
    with pytest.raises(InvalidInput, match="keep 'batch': no annotation has this name; expected some of gpu-memory"):
        parse_keep(["batch"])
    assert parse_keep(["batch_size, vramcast.dev/precision"]) == {"batch-size", "precision"}


def test_bf16_is_not_proposed_to_a_gpu_that_cannot_compute_in_it() -> None:
    task = parsed(CASES["README's ResNet, larger"].task)
    formats = {str(candidate.task.precision) for candidate in candidates(task, find_product("T4"))}
    assert formats == {"fp32", "amp-fp16"}


def test_if_nothing_fits_the_advice_says_by_how_much() -> None:
    found = advice("nothing fits")
    assert found.complete
    assert found.short_mib == found.smallest.forecast.need_mib - found.room.mib > 0
    assert "the smallest that was tried, with " in smallest_text(found)
    assert "GiB too many" in smallest_text(found)


def test_a_task_that_fits_needs_no_advice() -> None:
    found = asked(Case({"model": "timm/resnet50", "batch-size": "8"}, "L40S"))
    assert found.fits
    assert found.proposals == ()
    assert found.tried == 1


def test_a_limited_search_says_that_it_is_not_complete() -> None:
    found = asked(CASES["Mistral, all weights, on one A10"], most_tried=10)
    assert not found.complete
    assert found.tried < 15


def test_an_accepted_risk_is_one_at_which_it_fits() -> None:
    task = {"model": "bert-large-uncased", "batch-size": "3", "sequence-length": "480"}
    found = asked(Case(task, "3080"))
    assert not found.fits
    assert found.fits_at_risk is not None
    accepted = parsed({**task, "max-oom-risk": str(found.fits_at_risk)})
    assert forecaster().forecast(accepted, found.room.product).need_mib <= found.room.mib


@pytest.mark.parametrize("name", CASES)
def test_an_event_fits_the_limit_and_tells_median_risk_and_help(name: str) -> None:
    found = advice(name)
    text = why_and_what(found)
    assert len(text) <= 700
    if name == "a number":
        assert "as vramcast.dev/gpu-memory says" in text
    else:
        assert "at risk 0.0" in text
        assert "median" in text
        assert "set vramcast.dev/gpu-memory" in text


def test_every_cost_has_a_reason() -> None:
    for name in CASES:
        for proposal in advice_json(advice(name))["proposals"]:
            assert proposal["why"], proposal
            assert proposal["cost"] >= 0


@pytest.mark.parametrize(("size", "expected"), [(1, [1]), (12, [12, 6, 3, 1]), (7, [7, 1]), (26, [26, 13, 1])])
def test_batches_are_halved_as_long_as_they_divide(size: int, expected: list[int]) -> None:
    assert halved(size) == expected


def test_no_candidate_sets_an_annotation_that_does_not_exist() -> None:
    task = parsed(CASES["gpt2 on a desktop"].task)
    assert all(candidate.changed <= KEYS.keys() for candidate in candidates(task, find_product("3060")))
