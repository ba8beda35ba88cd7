"""Certificates are renewed while the service runs: new connections get the new one, and nothing is interrupted."""

from __future__ import annotations

import http.client
import os
import shutil
import ssl
import subprocess
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.controlplane import PATIENCE_SECONDS, eventually
from tests.serve.identities import Identity, make_identity
from tests.serve.running import Serve
from vramcast.controllers.certificates import Certificates, TlsFiles

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl to make certificates")

EXPIRY = "vramcast_tls_certificate_expiry_timestamp_seconds"
DAY_SECONDS = 86400


class SecretVolume:
    """A directory as the kubelet mounts a Secret: files that are links through `..data`, which an update swaps."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._updates = 0

    def update(self, **files: bytes) -> None:
        self._updates += 1
        content = self.directory / f"..{self._updates}"
        content.mkdir()
        for name, data in files.items():
            (content / name.replace("_", ".")).write_bytes(data)
        link = self.directory / "..data_tmp"
        link.symlink_to(content.name)
        link.rename(self.directory / "..data")
        for path in content.iterdir():
            visible = self.directory / path.name
            if not visible.is_symlink():
                visible.symlink_to(f"..data/{path.name}")

    def put(self, identity: Identity, ca: Identity) -> None:
        self.update(tls_crt=identity.cert.read_bytes(), tls_key=identity.key.read_bytes(), ca_crt=ca.cert.read_bytes())

    def path(self, name: str) -> str:
        return str(self.directory / name)


class Renewing(Serve):
    """Served with the certificate of a volume. `authority` signed every server certificate."""

    def __init__(self, directory: Path, authority: Identity, *, mutual: bool = False) -> None:
        self.authority = authority
        self.made = directory / "made"
        self.made.mkdir()
        (directory / "volume").mkdir()
        self.volume = SecretVolume(directory / "volume")
        self.first = make_identity(self.made, "first", authority, days=1)
        self.volume.put(self.first, authority)
        files = {"CERT": "tls.crt", "KEY": "tls.key", **({"CLIENT_CA": "ca.crt"} if mutual else {})}
        environ = {f"VRAMCAST_TLS_{name}_FILE": self.volume.path(file) for name, file in files.items()}
        super().__init__(directory, environ={**environ, "VRAMCAST_TLS_CHECK_SECONDS": "0.1"}, scheme="https")

    def trusting(self, identity: Identity | None = None) -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=self.authority.cert)
        if identity:
            context.load_cert_chain(identity.cert, identity.key)
        return context

    def served(self) -> str:
        """The certificate that a new connection gets."""
        return ssl.get_server_certificate(("127.0.0.1", self.port), timeout=PATIENCE_SECONDS)

    def metric(self, series: str) -> float:
        text = (
            httpx.get(f"{self.url}/metrics", verify=self.trusting(), timeout=PATIENCE_SECONDS).raise_for_status().text
        )
        return next((float(line.split()[-1]) for line in text.splitlines() if line.startswith(series)), 0.0)

    def failed(self) -> float:
        return self.metric('vramcast_tls_reloads_total{result="failed"}')


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Identity:
    return make_identity(tmp_path_factory.mktemp("authority"), "authority")


@pytest.fixture
def service(tmp_path: Path, authority: Identity) -> Iterator[Renewing]:
    with Renewing(tmp_path, authority) as running:
        yield running


def ask(connection: http.client.HTTPSConnection) -> int:
    connection.request("GET", "/healthz")
    answer = connection.getresponse()
    answer.read()
    return answer.status


def same(pem: str, identity: Identity) -> bool:
    return ssl.PEM_cert_to_DER_cert(pem) == ssl.PEM_cert_to_DER_cert(identity.cert.read_text())


def test_new_connections_get_the_renewed_certificate_and_old_ones_stay_open(service: Renewing) -> None:
    old = http.client.HTTPSConnection("127.0.0.1", service.port, context=service.trusting())
    assert ask(old) == 200
    socket, expiry = old.sock, service.metric(EXPIRY)
    assert same(service.served(), service.first)

    second = make_identity(service.made, "second", service.authority, days=2)
    service.volume.put(second, service.authority)
    eventually(lambda: same(service.served(), second), what="a handshake with the renewed certificate")
    assert service.metric(EXPIRY) == pytest.approx(expiry + DAY_SECONDS, abs=300)
    assert service.metric('vramcast_tls_reloads_total{result="ok"}') == 1

    assert ask(old) == 200
    assert old.sock is socket, "the service closed the connection"
    old.close()
    with httpx.Client(verify=service.trusting(), timeout=PATIENCE_SECONDS) as client:
        assert service.filter(client) == ["share"]
    service.lines()


def test_a_pair_that_does_not_match_changes_nothing(service: Renewing) -> None:
    other = make_identity(service.made, "other", service.authority)
    expiry = service.metric(EXPIRY)
    # The certificate is new; its key is not there yet.
    service.volume.update(tls_crt=other.cert.read_bytes(), tls_key=service.first.key.read_bytes())
    eventually(lambda: service.failed() >= 2, what="two failed attempts")
    assert same(service.served(), service.first)
    assert service.metric(EXPIRY) == expiry
    errors = [line for line in service.lines() if line["level"] == "error"]
    assert len(errors) == 1, "each error is logged once, not at every check"
    assert "tls.key" in errors[0]["error"]

    service.volume.put(other, service.authority)
    eventually(lambda: same(service.served(), other), what="a handshake with the complete pair")


@pytest.mark.parametrize("broken", ["half a certificate", "no file"])
def test_broken_files_change_nothing(service: Renewing, broken: str) -> None:
    if broken == "no file":
        os.unlink(service.volume.path("tls.crt"))
    else:
        pem = service.first.cert.read_bytes()
        service.volume.update(tls_crt=pem[: len(pem) // 2], tls_key=service.first.key.read_bytes())
    eventually(lambda: service.failed() >= 1, what="a failed attempt")
    assert same(service.served(), service.first)


def test_a_renewed_client_ca_replaces_the_old_one(tmp_path: Path, authority: Identity) -> None:
    with Renewing(tmp_path, authority, mutual=True) as service:
        ours = make_identity(service.made, "kube-scheduler", authority)
        new_authority = make_identity(service.made, "new-authority")
        theirs = make_identity(service.made, "new-scheduler", new_authority)

        def accepts(identity: Identity) -> bool:
            try:
                trusting = service.trusting(identity)
                answer = httpx.get(f"{service.url}/healthz", verify=trusting, timeout=PATIENCE_SECONDS)
                return answer.status_code == 200
            except httpx.TransportError:
                return False

        assert accepts(ours)
        assert not accepts(theirs)
        service.volume.put(service.first, new_authority)
        eventually(lambda: accepts(theirs), what="a client certificate of the new CA to be accepted")
        assert not accepts(ours)


# --- without a process


def files_of(identity: Identity) -> TlsFiles:
    return TlsFiles(identity.cert, identity.key, None)


# A date after 2049 has another format.
@pytest.mark.parametrize("days", [1, 20000])
def test_the_expiry_is_the_certificates_own(tmp_path: Path, authority: Identity, days: int) -> None:
    identity = make_identity(tmp_path, "server", authority, days)
    command = ["openssl", "x509", "-noout", "-enddate", "-in", str(identity.cert)]
    shown = subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip().removeprefix("notAfter=")
    assert Certificates(files_of(identity)).view().expires_at == ssl.cert_time_to_seconds(shown)


def test_the_expiry_is_the_earliest_in_the_chain(tmp_path: Path) -> None:
    signer = make_identity(tmp_path, "signer", days=1)
    identity = make_identity(tmp_path, "server", signer, days=30)
    alone = Certificates(files_of(identity)).view().expires_at
    identity.cert.write_bytes(identity.cert.read_bytes() + signer.cert.read_bytes())
    chain = Certificates(files_of(identity)).view().expires_at
    assert alone is not None
    assert chain == pytest.approx(alone - 29 * DAY_SECONDS, abs=300)


def test_unchanged_files_are_not_loaded_again(tmp_path: Path, authority: Identity) -> None:
    identity = make_identity(tmp_path, "server", authority)
    certificates = Certificates(files_of(identity))
    identity.cert.touch()
    certificates.check()
    assert certificates.view().reloads == {"ok": 0, "failed": 0}
    identity.cert.write_bytes(identity.cert.read_bytes() + b"\n")
    certificates.check()
    assert certificates.view().reloads == {"ok": 1, "failed": 0}
