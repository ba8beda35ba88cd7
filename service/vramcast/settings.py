"""Settings from flags, the environment (`VRAMCAST_...`) and a YAML file; all mistakes are reported at once.

Not pydantic-settings: it forgets which source a value came from, and would replace only the ten lines that merge them.
"""

from __future__ import annotations

import os
from difflib import get_close_matches
from enum import StrEnum
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ConfigDict, Field, FilePath, ValidationError, ValidationInfo, field_validator

from vramcast.errors import InvalidInput
from vramcast.hardware.utilization import UtilizationCounter
from vramcast.hardware.vendors import VENDORS
from vramcast.outcomes.readings import LabelNames, PodValues, Unit
from vramcast.setting_rules import COUNTER_SETTINGS, contradictions

_NAMES = LabelNames()
_EXPORTER = VENDORS[0].exporter
_LIST = r"^[^,\s]+(,[^,\s]+)*$"
ENV_PREFIX = "VRAMCAST_"


def listed(words: type[StrEnum]) -> str:
    """The pattern of a comma-separated list, which may be empty."""
    word = f"({'|'.join(words)})"
    return f"^({word}(,{word})*)?$"


CONFIG_VARIABLE = "VRAMCAST_CONFIG"


class InvalidSettings(InvalidInput):
    """Every mistake, one per line."""


class UndescribedPolicy(StrEnum):
    PASS = "pass"  # noqa: S105 - no password
    REJECT = "reject"


class Mode(StrEnum):
    DECIDE = "decide"
    OBSERVE = "observe"


class CalibrationMode(StrEnum):
    LEARN = "learn"
    FROZEN = "frozen"
    OFF = "off"


class Promotion(StrEnum):
    MANUAL = "manual"
    AUTO = "auto"


class Validation(StrEnum):
    WARN = "warn"
    DENY = "deny"


class Runtime(StrEnum):
    """What can hold a container to a limit of GPU memory."""

    TORCH = "torch"
    JAX = "jax"
    TENSORFLOW = "tensorflow"
    MPS = "mps"
    HAMI_CORE = "hami-core"


class System(StrEnum):
    """What else hands out GPU memory, and can be told how much a pod needs."""

    HAMI = "hami"
    KAI = "kai"
    VOLCANO = "volcano"
    VOLCANO_SHARE = "volcano-share"
    KOORDINATOR = "koordinator"
    GPUSHARE = "gpushare"
    TENSORFUSION = "tensorfusion"
    DRA = "dra"


_DIALECT = f"({'|'.join(System)})(:[1-9][0-9]{{0,4}})?"


class LogFormat(StrEnum):
    AUTO = "auto"
    JSON = "json"
    CONSOLE = "console"


class LogLevel(StrEnum):
    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


