"""The API server, asked through the user's own kubectl: its kubeconfig, its context, its login, its rights.

`kubectl proxy` runs for as long as the command does, on a Unix socket that only this user can open. Unlike
`kubectl get --raw`, it passes on the status and the body of an answer that is an error.
"""

from __future__ import annotations

import http.client
import json
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any
from urllib.parse import urlencode

from vramcast.kubectl.errors import Trouble

_TIMEOUT_SECONDS = 60
_LOG_LINE = re.compile(r"[IWEF]\d{4} ")  # what kubectl logs about each request that failed


@dataclass(frozen=True)
class ApiAnswer:
    status: int
    body: bytes

    def json(self) -> Any:
        """None if it is not JSON."""
        try:
            return json.loads(self.body)
        except ValueError:
            return None

    @property
    def from_kubernetes(self) -> bool:
        """By the API server itself, and not by what is behind its proxy."""
        content = self.json()
        return isinstance(content, dict) and content.get("kind") == "Status"

    @property
    def message(self) -> str:
        content = self.json()
        given = content.get("message") or content.get("Error") if isinstance(content, dict) else None
        return str(given or self.body.decode(errors="replace").strip())[:2000]


class ApiServer:
    """A context manager. `options` are kubectl's own, such as `--context=test`."""

    def __init__(self, options: Sequence[str] = ()) -> None:
        self._kubectl = shutil.which("kubectl")
        self._options = list(options)

    def __enter__(self) -> ApiServer:
        if not hasattr(socket, "AF_UNIX"):
            raise Trouble("this system has no Unix sockets: run kubectl vramcast in WSL")
        self._directory = tempfile.TemporaryDirectory(prefix="kv-")  # short: a socket's path may have 104 characters
        self._socket = str(Path(self._directory.name) / "s")
        try:
            self._start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        process = getattr(self, "_process", None)
        if process is not None:
            process.terminate()
            process.wait()
            process.stdout.close()
            self._reader.join()
            process.stderr.close()
        self._directory.cleanup()

    def _start(self) -> None:
        command = [
            self._program(), "proxy", f"--unix-socket={self._socket}", "--reject-methods=^(PUT|PATCH|DELETE)$",
            *self._options,
        ]  # fmt: skip
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)  # noqa: S603 - the user's own kubectl
        assert self._process.stdout is not None  # noqa: S101 - it is a pipe
        self._said: list[str] = []
        self._reader = threading.Thread(target=self._pass_on, args=(self._process.stderr,), daemon=True)
        self._reader.start()
        if "Starting to serve" not in self._process.stdout.readline():
            self._process.wait()
            self._reader.join()
            raise Trouble("kubectl proxy ended" + ("" if self._said else " without a message"))

    def _pass_on(self, stream: IO[str]) -> None:
        """What kubectl and its login plugins have to say, but not its log: the answers tell the same."""
        for line in stream:
            if not _LOG_LINE.match(line):
                self._said.append(line)
                sys.stderr.write(line)

    def _program(self) -> str:
        if self._kubectl is None:
            raise Trouble("there is no kubectl on PATH: install it, https://kubernetes.io/docs/tasks/tools/")
        return self._kubectl

    def get(self, path: str, query: Mapping[str, object] | None = None) -> ApiAnswer:
        return self._request("GET", path + (f"?{urlencode(query)}" if query else ""))

    def post(self, path: str, body: bytes) -> ApiAnswer:
        return self._request("POST", path, body)

    def _request(self, method: str, target: str, body: bytes | None = None) -> ApiAnswer:
        connection = _SocketConnection(self._socket)
        try:
            connection.request(method, target, body, {"Content-Type": "application/json"} if body else {})
            response = connection.getresponse()
            answer = ApiAnswer(response.status, response.read())
        except (OSError, http.client.HTTPException) as error:
            raise Trouble(f"kubectl proxy does not answer: {error or type(error).__name__}") from None
        finally:
            connection.close()
        if answer.status == 502:
            raise Trouble(f"the API server does not answer: {answer.message}")
        if answer.status == 401:
            raise Trouble(f"the API server does not accept your login: {answer.message}")
        return answer

    def current_namespace(self) -> str:
        """That of the kubeconfig's context."""
        command = [self._program(), "config", "view", "--minify", "--output=jsonpath={..namespace}", *self._options]
        done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 - the user's own kubectl
        return done.stdout.strip() or "default"


class _SocketConnection(http.client.HTTPConnection):
    def __init__(self, path: str) -> None:
        super().__init__("localhost", timeout=_TIMEOUT_SECONDS)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)
