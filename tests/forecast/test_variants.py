"""Which recorded variant a task's settings are."""

from __future__ import annotations

from dataclasses import replace

import pytest

from vramcast.forecast.variants import VARIANTS, shown_settings, stand_ins, variant_of
from vramcast.task.task import Task, parse_task
from vramcast.task.vocabulary import PREFIX


def task(settings: dict[str, str]) -> Task:
    parsed = parse_task({PREFIX + "model": "hf/gpt2", **{PREFIX + name: value for name, value in settings.items()}})
    assert parsed is not None
    return parsed


@pytest.mark.parametrize("name", VARIANTS)
def test_each_variant_is_found_by_its_own_settings(name: str) -> None:
    assert variant_of(task(dict(VARIANTS[name]))) == name


@pytest.mark.parametrize(
    ("settings", "name"),
    [
        ({"precision": "fp16", "lora-rank": "64"}, "16-bit lora"),
        ({"precision": "bf16", "attention": "flash"}, "16-bit full"),
        ({"precision": "bf16", "attention": "sdpa", "task": "fine-tuning"}, "16-bit full"),
        (
            {"precision": "bf16", "lora-rank": "8", "lora-targets": "q_proj,k_proj,v_proj,o_proj"},
            "16-bit attention lora",
        ),
        ({"precision": "amp-fp16"}, "amp full"),
        ({"precision": "tf32"}, "fp32 full"),
        ({"precision": "bf16", "lora-rank": "8", "lora-targets": "all-linear"}, "16-bit lora"),
        ({"precision": "bf16", "zero-stage": "3", "data-parallel-size": "8", "optimizer": "lion"}, "16-bit full"),
        ({"precision": "fp16", "task": "inference"}, "16-bit inference"),
    ],
)
def test_what_makes_no_difference_shares_a_variant(settings: dict[str, str], name: str) -> None:
    assert variant_of(task(settings)) == name


@pytest.mark.parametrize(
    "settings",
    [
        {"precision": "bf16", "attention": "eager", "task": "inference"},
        {"precision": "amp-bf16", "kernels": "liger"},
        {"precision": "bf16", "kernels": "liger", "task": "inference"},
        {"precision": "bf16", "lora-rank": "8", "lora-targets": "qv", "quantization": "nf4"},
        {"precision": "bf16", "lora-rank": "8", "lora-targets": "c_attn"},
        {"precision": "bf16", "lora-rank": "8", "quantization": "int4"},
        {"precision": "amp-bf16", "lora-rank": "8"},
        {"precision": "fp8"},
        {"precision": "fp32", "task": "inference"},
    ],
)
def test_other_settings_have_none(settings: dict[str, str]) -> None:
    assert variant_of(task(settings)) is None


def test_settings_are_shown_as_the_annotations_name_them() -> None:
    settings = {"precision": "bf16", "lora-rank": "8", "lora-targets": "qv", "quantization": "nf4",
                "kernels": "liger", "attention": "flash", "gradient-checkpointing": "true"}  # fmt: skip
    assert shown_settings(task(settings)) == (
        "precision bf16, lora-rank 8, lora-targets qv, quantization nf4, attention flash, kernels liger, "
        "gradient-checkpointing true"
    )
    assert shown_settings(task({"precision": "fp32", "task": "inference"})) == "precision fp32, task inference"


def test_the_first_to_stand_in_is_the_task_itself() -> None:
    given = task({"precision": "bf16", "kernels": "liger"})
    assert next(iter(stand_ins(given))) == given


def test_fewer_changes_come_first_and_each_is_told() -> None:
    given = task({"precision": "bf16", "lora-rank": "8", "lora-targets": "qv", "quantization": "int4"})
    found = list(stand_ins(given))
    told = [len(other.assumptions) - len(given.assumptions) for other in found]
    assert told == sorted(told)
    assert variant_of(replace(found[-1], gradient_checkpointing=True)) == "16-bit nf4 lora checkpointed"
    assert "quantization int4 counted as nf4" in found[-1].assumptions


@pytest.mark.parametrize(
    "settings",
    [{"precision": "bf16"}, {"precision": "bf16", "lora-rank": "8", "quantization": "int8"}, {"precision": "fp8"}],
)
def test_nothing_stands_in_for_what_has_no_neighbour_that_takes_as_much(settings: dict[str, str]) -> None:
    given = task(settings)
    assert list(stand_ins(given)) == [given]
