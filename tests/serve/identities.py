"""Certificates for tests, made by openssl."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Identity:
    cert: Path
    key: Path


def make_identity(directory: Path, name: str, signed_by: Identity | None = None, days: int = 2) -> Identity:
    """A certificate for loopback, or without `signed_by` a CA."""
    made = Identity(directory / f"{name}.crt", directory / f"{name}.key")
    # Python 3.13 verifies strictly: a CA must have a key usage, and a certificate that is no CA must say so.
    authority = ("keyUsage=critical,keyCertSign",)
    leaf = ("subjectAltName=IP:127.0.0.1", "basicConstraints=critical,CA:FALSE", "keyUsage=critical,digitalSignature")
    extensions = [part for one in (leaf if signed_by else authority) for part in ("-addext", one)]
    command = [
        "openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", str(days),
        "-subj", f"/CN={name}", *extensions, "-keyout", str(made.key), "-out", str(made.cert),
    ]  # fmt: skip
    if signed_by:
        command += ["-CA", str(signed_by.cert), "-CAkey", str(signed_by.key)]
    subprocess.run(command, check=True, capture_output=True, stdin=subprocess.DEVNULL)
    return made