class Settings(BaseModel):
    """docs/settings.md is generated from these fields; a test pins the defaults."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    host: str = "127.0.0.1"
    """address to listen on; only TLS client certificates authenticate callers"""
    port: int = Field(8888, ge=1, le=65535)
    """port to listen on"""
    metrics_host: str = "127.0.0.1"
    """address of `metrics_port`"""
    metrics_port: int | None = Field(None, ge=1, le=65535)
    """a second port that serves only /metrics, /healthz and /readyz"""
    view_host: str = "127.0.0.1"
    """address of `view_port`"""
    view_port: int | None = Field(None, ge=1, le=65535)
    """a port for `kubectl vramcast`: requests that change nothing, without authentication; none: no such port"""
    cluster: FilePath | None = None
    """a static cluster file to use instead of Kubernetes"""
    resource_slices: bool = False
    """true: the GPUs of nodes without GPU labels are read from ResourceSlices (Kubernetes 1.34)"""
    undescribed: UndescribedPolicy = UndescribedPolicy.PASS
    """pods with invalid annotations: pass (schedule without a forecast) or reject"""
    leader_lease: str | None = Field(None, pattern="^[^/]+/[^/]+$")
    """namespace/name of the Lease of this replica's kube-scheduler: decide only while that one leads"""
    leader_identity: str | None = None
    """start of the holder name in that Lease: the kube-scheduler's host name; none: this host's"""
    default_oom_risk: float = Field(0.05, ge=0.0001, le=0.5)
    """OOM risk for pods without `vramcast.dev/max-oom-risk`"""
    artifact: str = "builtin"
    """the trained model: builtin, a directory, or physics (no trained model)"""
    physics_if_unusable: bool = False
    """true: if the artifact cannot be loaded, forecast with physics instead of exiting"""
    calibration: CalibrationMode = CalibrationMode.LEARN
    """adjust bounds to this cluster's runs: learn, frozen (apply, but stop learning) or off"""
    run_memory: bool = True
    """forecast a task that has run here from what it took; false: from the artifact and calibration alone"""
    calibration_config_map: str | None = Field(None, pattern="^[^/]+/[^/]+$")
    """namespace/name of the ConfigMap that stores learned state; none: it is lost on restart"""
    calibration_save_seconds: float = Field(5.0, ge=0.1, le=3600)
    """shortest interval between writes to that ConfigMap"""
    candidate_artifact: str | None = None
    """directory of a candidate model to compare with the active one; reloaded when it changes"""
    candidate_promotion: Promotion = Promotion.MANUAL
    """auto: a candidate that is no worse becomes active; manual: only report it"""
    candidate_outcomes: int = Field(100, ge=20, le=200)
    """outcomes forecast by both models before the candidate is judged"""
    candidate_check_seconds: float = Field(30.0, ge=1, le=3600)
    """how often to check that directory"""
    hold_ttl_seconds: float = Field(30.0, gt=0, le=3600)
    """longest time that a filtered pod holds room"""
    hold_wait_seconds: float = Field(0.1, ge=0, le=1.0)
    """how long filter waits for other pods' holds to end; keep far below httpTimeout"""
    unconfirmed_ttl_seconds: float = Field(65.0, ge=5, le=3600)
    """how long an unconfirmed bind keeps its room; above the API server's timeout"""
    stale_after_seconds: float = Field(60.0, ge=5, le=3600)
    """stop deciding after this long without a sign of life from the API server"""
    requeue_interval_seconds: float = Field(1.0, ge=0, le=300)
    """how often to requeue unschedulable pods that would fit now; 0: never"""
    most_nodes_offered: int = Field(100, ge=0)
    """how many of the best fitting nodes filter returns; 0: all"""
    slowdown_weight: float = Field(0.8, ge=0, le=0.9)
    """share of a score that is the expected slowdown beside other pods; the rest is packing; 0: packing only"""
    harmless_slowdown: float = Field(1.33, ge=1, le=10)
    """expected slowdown (2: twice as long as alone) up to which packing alone decides; less: more GPUs, faster jobs"""
    node_weight: float = Field(0.1, ge=0, le=1)
    """share of the packing that is how little would be left on the whole node; the rest is on the GPU"""
    assumed_utilization: float = Field(0.3, ge=0, le=1)
    """share of a GPU's time that a task counts with while its utilization is neither forecast nor measured"""
    node_cache_capable: bool = True
    """true: a request with whole Nodes is a simulation (cluster-autoscaler) and holds nothing"""
    bind_deadline_seconds: float = Field(1.5, gt=0, le=30)
    """timeout of one bind, from the request on; includes waiting and retries"""
    bind_workers: int = Field(16, ge=1, le=256)
    """concurrent binds"""
    max_body_mib: int = Field(64, ge=1, le=1024)
    """largest accepted request body"""
    max_bodies_mib: int = Field(192, ge=1, le=16384)
    """request bodies and large answers in memory at once, at least `max_body_mib`; beyond: 503 for the largest"""
    max_connections: int = Field(2000, ge=10, le=100_000)
    """open connections of each port; beyond: the oldest that sent no request yet is closed"""
    request_timeout_seconds: float = Field(30.0, ge=0.1, le=600)
    """longest time for a client to send a request, and to read the answer"""
    tls_cert_file: FilePath | None = None
    """serve over TLS with this certificate"""
    tls_key_file: FilePath | None = None
    """key of that certificate"""
    tls_client_ca_file: FilePath | None = None
    """require client certificates signed by this CA"""
    tls_check_seconds: float = Field(10.0, ge=0.1, le=3600)
    """how often to check whether these files were renewed"""
    webhook_host: str = "127.0.0.1"
    """address of `webhook_port`"""
    webhook_port: int | None = Field(None, ge=1, le=65535)
    """a port that serves only the admission webhook, POST /admit, over TLS; none: no webhook"""
    webhook_cert_file: FilePath | None = None
    """certificate of `webhook_port`; re-read as often as `tls_cert_file`"""
    webhook_key_file: FilePath | None = None
    """key of that certificate"""
    webhook_validate: Validation = Validation.WARN
    """pods with invalid annotations, at admission: warn the client, or deny them"""
    webhook_tell_forecast: bool = True
    """true: the client that creates a described object is told the forecast, as an admission warning"""
    webhook_forecast_seconds: float = Field(1.0, gt=0, le=10)
    """how long the webhook waits for a forecast before it answers without; below its timeout in the API server"""
    webhook_scheduler_name: str = ""
    """`schedulerName` that the webhook gives to described pods; empty: it leaves it alone"""
    webhook_task_resource: str = Field("", pattern="^([^/]+/[^/]+)?$")
    """resource for which the cluster's scheduler calls vramcast; the webhook adds one to described pods; empty: none"""
    webhook_caps: str = Field("torch,jax", pattern=listed(Runtime))
    """runtimes that are told their limit: torch, jax, tensorflow, mps, hami-core, comma-separated; empty: none"""
    webhook_cap_slack: float = Field(0.1, ge=0, le=1)
    """how far above its promise a pod's limit is, as a share of the promise"""
    webhook_resource: bool = False
    """true: the reserved memory becomes the extended resource `vramcast.dev/gpu-memory`, for quotas"""
    webhook_dialects: str = Field("", pattern=rf"^({_DIALECT}(,{_DIALECT})*)?$")
    """other systems to fill in the memory for, comma-separated; `name:N`: the system counts in units of N MiB"""
    webhook_claim_classes: str = Field("gpu.nvidia.com", pattern=_LIST)
    """device classes of GPUs whose claims get their memory with the dialect `dra`, comma-separated"""
    mode: Mode = Mode.DECIDE
    """decide, or observe: forecast and measure, but filter out no node"""
    prometheus_url: str | None = Field(None, pattern="^https?://[^/]+")
    """a Prometheus that scrapes the GPU exporters: live and past telemetry"""
    prometheus_token_file: FilePath | None = None
    """bearer token for Prometheus; re-read on every poll"""
    prometheus_ca_file: FilePath | None = None
    """CA of Prometheus' certificate; none: the system's CAs"""
    prometheus_selector: str = Field("", pattern="^[^{}]*$")
    """extra label matchers for every query, such as `cluster="a"`"""
    exporter_urls: str | None = Field(None, pattern=r"^https?://[^/,\s]+[^,\s]*(,https?://[^/,\s]+[^,\s]*)*$")
    """GPU exporters to scrape without Prometheus, comma-separated; a name means all its addresses"""
    telemetry_interval_seconds: float = Field(15.0, ge=0.1, le=600)
    """how often to poll telemetry"""
    telemetry_timeout_seconds: float = Field(10.0, gt=0, le=300)
    """timeout of one poll"""
    telemetry_stale_seconds: float = Field(120.0, ge=1, le=3600)
    """ignore older samples and decide by promises alone"""
    telemetry_lag_seconds: float = Field(30.0, ge=0, le=600)
    """how far a sample may lag behind its timestamp: the exporter's collection interval"""
    telemetry_history_hours: float = Field(24.0, ge=0, le=720)
    """how far back to read runs from Prometheus after a restart"""
    telemetry_memory_metric: str = Field(_EXPORTER.memory, pattern=r"^[a-zA-Z_:][\w:]*$")
    """metric of GPU memory in use"""
    telemetry_memory_unit: Unit = Unit.MIB
    """unit of that metric: MiB or bytes"""
    telemetry_utilization_metric: str = Field(_EXPORTER.utilization, pattern=r"^([a-zA-Z_:][\w:]*)?$")
    """metric of `gpu_util`, the share of time in which a kernel runs; empty: not measured"""
    telemetry_sm_active_metric: str = Field(_EXPORTER.sm_active, pattern=r"^([a-zA-Z_:][\w:]*)?$")
    """metric of `sm_active`, the share of time in which a multiprocessor has work; empty: not measured"""
    telemetry_sm_occupancy_metric: str = Field(_EXPORTER.sm_occupancy, pattern=r"^([a-zA-Z_:][\w:]*)?$")
    """metric of `sm_occupancy`, resident warps over the most that fit; empty: not measured"""
    telemetry_memory_util_metric: str = Field(_EXPORTER.memory_util, pattern=r"^([a-zA-Z_:][\w:]*)?$")
    """metric of `memory_util`, the share of time in which the GPU's memory is at work; empty: not measured"""
    telemetry_node_labels: str = Field(",".join(_NAMES.node), pattern=_LIST)
    """labels that may name the node; the first present one counts"""
    telemetry_pod_labels: str = Field(",".join(_NAMES.pod), pattern=_LIST)
    """the same for the pod"""
    telemetry_namespace_labels: str = Field(",".join(_NAMES.namespace), pattern=_LIST)
    """the same for the pod's namespace"""
    telemetry_pod_values: PodValues = PodValues.AUTO
    """what a series with a pod label measures: pod (the pod's memory), gpu (the whole GPU), or auto"""
    records_kept: int = Field(2000, ge=0, le=100_000)
    """measured runs to keep in memory for `vramcast export-records`; 0: none"""
    min_run_seconds: float = Field(60.0, ge=0, le=86400)
    """ignore shorter runs, unless they end in an OOM"""
    oom_exit_codes: str = Field("", pattern=r"^(\d{1,3}(,\d{1,3})*)?$")
    """exit codes that jobs use for running out of GPU memory, comma-separated"""
    page: bool = True
    """true: serve the page at /, on the port of the verbs"""
    detail_metrics: bool = False
    """true: also export gauges per pod (predicted, observed) and per GPU (room, promises)"""
    log_format: LogFormat = LogFormat.AUTO
    """log format: json, console, or auto (console on a terminal)"""
    log_level: LogLevel = LogLevel.INFO
    """log level: debug, info, warning or error"""
    shutdown_grace_seconds: float = Field(10.0, ge=0, le=300)
    """how long to wait at SIGTERM for requests in progress"""

    @property
    def capped_runtimes(self) -> tuple[Runtime, ...]:
        return tuple(Runtime(word) for word in self.webhook_caps.split(",") if word)

    @property
    def dialect_units(self) -> dict[System, int]:
        """By system, the MiB of its unit; 0: the system's usual one."""
        words = (word.partition(":") for word in self.webhook_dialects.split(",") if word)
        return {System(name): int(unit or 0) for name, _, unit in words}

    @property
    def utilization_metrics(self) -> dict[UtilizationCounter, str]:
        return {counter: getattr(self, setting) for counter, setting in COUNTER_SETTINGS.items()}

    @property
    def oom_codes(self) -> frozenset[int]:
        return frozenset(int(code) for code in self.oom_exit_codes.split(",") if code)

    @property
    def label_names(self) -> LabelNames:
        node, pod, namespace = (
            tuple(names.split(","))
            for names in (self.telemetry_node_labels, self.telemetry_pod_labels, self.telemetry_namespace_labels)
        )
        return LabelNames(node, pod, namespace)

    @field_validator("*", mode="before")
    @classmethod
    def _boolean_is_no_number(cls, value: Any, info: ValidationInfo) -> Any:
        """YAML reads `port: on` as true, which pydantic would accept as 1."""
        if isinstance(value, bool) and cls.model_fields[str(info.field_name)].annotation is not bool:
            raise ValueError("expected a value, not true or false")
        return value


