"""The manifest names every part of an artifact. The parts are trained apart, and each keeps its figures in a file of
its own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from vramcast.forecast import model, speed_artifact, totals_model

_PARTS = {
    "totals": (totals_model.MANIFEST, totals_model.MODEL),
    "speed": (speed_artifact.MANIFEST, speed_artifact.MODEL),
}


def found_parts(artifact: Path) -> dict[str, dict[str, str]]:
    """Of those that are there: files, version and hash."""
    return {
        name: {"manifest": manifest, "model": file, **_identity(artifact / manifest)}
        for name, (manifest, file) in _PARTS.items()
        if (artifact / manifest).exists()
    }


def name_parts(artifact: Path) -> None:
    """In the artifact's manifest, if there is one: parts may be trained before it."""
    path = artifact / model.MANIFEST
    if path.exists():
        write_manifest(artifact, json.loads(path.read_text(encoding="utf-8")))


def write_manifest(artifact: Path, manifest: dict[str, Any]) -> None:
    """With the parts that are there. A reader never sees half of it."""
    written = (artifact / model.MANIFEST).with_suffix(".new")
    named = manifest | {"parts": found_parts(artifact)}
    written.write_text(json.dumps(named, indent=1) + "\n", encoding="utf-8")
    written.replace(artifact / model.MANIFEST)


def _identity(manifest: Path) -> dict[str, str]:
    stated = json.loads(manifest.read_text(encoding="utf-8"))
    return {name: str(stated[name]) for name in ("version", "sha256")}
