"""Writes the CycloneDX SBOM of the service: vramcast and every package that serve.txt locks.

    python requirements/sbom.py FILE

cyclonedx-py describes all of .venv, linters included, and cannot see vramcast's version, which is dynamic.
So this script drops what the service does not run on and adds the version.
"""

from __future__ import annotations

import json
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

REPOSITORY = Path(__file__).parents[1]
Json = dict[str, Any]


def locked_versions(lock: Path) -> dict[str, str]:
    """Package to version, for the running interpreter and platform."""
    lines = [line.removesuffix("\\").strip() for line in lock.read_text().splitlines() if line[:1].isalnum()]
    requirements = [Requirement(line) for line in lines]
    return {
        canonicalize_name(requirement.name): str(requirement.specifier).removeprefix("==")
        for requirement in requirements
        if requirement.marker is None or requirement.marker.evaluate()
    }


def serving_sbom(everything: Json, locked: dict[str, str], version: str) -> Json:
    """The part of the SBOM of .venv that the service runs on."""
    root = {**everything["metadata"]["component"], "version": version, "purl": f"pkg:pypi/vramcast@{version}"}
    components = [one for one in everything["components"] if canonicalize_name(one["name"]) in locked]
    missing = locked.items() - {(canonicalize_name(one["name"]), one["version"]) for one in components}
    if missing:
        names = ", ".join(sorted(f"{name}=={wanted}" for name, wanted in missing))
        sys.exit(f"error: .venv does not have the locked {names}: run 'make install'")
    kept = {root["bom-ref"], *(one["bom-ref"] for one in components)}
    dependencies = [
        {**one, "dependsOn": [ref for ref in one.get("dependsOn", ()) if ref in kept]}
        for one in everything["dependencies"]
        if one["ref"] in kept
    ]
    return {
        **everything,
        "metadata": {**everything["metadata"], "component": root},
        "components": components,
        "dependencies": dependencies,
    }


def main(target: Path) -> None:
    # Validating takes 20 s, and it is not this output that ships: the tests validate the file.
    options = ["--output-reproducible", "--no-validate", "--pyproject", REPOSITORY / "pyproject.toml"]
    command = [sys.executable, "-m", "cyclonedx_py", "environment", sys.executable, *options]
    described = subprocess.run(command, check=False, capture_output=True, text=True)
    if described.returncode:
        sys.exit(described.stderr)
    locked = locked_versions(REPOSITORY / "requirements/serve.txt")
    sbom = serving_sbom(json.loads(described.stdout), locked, metadata.version("vramcast"))
    target.write_text(json.dumps(sbom, indent=2) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
