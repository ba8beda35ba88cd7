"""Wiring: the one place where the parts meet, and the life of the process."""

from __future__ import annotations

import asyncio
import ctypes
import gc
import secrets
import signal
import socket
import ssl
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import Any, cast

import structlog
import uvicorn
import uvloop

from vramcast import __version__
from vramcast.api.http import HttpApp
from vramcast.api.one_write import OneWriteProtocol
from vramcast.cluster.seam import Cluster
from vramcast.cluster.sources import choose_telemetry
from vramcast.controllers.candidate import CandidateTrial, keep_trying
from vramcast.controllers.leadership import LeaderElectionApi, LeaseFollower, lease_reader
from vramcast.controllers.learning import Learner
from vramcast.controllers.maintenance import maintain
from vramcast.controllers.persistence import ConfigMapApi
from vramcast.controllers.takeover import take_over
from vramcast.controllers.telemetry import keep_polling
from vramcast.errors import InvalidInput, InvalidTask
from vramcast.forecast.adapted import AdaptedForecaster
from vramcast.forecast.forecast import Forecaster
from vramcast.forecast.model import choose_forecaster
from vramcast.names import Product
from vramcast.observe.metrics import ClusterView, Metrics
from vramcast.placement.changes import Change
from vramcast.placement.ledger import Ledger
from vramcast.placement.state import ClusterState
from vramcast.placement.unschedulable import UnschedulablePods
from vramcast.service import ForecastAhead, Service, new_service
from vramcast.settings import InvalidSettings, Settings
from vramcast.task.task import Task

# Go's client keeps idle connections for 90 s and does not repeat a POST: closing earlier here means a lost call there.
KEEP_ALIVE_SECONDS = 120
_SEND_BUFFER_BYTES = 2 << 20

# glibc's M_TRIM_THRESHOLD, M_TOP_PAD and M_MMAP_THRESHOLD
_MALLOC_OPTIONS = {-1: 64 << 20, -2: 4 << 20, -3: 32 << 20}

log = structlog.get_logger("vramcast")


class AddressInUse(InvalidInput):
    """Somebody else listens there."""


def build_service(
    settings: Settings, cluster: Cluster, executor: ThreadPoolExecutor, clock: Callable[[], float] = time.monotonic
) -> Service:
    """Every part, connected. `count_devices`: on a static cluster nobody else counts the GPUs."""
    ledger = Ledger(
        hold_ttl_seconds=settings.hold_ttl_seconds,
        count_devices=settings.cluster is not None,
        seed=secrets.randbits(63),
    )
    chosen = choose_forecaster(
        settings.artifact, settings.default_oom_risk, physics_if_unusable=settings.physics_if_unusable
    )
    learner = Learner(chosen.version, settings.calibration)
    forecaster = AdaptedForecaster(chosen, learner.applied)
    learner.trial = CandidateTrial(settings, forecaster, chosen)
    # Before what was learned is read: that may say that the candidate is active.
    learner.trial.poll()
    state = ClusterState(ledger, forecaster, learner.floor_mib)
    unschedulable = UnschedulablePods()

    async def offload(call: Callable[..., Any], *arguments: Any) -> Any:
        return await asyncio.get_running_loop().run_in_executor(executor, call, *arguments)

    metrics = Metrics(ledger, lambda: len(unschedulable), lambda: _view(service, cluster, state))
    service = new_service(
        settings, state, forecaster, cluster, metrics, unschedulable, offload, clock, _forecasting_thread(forecaster),
        learner,
    )  # fmt: skip
    if settings.calibration_config_map is not None:
        _keep_learned(service, settings.calibration_config_map)
    if settings.leader_lease is not None:
        service.leadership = _follower(service, settings.leader_lease)
    return service


