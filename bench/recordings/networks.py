"""Networks and batches by the names that the measurements use. Needs torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from bench.recordings.cases import Recipe
from bench.recordings.language_networks import DTYPES, Built, language
from bench.recordings.openmmlab import as_openmmlab
from torch import Tensor, nn


def built(recipe: Recipe, *, whole: bool = True) -> Built:
    """Functions that make the network, and a batch with its loss, on torch's default device.

    Not `whole`: a language model with a few of its blocks.
    """
    kind, name = recipe.network.split("/", maxsplit=1)
    if kind == "hf":
        return language(name, recipe, whole=whole)
    return {"timm": _timm, "torchvision": _torchvision, "diffusers": _diffusers}[kind](name, recipe)


# ----------------------------------------------------------------------------------------------- image networks


def _classification(build: Callable[[], nn.Module], batch: int, side: int) -> Built:
    def batch_of() -> tuple[Any, Callable[[Any, Any], Tensor]]:
        images = torch.zeros(batch, 3, side, side)
        return (images, torch.zeros(batch, dtype=torch.long)), _classes

    return build, batch_of


def _classes(model: Any, batch: Any) -> Tensor:
    return F.cross_entropy(model(batch[0]), batch[1])


def _timm(name: str, recipe: Recipe) -> Built:
    import timm  # noqa: PLC0415
    from timm.layers import set_fused_attn  # noqa: PLC0415

    fused = recipe.attention != "eager"
    side = (
        int(recipe.size)
        if isinstance(recipe.size, int) and recipe.size
        else timm.get_pretrained_cfg(name).input_size[-1]
    )  # type: ignore[union-attr]

    def build() -> nn.Module:
        set_fused_attn(fused)
        model: nn.Module = timm.create_model(name)
        return model

    return _classification(build, recipe.batch, side)


def _torchvision(name: str, recipe: Recipe) -> Built:

    if isinstance(recipe.size, int):
        return _classification(lambda: _torchvision_classifier(name), recipe.batch, recipe.size)
    if "fcn_" in name or "deeplab" in name:
        return _segmentation(name, recipe)
    return _detection(name, recipe)


def _torchvision_classifier(name: str) -> nn.Module:
    import torchvision  # noqa: PLC0415

    if not name.startswith("regnet"):
        return torchvision.models.get_model(name)  # type: ignore[no-any-return]
    with torch.device("cpu"):  # it computes its widths with tensors
        model: nn.Module = torchvision.models.get_model(name)
    return model.to(torch.get_default_device())


def _segmentation(name: str, recipe: Recipe) -> Built:
    import torchvision  # noqa: PLC0415

    height, width = recipe.size  # type: ignore[misc]
    classes = int(recipe.variant.split()[0])

    def build() -> nn.Module:
        model = torchvision.models.get_model(
            name, weights=None, weights_backbone=None, aux_loss=True, num_classes=classes
        )
        return as_openmmlab(model, classes, pyramid="deeplab" in name)

    def batch_of() -> tuple[Any, Callable[[Any, Any], Tensor]]:
        images = torch.zeros(recipe.batch, 3, height, width)
        return (images, torch.zeros(recipe.batch, height, width, dtype=torch.long)), _pixels

    return build, batch_of


def _pixels(model: Any, batch: Any) -> Tensor:
    made = model(batch[0])
    return F.cross_entropy(made["out"], batch[1]) + 0.4 * F.cross_entropy(made["aux"], batch[1])


def _detection(name: str, recipe: Recipe) -> Built:
    import torchvision  # noqa: PLC0415
    from torchvision.models import detection  # noqa: PLC0415

    height, width = recipe.size  # type: ignore[misc]

    def build() -> nn.Module:
        if "resnet101" in name:
            kind, backbone = name.split("_", maxsplit=1)
            body = detection.backbone_utils.resnet_fpn_backbone(
                backbone_name=backbone.removesuffix("_fpn"), weights=None, trainable_layers=3
            )
            maker = {"maskrcnn": detection.MaskRCNN, "fasterrcnn": detection.FasterRCNN}.get(kind, detection.RetinaNet)
            made: nn.Module = maker(body, num_classes=80)
            return made
        model: nn.Module = torchvision.models.get_model(name, weights=None, weights_backbone=None, num_classes=80)
        _freeze_stages(model)
        return model

    def batch_of() -> tuple[Any, Callable[[Any, Any], Tensor]]:
        images = [torch.rand(3, height, width) for _ in range(recipe.batch)]
        return (images, [_objects(height, width) for _ in images]), _detected

    return build, batch_of


_OBJECTS = 7  # a picture of COCO has that many on average


def _objects(height: int, width: int) -> dict[str, Tensor]:
    corners = torch.rand(_OBJECTS, 2) * torch.tensor([width / 2, height / 2])
    sides = torch.rand(_OBJECTS, 2) * torch.tensor([width / 3, height / 3]) + 16
    return {
        "boxes": torch.cat([corners, corners + sides], 1),
        "labels": torch.ones(_OBJECTS, dtype=torch.long),
        "masks": torch.zeros(_OBJECTS, height, width, dtype=torch.uint8),
    }


def _freeze_stages(model: nn.Module) -> None:
    """Detectors keep the stem and the first stage of a residual network, and all its norms, as they were."""
    body = getattr(getattr(model, "backbone", None), "body", None)
    if body is None:
        return
    for name, weight in body.named_parameters():
        if not name.startswith(("layer2", "layer3", "layer4")):
            weight.requires_grad_(requires_grad=False)


def _detected(model: Any, batch: Any) -> Tensor:
    losses: dict[str, Tensor] = model(*batch)
    return torch.stack(list(losses.values())).sum()


# ----------------------------------------------------------------------------------------------- diffusion


def _diffusers(name: str, recipe: Recipe) -> Built:
    return (_cogvideox if "CogVideoX" in name else _flux)(name, recipe)


def _cogvideox(name: str, recipe: Recipe) -> Built:
    from diffusers import CogVideoXTransformer3DModel  # noqa: PLC0415

    large = name.endswith("5b")
    frames, height, width = recipe.size  # type: ignore[misc]
    shape = ((frames - 1) // 4 + 1, 16, height // 8, width // 8)

    def build() -> nn.Module:
        model: nn.Module = CogVideoXTransformer3DModel(
            num_attention_heads=48 if large else 30, num_layers=42 if large else 30,
            use_rotary_positional_embeddings=large,
        ).to(DTYPES[recipe.weights])  # fmt: skip
        return model

    def batch_of() -> tuple[Any, Callable[[Any, Any], Tensor]]:
        dtype = DTYPES[recipe.weights]
        given = {
            "hidden_states": torch.zeros(recipe.batch, *shape, dtype=dtype),
            "encoder_hidden_states": torch.zeros(recipe.batch, 226, 4096, dtype=dtype),
            "timestep": torch.zeros(recipe.batch, dtype=torch.long),
        }
        if large:
            tokens = shape[0] * (shape[2] // 2) * (shape[3] // 2)
            given["image_rotary_emb"] = (torch.zeros(tokens, 64), torch.zeros(tokens, 64))  # type: ignore[assignment]
        return given, _predicted_noise

    return build, batch_of


def _predicted_noise(model: Any, batch: Any) -> Tensor:
    """The weighted squared error of cogvideox-factory's loop: the prediction becomes a sample, in fp32."""
    output = model(**batch, return_dict=False)[0]
    latents = batch["hidden_states"]
    predicted = 0.9 * latents - 0.4 * output
    weights = torch.ones(latents.shape[0], 1, 1, 1, 1, device=latents.device)
    return torch.mean((weights * (predicted - latents) ** 2).reshape(latents.shape[0], -1), dim=1).mean()


