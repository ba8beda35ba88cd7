"""The JSON Schema and the parser are built from one table, so apart from ranges they accept the same annotations."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.task import test_task

from vramcast.errors import InvalidTask
from vramcast.task.schema import annotations_schema
from vramcast.task.task import DESCRIBES_NOTHING, Task, parse_task
from vramcast.task.vocabulary import ENOUGH, KEYS, PREFIX, Level

SCHEMA = annotations_schema(DESCRIBES_NOTHING)
VALIDATOR = jsonschema.Draft202012Validator(SCHEMA)
# Only the parser reports these: a pattern cannot express a range.
RANGES = {
    ("gpu-memory", "16m"), ("gpu-memory", "0"), ("gpu-memory", "-16Gi"), ("gpus", "0"), ("gpus", "65"),
    ("max-oom-risk", "0.9"), ("layers", "100001"), ("parameters", "1e99"), ("lora-rank", "0"),
    ("data-parallel-size", "0"), ("batch-size", "9" * 41), ("gradient-accumulation", "0"),
}  # fmt: skip


def prefixed(values: dict[str, str]) -> dict[str, str]:
    return {PREFIX + name: text for name, text in values.items()}


def rows(test: Any) -> list[tuple[Any, ...]]:
    return list(test.pytestmark[0].args[1])


def test_the_schema_is_a_valid_json_schema() -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    assert json.loads(json.dumps(SCHEMA)) == SCHEMA


@pytest.mark.parametrize("key", KEYS.values(), ids=KEYS)
def test_every_example_and_default_passes(key: Any) -> None:
    for text in filter(None, (key.example.strip('"'), key.default)):
        others = {
            "data-parallel-size": "8",
            "lora-rank": "8",
            "gpu-memory": "1Gi",
            "precision": "bf16",
            "quantization": "nf4",
            "zero-stage": "3",
        }
        VALIDATOR.validate(prefixed({**others, key.name: text}))


@pytest.mark.parametrize(
    ("name", "text"),
    [row[:2] for row in rows(test_task.test_a_mistake_is_reported_with_key_value_and_what_was_expected)],
)
def test_the_schema_refuses_what_the_parser_refuses_except_ranges(name: str, text: str) -> None:
    assert VALIDATOR.is_valid(prefixed({"gpu-memory": "1Gi", name: text})) <= ((name, text) in RANGES)


@pytest.mark.parametrize(
    "annotations", [row[0] for row in rows(test_task.test_keys_that_contradict_each_other_are_refused)]
)
def test_the_schema_refuses_keys_that_contradict_each_other(annotations: dict[str, str]) -> None:
    assert not VALIDATOR.is_valid(prefixed(annotations))


@pytest.mark.parametrize("annotations", rows(test_task.test_keys_that_go_together_are_accepted))
def test_the_schema_accepts_keys_that_go_together(annotations: dict[str, str]) -> None:
    VALIDATOR.validate(prefixed(annotations))


def test_an_unknown_key_is_refused_but_not_the_keys_of_others_or_those_that_vramcast_writes() -> None:
    assert not VALIDATOR.is_valid(prefixed({"gpu-memory": "1Gi", "batch_size": "1"}))
    VALIDATOR.validate({"kubectl.kubernetes.io/x": "y", **dict.fromkeys(DESCRIBES_NOTHING, "z")})


def test_too_few_keys_for_a_forecast_are_refused() -> None:
    assert not VALIDATOR.is_valid(prefixed({"share": "true"}))
    assert not VALIDATOR.is_valid(prefixed({"parameters": "7B"}))


_VALUES = st.fixed_dictionaries(
    {},
    optional={
        PREFIX + name: st.sampled_from(key.form.choices) if key.form.choices else st.from_regex(key.form.pattern)
        for name, key in KEYS.items()
    },
)


def mistakes(annotations: dict[str, str]) -> list[str]:
    try:
        parse_task(annotations)
    except InvalidTask as error:
        return [mistake.expected for mistake in error.errors]
    return []


@settings(max_examples=50)
@given(_VALUES)
def test_the_parser_accepts_what_the_schema_accepts_except_ranges(annotations: dict[str, str]) -> None:
    range_errors = ("whole number from", "less than 1Mi", "more than", "a probability from", "expected at most")
    if VALIDATOR.is_valid(annotations):
        assert [
            mistake for mistake in mistakes(annotations) if not any(phrase in mistake for phrase in range_errors)
        ] == []


@pytest.mark.parametrize("key", [key for key in KEYS.values() if key.default], ids=lambda key: key.name)
def test_a_task_has_the_defaults_of_the_table(key: Any) -> None:
    field = {"task": "kind"}.get(key.name, key.name.replace("-", "_"))
    unsaid = key.name == "attention"  # what computes it is told by the forecast, where the network has any
    assert getattr(Task(Level.NAME), field) == (None if unsaid else key.parse(key.default))


def test_every_level_lists_the_keys_that_are_enough() -> None:
    assert ENOUGH.keys() == set(Level)
    assert all(name in KEYS for names in ENOUGH.values() for name in names)