def load_settings(flags: dict[str, Any], environ: dict[str, str] | None = None) -> Settings:
    """Flags override the environment, which overrides the file. Raises InvalidSettings with every mistake's source."""
    environment = dict(os.environ if environ is None else environ)
    flags = {name: value for name, value in flags.items() if value is not None}
    config = flags.pop("config", None) or environment.get(CONFIG_VARIABLE)
    from_file = _read_file(Path(config)) if config else {}
    from_environment = _read_environment(environment)
    origins = {
        **{name: f"{config}: {name}" for name in from_file},
        **{name: ENV_PREFIX + name.upper() for name in from_environment},
        **{name: "--" + name.replace("_", "-") for name in flags},
    }
    values = {**from_file, **from_environment, **flags}
    mistakes = contradictions(values)
    try:
        settings = Settings.model_validate(values)
    except ValidationError as error:
        mistakes = [*(_explain(item, origins) for item in error.errors()), *mistakes]
    if mistakes:
        raise InvalidSettings("\n".join(mistakes))
    return settings


def _read_file(path: Path) -> dict[str, Any]:
    try:
        document = yaml.safe_load(path.read_text())
    except (OSError, yaml.YAMLError, ValueError, RecursionError) as error:  # ValueError: not UTF-8, or an invalid date
        raise InvalidSettings(f"{path}: cannot be read as YAML: {error}") from None
    if document is None:
        return {}
    if not isinstance(document, dict) or not all(isinstance(key, str) for key in document):
        raise InvalidSettings(f"{path}: expected settings as `name: value` lines")
    return document


