"""Builds the kubectl plugin: one file that any Python 3.9 runs, its archive, and the krew manifest that installs it.

Run by `make dist`. The same sources give the same bytes, so that the manifest's checksum can be checked by a rebuild.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import io
import json
import re
import tarfile
import zipfile
from pathlib import Path

SERVICE = Path(__file__).parent
LICENSE = SERVICE.parent / "LICENSE"
PROGRAM = "kubectl-vramcast"
MAIN = """\
import sys

if sys.version_info < (3, 9):
    sys.exit("error: kubectl vramcast needs Python 3.9 or newer; python3 on PATH is " + sys.version.split()[0])

from vramcast.kubectl.main import main

main()
"""
# The oldest time that a zip file can hold.
_NEW_YEAR = (1980, 1, 1, 0, 0, 0)


def version() -> str:
    (found,) = re.findall(r'^__version__ = "(.*)"$', (SERVICE / "vramcast/__init__.py").read_text(), re.MULTILINE)
    return str(found)


def program() -> bytes:
    """A zip of the plugin's modules that Python runs, after a line that names Python."""
    packed = io.BytesIO()
    modules = [SERVICE / "vramcast/__init__.py", *sorted((SERVICE / "vramcast/kubectl").glob("*.py"))]
    files = {str(path.relative_to(SERVICE)): path.read_text() for path in modules}
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, text in {"__main__.py": MAIN, **files}.items():
            entry = zipfile.ZipInfo(name, _NEW_YEAR)
            entry.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(entry, text)
    return b"#!/usr/bin/env python3\n" + packed.getvalue()


def archive() -> bytes:
    packed = io.BytesIO()
    with gzip.GzipFile(fileobj=packed, mode="wb", mtime=0) as zipped, tarfile.open(fileobj=zipped, mode="w") as tar:
        for name, content, mode in ((PROGRAM, program(), 0o755), ("LICENSE", LICENSE.read_bytes(), 0o644)):
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(content), mode
            tar.addfile(entry, io.BytesIO(content))
    return packed.getvalue()


def manifest(uri: str, sha256: str) -> str:
    """As krew's documentation describes it; JSON is YAML."""
    described = {
        "apiVersion": "krew.googlecontainertools.github.com/v1alpha2",
        "kind": "Plugin",
        "metadata": {"name": "vramcast"},
        "spec": {
            "version": f"v{version()}",
            "homepage": "https://vramcast.dev",
            "shortDescription": "Why a GPU pod waits, and what its GPUs promise",
            "description": (
                "Asks vramcast, a scheduler extender that forecasts GPU memory: why a pod waits, node by node, and "
                "what would have to change; what is promised, used and free on every GPU; how good the forecasts were."
            ),
            "caveats": "Needs Python 3.9 or newer, and a vramcast whose chart has view.enabled=true.",
            "platforms": [
                {
                    # Not Windows: it does not run a file by its first line, and its Python has no Unix sockets.
                    "selector": {"matchExpressions": [{"key": "os", "operator": "In", "values": ["darwin", "linux"]}]},
                    "uri": uri,
                    "sha256": sha256,
                    "bin": PROGRAM,
                }
            ],
        },
    }
    return json.dumps(described, indent=2) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="directory to write to")
    parser.add_argument("--releases", required=True, help="address of the releases, without the version's directory")
    given = parser.parse_args()
    packed = archive()
    name = f"{PROGRAM}-{version()}.tar.gz"
    (given.out / name).write_bytes(packed)
    uri = f"{given.releases.rstrip('/')}/v{version()}/{name}"
    (given.out / "vramcast.yaml").write_text(manifest(uri, hashlib.sha256(packed).hexdigest()))


if __name__ == "__main__":
    main()
