"""A real control plane on loopback: etcd, kube-apiserver, KWOK and any number of kube-schedulers.

Everything lives in one temporary directory and ends with the test run. Across restarts the API server keeps its
port and etcd its data, so tests can take the API server away for a while.
"""

from __future__ import annotations

import base64
import itertools
import secrets
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from .api import Api, ApiError, Json
from .binaries import Binaries, built_binaries
from .eventually import PATIENCE_SECONDS, eventually
from .processes import Process, ProcessError, free_port
from .scheduler import Scheduler, is_written

_SCHEDULER_USER = "system:kube-scheduler"  # the API server's bootstrap roles are bound to this name


class ControlPlane:
    """Use as a context manager, or call `start()` and `stop()`."""

    def __init__(
        self,
        binaries: Binaries | None = None,
        *,
        keep_directory: bool = False,
        apiserver_flags: Sequence[str] = (),
    ) -> None:
        self.binaries = binaries or built_binaries()
        self.directory = Path(tempfile.mkdtemp(prefix="vramcast-controlplane-"))
        self.keep_directory = keep_directory
        self._apiserver_flags = apiserver_flags
        self._tokens = {user: secrets.token_hex(16) for user in ("admin", _SCHEDULER_USER)}
        self._api: Api | None = None
        self.schedulers: list[Scheduler] = []
        self._scheduler_numbers = itertools.count()

        self.url = f"https://127.0.0.1:{free_port()}"
        self.etcd_url = f"http://127.0.0.1:{free_port()}"
        self.etcd = self._process("etcd", self._etcd_command())
        self.apiserver = self._process("kube-apiserver", self._apiserver_command())
        self.kwok = self._process("kwok", self._kwok_command())

    def __enter__(self) -> ControlPlane:
        return self.start()

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None and issubclass(kind, Exception):
            print(self.log_tails(), file=sys.stderr)
        self.stop()

    def start(self) -> ControlPlane:
        try:
            self._start()
        except BaseException:
            self.stop()
            raise
        return self

    def _start(self) -> None:
        self._write_credentials()
        self.etcd.start()
        self.apiserver.start()
        # Clients need the server's certificate before they can ask whether it is ready.
        self._await(self.apiserver, lambda: is_written(self._certificate), "its certificate")
        self._write_kubeconfig("admin", self._tokens["admin"])
        self._write_kubeconfig(_SCHEDULER_USER, self._tokens[_SCHEDULER_USER])
        self._api = Api.from_kubeconfig(self.kubeconfig)
        self._await(self.apiserver, self._api.ready, "readiness")
        self._await(self.apiserver, self._has_default_namespace, "the default namespace")
        self.kwok.start()

    def stop(self) -> None:
        for process in (*self.schedulers, self.kwok):
            process.terminate(grace_seconds=1.0)
        # Before etcd: without its storage the API server drains for minutes. One second is enough, because open
        # watches delay a graceful shutdown and the data is deleted anyway.
        self.apiserver.terminate(grace_seconds=1.0)
        self.etcd.terminate(grace_seconds=1.0)
        if self._api is not None:
            self._api.close()
        if not self.keep_directory:
            shutil.rmtree(self.directory, ignore_errors=True)

    @property
    def api(self) -> Api:
        """The administrator's client."""
        if self._api is None:
            raise RuntimeError("the control plane is not running")
        return self._api

    @property
    def kubeconfig(self) -> Path:
        """The administrator's kubeconfig."""
        return self._kubeconfig_path("admin")

    @property
    def processes(self) -> Sequence[Process]:
        return (self.etcd, self.apiserver, self.kwok, *self.schedulers)

    def log_tails(self, lines: int = 30) -> str:
        return "\n".join(process.log_tail(lines) for process in self.processes)

    def kubectl(self, *arguments: str, input_text: str | None = None) -> str:
        command = [str(self.binaries.kubectl), f"--kubeconfig={self.kubeconfig}", *arguments]
        done = subprocess.run(
            command, input=input_text, capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False
        )
        if done.returncode:
            raise RuntimeError(f"kubectl {' '.join(arguments)}: {done.stderr.strip()}")
        return done.stdout

    # --- failures

    def restart_apiserver(self) -> None:
        """Kills it, starts it again with the same port and data, and waits until it is ready."""
        self.apiserver.kill()
        self.start_apiserver()

    def start_apiserver(self) -> None:
        """Starts it after `apiserver.kill()`, for tests that do something in between."""
        self.apiserver.start()
        self._await(self.apiserver, self.api.ready, "readiness")

    # --- schedulers

    def scheduler(self, config: Mapping[str, Any] | None = None, host_name: str | None = None) -> Scheduler:
        """Starts another kube-scheduler; `config` is a KubeSchedulerConfiguration (see scheduler.py).

        `host_name`: the start of its name in a Lease, if it is not this machine's.
        """
        name = f"kube-scheduler-{next(self._scheduler_numbers)}"
        scheduler = Scheduler(
            name,
            self.binaries.kube_scheduler,
            self._subdirectory(name),
            self._kubeconfig_path(_SCHEDULER_USER),
            config,
            host_name,
        )
        self.schedulers.append(scheduler)
        scheduler.start()
        self._await(scheduler, scheduler.ready, "readiness")
        return scheduler

    # --- users

    def kubeconfig_for(self, user: str, roles: Path | Sequence[Json] = (), namespace: str = "default") -> Path:
        """A kubeconfig for a service account that has exactly the rights in `roles`.

        `roles` is a YAML file, such as a rendered chart template, or a list of objects. Its ClusterRoles and Roles
        are created and bound to the account; other kinds are ignored.
        """
        path = self._kubeconfig_path(user)
        if user == "admin" or path.exists():
            return path
        self._create_if_missing(f"/api/v1/namespaces/{namespace}/serviceaccounts", {"metadata": {"name": user}})
        documents = yaml.safe_load_all(roles.read_text()) if isinstance(roles, Path) else roles
        for role in documents:
            if role and role.get("kind") in ("ClusterRole", "Role"):
                self._grant(user, namespace, role)
        request = {"spec": {"expirationSeconds": 24 * 3600}}
        account = f"/api/v1/namespaces/{namespace}/serviceaccounts/{user}"
        token = self.api.request("POST", f"{account}/token", request)["status"]["token"]
        return self._write_kubeconfig(user, token)

    def _grant(self, user: str, namespace: str, role: Json) -> None:
        group = "/apis/rbac.authorization.k8s.io/v1"
        kind, name = role["kind"], role["metadata"]["name"]
        scope = "" if kind == "ClusterRole" else f"/namespaces/{role['metadata'].get('namespace', namespace)}"
        plural = f"{kind.lower()}s"
        self._create_if_missing(f"{group}{scope}/{plural}", role)
        binding = {
            "metadata": {"name": f"{name}-{user}"},
            "subjects": [{"kind": "ServiceAccount", "name": user, "namespace": namespace}],
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": name},
        }
        self._create_if_missing(f"{group}{scope}/{kind.lower()}bindings", binding)

    def _create_if_missing(self, path: str, body: Json) -> None:
        try:
            self.api.request("POST", path, body)
        except ApiError as error:
            if error.reason != "AlreadyExists":
                raise

    # --- credentials

    @property
    def _certificate(self) -> Path:
        # The file also contains the CA that signed the certificate, so clients can trust it.
        return self._subdirectory("certificates") / "apiserver.crt"

    def _write_credentials(self) -> None:
        (self.directory / "service-accounts.pem").write_text(new_ec_private_key())
        rows = (
            f"{self._tokens['admin']},admin,admin,system:masters",
            f"{self._tokens[_SCHEDULER_USER]},{_SCHEDULER_USER},{_SCHEDULER_USER}",
        )
        (self.directory / "tokens.csv").write_text("\n".join(rows) + "\n")

    def _kubeconfig_path(self, user: str) -> Path:
        return self.directory / f"{user.replace(':', '-')}.kubeconfig"

    def _write_kubeconfig(self, user: str, token: str) -> Path:
        trust = base64.b64encode(self._certificate.read_bytes()).decode()
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "test",
            "clusters": [{"name": "test", "cluster": {"server": self.url, "certificate-authority-data": trust}}],
            "users": [{"name": user, "user": {"token": token}}],
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": user}}],
        }
        path = self._kubeconfig_path(user)
        path.touch(mode=0o600)
        path.write_text(yaml.safe_dump(config))
        return path

    # --- commands

    def _etcd_command(self) -> list[str]:
        peer = f"http://127.0.0.1:{free_port()}"
        return [
            str(self.binaries.etcd),
            f"--data-dir={self.directory / 'etcd'}",
            f"--listen-client-urls={self.etcd_url}",
            f"--advertise-client-urls={self.etcd_url}",
            f"--listen-peer-urls={peer}",
            f"--initial-advertise-peer-urls={peer}",
            f"--initial-cluster=default={peer}",
            "--log-level=warn",
            "--unsafe-no-fsync",  # nobody needs the data after a crash
        ]

    def _apiserver_command(self) -> list[str]:
        keys = self.directory / "service-accounts.pem"
        return [
            str(self.binaries.kube_apiserver),
            f"--etcd-servers={self.etcd_url}",
            "--bind-address=127.0.0.1",
            f"--secure-port={self.url.rpartition(':')[2]}",
            f"--cert-dir={self._certificate.parent}",
            f"--token-auth-file={self.directory / 'tokens.csv'}",
            f"--service-account-key-file={keys}",
            f"--service-account-signing-key-file={keys}",
            "--service-account-issuer=https://kubernetes.default.svc",
            "--service-cluster-ip-range=10.96.0.0/16",
            "--authorization-mode=RBAC",
            # Both rely on a controller manager, which does not run here: one needs the default service account of
            # every namespace, the other adds a not-ready taint that nothing would remove.
            "--disable-admission-plugins=ServiceAccount,TaintNodesByCondition",
            "--profiling=false",
            *self._apiserver_flags,
        ]

    def _kwok_command(self) -> list[str]:
        return [
            str(self.binaries.kwok),
            f"--kubeconfig={self.kubeconfig}",
            *(f"--config={stage}" for stage in self.binaries.kwok_stages),
            "--manage-all-nodes=true",
            # No controller manager reads the leases, and a thousand nodes renewing them is a heavy load.
            "--node-lease-duration-seconds=0",
        ]

    # --- plumbing

    def _process(self, name: str, command: Sequence[str]) -> Process:
        return Process(name, command, self.directory / f"{name}.log")

    def _subdirectory(self, name: str) -> Path:
        path = self.directory / name
        path.mkdir(exist_ok=True)
        return path

    def _has_default_namespace(self) -> bool:
        try:
            return bool(self.api.get("/api/v1/namespaces/default"))
        except ApiError as error:
            if error.status != 404:
                raise
            return False

    def _await(self, process: Process, probe: Callable[[], bool], what: str) -> None:
        def ready_or_dead() -> bool:
            process.check_alive()
            return probe()

        try:
            eventually(ready_or_dead, what=f"{process.name}: {what}")
        except AssertionError as error:
            raise ProcessError(f"{error}\n{self.log_tails()}") from None


def new_ec_private_key() -> str:
    """A P-256 key in PEM, made without openssl or a cryptography package.

    The public key is optional in SEC 1, so the file is a random number in a fixed frame.
    """
    scalar = bytes([secrets.randbelow(0x7F) + 1]) + secrets.token_bytes(31)  # always below the curve's order
    prime256v1 = bytes.fromhex("a00a06082a8648ce3d030107")
    der = bytes.fromhex("3031020101") + b"\x04\x20" + scalar + prime256v1
    body = base64.b64encode(der).decode()
    return f"-----BEGIN EC PRIVATE KEY-----\n{body}\n-----END EC PRIVATE KEY-----\n"
