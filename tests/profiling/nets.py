"""Ten kinds of small networks, as users write or import them."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import timm
import torch
import torchvision
import transformers
from torch import Tensor, nn
from torch.nn import functional

from vramcast.profile.inputs import Inputs

IMAGE = Inputs(shapes=((3, 64, 64),))
TOKENS = Inputs(sequence_length=32)


def perceptron() -> nn.Module:
    return nn.Sequential(
        nn.Linear(64, 256), nn.GELU(), nn.Dropout(0.1), nn.Linear(256, 256), nn.Tanh(), nn.Linear(256, 10)
    )


class Attending(nn.Module):
    """Calls PyTorch's attention function and returns a dict."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(100, 64)
        self.project = nn.Linear(64, 192)
        self.norm = nn.LayerNorm(64)
        self.head = nn.Linear(64, 100)

    def forward(self, tokens: Tensor) -> dict[str, Tensor]:
        read = self.embedding(tokens)
        query, key, value = self.project(self.norm(read)).unflatten(-1, (3, 4, 16)).permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(query, key, value).transpose(1, 2).flatten(2)
        return {"logits": self.head(mixed + read)}


class Branching(nn.Module):
    """The forward pass depends on values, which the meta device does not have."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(16, 32), nn.Linear(32, 8)

    def forward(self, given: Tensor) -> Tensor:
        hidden: Tensor = self.first(given)
        return self.second(hidden.relu() if hidden.sum().item() > 1e9 else hidden.tanh())  # type: ignore[no-any-return]


class GpuOnly(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(16, 32)

    def forward(self, given: Tensor) -> Tensor:
        raise NotImplementedError("this kernel needs a GPU")


def thousand_layers(depth: int = 250) -> nn.Module:
    """A thousand layers in which neighbours have different widths."""
    widths = [64 + 8 * (index % 3) for index in range(depth + 1)]
    blocks = [nn.Sequential(nn.Linear(a, b), nn.LayerNorm(b), nn.GELU(), nn.Dropout(0.1)) for a, b in pairwise(widths)]
    return nn.Sequential(*blocks)


def _config(kind: str, head: str, **fields: Any) -> Callable[[], nn.Module]:
    def build() -> nn.Module:
        config = getattr(transformers, f"{kind}Config")(**fields)
        model: nn.Module = getattr(transformers, f"{kind}{head}")(config)
        return model

    return build


def _small(kind: str, head: str, **fields: Any) -> Callable[[], nn.Module]:
    sizes = {"vocab_size": 100, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    return _config(kind, head, **{**sizes, "intermediate_size": 128, **fields})


TEN: dict[str, tuple[Callable[[], nn.Module], Inputs]] = {
    "perceptron": (perceptron, Inputs(shapes=((64,),))),
    "attention": (Attending, TOKENS),
    "resnet": (lambda: timm.create_model("resnet10t"), IMAGE),
    "mobilenet": (lambda: timm.create_model("mobilenetv3_small_050"), IMAGE),
    "convnext": (lambda: timm.create_model("convnext_atto"), IMAGE),
    "vit": (lambda: timm.create_model("vit_tiny_patch16_224", img_size=64, depth=2), IMAGE),
    "shufflenet": (torchvision.models.shufflenet_v2_x0_5, IMAGE),
    "gpt2": (_config("GPT2", "LMHeadModel", vocab_size=100, n_embd=64, n_layer=2, n_head=4), TOKENS),
    "bert": (_small("Bert", "ForMaskedLM"), TOKENS),
    "t5": (
        _config(
            "T5", "ForConditionalGeneration", vocab_size=100, d_model=64, d_ff=128, num_layers=2, num_heads=4, d_kv=16,
            decoder_start_token_id=0,
        ),
        TOKENS,
    ),
}  # fmt: skip


def build_attending() -> nn.Module:
    return Attending()


def build_perceptron(width: int = 64) -> nn.Module:
    return nn.Sequential(nn.Linear(width, 32), nn.ReLU())


def make_pairs(samples: int) -> dict[str, Tensor]:
    return {"left": torch.zeros(samples, 8), "right": torch.zeros(samples, 4)}


class Pairs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(12, 4)

    def forward(self, left: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
        joined: Tensor = self.linear(torch.cat([left, right], dim=1))
        return joined, joined.pow(2).mean()


NOT_CALLABLE = 3


class TenMillion(nn.Module):
    """Ten million operations in a forward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, given: Tensor) -> Tensor:
        hidden: Tensor = self.linear(given)
        for _ in range(10_000_000):
            hidden = hidden.sin()
        return hidden
