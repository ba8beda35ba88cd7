"""The memory of claims for GPUs: in every request that names none, per device, for the product that it selects."""

from __future__ import annotations

from typing import Any

import pytest

from tests.admission.json_patch import patched
from tests.admission.pods import MODEL, new_context
from tests.admission.test_dialects import A100, L40S, NEED_MIB, needs
from vramcast.admission.change import apply
from vramcast.admission.claims import fill, stand_in
from vramcast.admission.context import Needs
from vramcast.admission.filling import read
from vramcast.task.quantity import GIB, MIB
from vramcast.task.vocabulary import PREFIX

GPU = {"deviceClassName": "gpu.nvidia.com"}
ANNOTATIONS = {PREFIX + name: value for name, value in MODEL.items()}


def claim(*requests: Any, template: bool = False) -> Any:
    spec = {"devices": {"requests": list(requests)}}
    return {
        "kind": "ResourceClaimTemplate" if template else "ResourceClaim",
        "metadata": {"name": "c", "namespace": "team", "annotations": ANNOTATIONS},
        "spec": {"spec": spec} if template else spec,
    }


def exactly(name: str = "gpu", **more: Any) -> Any:
    return {"name": name, "exactly": {**GPU, **more}}


def filled(raw: Any, found: Needs | None = None, dialects: str = "dra", **settings: Any) -> Any:
    context = new_context({"webhook_dialects": dialects, **settings}, needs=found or needs())
    return patched(raw, apply(raw, fill(raw, context))[1])


def requests(raw: Any) -> Any:
    return raw["spec"].get("spec", raw["spec"])["devices"]["requests"]


MEMORY = {"requests": {"memory": f"{NEED_MIB}Mi"}}


@pytest.mark.parametrize("template", [False, True])
def test_a_request_without_memory_gets_it(template: bool) -> None:
    (request,) = requests(filled(claim(exactly(count=2), template=template)))
    assert request["exactly"] == {**GPU, "count": 2, "capacity": MEMORY}


def test_other_capacities_stay_and_a_number_of_the_user_counts() -> None:
    own, other = {"requests": {"memory": "1Gi"}}, {"requests": {"cores": "10"}}
    made = requests(filled(claim(exactly("a", capacity=own), exactly("b", capacity=other))))
    assert [each["exactly"]["capacity"]["requests"] for each in made] == [
        {"memory": "1Gi"}, {"cores": "10", "memory": f"{NEED_MIB}Mi"}
    ]  # fmt: skip


def test_only_gpus_have_this_memory() -> None:
    raw = claim(exactly(deviceClassName="nic.example.com"))
    assert filled(raw) == raw
    assert filled(raw, webhook_claim_classes="a,nic.example.com") != raw


def test_alternatives_get_the_number_of_the_product_that_they_select() -> None:
    by_product = {A100: 9_000 * MIB, L40S: 8_000 * MIB}
    found = Needs(by_product, by_product, dict.fromkeys(by_product, 79 * GIB), 1, 0.05)
    product = "device.attributes['gpu.nvidia.com'].productName == '%s'"
    choices = [
        {"name": name, **GPU, "selectors": [{"cel": {"expression": product % selected}}]}
        for name, selected in (("large", "NVIDIA A100-SXM4-80GB"), ("small", "NVIDIA L40S"), ("other", "NVIDIA H100"))
    ]
    (request,) = requests(filled(claim({"name": "gpu", "firstAvailable": choices}), found))
    assert [each["capacity"]["requests"]["memory"] for each in request["firstAvailable"]] == [
        "9000Mi", "8000Mi", "9000Mi"
    ]  # fmt: skip


def test_without_the_dialect_nothing_is_filled_in() -> None:
    raw = claim(exactly())
    assert filled(raw, dialects="hami,kai") == raw


@pytest.mark.parametrize(
    "odd",
    [
        {"kind": "ResourceClaim"},
        {"kind": "ResourceClaim", "metadata": None, "spec": None},
        {"kind": "ResourceClaimTemplate", "spec": {"spec": {"devices": {"requests": "gpu"}}}},
        claim(None, "gpu", {"name": "gpu", "exactly": None}, {"name": "gpu", "firstAvailable": [None, 1]}),
    ],
)
def test_an_odd_claim_is_left_alone(odd: Any) -> None:
    assert filled(odd) == odd
    assert read(stand_in(odd), new_context()).record.invalid is None


def test_a_template_may_describe_its_claims_in_their_own_metadata() -> None:
    raw = claim(exactly(), template=True)
    raw["spec"]["metadata"] = {"annotations": raw["metadata"].pop("annotations")}
    task = read(stand_in(raw), new_context()).record.task
    assert task is not None
    assert task.model == "timm/resnet50"


def test_a_mistake_in_a_claim_is_a_mistake() -> None:
    raw = claim(exactly())
    raw["metadata"]["annotations"] = {PREFIX + "model": "timm/resnet50", PREFIX + "batch-siz": "64"}
    invalid = read(stand_in(raw), new_context()).record.invalid
    assert invalid is not None
    assert "did you mean vramcast.dev/batch-size?" in str(invalid)


def test_filling_twice_is_filling_once() -> None:
    once = filled(claim(exactly()))
    assert filled(once) == once
