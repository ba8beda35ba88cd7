"""Compares the language models of the catalog with a table of public models.

    python -m tests.profiling.language_models TABLE.csv

The table has a row for each model: its name on the hub, and the figures that make its network (`layers`, `width`,
`heads`, `kv_heads`, `head_size`, `intermediate`, `padded_vocabulary`, `experts`, `experts_per_token`,
`moe_intermediate`, `sliding_window`). Exits with 1 if a model is missing or differs.
"""

from __future__ import annotations

import csv
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from vramcast.forecast.model_names import ModelNames
from vramcast.profile.networks.huggingface import Published
from vramcast.profile.networks.language import PUBLISHED
from vramcast.profile.networks.multimodal import TEXTS

# Where the table disagrees with the configuration on the hub, with the hub's figure.
HUB_SAYS: dict[tuple[str, str], int] = {
    ("Platypus2-70B", "kv_heads"): 8,
    ("gemma-3-4b-it", "vocabulary"): 262208,
    ("gemma-3-12b-it", "vocabulary"): 262208,
    ("gemma-3-27b-it", "vocabulary"): 262208,
}
_FIELDS = {
    "layers": ("num_hidden_layers",), "width": ("hidden_size",), "heads": ("num_attention_heads",),
    "kv_heads": ("num_key_value_heads", "num_kv_heads"), "head_size": ("head_dim",),
    "intermediate": ("intermediate_size",), "vocabulary": ("vocab_size",),
    "experts": ("num_local_experts", "num_experts"), "experts_per_token": ("num_experts_per_tok",),
    "moe_intermediate": ("moe_intermediate_size",), "sliding_window": ("sliding_window",),
}  # fmt: skip
# The windows of these differ in the table but are longer than what anybody trains, or unused.
_WINDOWS_APART = ("phi-3", "phi-4", "mathstral")


def compare(row: Mapping[str, str], fields: Mapping[str, Any]) -> Iterator[str]:
    name = row["hub"].rpartition("/")[2]
    ours = {figure: next((fields[key] for key in keys if key in fields), None) for figure, keys in _FIELDS.items()}
    ours["kv_heads"] = ours["kv_heads"] or (1 if fields.get("multi_query") else ours["heads"])
    ours["head_size"] = ours["head_size"] or ours["width"] // ours["heads"]
    ours["intermediate"] = ours["intermediate"] or 4 * ours["width"]
    for figure, found in ours.items():
        told = row["padded_vocabulary"] if figure == "vocabulary" else row[figure]
        wanted = HUB_SAYS.get((name, figure), int(told) if told else None)
        if figure == "sliding_window" and name.lower().startswith(_WINDOWS_APART):
            continue
        if (found or 0) != (wanted or 0):
            yield f"{name}: {figure} is {found}, the table says {wanted}"


def main(table: Path) -> int:
    known: dict[str, Published] = {f"hf/{name}": published for name, published in (PUBLISHED | TEXTS).items()}
    names = ModelNames((name, published.also) for name, published in known.items())
    wrong, rows = [], 0
    with table.open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            rows += 1
            full = names.find(f"hf/{row['hub']}")
            wrong += [f"{row['hub']} is missing"] if full is None else list(compare(row, known[full].fields))
    print("\n".join([*wrong, f"{rows} models, {len(wrong)} differences"]))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