def _flux(_name: str, recipe: Recipe) -> Built:
    from diffusers import Flux2Transformer2DModel  # noqa: PLC0415

    height, width = recipe.size  # type: ignore[misc]
    tokens, prompt = (height // 16) * (width // 16), 512

    def build() -> nn.Module:
        model: nn.Module = Flux2Transformer2DModel(
            in_channels=128, num_layers=5, num_single_layers=20, attention_head_dim=128, num_attention_heads=24,
            joint_attention_dim=7680, guidance_embeds=False,
        ).to(DTYPES[recipe.weights])  # fmt: skip
        return model

    def batch_of() -> tuple[Any, Callable[[Any, Any], Tensor]]:
        dtype = DTYPES[recipe.weights]
        given = {
            "hidden_states": torch.zeros(recipe.batch, tokens, 128, dtype=dtype),
            "encoder_hidden_states": torch.zeros(recipe.batch, prompt, 7680, dtype=dtype),
            "timestep": torch.zeros(recipe.batch, dtype=dtype),
            "img_ids": torch.zeros(recipe.batch, tokens, 4),
            "txt_ids": torch.zeros(recipe.batch, prompt, 4),
            "guidance": None,
        }
        return given, _velocity

    return build, batch_of


def _velocity(model: Any, batch: Any) -> Tensor:
    output = model(**batch, return_dict=False)[0]
    return F.mse_loss(output.float(), torch.zeros_like(output, dtype=torch.float32))
