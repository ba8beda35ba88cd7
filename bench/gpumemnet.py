"""GPUMemNet and GPUUtilNet as their paper describes them, on the same folds: ensembles that classify into bins.

The MLPs read totals: batch, parameters, activations, their product, layers by type, and the activation function as
cosine and sine. The Transformer encoders also read the sequence of (layer type, activations, parameters).
Cross-entropy, Adam. The paper gives neither widths nor epochs, so those are our choice; members differ in width and
depth.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from vramcast.forecast.description import CONVOLUTIONS, OpKind
from vramcast.train.records import Record

LAYERS = 64  # longer networks are subsampled evenly
_TYPES = (OpKind.LINEAR, OpKind.BATCH_NORM, OpKind.LAYER_NORM, OpKind.DROPOUT, OpKind.POOL, OpKind.SOFTMAX)
_ACTIVATIONS = ("ReLU", "Tanh", "Sigmoid", "GELU", "SiLU", "ELU", "SELU", "LeakyReLU", "PReLU", "Mish", "Softplus")
_MLP_MEMBERS = ((64,), (128, 64), (256, 64), (64, 32, 16), (128, 128, 64))
_ENCODER_MEMBERS = ((32, 2), (48, 1))  # width, layers
_BATCH = 128

Members = Callable[[int, int], list[nn.Module]]  # from the number of totals and the number of classes


@dataclass(frozen=True, slots=True)
class Inputs:
    totals: NDArray[np.float32]  # (rows, totals)
    layers: NDArray[np.float32]  # (rows, LAYERS, 2) logarithms of activations and parameters
    kinds: NDArray[np.int64]  # (rows, LAYERS), 0 is padding


def read_inputs(records: Sequence[Record]) -> Inputs:
    layers, kinds = np.zeros((len(records), LAYERS, 2), np.float32), np.zeros((len(records), LAYERS), np.int64)
    totals = []
    for row, record in enumerate(records):
        ops = record.network.ops
        totals.append(_totals(record))
        chosen = [ops[index * len(ops) // LAYERS] for index in range(LAYERS)] if len(ops) > LAYERS else ops
        for place, op in enumerate(chosen):
            layers[row, place] = math.log1p(op.out_elements) / 8, math.log1p(op.parameters) / 8
            kinds[row, place] = int(op.kind) + 1
    return Inputs(np.array(totals, np.float32), layers, kinds)


def _totals(record: Record) -> list[float]:
    task, ops = record.task, record.network.ops
    activations = task.activations or 0
    kinds = [op.kind for op in ops]
    named = [_ACTIVATIONS.index(op.type) for op in ops if op.type in _ACTIVATIONS]
    turn = 2 * math.pi * (named[0] if named else len(_ACTIVATIONS)) / (len(_ACTIVATIONS) + 1)
    sizes = (task.batch_size, task.parameters or 0, activations, activations * task.batch_size)
    counts = [float(kinds.count(kind)) for kind in _TYPES]
    convolutions = float(sum(kind in CONVOLUTIONS for kind in kinds))
    return [*(math.log1p(size) for size in sizes), *counts, convolutions, math.cos(turn), math.sin(turn)]


class _Mlp(nn.Module):
    def __init__(self, totals: int, widths: Sequence[int], classes: int) -> None:
        super().__init__()
        parts: list[nn.Module] = []
        for width in widths:
            parts += [nn.Linear(totals, width), nn.ReLU(), nn.Dropout(0.1)]
            totals = width
        self.parts = nn.Sequential(*parts, nn.Linear(totals, classes))

    def forward(self, totals: Tensor, _layers: Tensor, _kinds: Tensor) -> Tensor:
        return torch.as_tensor(self.parts(totals))


class _Encoder(nn.Module):
    def __init__(self, totals: int, width: int, depth: int, classes: int) -> None:
        super().__init__()
        self.kind, self.embed = nn.Embedding(len(OpKind) + 1, width), nn.Linear(2, width)
        self.place = nn.Parameter(torch.randn(LAYERS, width) * 0.02)
        layer = nn.TransformerEncoderLayer(width, 4, 2 * width, 0.1, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)
        self.head = nn.Sequential(nn.Linear(width + totals, 64), nn.ReLU(), nn.Linear(64, classes))

    def forward(self, totals: Tensor, layers: Tensor, kinds: Tensor) -> Tensor:
        longest = max(1, int((kinds > 0).sum(1).max()))
        layers, kinds = layers[:, :longest], kinds[:, :longest]
        present = (kinds > 0).unsqueeze(-1)
        x = self.encoder(self.embed(layers) + self.kind(kinds) + self.place[:longest], src_key_padding_mask=kinds == 0)
        mean = (x * present).sum(1) / present.sum(1).clamp_min(1)
        return torch.as_tensor(self.head(torch.cat([mean, totals], 1)))


def mlps(totals: int, classes: int) -> list[nn.Module]:
    return [_Mlp(totals, widths, classes) for widths in _MLP_MEMBERS]


def encoders(totals: int, classes: int) -> list[nn.Module]:
    return [_Encoder(totals, width, depth, classes) for width, depth in _ENCODER_MEMBERS]


def classify(
    inputs: Inputs,
    labels: NDArray[np.int64],
    known: NDArray[np.bool_],
    fold: NDArray[np.int64],
    make: Members,
    epochs: int,
) -> NDArray[np.int64]:
    """The ensemble's vote for every known row, by members trained on the known rows of the other folds."""
    voted = np.full(len(labels), -1, np.int64)
    classes = int(labels[known].max()) + 1
    for number in np.unique(fold[known]):
        training, unseen = np.flatnonzero(known & (fold != number)), np.flatnonzero(known & (fold == number))
        mean, scale = inputs.totals[training].mean(0), inputs.totals[training].std(0) + 1e-6
        arrays = ((inputs.totals - mean) / scale, inputs.layers, inputs.kinds)
        tensors = tuple(torch.as_tensor(array) for array in arrays)
        torch.manual_seed(int(number))
        votes = torch.zeros(len(unseen), classes)
        for member in make(inputs.totals.shape[1], classes):
            _fit(member, tensors, torch.as_tensor(labels), training, epochs)
            with torch.no_grad():
                votes += torch.softmax(member(*(tensor[unseen] for tensor in tensors)), dim=1)
        voted[unseen] = votes.argmax(1).numpy()
    return voted


def _fit(
    member: nn.Module, tensors: tuple[Tensor, ...], labels: Tensor, training: NDArray[np.int64], epochs: int
) -> None:
    steps = epochs * -(-len(training) // _BATCH)
    optimizer = torch.optim.Adam(member.parameters(), lr=2e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 4e-3, total_steps=steps)
    member.train()
    for _ in range(epochs):
        for rows in torch.as_tensor(training)[torch.randperm(len(training))].split(_BATCH):
            loss = nn.functional.cross_entropy(member(*(tensor[rows] for tensor in tensors)), labels[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
    member.eval()
