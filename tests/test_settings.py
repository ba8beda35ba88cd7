"""Settings: pinned defaults, precedence of the sources, and all mistakes at once with their source."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from vramcast.settings import InvalidSettings, Settings, load_settings, unknown_variables

PAGE = Path(__file__).parents[1] / "docs/settings.md"

DEFAULTS = {
    "host": "127.0.0.1",
    "port": 8888,
    "metrics_host": "127.0.0.1",
    "metrics_port": None,
    "view_host": "127.0.0.1",
    "view_port": None,
    "cluster": None,
    "resource_slices": False,
    "undescribed": "pass",
    "leader_lease": None,
    "leader_identity": None,
    "default_oom_risk": 0.05,
    "artifact": "builtin",
    "physics_if_unusable": False,
    "calibration": "learn",
    "run_memory": True,
    "calibration_config_map": None,
    "calibration_save_seconds": 5.0,
    "candidate_artifact": None,
    "candidate_promotion": "manual",
    "candidate_outcomes": 100,
    "candidate_check_seconds": 30.0,
    "hold_ttl_seconds": 30.0,
    "hold_wait_seconds": 0.1,
    "unconfirmed_ttl_seconds": 65.0,
    "stale_after_seconds": 60.0,
    "requeue_interval_seconds": 1.0,
    "most_nodes_offered": 100,
    "slowdown_weight": 0.8,
    "harmless_slowdown": 1.33,
    "node_weight": 0.1,
    "assumed_utilization": 0.3,
    "node_cache_capable": True,
    "bind_deadline_seconds": 1.5,
    "bind_workers": 16,
    "max_body_mib": 64,
    "max_bodies_mib": 192,
    "max_connections": 2000,
    "request_timeout_seconds": 30.0,
    "tls_cert_file": None,
    "tls_key_file": None,
    "tls_client_ca_file": None,
    "tls_check_seconds": 10.0,
    "webhook_host": "127.0.0.1",
    "webhook_port": None,
    "webhook_cert_file": None,
    "webhook_key_file": None,
    "webhook_validate": "warn",
    "webhook_tell_forecast": True,
    "webhook_forecast_seconds": 1.0,
    "webhook_scheduler_name": "",
    "webhook_task_resource": "",
    "webhook_caps": "torch,jax",
    "webhook_cap_slack": 0.1,
    "webhook_resource": False,
    "webhook_dialects": "",
    "webhook_claim_classes": "gpu.nvidia.com",
    "mode": "decide",
    "prometheus_url": None,
    "prometheus_token_file": None,
    "prometheus_ca_file": None,
    "prometheus_selector": "",
    "exporter_urls": None,
    "telemetry_interval_seconds": 15.0,
    "telemetry_timeout_seconds": 10.0,
    "telemetry_stale_seconds": 120.0,
    "telemetry_lag_seconds": 30.0,
    "telemetry_history_hours": 24.0,
    "telemetry_memory_metric": "DCGM_FI_DEV_FB_USED",
    "telemetry_memory_unit": "MiB",
    "telemetry_utilization_metric": "DCGM_FI_DEV_GPU_UTIL",
    "telemetry_sm_active_metric": "DCGM_FI_PROF_SM_ACTIVE",
    "telemetry_sm_occupancy_metric": "DCGM_FI_PROF_SM_OCCUPANCY",
    "telemetry_memory_util_metric": "DCGM_FI_DEV_MEM_COPY_UTIL",
    "telemetry_node_labels": "Hostname,hostname,node,exported_node,kubernetes_node",
    "telemetry_pod_labels": "exported_pod,pod",
    "telemetry_namespace_labels": "exported_namespace,namespace",
    "telemetry_pod_values": "auto",
    "records_kept": 2000,
    "min_run_seconds": 60.0,
    "oom_exit_codes": "",
    "page": True,
    "detail_metrics": False,
    "log_format": "auto",
    "log_level": "info",
    "shutdown_grace_seconds": 10.0,
}

NO_MAPPING = "expected settings as `name: value` lines"


@pytest.fixture
def config(tmp_path: Path) -> Path:
    return tmp_path / "settings.yaml"


def mistakes(flags: dict[str, Any], environ: dict[str, str] | None = None) -> list[str]:
    with pytest.raises(InvalidSettings) as caught:
        load_settings(flags, environ or {})
    return str(caught.value).splitlines()


# --- defaults


def test_the_defaults_are_pinned() -> None:
    assert load_settings({}, {}).model_dump() == DEFAULTS


def test_the_docs_list_every_setting_with_its_default_and_meaning() -> None:
    rows = re.findall(r"^\| `(\w+)` \| (.+?) \| (.+?) \|$", PAGE.read_text(), re.MULTILINE)
    documented = [(name, yaml.safe_load(default.strip("`")), meaning) for name, default, meaning in rows]
    existing = [(name, _or_none(DEFAULTS[name]), field.description) for name, field in Settings.model_fields.items()]
    assert documented == existing


def _or_none(default: object) -> object:
    """The page shows an empty default as none."""
    return "none" if default in (None, "") else default


# --- precedence


def test_flags_override_the_environment_and_the_environment_overrides_the_file(config: Path) -> None:
    config.write_text("port: 1\nhost: file\nbind_workers: 3\n")
    environ = {"VRAMCAST_CONFIG": str(config), "VRAMCAST_PORT": "2", "VRAMCAST_HOST": "environment"}
    settings = load_settings({"host": "flag", "port": None}, environ)
    assert (settings.host, settings.port, settings.bind_workers) == ("flag", 2, 3)


def test_the_config_flag_overrides_the_config_variable(config: Path) -> None:
    config.write_text("port: 1\n")
    assert load_settings({"config": config}, {"VRAMCAST_CONFIG": "/nowhere"}).port == 1


def test_an_empty_file_changes_nothing(config: Path) -> None:
    config.write_text("# all defaults\n")
    assert load_settings({"config": config}, {}) == load_settings({}, {})


@pytest.mark.parametrize(
    ("variable", "text", "value"),
    [
        ("VRAMCAST_PORT", "9000", 9000),
        ("VRAMCAST_NODE_CACHE_CAPABLE", "false", False),
        ("VRAMCAST_HOLD_WAIT_SECONDS", "0.25", 0.25),
        ("VRAMCAST_UNDESCRIBED", "reject", "reject"),
        ("VRAMCAST_LOG_FORMAT", "console", "console"),
        ("VRAMCAST_CLUSTER", __file__, Path(__file__)),
    ],
)
def test_every_kind_of_setting_can_come_from_the_environment(variable: str, text: str, value: object) -> None:
    settings = load_settings({}, {variable: text})
    assert getattr(settings, variable.removeprefix("VRAMCAST_").lower()) == value


# --- variables that Kubernetes adds to every pod


@pytest.mark.parametrize("link", ["tcp://10.0.0.1:8888", "udp://10.0.0.1:8888"])
@pytest.mark.parametrize("name", ["port", "webhook_port"])
def test_a_service_link_variable_is_not_the_port_setting(name: str, link: str) -> None:
    """Of the Services vramcast and vramcast-webhook."""
    assert getattr(load_settings({}, {f"VRAMCAST_{name.upper()}": link}), name) == DEFAULTS[name]


def test_unknown_variables_are_found_and_service_links_ignored() -> None:
    environ = {
        "VRAMCAST_PROT": "1",
        "VRAMCAST_LOGLEVEL": "debug",
        "VRAMCAST_PORT": "tcp://10.0.0.1:8888",
        "VRAMCAST_CONFIG": "x",
        "VRAMCAST_SERVICE_HOST": "10.0.0.1",
        "VRAMCAST_SERVICE_PORT_HTTP": "8888",
        "VRAMCAST_PORT_8888_TCP_ADDR": "10.0.0.1",
        "VRAMCAST_EXTENDER_PORT": "tcp://10.0.0.1:8888",
        "OTHER": "1",
    }
    assert unknown_variables(environ) == ["VRAMCAST_LOGLEVEL", "VRAMCAST_PROT"]


# --- mistakes


def test_all_mistakes_are_reported_at_once_with_their_source(config: Path) -> None:
    config.write_text("hold_ttl_second: 5\nbind_workers: 0\ntls_cert_file: /nowhere.crt\nport: 7\n")
    reported = mistakes(
        {"config": config, "port": 99999}, {"VRAMCAST_LOG_LEVEL": "loud", "VRAMCAST_MAX_BODY_MIB": "much"}
    )
    expected = {
        "--port: '99999': Input should be less than or equal to 65535",
        "VRAMCAST_LOG_LEVEL: 'loud': Input should be 'debug', 'info', 'warning' or 'error'",
        "VRAMCAST_MAX_BODY_MIB: 'much': Input should be a valid integer, unable to parse string as an integer",
        f"{config}: bind_workers: '0': Input should be greater than or equal to 1",
        f"{config}: tls_cert_file: '/nowhere.crt': Path does not point to a file",
        f"{config}: hold_ttl_second: there is no such setting; did you mean hold_ttl_seconds?",
        "tls_cert_file and tls_key_file go together: set both or neither",
    }
    assert set(reported) == expected
    assert len(reported) == len(expected)


def test_a_mistake_in_a_flag_names_the_flag() -> None:
    assert mistakes({"log_format": "xml"})[0].startswith("--log-format: 'xml': ")


@pytest.mark.parametrize("key", ["PORT", "Port", "prot", "por"])
def test_a_misspelt_key_is_refused_with_the_nearest_one(config: Path, key: str) -> None:
    config.write_text(f"{key}: 5\n")
    expected = f"{config}: {key}: there is no such setting; did you mean port?"
    assert mistakes({"config": config, "port": 6}) == [expected]


def test_an_unknown_key_gets_the_list_of_all(config: Path) -> None:
    config.write_text("zzzzzz: 5\n")
    (reported,) = mistakes({"config": config})
    assert all(name in reported for name in DEFAULTS)


@pytest.mark.parametrize("key", ["_env_prefix", "_case_sensitive", "model_config"])
def test_pydantics_own_names_are_not_settings(config: Path, key: str) -> None:
    config.write_text(f"{key}: x\n")
    assert "there is no such setting" in mistakes({"config": config})[0]


@pytest.mark.parametrize("text", ["port: on", "hold_ttl_seconds: true", "host: false", "bind_workers: yes"])
def test_a_boolean_is_not_a_number_or_a_string(config: Path, text: str) -> None:
    config.write_text(text)
    assert "expected a value, not true or false" in mistakes({"config": config})[0]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("port", 0), ("port", 65536), ("default_oom_risk", 0), ("default_oom_risk", 0.6), ("hold_ttl_seconds", 0),
        ("hold_wait_seconds", 1.1), ("unconfirmed_ttl_seconds", 1), ("stale_after_seconds", float("nan")),
        ("stale_after_seconds", float("inf")), ("requeue_interval_seconds", -1), ("bind_deadline_seconds", 0),
        ("bind_workers", 257), ("max_body_mib", 0), ("max_bodies_mib", 0), ("max_connections", 9),
        ("request_timeout_seconds", 0), ("shutdown_grace_seconds", -1), ("shutdown_grace_seconds", 301),
    ],
)  # fmt: skip
def test_numbers_out_of_range_are_refused(name: str, value: float) -> None:
    (reported,) = mistakes({name: value})
    assert reported.startswith(f"--{name.replace('_', '-')}: '{value}': Input should be ")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"port: [", "cannot be read as YAML"),
        (b"\xff\xfe\x00", "cannot be read as YAML"),
        (b"since: 2024-13-45", "cannot be read as YAML"),
        (b"[" * 5000, "cannot be read as YAML"),
        (b"- port: 1", NO_MAPPING),
        (b"port", NO_MAPPING),
        (b"8888: port", NO_MAPPING),
    ],
)
def test_an_invalid_file_is_named(config: Path, content: bytes, words: str) -> None:
    config.write_bytes(content)
    assert mistakes({"config": config})[0].startswith(f"{config}: {words}")


def test_a_missing_file_is_named() -> None:
    assert mistakes({}, {"VRAMCAST_CONFIG": "/nowhere.yaml"})[0].startswith("/nowhere.yaml: cannot be read")


# --- telemetry


def test_telemetry_has_one_source() -> None:
    reported = mistakes({"prometheus_url": "http://p:9090", "exporter_urls": "http://d:9400"})
    assert reported == ["prometheus_url and exporter_urls are two sources of the same samples: set only one"]


def test_a_counter_of_utilization_is_not_set_as_another() -> None:
    (mistake,) = mistakes({"telemetry_utilization_metric": "DCGM_FI_PROF_SM_ACTIVE"})
    assert mistake.startswith("telemetry_utilization_metric: DCGM_FI_PROF_SM_ACTIVE is sm_active")
    assert mistake.endswith("would be read as gpu_util: set telemetry_sm_active_metric instead")
    assert load_settings({"telemetry_utilization_metric": "DCGM_FI_PROF_GR_ENGINE_ACTIVE"}, {})
    assert load_settings({"telemetry_utilization_metric": "gpu_gfx_activity", "telemetry_sm_active_metric": ""}, {})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("prometheus_url", "prometheus:9090"), ("oom_exit_codes", "1;2"),
        ("exporter_urls", "http://a:9400, http://b:9400"),
        ("telemetry_memory_metric", "rate(x[5m])"), ("prometheus_selector", 'cluster="a"}'),
        ("telemetry_node_labels", ""),
    ],
)  # fmt: skip
def test_invalid_telemetry_settings_are_refused_at_startup(name: str, value: str) -> None:
    assert mistakes({name: value})[0].startswith(f"--{name.replace('_', '-')}: {value!r}: ")


# --- TLS


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"cert"}, "tls_cert_file and tls_key_file go together: set both or neither"),
        ({"key"}, "tls_cert_file and tls_key_file go together: set both or neither"),
        ({"key", "client_ca"}, "tls_cert_file and tls_key_file go together: set both or neither"),
        ({"client_ca"}, "tls_client_ca_file needs tls_cert_file and tls_key_file"),
    ],
)
def test_incomplete_sets_of_tls_files_are_refused(config: Path, given: set[str], message: str) -> None:
    config.touch()
    assert mistakes({f"tls_{name}_file": config for name in given}) == [message]


@pytest.mark.parametrize("given", [(), ("cert", "key"), ("cert", "key", "client_ca")])
def test_complete_sets_of_tls_files_are_accepted(config: Path, given: tuple[str, ...]) -> None:
    config.touch()
    load_settings({f"tls_{name}_file": config for name in given}, {})


@pytest.mark.parametrize("given", [{"port"}, {"cert_file"}, {"port", "cert_file"}, {"cert_file", "key_file"}])
def test_a_webhook_needs_a_port_and_a_certificate(config: Path, given: set[str]) -> None:
    config.touch()
    values = {"port": 8443, "cert_file": config, "key_file": config}
    together = "webhook_port, webhook_cert_file and webhook_key_file go together: set all or none"
    assert mistakes({f"webhook_{name}": values[name] for name in given}) == [together]
    load_settings({f"webhook_{name}": value for name, value in values.items()}, {})
