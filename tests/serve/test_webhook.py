"""The webhook as a real process serves it: over TLS on its own port, with the certificate that its files have now."""

from __future__ import annotations

import shutil
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.admission.pods import new_pod
from tests.api.admission import new_review
from tests.controlplane import PATIENCE_SECONDS, eventually, free_port
from tests.serve.identities import Identity, make_identity
from tests.serve.running import CLUSTER, Serve, run_to_the_end

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl to make certificates")


class Admitting(Serve):
    def __init__(self, directory: Path, authority: Identity) -> None:
        self.webhook_port, self.files = free_port(), directory
        self.trusting = ssl.create_default_context(cafile=authority.cert)
        self.use(make_identity(directory, "first", authority))
        settings = {
            "PORT": str(self.webhook_port), "CERT_FILE": str(directory / "tls.crt"),
            "KEY_FILE": str(directory / "tls.key"), "SCHEDULER_NAME": "vramcast-scheduler",
        }  # fmt: skip
        environ = {f"VRAMCAST_WEBHOOK_{name}": value for name, value in settings.items()}
        super().__init__(directory, environ={**environ, "VRAMCAST_TLS_CHECK_SECONDS": "0.1"})

    def use(self, identity: Identity) -> None:
        for source, name in ((identity.cert, "tls.crt"), (identity.key, "tls.key")):
            shutil.copy(source, self.files / f"new-{name}")
            (self.files / f"new-{name}").rename(self.files / name)

    def admit(self) -> Any:
        url = f"https://127.0.0.1:{self.webhook_port}/admit"
        answer = httpx.post(url, json=new_review(new_pod()), verify=self.trusting, timeout=PATIENCE_SECONDS)
        return answer.raise_for_status().json()["response"]

    def served(self) -> str:
        return ssl.get_server_certificate(("127.0.0.1", self.webhook_port), timeout=PATIENCE_SECONDS)


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Identity:
    return make_identity(tmp_path_factory.mktemp("authority"), "authority")


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory, authority: Identity) -> Iterator[Admitting]:
    with Admitting(tmp_path_factory.mktemp("service"), authority) as running:
        assert isinstance(running, Admitting)
        yield running


def test_it_answers_over_tls_on_its_own_port_only(service: Admitting) -> None:
    response = service.admit()
    assert response["allowed"]
    assert response["warnings"][0].startswith("vramcast: needs ")
    assert httpx.post(f"{service.url}/admit", json={}, timeout=PATIENCE_SECONDS).status_code == 404
    with pytest.raises(httpx.TransportError):
        httpx.post(f"http://127.0.0.1:{service.webhook_port}/admit", json={}, timeout=PATIENCE_SECONDS)


def test_a_renewed_certificate_is_served_without_a_restart(service: Admitting, authority: Identity) -> None:
    before = service.served()
    service.use(make_identity(service.files, "second", authority))
    eventually(lambda: service.served() != before, what="the renewed certificate to be served")
    assert service.admit()["allowed"]


def test_files_that_are_no_certificate_end_the_start_with_the_names_of_the_settings(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no certificate")
    (tmp_path / "cluster.yaml").write_text(CLUSTER)
    file = str(tmp_path / "file")
    environ = {"VRAMCAST_WEBHOOK_PORT": "8443", "VRAMCAST_WEBHOOK_CERT_FILE": file, "VRAMCAST_WEBHOOK_KEY_FILE": file}
    done = run_to_the_end("serve", "--cluster", str(tmp_path / "cluster.yaml"), environ=environ)
    assert done.returncode != 0
    assert f"webhook_cert_file {file}, webhook_key_file {file}: cannot be used for TLS" in done.stderr
