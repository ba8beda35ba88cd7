"""Outputs that are looked up instead of computed: the same shapes, each with a storage of its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from vramcast.profile.recording.known_outputs import KnownOutputs

_aten = torch.ops.aten
HALF = torch.bfloat16
Call = Callable[[Tensor], tuple[Any, tuple[Any, ...]]]


def meta(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.empty(*shape, dtype=dtype, device="meta")


def form(tensor: Tensor) -> tuple[Any, ...]:
    return tensor.shape, tensor.stride(), tensor.dtype, tensor.untyped_storage().nbytes()


CALLS: dict[str, tuple[Any, tuple[Any, ...], dict[str, Any]]] = {
    "product": (_aten.mul.Tensor, (meta(4, 8), meta(4, 8, dtype=HALF)), {}),
    "a transposed input": (_aten.add.Tensor, (meta(8, 4).t(), meta(8, 4).t()), {}),
    "a cast": (_aten._to_copy.default, (meta(4, 8),), {"dtype": HALF}),
    "several outputs": (_aten.native_dropout.default, (meta(4, 8), 0.1, True), {}),
    "a list of inputs": (_aten.cat.default, ([meta(4, 8), meta(4, 2)], 1), {}),
    "a convolution": (
        _aten.convolution.default,
        (meta(2, 3, 9, 9), meta(5, 3, 3, 3), None, [2, 2], [1, 1], [1, 1], False, [0, 0], 1),
        {},
    ),
}


@pytest.mark.parametrize("name", CALLS)
def test_what_is_looked_up_has_the_form_that_torch_gives(name: str) -> None:
    func, args, kwargs = CALLS[name]
    known = KnownOutputs()
    first, second = known.run(func, args, kwargs), known.run(func, args, kwargs)
    true = func(*args, **kwargs)
    assert type(first) is type(second)
    leaves = [(out,) if isinstance(out, Tensor) else out for out in (first, second, true)]
    forms = [[form(leaf) for leaf in out] for out in leaves]
    assert forms[0] == forms[1] == forms[2]
    storages = {leaf.untyped_storage()._cdata for leaf in (*leaves[0], *leaves[1])}
    assert len(storages) == len(leaves[0]) + len(leaves[1])


def test_a_known_output_is_not_computed_again() -> None:
    called: list[Any] = []

    def counted(*args: Tensor) -> Tensor:
        called.append(args)
        return torch.mul(*args)

    known = KnownOutputs()
    for _ in range(3):
        known.run(counted, (meta(4), meta(4)), None)
    assert len(called) == 1
    known.run(counted, (meta(4), meta(4, dtype=HALF)), None)
    known.run(counted, (meta(4), meta(1)), None)
    assert len(called) == 3


@pytest.mark.parametrize(
    "call",
    [
        lambda given: (_aten.view.default, (given, [8, 4])),
        lambda given: (_aten._unsafe_view.default, (given, [8, 4])),
        lambda given: (_aten.add_.Tensor, (given, given)),
        lambda given: (_aten.split.Tensor, (given, 2)),
    ],
)
def test_what_shares_a_storage_with_its_input_always_does(call: Call) -> None:
    known = KnownOutputs()
    for _ in range(2):
        given = meta(4, 8)
        func, args = call(given)
        out = known.run(func, args, None)
        for leaf in (out,) if isinstance(out, Tensor) else out:
            assert leaf.untyped_storage()._cdata == given.untyped_storage()._cdata


def test_equal_numbers_of_other_types_are_other_operations() -> None:
    known = KnownOutputs()
    whole = torch.ones(4, dtype=torch.int64, device="meta")
    assert known.run(_aten.mul.Tensor, (whole, 2), None).dtype is torch.int64
    assert known.run(_aten.mul.Tensor, (whole, 2.0), None).dtype is torch.float32


def test_other_devices_are_not_looked_up() -> None:
    known = KnownOutputs()
    for value in (1.0, 2.0):
        assert known.run(_aten.add.Tensor, (torch.tensor([value]), 1), None).item() == value + 1
