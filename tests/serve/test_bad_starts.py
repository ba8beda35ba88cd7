"""A service that cannot start prints one message with every mistake and exits with 2, without a traceback."""

from __future__ import annotations

import re
import socket
from pathlib import Path

import pytest

from tests.serve.running import CLUSTER, run_to_the_end
from vramcast.api.server import AddressInUse
from vramcast.app import run
from vramcast.cluster.kubernetes import KubernetesCluster
from vramcast.cluster.static import StaticCluster
from vramcast.errors import InvalidInput
from vramcast.settings import InvalidSettings, load_settings


@pytest.fixture
def cluster(tmp_path: Path) -> Path:
    path = tmp_path / "cluster.yaml"
    path.write_text(CLUSTER)
    return path


def refusal(*arguments: str, **environ: str) -> str:
    """The message on standard error."""
    done = run_to_the_end("serve", *arguments, environ=environ)
    assert done.returncode == 2, done
    assert done.stdout == ""
    assert done.stderr.startswith("error: ")
    assert "Traceback" not in done.stderr
    return done.stderr.removeprefix("error: ")


def test_the_message_for_a_port_in_use_names_address_and_settings(cluster: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        message = refusal("--cluster", str(cluster), "--port", str(port))
    assert message.startswith(f"cannot listen on 127.0.0.1:{port} (settings host, port): ")
    assert "already in use" in message
    assert message.count("\n") == 1


def test_all_invalid_settings_are_listed_with_their_sources(tmp_path: Path) -> None:
    config = tmp_path / "settings.yaml"
    # Text that looks like rich markup, or is wider than a terminal, must be printed unchanged.
    config.write_text(f"hold_ttl_second: 3\nlog_level: '[/red][bold]{'x' * 60}'\n")
    message = refusal("--config", str(config), "--port", "70000", VRAMCAST_BIND_WORKERS="many")
    assert message.splitlines() == [
        "--port: '70000': Input should be less than or equal to 65535",
        "VRAMCAST_BIND_WORKERS: 'many': Input should be a valid integer, unable to parse string as an integer",
        f"{config}: log_level: '[/red][bold]{'x' * 60}': Input should be 'debug', 'info', 'warning' or 'error'",
        f"{config}: hold_ttl_second: there is no such setting; did you mean hold_ttl_seconds?",
    ]


def test_all_mistakes_of_a_cluster_file_are_listed_with_their_places(tmp_path: Path) -> None:
    path = tmp_path / "cluster.yaml"
    path.write_text("nodes:\n- {name: a, gpu: 2}\n- {name: B!, product: Tesla-T4, gpus: -1}\npots: []\n")
    message = refusal("--cluster", str(path)).splitlines()
    places = {"nodes[0].gpu", "nodes[1].name", "nodes[1].gpus", "pots"}
    assert all(line.startswith(f"{path}: ") for line in message)
    assert places <= {line.removeprefix(f"{path}: ").split(":")[0] for line in message}


# --- the same errors, without starting a process


@pytest.fixture
def static(cluster: Path) -> StaticCluster:
    return StaticCluster.from_file(cluster)


@pytest.mark.parametrize("wrong", ["tls_cert_file", "tls_client_ca_file"])
def test_invalid_tls_files_are_named_before_anything_starts(cluster: Path, static: StaticCluster, wrong: str) -> None:
    files = dict.fromkeys(("tls_cert_file", "tls_key_file"), cluster)
    if wrong == "tls_client_ca_file":
        files = {"tls_client_ca_file": cluster}
    settings = load_settings({}, {}).model_copy(update=files)
    with pytest.raises(InvalidSettings, match=rf"{wrong} {cluster}.*: cannot be used for TLS: "):
        run(settings, static)


# Documentation networks: no machine has these addresses.
@pytest.mark.parametrize(
    ("host", "shown"), [("192.0.2.1", "192.0.2.1:8888"), ("2001:db8::1", "[2001:db8::1]:8888"), ("x" * 70, "x" * 70)]
)
def test_an_address_of_another_machine_is_named(static: StaticCluster, host: str, shown: str) -> None:
    with pytest.raises(AddressInUse, match=re.escape(f"cannot listen on {shown}")):
        run(load_settings({"host": host}, {}), static)


@pytest.mark.parametrize("content", [b"apiVersion: [", b"[]", b"\xff", b"kind: Config"])
def test_an_invalid_kubeconfig_is_named(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "kubeconfig"
    path.write_bytes(content)
    with pytest.raises(InvalidInput, match=rf"no Kubernetes cluster to talk to \(KUBECONFIG {path}\): "):
        KubernetesCluster.from_environment({"KUBECONFIG": str(path)})
