"""The chart accepts no setting that the service would refuse at startup.

tests/docs/test_docs.py checks that the committed schema is current.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from tests.chart.settings_schema import SCHEMA, settings_schema
from vramcast.settings import InvalidSettings, Settings, load_settings

VALIDATOR = jsonschema.Draft7Validator(json.loads(SCHEMA.read_text())["definitions"]["settings"])
FIELDS = settings_schema()["properties"]


def probes(field: dict[str, Any]) -> list[Any]:
    """Values of every type, and around every bound of this field."""
    edges = [field[key] for key in ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum") if key in field]
    near = [edge + step for edge in edges for step in (-1, -0.001, 0, 0.001, 1)]
    words = [
        "",
        "x",
        "a b",
        "a,b",
        ",",
        "a/b",
        "a/b/c",
        "/",
        "{}",
        "137",
        "137,",
        "1.5",
        "http://a",
        "http://a,",
        "ftp://a",
    ]
    return [*near, *words, *field.get("enum", []), 0, 1, -1, 0.5, 10**9, True, False, None, [], ["a"], {}, {"a": 1}]


def refusal(file: Path, name: str, value: Any) -> str:
    """What the service reports about this setting in a configuration file; empty if it starts."""
    file.write_text(json.dumps({name: value}))
    try:
        load_settings({"config": str(file)}, {})
    except InvalidSettings as error:
        return str(error)
    return ""


@pytest.mark.parametrize("name", Settings.model_fields)
def test_no_value_passes_the_schema_that_the_service_refuses(name: str, tmp_path: Path) -> None:
    passed = [value for value in probes(FIELDS[name]) if VALIDATOR.is_valid({name: value})]
    assert passed, "the schema refuses everything"
    for value in passed:
        message = refusal(tmp_path / "settings.yaml", name, value)
        # A schema cannot know which files exist or which settings need each other.
        related = ("does not point to a file", "tls_", "go together")
        assert not message or any(words in message for words in related), f"{value!r}: {message}"


@pytest.mark.parametrize("name", Settings.model_fields)
def test_the_default_of_every_setting_passes_the_schema(name: str) -> None:
    default = json.loads(load_settings({}, {}).model_dump_json())[name]
    assert VALIDATOR.is_valid({name: default}), default


def test_an_unknown_setting_is_refused() -> None:
    assert not VALIDATOR.is_valid({"default_oom_risc": 0.01})


def test_templates_name_only_settings_that_exist() -> None:
    """After a rename, a template would otherwise still check or set the old name."""
    text = "".join(path.read_text() for path in (SCHEMA.parent / "templates").glob("*.tpl"))
    governed = re.findall(r'"(\w+)" "[\w.]+"', re.findall(r"\$governed := dict (.*) -\}\}", text)[0])
    named = re.findall(r"\.settings\.(\w+)|\.settings \"(\w+)\"|set \$(?:all|governed) \"(\w+)\"", text)
    found = {*governed, *(name for names in named for name in names if name)}
    assert len(found) > 10
    assert found - set(Settings.model_fields) == set()
