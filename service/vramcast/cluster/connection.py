"""Finds the API server and the credentials, with the official client's own loaders.

The client is slow to import, so it is loaded only when this is called: a static cluster never needs it.
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

# Enough for all concurrent binds, watches, events and requeues; beyond it, connections are not reused.
CONNECTIONS: Final = 64
_USER_AGENT: Final = "vramcast"
# Detects a vanished peer within a minute.
_KEEPALIVE: Final = (("TCP_KEEPIDLE", 30), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 3))


def connect(environment: Mapping[str, str] = os.environ, connections: int = CONNECTIONS) -> Transport:
    """Uses the first of KUBECONFIG, ~/.kube/config and the pod's service account; sends no request yet.

    Raises InvalidInput, which names the places it tried.
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
    except Exception as error:  # the client does not wrap its YAML parser's and its own errors
        tried = f"KUBECONFIG {file}" if file else "no KUBECONFIG, no ~/.kube/config, and not in a pod"
        raise InvalidInput(f"no Kubernetes cluster to talk to ({tried}): {error}") from error


def _import(name: str) -> Any:
    # Any, because the generated client is only partly typed.
    return importlib.import_module(name)


def _default_file(environment: Mapping[str, str]) -> str | None:
    path = Path(environment.get("HOME", "/")) / ".kube" / "config"
    return str(path) if path.is_file() else None


def _auth_headers(configuration: Any) -> Mapping[str, str]:
    """Current tokens: the client re-reads a service account's every minute and calls plugins when theirs expire."""
    headers = {"User-Agent": _USER_AGENT}
    for setting in configuration.auth_settings().values():
        if setting["in"] == "header" and setting["value"]:
            headers[setting["key"]] = setting["value"].strip()
    return headers


def _socket_options() -> list[tuple[int, int, int]]:
    # These replace urllib3's defaults (such as TCP_NODELAY), so the defaults are repeated.
    options = [*HTTPConnection.default_socket_options, (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)]
    options += [(socket.IPPROTO_TCP, getattr(socket, key), value) for key, value in _KEEPALIVE if hasattr(socket, key)]
    return [(int(level), int(name), int(value)) for level, name, value in options]
