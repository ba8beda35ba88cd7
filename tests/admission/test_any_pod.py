"""What holds for every pod and every combination of settings: nothing is lost, and asking again changes nothing."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tests.admission.json_patch import patched
from tests.admission.pods import SCHEDULER, new_container, new_context
from vramcast.admission.context import Needs
from vramcast.admission.filling import fill, read
from vramcast.names import Product
from vramcast.settings import Runtime, System

GIB = 1 << 30
A100, T4 = Product("NVIDIA-A100-SXM4-40GB"), Product("Tesla-T4")
NEEDS = Needs({A100: 12 * GIB, T4: 11 * GIB}, {A100: 9 * GIB, T4: 8 * GIB}, {A100: 39 * GIB, T4: 14 * GIB}, 1, 0.05)

values = st.sampled_from(["", "0", "all", "a:b", "expandable_segments:True", "0.5"])
variables = st.sampled_from([
    "NVIDIA_VISIBLE_DEVICES", "PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "XLA_PYTHON_CLIENT_MEM_FRACTION",
    "TF_PER_DEVICE_MEMORY_LIMIT_MB", "CUDA_DEVICE_MEMORY_LIMIT", "HOME",
])  # fmt: skip
settings_of_a_pod = st.one_of(
    st.builds(lambda name, value: {"name": name, "value": value}, variables, values),
    st.builds(lambda name: {"name": name, "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}, variables),
)
resources = st.sampled_from([
    "cpu", "nvidia.com/gpu", "nvidia.com/gpumem", "volcano.sh/vgpu-number", "koordinator.sh/gpu.shared",
    "vramcast.dev/task", "vramcast.dev/gpu-memory",
])  # fmt: skip
limits = st.dictionaries(resources, st.sampled_from(["1", "2"]), max_size=2)
containers = st.builds(
    lambda env, limits, image: new_container(env=env, resources={"limits": limits}, image=image),
    st.none() | st.lists(settings_of_a_pod, max_size=3, unique_by=lambda one: one["name"]),
    limits,
    st.sampled_from(["trainer", "pytorch/pytorch:2.10.0-cuda13.0", "pytorch/pytorch:2.6.0-cuda12.4"]),
)
annotations = st.fixed_dictionaries(
    {"vramcast.dev/gpu-memory": st.sampled_from(["10Gi", "16GB"])},
    optional={
        "vramcast.dev/share": st.sampled_from(["true", "false"]),
        "vramcast.dev/cap": st.sampled_from(["soft", "off"]),
        "vramcast.dev/gpus": st.just("2"),
        "vramcast.dev/injected": st.sampled_from(["", "share", "by hand"]),
        "gpu-memory": st.just("1000"),
    },
)
taint = "vramcast.dev/gpu-sharing"
tolerations = st.sampled_from([{"operator": "Exists"}, {"key": taint, "value": "true"}, {"key": "x"}])
specs = st.fixed_dictionaries(
    {"containers": st.lists(containers, min_size=1, max_size=2)},
    optional={
        "initContainers": st.none() | st.lists(containers, max_size=1),
        "tolerations": st.none() | st.lists(tolerations, max_size=2),
        "schedulerName": st.sampled_from(["default-scheduler", SCHEDULER, "kai-scheduler", "volcano"]),
        "resourceClaims": st.just([{"name": "gpu"}]),
        "nodeSelector": st.sampled_from([{"kubernetes.io/os": "windows"}, {"kubernetes.io/arch": "arm64"}]),
        "nodeName": st.just("a"),
    },
)
pods = st.builds(
    lambda annotations, spec: {
        "kind": "Pod", "metadata": {"name": "p", "namespace": "team", "annotations": annotations}, "spec": spec,
    },
    annotations, specs,
)  # fmt: skip
contexts = st.builds(
    lambda dialects, resource, task, shares, needs: new_context(
        {
            "webhook_caps": ",".join(Runtime), "webhook_dialects": ",".join(dialects), "webhook_resource": resource,
            "webhook_task_resource": task,
        },
        shares=shares, needs=needs,
    ),
    st.sets(st.sampled_from(sorted(System))).map(sorted), st.booleans(), st.sampled_from(["", "vramcast.dev/task"]),
    st.booleans(), st.sampled_from([None, NEEDS]),
)  # fmt: skip


def admitted(pod: Any, context: Any) -> Any:
    return patched(pod, fill(pod, read(pod, context), context).operations)


@given(pods, contexts)
def test_admitting_twice_is_admitting_once(pod: Any, context: Any) -> None:
    once = admitted(pod, context)
    assert admitted(once, context) == once


@given(pods, contexts)
def test_what_the_pod_says_stays(pod: Any, context: Any) -> None:
    after = admitted(pod, context)
    noted = "vramcast.dev/injected"
    assert {k: v for k, v in pod["metadata"]["annotations"].items() if k != noted}.items() <= (
        after["metadata"]["annotations"].items()
    )
    changeable = {"containers", "initContainers", "tolerations", "schedulerName"}
    assert {k: v for k, v in pod["spec"].items() if k not in changeable} == (
        {k: v for k, v in after["spec"].items() if k not in changeable}
    )
    named = pod["spec"].get("schedulerName", "default-scheduler")
    assert named in ("default-scheduler", after["spec"].get("schedulerName"))
    given_tolerations = pod["spec"].get("tolerations") or []
    assert (after["spec"].get("tolerations") or [])[: len(given_tolerations)] == given_tolerations
    for field in ("containers", "initContainers"):
        for before, now in zip(pod["spec"].get(field) or [], after["spec"].get(field) or [], strict=True):
            check_container(before, now)


def check_container(before: Any, now: Any) -> None:
    assert before["image"] == now["image"]
    assert before["resources"]["limits"].items() <= now["resources"]["limits"].items()
    for variable in before["env"] or []:
        # The last one of a name counts.
        (*_, last) = [one for one in now["env"] if one["name"] == variable["name"]]
        if "valueFrom" in variable:
            assert last == variable
        else:
            assert last["value"].startswith(variable["value"].rstrip(","))