def _forecasting_thread(forecaster: Forecaster) -> ForecastAhead:
    """One thread: a crowd of new tasks takes turns there, instead of the scheduler's calls waiting for them."""
    thread = ThreadPoolExecutor(1, thread_name_prefix="forecast")

    def forecast(task: Task, products: Sequence[Product]) -> None:
        # A task that cannot be forecast is told to its pod when the scheduler asks.
        with suppress(InvalidTask):
            for product in products:
                forecaster.forecast(task, product)

    def forecast_ahead(task: Task, products: Sequence[Product]) -> None:
        with suppress(RuntimeError):  # the process is about to end
            thread.submit(forecast, task, products)

    return forecast_ahead


def _keep_learned(service: Service, place: str) -> None:
    if not isinstance(service.cluster, ConfigMapApi):
        raise InvalidInput("setting calibration_config_map needs a Kubernetes cluster: a static one has no ConfigMap")
    memory = service.memory
    memory.config_maps, memory.place = service.cluster, place
    memory.save_seconds = service.settings.calibration_save_seconds
    memory.leading = lambda: service.leadership.leading


def _follower(service: Service, lease: str) -> LeaseFollower:
    election_api = service.cluster
    if not isinstance(election_api, LeaderElectionApi):
        raise InvalidInput("setting leader_lease needs a Kubernetes cluster: a static one has no Lease")
    poll = lease_reader(election_api, lease, service.offload)
    identity = service.settings.leader_identity or socket.gethostname()

    async def become_leader() -> None:
        await take_over(service, election_api)
        # What the one before had learned by its end is newer than what was read here at the start.
        await service.memory.load()

    return LeaseFollower(poll, identity, become_leader)


def _view(service: Service, cluster: Cluster, state: ClusterState) -> ClusterView:
    health = cluster.health()
    stats = cluster.stats()
    return ClusterView(
        synced=state.synced,
        stale_seconds=health.stale_seconds,
        watch_events=stats.events,
        watch_lists=stats.lists,
        watch_reconnects=stats.reconnects,
        dropped_events=stats.dropped_events,
        leading=service.leadership.leading,
    )


