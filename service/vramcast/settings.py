"""Settings: from the environment (`VRAMCAST_...`) or a YAML file, checked all at once before anything starts."""

from __future__ import annotations

import os
from difflib import get_close_matches
from enum import StrEnum
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ConfigDict, Field, FilePath, ValidationError, ValidationInfo, field_validator

from vramcast.errors import InvalidInput
from vramcast.hardware.vendors import VENDORS
from vramcast.outcomes.readings import LabelNames, PodValues, Unit

_NAMES = LabelNames()
_EXPORTER = VENDORS[0].exporter
_LIST = r"^[^,\s]+(,[^,\s]+)*$"
ENV_PREFIX = "VRAMCAST_"
CONFIG_VARIABLE = "VRAMCAST_CONFIG"


class InvalidSettings(InvalidInput):
    """Every wrong setting, one a line."""


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
    """The defaults are promises: the README's table is made from them, and a test holds both together."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    host: str = Field("127.0.0.1", description="address to listen on; the extender's verbs authenticate nobody")
    port: int = Field(8888, ge=1, le=65535, description="port to listen on")
    metrics_host: str = Field("127.0.0.1", description="address of the port for metrics and probes")
    metrics_port: int | None = Field(
        None, ge=1, le=65535, description="a second port that answers /metrics, /healthz and /readyz and nothing else"
    )
    cluster: FilePath | None = Field(None, description="a static cluster file instead of Kubernetes")
    undescribed: UndescribedPolicy = Field(
        UndescribedPolicy.PASS, description="what becomes of pods whose annotations cannot be used: pass or reject"
    )
    leader_lease: str | None = Field(
        None,
        pattern="^[^/]+/[^/]+$",
        description="namespace/name of the Lease of the kube-scheduler beside: promise only while that one leads",
    )
    leader_identity: str | None = Field(
        None, description="how the holder of that Lease begins: the kube-scheduler's host name; none: this host's"
    )
    default_oom_risk: float = Field(0.05, ge=0.0001, le=0.5, description="risk for pods that name none")
    artifact: str = Field(
        "builtin", description="the trained forecast: builtin, a directory, or physics for the prior alone"
    )
    physics_if_unusable: bool = Field(
        False, description="true: an artifact that cannot be used is passed over, and physics forecasts alone"
    )
    calibration: CalibrationMode = Field(
        CalibrationMode.LEARN,
        description="bounds by this cluster's runs: learn, frozen (apply, learn no more) or off (the artifact's alone)",
    )
    calibration_config_map: str | None = Field(
        None,
        pattern="^[^/]+/[^/]+$",
        description="namespace/name of the ConfigMap that keeps what was learned; none: a restart forgets it",
    )
    calibration_save_seconds: float = Field(
        5.0, ge=0.1, le=3600, description="how often what was learned is written there at most"
    )
    candidate_artifact: str | None = Field(
        None,
        description="directory of an artifact that is tried in the shadow of the active one; it is watched",
    )
    candidate_promotion: Promotion = Field(
        Promotion.MANUAL, description="auto: a candidate that was no worse takes over; manual: that is only told"
    )
    candidate_outcomes: int = Field(
        100, ge=20, le=200, description="outcomes that both must have forecast before a candidate is judged"
    )
    candidate_check_seconds: float = Field(30.0, ge=1, le=3600, description="how often to look at that directory")
    hold_ttl_seconds: float = Field(30.0, gt=0, le=3600, description="how long a filtered pod holds room at most")
    hold_wait_seconds: float = Field(
        0.1, ge=0, le=1.0, description="how long filter waits for holds to settle; far below the httpTimeout"
    )
    unconfirmed_ttl_seconds: float = Field(
        65.0, ge=5, le=3600, description="how long a bind without an answer counts; above the API server's own limit"
    )
    stale_after_seconds: float = Field(
        60.0, ge=1, le=3600, description="without news from the API server for this long, no promise is made"
    )
    requeue_interval_seconds: float = Field(
        1.0, ge=0, le=300, description="how often to look for unschedulable pods that would fit now; 0: never"
    )
    most_nodes_offered: int = Field(
        100, ge=0, description="of the nodes that fit, so many of the best go back to the scheduler; 0: all of them"
    )
    node_cache_capable: bool = Field(
        True, description="true: bodies with whole Nodes are simulations (cluster-autoscaler) and hold nothing"
    )
    bind_deadline_seconds: float = Field(1.5, gt=0, le=30, description="for one bind with its retries")
    bind_workers: int = Field(16, ge=1, le=256, description="binds written at the same time")
    max_body_mib: int = Field(64, ge=1, le=1024, description="larger request bodies are refused")
    tls_cert_file: FilePath | None = Field(None, description="serve over TLS with this certificate")
    tls_key_file: FilePath | None = Field(None, description="its key")
    tls_client_ca_file: FilePath | None = Field(None, description="and only for clients with a certificate of this CA")
    mode: Mode = Field(
        Mode.DECIDE, description="decide, or observe: forecast and measure everything, keep no pod from any node"
    )
    prometheus_url: str | None = Field(
        None,
        pattern="^https?://[^/]+",
        description="a Prometheus that scrapes the GPUs' exporters: telemetry, live and past",
    )
    prometheus_token_file: FilePath | None = Field(None, description="a bearer token for it, read again every time")
    prometheus_ca_file: FilePath | None = Field(
        None, description="the CA that signed its certificate; none: the system's"
    )
    prometheus_selector: str = Field(
        "", pattern="^[^{}]*$", description='more matchers for its series, such as cluster="a"'
    )
    dcgm_urls: str | None = Field(
        None,
        pattern=r"^https?://[^/,\s]+[^,\s]*(,https?://[^/,\s]+[^,\s]*)*$",
        description="dcgm-exporters to scrape where no Prometheus does, by commas; a name stands for all its addresses",
    )
    telemetry_interval_seconds: float = Field(15.0, ge=0.1, le=600, description="how often to poll telemetry")
    telemetry_timeout_seconds: float = Field(10.0, gt=0, le=300, description="for one look")
    telemetry_stale_seconds: float = Field(
        120.0, ge=1, le=3600, description="older samples say nothing about now: promises alone decide"
    )
    telemetry_lag_seconds: float = Field(
        30.0,
        ge=0,
        le=600,
        description="how much older than its time a value may be: dcgm-exporter's collection interval",
    )
    telemetry_history_hours: float = Field(
        24.0, ge=0, le=720, description="how far back runs are read from Prometheus after a restart"
    )
    telemetry_memory_metric: str = Field(
        _EXPORTER.memory, pattern=r"^[a-zA-Z_:][\w:]*$", description="GPU memory in use"
    )
    telemetry_memory_unit: Unit = Field(Unit.MIB, description="its unit: MiB or bytes")
    telemetry_utilization_metric: str = Field(
        _EXPORTER.utilization, pattern=r"^([a-zA-Z_:][\w:]*)?$", description="GPU utilization; empty: not measured"
    )
    telemetry_node_labels: str = Field(
        ",".join(_NAMES.node), pattern=_LIST, description="labels that may name the node, the first one that is there"
    )
    telemetry_pod_labels: str = Field(",".join(_NAMES.pod), pattern=_LIST, description="the same for the pod")
    telemetry_namespace_labels: str = Field(
        ",".join(_NAMES.namespace), pattern=_LIST, description="the same for the pod's namespace"
    )
    telemetry_pod_values: PodValues = Field(
        PodValues.AUTO,
        description="what a series with a pod's name shows: pod (its own memory), gpu (the whole GPU's), or auto",
    )
    records_kept: int = Field(
        2000, ge=0, le=100_000, description="measured runs kept in memory for `vramcast export-records`; 0: none"
    )
    min_run_seconds: float = Field(60.0, ge=0, le=86400, description="shorter runs are not measured, unless by an OOM")
    oom_exit_codes: str = Field(
        "",
        pattern=r"^(\d{1,3}(,\d{1,3})*)?$",
        description="exit codes by which jobs say that GPU memory did not suffice",
    )
    detail_metrics: bool = Field(
        False, description="true: also gauges for every pod (predicted, observed) and every GPU (room, promises)"
    )
    log_format: LogFormat = Field(LogFormat.AUTO, description="auto: console on a terminal, json elsewhere")
    log_level: LogLevel = Field(LogLevel.INFO, description="debug, info, warning or error")
    shutdown_grace_seconds: float = Field(10.0, ge=0, le=300, description="for requests under way at SIGTERM")

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
    def _a_flag_is_no_number(cls, value: Any, info: ValidationInfo) -> Any:
        """YAML reads `port: on` as true, and Python would take that for 1."""
        if isinstance(value, bool) and cls.model_fields[str(info.field_name)].annotation is not bool:
            raise ValueError("expected a value, not true or false")
        return value


def load_settings(flags: dict[str, Any], environ: dict[str, str] | None = None) -> Settings:
    """Flags over environment over file. Raises InvalidSettings with every mistake, each with where it stands."""
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
    mistakes = [*_tls_mistakes(values), *_telemetry_mistakes(values)]
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
    except (OSError, yaml.YAMLError, ValueError, RecursionError) as error:  # ValueError: no text, or no such date
        raise InvalidSettings(f"{path}: cannot be read as YAML: {error}") from None
    if document is None:
        return {}
    if not isinstance(document, dict) or not all(isinstance(key, str) for key in document):
        raise InvalidSettings(f"{path}: expected settings as `name: value` lines")
    return document


def _read_environment(environment: dict[str, str]) -> dict[str, str]:
    """Kubernetes adds VRAMCAST_PORT=tcp://... for a Service of our name: that is its variable, not our setting."""
    found = {
        name: environment[ENV_PREFIX + name.upper()]
        for name in Settings.model_fields
        if ENV_PREFIX + name.upper() in environment
    }
    if _is_service_link(ENV_PREFIX + "PORT", found.get("port", "")):
        del found["port"]
    return found


