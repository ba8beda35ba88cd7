"""Builds everything in one place, and runs it until the process is told to stop."""

from __future__ import annotations

import asyncio
import ctypes
import gc
import signal
import socket
import threading
import time
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import structlog
import uvloop

from vramcast import __version__
from vramcast.api.http import Surface
from vramcast.api.server import address_text, listen, new_server, stop_all
from vramcast.cluster.seam import Cluster
from vramcast.cluster.sources import choose_telemetry
from vramcast.cluster.telemetry import Telemetry
from vramcast.controllers.advising import Adviser
from vramcast.controllers.candidate import CandidateTrial, run_trial
from vramcast.controllers.certificates import Certificates, TlsFiles, keep_current
from vramcast.controllers.forecasting import ForecastFirst
from vramcast.controllers.leadership import LeaderElectionApi, LeaseFollower, boot_seconds, lease_reader
from vramcast.controllers.learning import Learner, RememberedRuns
from vramcast.controllers.maintenance import maintain
from vramcast.controllers.persistence import ConfigMapApi, LearnedState, Section
from vramcast.controllers.takeover import take_over
from vramcast.controllers.telemetry import keep_polling
from vramcast.errors import InvalidInput, InvalidTask
from vramcast.forecast.forecast import Forecaster
from vramcast.forecast.forecaster import CachingForecaster, CalibratedForecaster
from vramcast.forecast.model import choose_forecaster
from vramcast.names import Product
from vramcast.observe.accuracy import AccuracyCollector
from vramcast.observe.calibration import CalibrationCollector
from vramcast.observe.certificates import CertificateCollector
from vramcast.observe.comparison import CandidateCollector
from vramcast.observe.detail import DetailCollector
from vramcast.observe.metrics import ClusterView, Metrics, StateCollector
from vramcast.outcomes.calibration import Calibrator
from vramcast.outcomes.run_memory import RunMemory
from vramcast.outcomes.run_tracker import RunTracker
from vramcast.placement.board import Ranking
from vramcast.placement.changes import Change
from vramcast.placement.ledger import Ledger
from vramcast.placement.state import ClusterState
from vramcast.service import ForecastAhead, Leadership, News, NoElection, Service
from vramcast.settings import CalibrationMode, Settings
from vramcast.task.task import Task
from vramcast.workers import Offload, Workers, start_workers

# glibc's M_TRIM_THRESHOLD, M_TOP_PAD and M_MMAP_THRESHOLD
_MALLOC_OPTIONS = {-1: 64 << 20, -2: 4 << 20, -3: 32 << 20}

log = structlog.get_logger("vramcast")


@dataclass(frozen=True, slots=True)
class App:
    service: Service
    learner: Learner
    learned_state: LearnedState
    certificates: tuple[Certificates, ...]


def build(
    settings: Settings, cluster: Cluster, workers: Workers, *, base: CachingForecaster | None = None,
    forecast_ahead: Callable[[Forecaster], ForecastAhead] | None = None, certificates: Sequence[Certificates] = (),
    clock: Callable[[], float] = time.monotonic, wall: Callable[[], float] = time.time,
    lease_clock: Callable[[], float] = boot_seconds,
) -> App:  # fmt: skip
    """Every part, connected. `base`: the forecaster, if it is not the artifact of the settings.

    `certificates`: of every port with TLS. `clock` is monotonic; `wall` is the time of day in seconds since the epoch.
    """
    base = base or choose_forecaster(
        settings.artifact, settings.default_oom_risk, physics_if_unusable=settings.physics_if_unusable
    )
    calibrator = Calibrator(base.version)
    calibrates = settings.calibration is not CalibrationMode.OFF
    run_memory = RunMemory(wall) if calibrates and settings.run_memory else None
    forecaster = CalibratedForecaster(base, calibrator if calibrates else None, run_memory)
    trial = CandidateTrial(settings, forecaster, base)
    # Before the learned state is read: it may name the candidate as the active model.
    trial.load_now()
    learner = Learner(calibrator, settings.calibration, trial, run_memory)

    # Only a static cluster has nobody else who counts devices.
    ledger = Ledger(
        hold_ttl_seconds=settings.hold_ttl_seconds, count_devices=settings.cluster is not None,
        ranking=Ranking(settings.slowdown_weight, settings.harmless_slowdown, settings.node_weight),
    )  # fmt: skip
    floors_mib = learner.oom_history.floors_mib if calibrates else None
    state = ClusterState(
        ledger, forecaster, floors_mib, replicated=settings.leader_lease is not None,
        assumed_utilization=settings.assumed_utilization,
    )  # fmt: skip
    tracker = RunTracker(
        wall, state.product_of, state.forecast_of, gap_seconds=settings.telemetry_stale_seconds,
        lag_seconds=settings.telemetry_lag_seconds, pod_values=settings.telemetry_pod_values,
        records_kept=settings.records_kept,
    )  # fmt: skip

    leadership = _leadership(settings, cluster, workers.lease, lease_clock)
    sections: dict[str, Section] = {"calibration": learner, "accuracy": tracker.accuracy}
    if run_memory is not None:
        sections["runs"] = RememberedRuns(run_memory)
    learned_state = LearnedState(
        sections, workers.maintenance, clock,
        config_maps=_config_maps(settings, cluster), place=settings.calibration_config_map or "/",
        save_seconds=settings.calibration_save_seconds, leading=lambda: leadership.leading,
    )  # fmt: skip

    def may_count() -> bool:
        return leadership.leading and learned_state.loaded

    service = Service(
        settings, cluster, state, forecaster, tracker, Metrics(), leadership, News(), workers, clock,
        forecast_ahead=(forecast_ahead or (lambda _: lambda _task, _products: None))(forecaster),
        learn=learner.record, learned=lambda: learner.view(learned_state, counting=may_count()), may_count=may_count,
    )  # fmt: skip
    app = App(service, learner, learned_state, tuple(certificates))
    _register_collectors(app)
    return app


