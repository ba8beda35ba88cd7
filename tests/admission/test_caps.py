"""The variables that hand a limit to the runtimes of a container, and the settings of the user that they respect."""

from __future__ import annotations

from typing import Any

import pytest

from tests.admission.pods import MODEL, admitted, new_container, new_context, new_pod

ALL = "torch,jax,tensorflow,mps,hami-core"
TORCH, OLD_TORCH = "PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"
KNOWS_THE_KEY = "docker.io/pytorch/pytorch:2.10.0-cuda13.0-cudnn9-runtime"
WHOLE_GPU = {"limits": {"nvidia.com/gpu": "1"}}


def capped_env(container: dict[str, Any], caps: str = "torch", task: dict[str, str] | None = None) -> dict[str, Any]:
    """The variables of the container after the webhook, without those that `inject` adds."""
    pod = admitted(new_pod(task, containers=[container]), new_context({"webhook_caps": caps}))
    env = pod["spec"]["containers"][0].get("env", [])
    assert len({entry["name"] for entry in env}) == len(env), "no variable is set twice"
    return {entry["name"]: entry for entry in env if entry["name"] != "NVIDIA_VISIBLE_DEVICES"}


def from_annotation(entry: dict[str, Any]) -> str:
    path: str = entry["valueFrom"]["fieldRef"]["fieldPath"]
    return path.removeprefix("metadata.annotations['vramcast.dev/").removesuffix("']")


def expanded(env: dict[str, Any], name: str, limit: str) -> str:
    """As the kubelet expands it: a variable may refer to those before it."""
    known: dict[str, str] = {}
    for entry in env.values():
        value = limit if "valueFrom" in entry else entry["value"]
        for other, text in known.items():
            value = value.replace(f"$({other})", text)
        known[entry["name"]] = value
    return known[name]


def test_every_runtime_has_its_variable() -> None:
    env = capped_env(new_container(), ALL)
    read = {name: from_annotation(entry) for name, entry in env.items() if "valueFrom" in entry}
    assert read == {
        "PYTORCH_ALLOC_CONF": "limit-torch",
        "XLA_PYTHON_CLIENT_MEM_FRACTION": "limit-jax",
        "VRAMCAST_TENSORFLOW_LIMIT": "limit-tensorflow",
        "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "limit-mps",
        "CUDA_DEVICE_MEMORY_LIMIT": "limit-hami-core",
    }


def test_torch_and_jax_are_told_by_default() -> None:
    pod = admitted(new_pod(), new_context({"webhook_caps": "torch,jax"}))
    assert pod["metadata"]["annotations"]["vramcast.dev/injected"].endswith(
        "PYTORCH_ALLOC_CONF,XLA_PYTHON_CLIENT_MEM_FRACTION"
    )


@pytest.mark.parametrize(("limit", "read"), [("10570", "010570"), ("", "0")])
def test_tensorflow_never_reads_an_empty_number(limit: str, read: str) -> None:
    env = capped_env(new_container(), "tensorflow")
    assert expanded(env, "TF_PER_DEVICE_MEMORY_LIMIT_MB", limit) == read


@pytest.mark.parametrize(
    ("own", "limit", "read"),
    [
        ("expandable_segments:True", "f:0.25", "expandable_segments:True,f:0.25"),
        ("expandable_segments:True", "", "expandable_segments:True,"),
        ("expandable_segments:True,", "f:0.25", "expandable_segments:True,f:0.25"),
        ("roundup_power2_divisions:[256:1,512:2]", "f:0.25", "roundup_power2_divisions:[256:1,512:2],f:0.25"),
        ("", "f:0.25", "f:0.25"),
    ],
)
def test_an_allocator_setting_of_the_pod_stays_in_front_of_the_limit(own: str, limit: str, read: str) -> None:
    env = capped_env(new_container(env=[{"name": TORCH, "value": own}, {"name": "B", "value": "b"}]))
    assert expanded(env, TORCH, limit) == read
    assert env["B"] == {"name": "B", "value": "b"}