def _tls_mistakes(values: dict[str, Any]) -> list[str]:
    """Beside the model, not in it: pydantic looks at pairs only once every single setting is right."""
    cert, key, client_ca = (values.get(f"tls_{name}_file") for name in ("cert", "key", "client_ca"))
    if (cert is None) != (key is None):
        return ["tls_cert_file and tls_key_file go together: give both or neither"]
    if client_ca is not None and cert is None:
        return ["tls_client_ca_file needs tls_cert_file and tls_key_file"]
    return []


def _telemetry_mistakes(values: dict[str, Any]) -> list[str]:
    if values.get("prometheus_url") and values.get("dcgm_urls"):
        return ["prometheus_url and dcgm_urls are two ways to the same samples: give one"]
    return []


def unknown_variables(environment: dict[str, str]) -> list[str]:
    """Variables that look like settings and are none: worth a warning, not a refusal."""
    known = {ENV_PREFIX + name.upper() for name in Settings.model_fields} | {CONFIG_VARIABLE}
    return sorted(
        name
        for name, value in environment.items()
        if name.startswith(ENV_PREFIX) and name not in known and not _is_service_link(name, value)
    )


def _is_service_link(name: str, value: str) -> bool:
    """What Kubernetes adds for every Service whose name begins like ours."""
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
