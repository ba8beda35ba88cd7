"""Which GPU products a pod may land on."""

from __future__ import annotations

from typing import Any

import pytest

from vramcast.admission.products import may_use
from vramcast.names import Product

A100, L40S = Product("NVIDIA-A100-SXM4-40GB"), Product("NVIDIA-L40S")
LABEL = "nvidia.com/gpu.product"


def required(*terms: Any) -> Any:
    nodes = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": list(terms)}}
    return {"affinity": {"nodeAffinity": nodes}}


def term(*values: str, key: str = LABEL, operator: str = "In") -> Any:
    return {"matchExpressions": [{"key": key, "operator": operator, "values": list(values)}]}


@pytest.mark.parametrize(
    ("spec", "allowed"),
    [
        ({}, [A100, L40S]),
        ({"nodeSelector": {"disk": "ssd"}}, [A100, L40S]),
        ({"nodeSelector": {LABEL: L40S}}, [L40S]),
        ({"nodeSelector": {LABEL: f"{A100}-SHARED"}}, [A100]),
        ({"nodeSelector": {LABEL: "NVIDIA-H100-PCIe"}}, []),
        (required(term(A100, "NVIDIA-H100-PCIe")), [A100]),
        (required(term(A100), term(L40S)), [A100, L40S]),
        (required(term(A100), term("zone-1", key="zone")), [A100, L40S]),
        (required(term(A100, operator="NotIn")), [A100, L40S]),
        ({**required(term(A100)), "nodeSelector": {LABEL: L40S}}, []),
        ({"affinity": None, "nodeSelector": None}, [A100, L40S]),
    ],
)
def test_only_what_is_certain_excludes_a_product(spec: Any, allowed: list[Product]) -> None:
    assert may_use(spec, [A100, L40S]) == allowed
