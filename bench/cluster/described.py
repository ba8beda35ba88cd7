"""How the owner of each of Lucid's jobs would describe it to vramcast, without having run it.

By name where the catalog has the network, else by its totals, counted from the network's definition. Nothing here comes
from the measurements.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

PREFIX: Final = "vramcast.dev/"


@dataclass(frozen=True, slots=True)
class Network:
    """`parameters` and `activations` (per sample) also feed the formula of Horus.

    `macs`: multiply-accumulates of one sample's forward pass, rounded; vramcast is not told them.
    """

    architecture: str
    parameters: int
    activations: int
    optimizer: str
    macs: float
    name: str = ""  # in the catalog
    size: tuple[str, str] | None = None  # the annotation that goes with the name
    layers: int = 1


NETWORKS: Final = {
    "BERT": Network("transformer", 110_000_000, 90_000_000, "adamw", 35.6e9, "bert-base-uncased",
                    ("sequence-length", "384")),
    "DCGAN": Network("cnn", 6_300_000, 780_000, "adam", 4.2e8, layers=10),  # 64x64: four passes of two networks
    "EfficientNet": Network("cnn", 3_600_000, 444_000, "sgd-momentum", 1.1e8, layers=81),  # B0 for 32x32
    "LSTM": Network("rnn", 13_800_000, 2_400_000, "sgd", 2.6e8, layers=4),  # 35 tokens, and the logits of 33,278 words
    "MobileNetV2": Network("cnn", 2_300_000, 3_450_000, "sgd-momentum", 9.4e7, layers=54),  # for 32x32
    "MobileNetV3": Network("cnn", 2_540_000, 2_500_000, "sgd-momentum", 5.6e7, "torchvision/mobilenet_v3_small",
                           ("input-size", "3x224x224")),
    "NeuMF": Network("mlp", 1_600_000, 1_000, "adam", 1.6e6, layers=5),
    "PPO": Network("mlp", 20_000, 500, "adam", 2e4, layers=6),
    "PointNet": Network("cnn", 3_500_000, 18_000_000, "adam", 1.1e9, layers=22),  # 2,500 points
    "ResNet18": Network("cnn", 11_200_000, 1_200_000, "sgd-momentum", 5.6e8, layers=21),  # for 32x32
    "ResNet50": Network("cnn", 25_600_000, 22_000_000, "sgd-momentum", 4.1e9, "timm/resnet50",
                        ("input-size", "3x224x224")),
    "TD3": Network("mlp", 400_000, 2_500, "adam", 4e5, layers=9),
    "Transformer": Network("transformer", 49_000_000, 8_400_000, "adam", 1.4e9, layers=12),  # 30 tokens, 9,521 words
    "VGG": Network("cnn", 20_000_000, 606_000, "sgd-momentum", 4.0e8, layers=17),  # VGG-19 for 32x32
}  # fmt: skip


def annotations_of(model: str, batch_size: int, *, amp: bool) -> dict[str, str]:
    network = NETWORKS[model]
    told = {"share": "true", "batch-size": str(batch_size), "optimizer": network.optimizer,
            "precision": "amp-fp16" if amp else "fp32"}  # fmt: skip
    if network.name and network.size is not None:
        told |= {"model": network.name, network.size[0]: network.size[1]}
    else:
        told |= {"architecture": network.architecture, "parameters": str(network.parameters),
                 "activations": str(network.activations), "layers": str(network.layers)}  # fmt: skip
    return {PREFIX + key: value for key, value in told.items()}


def horus_mib(model: str, batch_size: int) -> int:
    """Weights, gradients, optimizer states, and every activation with its gradient, without any reuse."""
    network = NETWORKS[model]
    states = {"sgd": 0, "sgd-momentum": 1}.get(network.optimizer, 2)
    floats = network.parameters * (2 + states) + 2 * network.activations * batch_size
    return 500 + 4 * floats // (1 << 20)
