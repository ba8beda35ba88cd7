"""Reads the documentation pages: their code blocks and the commands in them."""

from __future__ import annotations

import re
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
README = REPOSITORY / "README.md"
CHART_README = REPOSITORY / "helm/vramcast/README.md"
DOCUMENTS = sorted([CHART_README, *REPOSITORY.glob("*.md"), *REPOSITORY.glob("docs/**/*.md")])
_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(page: Path, language: str) -> list[str]:
    return [text for found, text in _BLOCK.findall(page.read_text()) if found == language]


def commands(page: Path) -> list[str]:
    """Every command of the page's `sh` and `console` blocks, without prompts and comments.

    In `console` blocks commands follow a `$ ` and the other lines are output.
    """
    typed = [line for block in blocks(page, "sh") for line in block.replace("\\\n", "").splitlines()]
    typed += [
        line.removeprefix("$ ")
        for block in blocks(page, "console")
        for line in block.replace("\\\n", "").splitlines()
        if line.startswith("$ ")
    ]
    return [command for line in typed if (command := re.sub(r"(^|\s+)# .*$", "", line).strip())]


def with_ports(text: str, ports: dict[int, int]) -> str:
    """A test cannot use the ports of the page: something else may listen there."""
    for documented, free in ports.items():
        text = re.sub(rf"\b{documented}\b", str(free), text)
    return text
