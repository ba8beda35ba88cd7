"""TLS and client certificates, the only authentication that an extender has."""

from __future__ import annotations

import shutil
import ssl
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.controlplane import PATIENCE_SECONDS
from tests.serve.identities import Identity, make_identity
from tests.serve.running import Serve

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl to make certificates")


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tls")


@pytest.fixture(scope="module")
def authority(directory: Path) -> Identity:
    return make_identity(directory, "authority")


@pytest.fixture(scope="module")
def tls(directory: Path, authority: Identity) -> dict[str, str]:
    server = make_identity(directory, "server", authority)
    return {"VRAMCAST_TLS_CERT_FILE": str(server.cert), "VRAMCAST_TLS_KEY_FILE": str(server.key)}


@pytest.fixture(scope="module")
def mutual(directory: Path, authority: Identity, tls: dict[str, str]) -> Iterator[Serve]:
    """Accepts only clients with a certificate of the CA."""
    with Serve(
        directory, environ={**tls, "VRAMCAST_TLS_CLIENT_CA_FILE": str(authority.cert)}, scheme="https"
    ) as running:
        yield running


def client(authority: Identity, identity: Identity | None = None) -> httpx.Client:
    context = ssl.create_default_context(cafile=authority.cert)
    if identity:
        context.load_cert_chain(identity.cert, identity.key)
    return httpx.Client(verify=context, timeout=PATIENCE_SECONDS)


def test_the_verbs_are_served_over_tls(tmp_path: Path, authority: Identity, tls: dict[str, str]) -> None:
    with Serve(tmp_path, environ=tls, scheme="https") as service, client(authority) as trusting:
        assert service.filter(trusting) == ["share"]
        assert f'"url":"{service.url}"' in service.text()
        with pytest.raises(httpx.TransportError):
            httpx.get(f"http://127.0.0.1:{service.port}/healthz", timeout=PATIENCE_SECONDS)
        with (
            httpx.Client(timeout=PATIENCE_SECONDS) as distrusting,
            pytest.raises(httpx.ConnectError, match="certificate verify failed"),
        ):
            service.filter(distrusting)
        service.lines()


def test_with_a_client_ca_its_certificates_are_accepted(directory: Path, authority: Identity, mutual: Serve) -> None:
    scheduler = make_identity(directory, "kube-scheduler", authority)
    with client(authority, scheduler) as known:
        assert mutual.filter(known) == ["share"]


def test_with_a_client_ca_a_client_without_certificate_is_rejected(authority: Identity, mutual: Serve) -> None:
    # In TLS 1.3 the client learns of the rejection at its first read.
    with client(authority) as nobody, pytest.raises(httpx.TransportError):
        mutual.filter(nobody)
    assert mutual.alive


def test_with_a_client_ca_certificates_of_another_ca_are_rejected(
    directory: Path, authority: Identity, mutual: Serve
) -> None:
    outsider = make_identity(directory, "outsider", make_identity(directory, "other-authority"))
    with client(authority, outsider) as unknown, pytest.raises(httpx.TransportError):
        mutual.filter(unknown)


def test_rejected_clients_leave_no_traceback_in_the_log(authority: Identity, mutual: Serve) -> None:
    with client(authority) as nobody, pytest.raises(httpx.TransportError):
        mutual.filter(nobody)
    assert "Traceback" not in mutual.text()
    mutual.lines()