def _read_environment(environment: dict[str, str]) -> dict[str, str]:
    """Skips VRAMCAST_PORT=tcp://..., which Kubernetes sets for a Service called vramcast, or vramcast-webhook."""
    variables = {name: ENV_PREFIX + name.upper() for name in Settings.model_fields}
    return {
        name: environment[variable]
        for name, variable in variables.items()
        if variable in environment and not (name.endswith("port") and _is_service_link(variable, environment[variable]))
    }


def unknown_variables(environment: dict[str, str]) -> list[str]:
    """Variables with our prefix that are not settings. Callers warn about them."""
    known = {ENV_PREFIX + name.upper() for name in Settings.model_fields} | {CONFIG_VARIABLE}
    return sorted(
        name
        for name, value in environment.items()
        if name.startswith(ENV_PREFIX) and name not in known and not _is_service_link(name, value)
    )


def _is_service_link(name: str, value: str) -> bool:
    """Kubernetes sets such variables for every Service whose name starts with vramcast."""
    return "_SERVICE_" in name or "_PORT_" in name or (name.endswith("_PORT") and "://" in value)


def _explain(item: Any, origins: dict[str, str]) -> str:
    name = ".".join(str(part) for part in item["loc"])
    if item["type"] == "extra_forbidden":
        near = get_close_matches(name.lower(), Settings.model_fields, n=1)
        hint = f"did you mean {near[0]}?" if near else f"the settings are {', '.join(Settings.model_fields)}"
        return f"{origins.get(name, name)}: there is no such setting; {hint}"
    message = str(item["msg"]).removeprefix("Value error, ")
    if not name:
        return message
    return f"{origins.get(name, name)}: {str(item['input'])[:80]!r}: {message}"
