"""The vocabulary as a JSON Schema for a pod's annotations, for editors and admission checks.

It covers every key, the form of every value, what a forecast needs and what contradicts what. It is stricter than the
parser in spelling (`fp16`, not `FP16`) and does not check ranges of numbers; `vramcast annotate --check` does.
"""

from __future__ import annotations

from typing import Any

from vramcast.task.vocabulary import ENOUGH, KEYS, PREFIX, RULES, Condition, Key, Rule

_Schema = dict[str, Any]


def annotations_schema(also_known: tuple[str, ...]) -> _Schema:
    """`also_known`: vramcast.dev/ annotations that describe no task, such as those that vramcast writes."""
    names = [key.annotation for key in KEYS.values()]
    ours = {"anyOf": [{"not": {"pattern": f"^{PREFIX}"}}, {"enum": [*names, *also_known]}]}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Annotations of a pod, as vramcast reads them",
        "type": "object",
        "properties": {key.annotation: _value(key) for key in KEYS.values()},
        "additionalProperties": {"type": "string"},
        "propertyNames": ours,
        "allOf": [_enough(names), *(_rule(rule) for rule in RULES)],
    }


def _value(key: Key) -> _Schema:
    schema: _Schema = {"type": "string", "description": f"{key.meaning}: {key.form.accepts}"}
    if key.form.choices:
        schema["enum"] = list(key.form.choices)
    else:
        schema |= {"pattern": key.form.pattern, "maxLength": key.max_length}
    if key.default:
        schema["default"] = key.default
    return schema | {"examples": [key.example.strip('"')]}


def _enough(names: list[str]) -> _Schema:
    """A pod may have no description. If it has one, it must be complete."""
    return {
        "if": {"anyOf": [{"required": [name]} for name in names]},
        "then": {"anyOf": [_required(told) for told in ENOUGH.values()]},
    }


def _rule(rule: Rule) -> _Schema:
    when = _condition(rule.when)
    if rule.unless:
        when = {"allOf": [when, {"not": _condition(rule.unless)}]}
    then: _Schema = _required(rule.needs) if rule.needs else {}
    if rule.forbids:
        then["not"] = {"anyOf": [_required((name,)) for name in rule.forbids]}
    return {"if": when, "then": then, "$comment": rule.why}


def _condition(condition: Condition) -> _Schema:
    meant = {PREFIX + name: {"enum": list(values)} for name, values in condition.items() if values}
    return _required(tuple(condition)) | ({"properties": meant} if meant else {})


def _required(names: tuple[str, ...]) -> _Schema:
    return {"required": [PREFIX + name for name in names]}
