"""The schema of the chart's `settings`, generated from the service's own model.

`python -m tests.chart.settings_schema` writes it into values.schema.json, as does `python -m tests.docs.tables` with
everything else that is generated. The rest of that file is maintained manually.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from vramcast.settings import Settings

SCHEMA = Path(__file__).parents[2] / "helm/vramcast/values.schema.json"
# JSON Schema cannot check whether a file exists, and neither does Helm.
_DROPPED = {"title", "default", "format"}

Json = dict[str, Any]


def values_schema() -> str:
    """values.schema.json with the present settings."""
    document = json.loads(SCHEMA.read_text())
    document["definitions"] = {"settings": settings_schema()}
    return json.dumps(document, indent=2) + "\n"


def settings_schema() -> Json:
    generated = Settings.model_json_schema()
    enums: dict[str, Json] = generated.get("$defs", {})
    properties = {name: _flat(field, enums) for name, field in generated["properties"].items()}
    return {"type": "object", "additionalProperties": False, "properties": properties}


def _flat(field: Json, enums: dict[str, Json]) -> Json:
    """Without `$ref` and `anyOf`: Helm reports a failed `anyOf` as a list of everything that it might have been."""
    described = {key: value for key, value in field.items() if key not in _DROPPED}
    if "$ref" in described:
        enum = enums[described.pop("$ref").removeprefix("#/$defs/")]
        return {"enum": enum["enum"], **described}
    if "anyOf" in described:
        (some,) = [_flat(part, enums) for part in described.pop("anyOf") if part != {"type": "null"}]
        assert "enum" not in some, "an optional enum needs null among its values"
        return {**some, "type": [some["type"], "null"], **described}
    return described


if __name__ == "__main__":
    SCHEMA.write_text(values_schema())
