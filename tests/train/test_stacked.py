"""Stacked networks: the same results for any number of rows, and for rows without tokens."""

from __future__ import annotations

import torch

from vramcast.forecast.features import FACTS, TOKEN_WIDTH, TOKENS, Regime
from vramcast.train.export import Ensemble
from vramcast.train.network import ForecastNetwork, Shape
from vramcast.train.stacked import Stacked


def _network(seed: int) -> ForecastNetwork:
    torch.manual_seed(seed)
    network = ForecastNetwork(Shape(width=8, recurrent_width=4, heads=2, layers=2, facts_width=8)).eval()
    torch.nn.init.normal_(network.memory.weight)  # zero weights would give the same output for every row
    network.standardize(torch.randn(50, len(FACTS)) * 3, torch.arange(50) % len(Regime), torch.randn(50))
    return network


def test_stacked_networks_equal_their_mean() -> None:
    networks = [_network(seed) for seed in range(3)]
    rows = 6
    facts = torch.randn(rows, len(FACTS))
    facts[:, : len(Regime)] = torch.eye(len(Regime))[torch.arange(rows) % len(Regime)]
    tokens, kinds = torch.randn(rows, TOKENS, TOKEN_WIDTH), torch.randint(0, 12, (rows, TOKENS))
    kinds[0] = 0
    with torch.no_grad():
        expected = Ensemble(networks).eval()(facts, tokens, kinds)
        stacked = Stacked(networks).eval()(facts, tokens, kinds)
    for one, other in zip(expected, stacked, strict=True):
        assert torch.allclose(one, other, atol=1e-5)
    assert float(expected[0].std(0).min()) > 0.01
