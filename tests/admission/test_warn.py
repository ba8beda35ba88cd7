"""The forecast in one line that clients show whole."""

from __future__ import annotations

from vramcast.admission import warn
from vramcast.admission.context import Needs
from vramcast.names import Product

GIB = 1 << 30


def needs(count: int, least: float = 20.0, step: float = 0.0) -> Needs:
    products = [Product(f"NVIDIA-A{number:02}00-SXM4-{number}GB") for number in range(count)]
    return Needs(
        {product: int((least + number * step) * GIB) for number, product in enumerate(products)},
        dict.fromkeys(products, 18 * GIB),
        {product: (30 + number) * GIB for number, product in enumerate(products)},
        gpus=1,
        risk=0.05,
    )


def test_products_are_listed_from_the_smallest_gpu_on() -> None:
    line = warn.forecast(needs(2), given=False)
    assert line == "vramcast: needs 20.0 GiB at risk 0.05; fits A0000-SXM4-0GB, A0100-SXM4-1GB"


def test_needs_that_differ_by_product_are_a_range() -> None:
    assert "needs 20.0 GiB to 20.5 GiB at risk" in warn.forecast(needs(2, step=0.5), given=False)


def test_a_long_list_is_cut_where_the_line_ends() -> None:
    line = warn.forecast(needs(40), given=False)
    assert 200 < len(line) <= 256
    assert line.endswith(" more")


def test_a_role_is_named_where_a_workload_has_several() -> None:
    assert warn.forecast(needs(1), given=True, of="worker").startswith("vramcast: worker: needs 20.0 GiB; fits ")