@pytest.mark.parametrize(
    "env",
    [
        pytest.param([{"name": TORCH, "value": "per_process_memory_fraction:0.5"}], id="a fraction of its own"),
        pytest.param([{"name": TORCH, "valueFrom": {"secretKeyRef": {"name": "a", "key": "b"}}}], id="from elsewhere"),
        pytest.param([{"name": TORCH, "value": "a:1"}, {"name": "B", "value": f"$({TORCH})"}], id="used by another"),
        pytest.param([{"name": OLD_TORCH, "value": "expandable_segments:True"}], id="old variable, torch not known"),
    ],
)
def test_an_allocator_setting_that_cannot_be_extended_is_left_alone(env: list[dict[str, Any]]) -> None:
    assert list(capped_env(new_container(env=env)).values()) == env


def test_the_old_variable_is_extended_where_the_image_has_a_torch_that_knows_the_key() -> None:
    own = [{"name": OLD_TORCH, "value": "expandable_segments:True"}]
    env = capped_env(new_container(env=own, image=KNOWS_THE_KEY))
    assert expanded(env, OLD_TORCH, "f:0.25") == "expandable_segments:True,f:0.25"
    assert TORCH not in env


@pytest.mark.parametrize(
    "image", ["pytorch/pytorch:2.9.1-cuda13", "nvidia/pytorch:26.01-py3", "trainer:2.10.0", "pytorch/pytorch", None]
)
def test_an_older_or_unknown_torch_would_refuse_the_key_in_the_old_variable(image: str | None) -> None:
    own = [{"name": OLD_TORCH, "value": "expandable_segments:True"}]
    assert list(capped_env(new_container(env=own, image=image)).values()) == own


@pytest.mark.parametrize("name", ["XLA_PYTHON_CLIENT_MEM_FRACTION", "XLA_CLIENT_MEM_FRACTION"])
def test_jax_refuses_two_fractions_so_it_gets_one(name: str) -> None:
    own = [{"name": name, "value": "0.5"}]
    assert list(capped_env(new_container(env=own), "jax").values()) == own


def test_what_a_config_map_may_set_is_not_overridden() -> None:
    assert capped_env(new_container(envFrom=[{"configMapRef": {"name": "allocator"}}]), ALL) == {}
    assert TORCH in capped_env(new_container(envFrom=[{"secretRef": {"name": "token"}}]))


def test_a_pod_that_says_no_has_no_limit() -> None:
    assert capped_env(new_container(), ALL, {**MODEL, "cap": "off"}) == {}


def test_a_pod_with_its_own_gpu_has_a_limit_only_if_it_says_so() -> None:
    own_gpu = new_container(resources=WHOLE_GPU)
    assert capped_env(own_gpu, ALL) == {}
    assert TORCH in capped_env(own_gpu, ALL, {**MODEL, "cap": "soft"})


def test_init_containers_and_sidecars_are_limited_too() -> None:
    pod = new_pod(
        containers=[new_container("train"), new_container("eval")],
        initContainers=[new_container("warm-up"), new_container("sidecar", restartPolicy="Always")],
    )
    made = admitted(pod, new_context({"webhook_caps": "torch"}))
    containers = [*made["spec"]["containers"], *made["spec"]["initContainers"]]
    assert [any(entry["name"] == TORCH for entry in each["env"]) for each in containers] == [True] * 4


@pytest.mark.parametrize("own", [None, "expandable_segments:True"])
def test_admitting_twice_is_admitting_once(own: str | None) -> None:
    context = new_context({"webhook_caps": ALL})
    env = [{"name": TORCH, "value": own}] if own else []
    once = admitted(new_pod(containers=[new_container(env=env)]), context)
    assert admitted(once, context) == once


def test_a_megabyte_of_allocator_settings_does_not_stop_the_webhook() -> None:
    long = ",".join(["expandable_segments:True"] * 40_000)
    env = capped_env(new_container(env=[{"name": TORCH, "value": long}]))
    assert expanded(env, TORCH, "f:1") == long + ",f:1"