def _leadership(settings: Settings, cluster: Cluster, offload: Offload, clock: Callable[[], float]) -> Leadership:
    if settings.leader_lease is None:
        return NoElection()
    if not isinstance(cluster, LeaderElectionApi):
        raise InvalidInput("setting leader_lease needs a Kubernetes cluster: a static one has no Lease")
    read_lease = lease_reader(cluster, settings.leader_lease, offload)
    return LeaseFollower(read_lease, settings.leader_identity or socket.gethostname(), clock)


def _config_maps(settings: Settings, cluster: Cluster) -> ConfigMapApi | None:
    if settings.calibration_config_map is None:
        return None
    if not isinstance(cluster, ConfigMapApi):
        raise InvalidInput("setting calibration_config_map needs a Kubernetes cluster: a static one has no ConfigMap")
    return cluster


def _register_collectors(app: App) -> None:
    service, learner = app.service, app.learner
    registry = service.metrics.registry
    registry.register(StateCollector(service.state, lambda: _cluster_view(service)))
    registry.register(AccuracyCollector(service.tracker, service.may_count))
    registry.register(CalibrationCollector(service.learned))
    registry.register(CandidateCollector(learner.trial_view))
    registry.register(CertificateCollector([each.view for each in app.certificates]))
    if service.settings.detail_metrics:
        registry.register(DetailCollector(service.state.ledger, service.tracker))


def _cluster_view(service: Service) -> ClusterView:
    health, stats = service.cluster.health(), service.cluster.stats()
    return ClusterView(
        synced=service.state.synced,
        stale_seconds=health.stale_seconds,
        watch_events=stats.events,
        watch_lists=stats.lists,
        watch_reconnects=stats.reconnects,
        dropped_events=stats.dropped_events,
        leading=service.leadership.leading,
    )


def run(
    settings: Settings, cluster: Cluster, ready: Callable[[str], None] | None = None, telemetry: Telemetry | None = None
) -> None:
    """Serve until SIGTERM or SIGINT. Requests under way are finished first.

    `telemetry`: the source, if it is not the one of the settings.
    """
    ports = _ports(settings)
    keep_freed_memory()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(settings, cluster, ports, ready, telemetry or choose_telemetry(settings)))


@dataclass(frozen=True, slots=True)
class Port:
    """Open already, so that a port that is taken ends the process before anything starts."""

    surface: Surface
    listener: socket.socket
    certificates: Certificates | None = None


def _ports(settings: Settings) -> list[Port]:
    """The first is that of the verbs. Raises InvalidSettings."""
    files = TlsFiles(settings.tls_cert_file, settings.tls_key_file, settings.tls_client_ca_file)
    certificates = Certificates(files) if any((files.cert, files.key, files.client_ca)) else None
    webhook = TlsFiles(settings.webhook_cert_file, settings.webhook_key_file, setting="webhook")
    webhook_certificates = Certificates(webhook) if settings.webhook_port is not None else None
    ports = [Port(Surface.ALL, listen(settings.host, settings.port, "settings host, port"), certificates)]
    for surface, host, port, named, theirs in (
        (Surface.PROBES, settings.metrics_host, settings.metrics_port, "metrics", None),
        (Surface.VIEW, settings.view_host, settings.view_port, "view", None),
        (Surface.WEBHOOK, settings.webhook_host, settings.webhook_port, "webhook", webhook_certificates),
    ):
        if port is not None:
            listener = listen(host, port, f"settings {named}_host, {named}_port")
            ports.append(Port(surface, listener, theirs))
    return ports


