"""The JSON Schema and the parser are made from one table: what the schema lets pass, the parser reads."""

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
# Told by the parser alone: a pattern knows no ranges.
RANGES = {
    ("gpu-memory", "16m"), ("gpu-memory", "0"), ("gpu-memory", "-16Gi"), ("gpus", "0"), ("gpus", "65"),
    ("max-oom-risk", "0.9"), ("layers", "100001"), ("parameters", "1e99"), ("lora-rank", "0"),
    ("data-parallel-size", "0"), ("batch-size", "9" * 41),
}  # fmt: skip


def prefixed(values: dict[str, str]) -> dict[str, str]:
    return {PREFIX + name: text for name, text in values.items()}


def rows(test: Any) -> list[tuple[Any, ...]]:
    return list(test.pytestmark[0].args[1])


def test_the_schema_is_one() -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    assert json.loads(json.dumps(SCHEMA)) == SCHEMA


@pytest.mark.parametrize("key", KEYS.values(), ids=KEYS)
def test_every_example_and_default_passes(key: Any) -> None:
    for text in filter(None, (key.example.strip('"'), key.default)):
        given_too = {"data-parallel-size": "8", "lora-rank": "8", "gpu-memory": "1Gi"}
        VALIDATOR.validate(prefixed({**given_too, key.name: text}))


@pytest.mark.parametrize(
    ("name", "text"), [row[:2] for row in rows(test_task.test_a_mistake_is_told_by_key_value_and_what_was_expected)]
)
def test_what_the_parser_refuses_the_schema_refuses(name: str, text: str) -> None:
    assert VALIDATOR.is_valid(prefixed({"gpu-memory": "1Gi", name: text})) <= ((name, text) in RANGES)


@pytest.mark.parametrize(
    "annotations", [row[0] for row in rows(test_task.test_keys_that_contradict_each_other_are_refused)]
)
def test_contradictions_are_in_the_schema(annotations: dict[str, str]) -> None:
    assert not VALIDATOR.is_valid(prefixed(annotations))


@pytest.mark.parametrize("annotations", rows(test_task.test_keys_that_only_look_like_a_contradiction_are_accepted))
def test_what_only_looks_like_a_contradiction_passes(annotations: dict[str, str]) -> None:
    VALIDATOR.validate(prefixed(annotations))


def test_a_key_that_is_not_known_is_refused_and_those_of_others_are_not() -> None:
    assert not VALIDATOR.is_valid(prefixed({"gpu-memory": "1Gi", "batch_size": "1"}))
    VALIDATOR.validate({"kubectl.kubernetes.io/x": "y", **dict.fromkeys(DESCRIBES_NOTHING, "z")})


def test_too_little_for_a_forecast_is_refused() -> None:
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
def test_what_passes_the_schema_the_parser_reads_but_for_ranges(annotations: dict[str, str]) -> None:
    of_ranges = ("whole number from", "less than 1Mi", "more than", "a probability from", "expected at most")
    if VALIDATOR.is_valid(annotations):
        assert [told for told in mistakes(annotations) if not any(words in told for words in of_ranges)] == []


@pytest.mark.parametrize("key", [key for key in KEYS.values() if key.default], ids=lambda key: key.name)
def test_a_task_has_the_tables_defaults(key: Any) -> None:
    field = {"task": "kind"}.get(key.name, key.name.replace("-", "_"))
    assert getattr(Task(Level.NAME), field) == key.parse(key.default)


def test_every_level_has_what_is_enough() -> None:
    assert ENOUGH.keys() == set(Level)
    assert all(name in KEYS for names in ENOUGH.values() for name in names)
