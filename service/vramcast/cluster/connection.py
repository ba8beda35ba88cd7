"""Where the API server is and who we are, as every other Kubernetes program finds out.

In a file of its own because the official client is slow to import and large: on a static cluster it is never loaded.
"""

from __future__ import annotations

import importlib
import os
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import urllib3
from urllib3.connection import HTTPConnection

from vramcast.cluster.transport import Transport
from vramcast.errors import InvalidInput

# Binds, watches, events and requeues at the same time; connections beyond are opened and thrown away.
CONNECTIONS: Final = 64
_USER_AGENT: Final = "vramcast"
# A peer that vanished without a word is noticed within a minute.
_KEEPALIVE: Final = (("TCP_KEEPIDLE", 30), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 3))


def connect(environment: Mapping[str, str] = os.environ, connections: int = CONNECTIONS) -> Transport:
    """From KUBECONFIG, ~/.kube/config or the pod's service account, whichever is there first.

    Raises InvalidInput, which names what was looked at. Does not talk to the API server yet.
    """
    client = _import("kubernetes.client")
    configuration = client.Configuration()
    _find_cluster(configuration, environment)
    configuration.connection_pool_maxsize = connections
    configuration.socket_options = _socket_options()
    configuration.retries = False
    pool: urllib3.PoolManager = client.ApiClient(configuration).rest_client.pool_manager
    return Transport(pool, configuration.host, lambda: _auth_headers(configuration))


def _find_cluster(configuration: Any, environment: Mapping[str, str]) -> None:
    config = _import("kubernetes.config")
    file = environment.get("KUBECONFIG") or _default_file(environment)
    try:
        if file:
            config.load_kube_config(config_file=file, client_configuration=configuration)
        else:
            config.load_incluster_config(client_configuration=configuration)
    except Exception as error:  # the client lets through whatever its YAML parser and its own code raise
        tried = f"KUBECONFIG {file}" if file else "no KUBECONFIG, no ~/.kube/config, and not in a pod"
        raise InvalidInput(f"no Kubernetes cluster to talk to ({tried}): {error}") from error


def _import(name: str) -> Any:
    # Any: the client is generated and typed here and there, which is worse than not at all.
    return importlib.import_module(name)


def _default_file(environment: Mapping[str, str]) -> str | None:
    path = Path(environment.get("HOME", "/")) / ".kube" / "config"
    return str(path) if path.is_file() else None


def _auth_headers(configuration: Any) -> Mapping[str, str]:
    """The client re-reads a service account's token every minute, and asks a plugin again when its token expires."""
    headers = {"User-Agent": _USER_AGENT}
    for setting in configuration.auth_settings().values():
        if setting["in"] == "header" and setting["value"]:
            headers[setting["key"]] = setting["value"].strip()
    return headers


def _socket_options() -> list[tuple[int, int, int]]:
    # urllib3 replaces its own options (no Nagle delay) with these, so they are repeated.
    options = [*HTTPConnection.default_socket_options, (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)]
    options += [(socket.IPPROTO_TCP, getattr(socket, key), value) for key, value in _KEEPALIVE if hasattr(socket, key)]
    return [(int(level), int(name), int(value)) for level, name, value in options]
