"""A trace matches what PyTorch does."""

from __future__ import annotations

import pytest
import torch

from tests.profiling.nets import TEN, Branching, GpuOnly, Pairs, TenMillion, make_pairs, thousand_layers
from vramcast.errors import InvalidInput
from vramcast.forecast.description import decode_profile, encode_profile, parse_profile
from vramcast.profile.inputs import Inputs, make_call
from vramcast.profile.profiling import SAMPLES, Untraceable, profile_network
from vramcast.profile.tracing import trace


def really_saved(name: str) -> int:
    """Bytes that autograd saves in a real pass on the CPU, with unfused attention."""
    build, inputs = TEN[name]
    torch.manual_seed(0)
    model = build().train()
    own = {tensor.untyped_storage().data_ptr() for tensor in [*model.parameters(), *model.buffers()]}
    kept: dict[int, torch.UntypedStorage] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = storage
        return tensor

    with (
        torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH),
        torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor),
    ):
        result = make_call(inputs, SAMPLES, "cpu")(model)
    assert result is not None
    return sum(storage.nbytes() for storage in kept.values())


@pytest.mark.parametrize("name", TEN)
def test_saved_bytes_are_those_of_a_real_pass(name: str) -> None:
    build, inputs = TEN[name]
    traced = profile_network(build, inputs, name)
    assert traced.on == "meta"
    real = really_saved(name) / SAMPLES
    assert traced.profile["saved_bytes_per_sample"] == pytest.approx(real, rel=0.02)


@pytest.mark.parametrize("name", TEN)
def test_a_profile_survives_the_annotation(name: str) -> None:
    build, inputs = TEN[name]
    profile = profile_network(build, inputs, name).profile
    text = encode_profile(profile)
    assert len(text) < 4096
    assert decode_profile(text).ops == parse_profile(profile).ops


def test_fused_attention_is_counted_separately() -> None:
    build, _ = TEN["attention"]
    profile = profile_network(build, Inputs(sequence_length=256), "attention").profile
    matrices_bytes = 4 * 256 * 256 * 4
    assert profile["fused_attention_bytes_per_sample"] == pytest.approx(matrices_bytes, rel=0.2)
    assert profile["largest_saved_bytes_per_sample"] < matrices_bytes


def test_batch_independent_bytes_are_counted_separately() -> None:
    class WithTable(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = torch.nn.Parameter(torch.zeros(1, 1000))
            self.linear = torch.nn.Linear(1000, 4)

        def forward(self, given: torch.Tensor) -> torch.Tensor:
            out: torch.Tensor = self.linear(given * self.table.exp())
            return out

    traced = profile_network(WithTable, Inputs(shapes=((1000,),)), "table")
    assert traced.static_bytes == 4 * 1000


def test_a_thousand_layers_fit_into_a_few_kib() -> None:
    profile = profile_network(thousand_layers, Inputs(shapes=((64,),)), "deep").profile
    assert len(profile["layers"]) == 1000
    assert len(encode_profile(profile)) < 4096


def test_a_pass_that_depends_on_values_is_traced_on_the_cpu() -> None:
    traced = profile_network(Branching, Inputs(shapes=((16,),)), "branching")
    assert traced.on == "cpu"
    assert [layer[0] for layer in traced.profile["layers"]] == ["Linear", "Linear"]


def test_inputs_may_be_made_by_a_callable_and_results_may_be_tuples() -> None:
    profile = profile_network(Pairs, Inputs(make=make_pairs), "pairs").profile
    assert profile["layers"][0][:3] == ["Linear", 4, 52]


def test_a_network_that_cannot_run_here_is_untraceable() -> None:
    with pytest.raises(Untraceable, match="needs a GPU"):
        profile_network(GpuOnly, Inputs(shapes=((16,),)), "gpu")


def test_a_wrong_shape_gets_a_message_with_the_options() -> None:
    build, _ = TEN["resnet"]
    with pytest.raises(InvalidInput, match=r"--input 5x64x64 failed: .*without the batch \(--input 3x224x224\)"):
        profile_network(build, Inputs(shapes=((5, 64, 64),)), "resnet")


def test_frozen_weights_are_not_trained_and_parameters_are_never_counted_as_saved() -> None:
    model = torch.nn.Linear(8, 8, bias=False)
    seen = trace(model, lambda net: net(torch.zeros(2, 8)), 2)
    assert seen.saved_bytes == 2 * 8 * 4


def test_ten_million_operations_are_refused_with_the_next_level() -> None:
    with pytest.raises(InvalidInput, match=r"saves more than 50,000 tensors: .* describe the task by parameters"):
        profile_network(TenMillion, Inputs(shapes=((4,),)), "TenMillion")