async def _serve(
    settings: Settings, cluster: Cluster, ports: Sequence[Port], ready: Callable[[str], None] | None,
    telemetry: Telemetry | None,
) -> None:  # fmt: skip
    loop = asyncio.get_running_loop()
    with start_workers(settings.bind_workers) as workers:
        certificates = [port.certificates for port in ports if port.certificates is not None]
        app = build(settings, cluster, workers, forecast_ahead=_forecasting_thread, certificates=certificates)
        service = app.service
        servers = [
            new_server(service, port.surface, certificates=port.certificates.context if port.certificates else None)
            for port in ports
        ]
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stop_all, servers)

        inbox = _Inbox(loop, service.apply)
        cluster.start(ForecastFirst(service.forecaster, inbox.put).put)
        scheme = "https" if ports[0].certificates else "http"
        url = f"{scheme}://{address_text(settings.host, settings.port)}"
        log.info("serving", url=url, version=__version__)
        await app.learned_state.load()
        loops = [*_controllers(app, telemetry), _when_synced(service, url, ready)]
        tasks = [asyncio.create_task(each) for each in loops]
        try:
            pairs = zip(servers, ports, strict=True)
            await asyncio.gather(*(server.serve(sockets=[port.listener]) for server, port in pairs))
        finally:
            log.info("stopping")
            for task in tasks:
                task.cancel()
            await app.learned_state.save()
            cluster.stop()


def _controllers(app: App, telemetry: Telemetry | None) -> list[Coroutine[Any, Any, None]]:
    """Everything that runs by itself, one loop each."""
    service, learner = app.service, app.learner

    def promote() -> None:
        # The replica that counts outcomes promotes. The others read of it when they take over.
        if service.may_count():
            learner.promote()

    loops = [
        maintain(service),
        Adviser(service).forever(),
        keep_polling(service, telemetry),
        app.learned_state.keep(),
    ]
    if learner.trial is not None:
        loops.append(run_trial(learner.trial, learner.teach, promote, service.workers.telemetry))
    if isinstance(service.leadership, LeaseFollower) and isinstance(service.cluster, LeaderElectionApi):
        loops.append(service.leadership.follow(partial(_become_leader, app, service.cluster)))
    for certificates in app.certificates:
        interval = service.settings.tls_check_seconds
        loops.append(keep_current(certificates, service.workers.maintenance, interval))
    return loops


async def _become_leader(app: App, election_api: LeaderElectionApi) -> None:
    await take_over(app.service, election_api)
    # The former leader's last write is newer than what was read at the start.
    await app.learned_state.load()


def _forecasting_thread(forecaster: Forecaster) -> ForecastAhead:
    """One thread: many new tasks queue there instead of delaying the scheduler's calls."""
    thread = ThreadPoolExecutor(1, thread_name_prefix="forecast")

    def forecast(task: Task, products: Sequence[Product]) -> None:
        # If a task cannot be forecast, the pod gets an Event when the scheduler asks about it.
        with suppress(InvalidTask):
            for product in products:
                forecaster.forecast(task, product)

    def forecast_ahead(task: Task, products: Sequence[Product]) -> None:
        with suppress(RuntimeError):  # the process is stopping
            thread.submit(forecast, task, products)

    return forecast_ahead


def keep_freed_memory() -> None:
    """Answers for thousands of nodes, and the arrays behind them, are hundreds of kilobytes. By default glibc returns
    each to the kernel after use, and the next call pages it in again: half of a call's time, measured."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return  # not glibc
    for parameter, size_bytes in _MALLOC_OPTIONS.items():
        mallopt(parameter, size_bytes)


def _return_freed_memory() -> None:
    """Reading the first list of 5,000 nodes leaves 8 MiB that no call will need again."""
    with suppress(OSError, AttributeError):  # not glibc
        ctypes.CDLL(None).malloc_trim(0)


class _Inbox:
    """Passes changes from the watch threads to the event loop, in order, with one wake-up per batch."""

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
    # The listed objects live as long as the process: keep the garbage collector from scanning them again.
    gc.collect()
    gc.freeze()
    _return_freed_memory()
    nodes = len(service.state.ledger.nodes)
    log.info("synced", nodes=nodes, promises=sum(1 for _ in service.state.ledger.promises()))
    if ready is not None:
        await asyncio.get_running_loop().run_in_executor(None, ready, url)
