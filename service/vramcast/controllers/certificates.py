"""Serves with the certificate that its files contain now, because cert-manager renews it while the process runs.

The server keeps one SSLContext for life. OpenSSL calls its SNI callback in every handshake, whether the client sent a
server name or not, and the callback moves the connection to the newest context. Open connections keep theirs.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import structlog

from vramcast.observe.certificates import CertificateView
from vramcast.settings import InvalidSettings
from vramcast.workers import Offload

_PEM = re.compile(r"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", re.DOTALL)
_VERSION_TAG = 0xA0
_TIME_FORMATS: Mapping[int, str] = {0x17: "%y%m%d%H%M%SZ", 0x18: "%Y%m%d%H%M%SZ"}

log = structlog.get_logger("vramcast")


class UnusableCertificate(InvalidSettings):
    """The files cannot be read, or do not belong together."""


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """`setting`: what the names of their settings start with."""

    cert: Path | None
    key: Path | None
    client_ca: Path | None = None
    setting: str = "tls"

    def digest(self) -> bytes:
        """By content: the kubelet swaps a link, and other tools rewrite a file within the clock's resolution."""
        paths = (self.cert, self.key, self.client_ca)
        return b"".join(hashlib.sha256(path.read_bytes()).digest() for path in paths if path)


@dataclass(frozen=True, slots=True)
class _Loaded:
    digest: bytes
    context: ssl.SSLContext
    expires_at: float | None


class Certificates:
    """`check` runs on a worker; what it loads is one reference, replaced as a whole."""

    def __init__(self, files: TlsFiles) -> None:
        """Raises UnusableCertificate."""
        self._files = files
        self._reloads = {"ok": 0, "failed": 0}
        self._error = ""
        self._loaded = _load(files)
        self.context = self._loaded.context
        self.context.sni_callback = self._use_newest

    def _use_newest(self, connection: ssl.SSLSocket | ssl.SSLObject, _name: str | None, _: ssl.SSLContext) -> None:
        connection.context = self._loaded.context

    def view(self) -> CertificateView:
        return CertificateView(self._loaded.expires_at, dict(self._reloads))

    def check(self) -> None:
        """Load the files if they have changed. If they cannot be used, keep what is loaded and retry next time."""
        try:
            if _digest(self._files) == self._loaded.digest:
                self._error = ""
                return
            self._loaded = _load(self._files)
        except UnusableCertificate as error:
            self._reloads["failed"] += 1
            if str(error) != self._error:
                log.error("cannot use the changed TLS files, keeping the old certificate", error=str(error))
            self._error = str(error)
            return
        self._error = ""
        self._reloads["ok"] += 1
        log.info("serving with a renewed certificate", expires=_in_words(self._loaded.expires_at))


async def keep_current(certificates: Certificates, offload: Offload, interval_seconds: float) -> None:
    """Until cancelled."""
    while True:
        await asyncio.sleep(interval_seconds)
        try:
            await offload(certificates.check)
        except Exception:
            log.exception("defect: cannot check the TLS files, retrying")


def _digest(files: TlsFiles) -> bytes:
    try:
        return files.digest()
    except OSError as error:
        raise UnusableCertificate(f"cannot read the TLS files: {error}") from None


def _load(files: TlsFiles) -> _Loaded:
    """Raises UnusableCertificate."""
    while True:
        before = _digest(files)
        loaded = _Loaded(before, _context(files), _expires_at(files))
        # If the files changed in between, parts of two versions may have been loaded.
        if _digest(files) == before:
            return loaded


def _context(files: TlsFiles) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    # A resumed session would skip the check against a new client CA.
    context.num_tickets = 0
    place = f"{files.setting}_cert_file {files.cert}, {files.setting}_key_file {files.key}"
    try:
        if files.cert and files.key:
            # An empty password, because OpenSSL would prompt for one on the terminal.
            context.load_cert_chain(files.cert, files.key, password=lambda: "")
        if files.client_ca:
            place = f"{files.setting}_client_ca_file {files.client_ca}"
            context.load_verify_locations(files.client_ca)
            context.verify_mode = ssl.CERT_REQUIRED
    except (OSError, ValueError) as error:
        raise UnusableCertificate(f"{place}: cannot be used for TLS: {error}") from None
    return context


def _expires_at(files: TlsFiles) -> float | None:
    """Of the first certificate in the chain to expire, in seconds since the epoch; None if that cannot be read."""
    try:
        chain = _PEM.findall(files.cert.read_text()) if files.cert else []
        return min((_not_after(ssl.PEM_cert_to_DER_cert(pem)) for pem in chain), default=None)
    except (OSError, ValueError, LookupError):
        return None


def _not_after(der: bytes) -> float:
    """Certificate, TBSCertificate, Validity, notAfter (RFC 5280). The ssl module reads it only from a peer's."""
    ((_, certificate),) = _elements(der)
    fields = _elements(_elements(certificate)[0][1])
    # The version is optional. Serial number, signature algorithm and issuer come before the validity.
    validity = fields[4 if fields[0][0] == _VERSION_TAG else 3][1]
    tag, text = _elements(validity)[1]
    return datetime.strptime(text.decode(), _TIME_FORMATS[tag]).replace(tzinfo=UTC).timestamp()


def _elements(der: bytes) -> list[tuple[int, bytes]]:
    """Tag and content of each DER element."""
    elements, at = [], 0
    while at < len(der):
        tag, length, at = der[at], der[at + 1], at + 2
        if length & 0x80:
            size = length & 0x7F
            length, at = int.from_bytes(der[at : at + size], "big"), at + size
        elements.append((tag, der[at : at + length]))
        at += length
    return elements


def _in_words(expires_at: float | None) -> str:
    return "unknown" if expires_at is None else datetime.fromtimestamp(expires_at, UTC).isoformat()