def keep_freed_memory() -> None:
    """Answers for thousands of nodes are hundreds of kilobytes, and so are the arrays behind them. glibc would give
    each back to the kernel after use, and the next call would page it in again: half of a call's time, measured."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return  # another C library, with other habits
    for parameter, size_bytes in _MALLOC_OPTIONS.items():
        mallopt(parameter, size_bytes)


def run(settings: Settings, cluster: Cluster, ready: Callable[[str], None] | None = None) -> None:
    """Serve until SIGTERM or SIGINT; requests under way are finished first."""
    _check_tls(settings)
    keep_freed_memory()
    listeners = [_listen(settings.host, settings.port, "settings host, port")]
    if settings.metrics_port is not None:
        listeners.append(_listen(settings.metrics_host, settings.metrics_port, "settings metrics_host, metrics_port"))
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(settings, cluster, listeners, ready))


async def _serve(
    settings: Settings, cluster: Cluster, listeners: list[socket.socket], ready: Callable[[str], None] | None
) -> None:
    """The verbs on the first listener; on the second, if there is one, metrics and probes alone, without TLS."""
    loop = asyncio.get_running_loop()
    with ThreadPoolExecutor(settings.bind_workers, thread_name_prefix="offload") as executor:
        service = build_service(settings, cluster, executor)
        servers = [
            _Server(_server_config(settings, HttpApp(service), **_tls(settings))),
            _Server(_server_config(settings, HttpApp(service, probes_only=True))),
        ]
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, _stop_all, servers)

        cluster.start(_Inbox(loop, service.apply).put)
        scheme = "https" if settings.tls_cert_file else "http"
        url = f"{scheme}://{_address(settings.host, settings.port)}"
        log.info("serving", url=url, version=__version__)
        await service.memory.load()
        tasks = [
            asyncio.create_task(maintain(service)),
            asyncio.create_task(keep_polling(service, choose_telemetry(settings))),
            asyncio.create_task(service.memory.keep()),
            *_trial_tasks(service),
            asyncio.create_task(_when_synced(service, url, ready)),
        ]
        if isinstance(service.leadership, LeaseFollower):
            tasks.append(asyncio.create_task(service.leadership.follow()))
        try:
            pairs = zip(servers, listeners, strict=False)
            await asyncio.gather(*(server.serve(sockets=[listener]) for server, listener in pairs))
        finally:
            log.info("stopping")
            for task in tasks:
                task.cancel()
            await service.memory.save()
            cluster.stop()


def _trial_tasks(service: Service) -> list[asyncio.Task[None]]:
    """Of several replicas the one that counts outcomes promotes; the others read of it when they take over."""
    learner = service.learner

    def promote() -> None:
        if service.may_count:
            learner.promote()

    if learner.trial is None:
        return []
    return [asyncio.create_task(keep_trying(learner.trial, learner.teach, promote, service.offload))]


class _Inbox:
    """From the watches' threads to the loop's, in order: one wake-up for all that came while the loop was busy."""

    def __init__(self, loop: asyncio.AbstractEventLoop, apply: Callable[[Sequence[Change]], None]) -> None:
        self._loop = loop
        self._apply = apply
        self._lock = threading.Lock()
        self._waiting: list[Change] = []

    def put(self, changes: Sequence[Change]) -> None:
        with self._lock:
            woken = bool(self._waiting)
            self._waiting.extend(changes)
        if not woken and changes and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._empty)

    def _empty(self) -> None:
        with self._lock:
            changes, self._waiting = self._waiting, []
        self._apply(changes)


async def _when_synced(service: Service, url: str, ready: Callable[[str], None] | None) -> None:
    while not service.state.synced:
        await service.news.wait(1.0)
    # What was listed lives as long as the process: the collector need not look at it again and again.
    gc.collect()
    gc.freeze()
    nodes = len(service.state.ledger.nodes)
    log.info("synced", nodes=nodes, promises=sum(1 for _ in service.state.ledger.promises()))
    if ready is not None:
        await asyncio.get_running_loop().run_in_executor(None, ready, url)


class _Server(uvicorn.Server):
    """Signals are ours: uvicorn would raise them again after its own end, before the watches are stopped."""

    @contextmanager
    def capture_signals(self) -> Any:
        yield

    def stop(self) -> None:
        self.should_exit = True


def _stop_all(servers: Sequence[_Server]) -> None:
    for server in servers:
        server.stop()


def _server_config(settings: Settings, app: HttpApp, **tls: Any) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        http=OneWriteProtocol,
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
        # A number of seconds like any other, whatever uvicorn's annotation says.
        timeout_graceful_shutdown=cast(int, settings.shutdown_grace_seconds),
        **tls,
    )


def _tls(settings: Settings) -> dict[str, Any]:
    return {
        "ssl_certfile": settings.tls_cert_file,
        "ssl_keyfile": settings.tls_key_file,
        "ssl_ca_certs": str(settings.tls_client_ca_file) if settings.tls_client_ca_file else None,
        "ssl_cert_reqs": ssl.CERT_REQUIRED if settings.tls_client_ca_file else ssl.CERT_NONE,
    }


def _listen(host: str, port: int, named: str) -> socket.socket:
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listener = socket.create_server((host, port), family=family, backlog=2048)
        # Accepted connections inherit it: an answer for thousands of nodes leaves in one piece, instead of waiting
        # for the scheduler to read its first part.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER_BYTES)
        return listener
    except (OSError, UnicodeError) as error:  # UnicodeError: a name that DNS could not carry
        raise AddressInUse(f"cannot listen on {_address(host, port)} ({named}): {error}") from None


def _address(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _check_tls(settings: Settings) -> None:
    """Before anything starts: uvicorn would find out late, and say it with a traceback."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    cert, key, client_ca = settings.tls_cert_file, settings.tls_key_file, settings.tls_client_ca_file
    place = f"tls_cert_file {cert}, tls_key_file {key}"
    try:
        if cert and key:
            # An empty password, because OpenSSL would ask for one on the terminal.
            context.load_cert_chain(cert, key, password=lambda: "")
        place = f"tls_client_ca_file {client_ca}"
        if client_ca:
            context.load_verify_locations(client_ca)
    except (OSError, ValueError) as error:
        raise InvalidSettings(f"{place}: cannot be used for TLS: {error}") from None
