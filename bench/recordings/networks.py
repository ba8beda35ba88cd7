"""Networks and batches by the names that the measurements use. Needs torch."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from bench.recordings.cases import Loss, Recipe
from bench.recordings.openmmlab import as_openmmlab
from torch import Tensor, nn

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
Built = tuple[Callable[[], nn.Module], Callable[[], tuple[Any, Callable[[Any, Any], Tensor]]]]
# Language models whose blocks are all alike are recorded with this many and stretched to the rest.
RECORDED_BLOCKS = 4


def built(recipe: Recipe, *, whole: bool = True) -> Built:
    """Functions that make the network, and a batch with its loss, on torch's default device.

    Not `whole`: a language model with a few of its blocks.
    """
    kind, name = recipe.network.split("/", maxsplit=1)
    if kind == "hf":
        return _language(name, recipe, whole=whole)
    return {"timm": _timm, "torchvision": _torchvision, "diffusers": _diffusers}[kind](name, recipe)


# ----------------------------------------------------------------------------------------------- language models

_EXTRA: dict[str, tuple[str, dict[str, Any]]] = {
    "mistralai/Mixtral-8x7B-Instruct-v0.1": (
        "Mixtral",
        {
            "vocab_size": 32000, "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32,
            "num_key_value_heads": 8, "intermediate_size": 14336, "num_local_experts": 8, "num_experts_per_tok": 2,
            "max_position_embeddings": 32768,
        },
    ),
    "bigcode/gpt_bigcode-santacoder": (
        "GPTBigCode",
        {
            "vocab_size": 49280, "n_embd": 2048, "n_layer": 24, "n_head": 16, "n_inner": 8192, "n_positions": 2048,
            "multi_query": True, "activation_function": "gelu_pytorch_tanh",
        },
    ),
    "Qwen/Qwen1.5-0.5B": (
        "Qwen2",
        {
            "vocab_size": 151936, "hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16,
            "num_key_value_heads": 16, "intermediate_size": 2816, "max_position_embeddings": 32768,
            "tie_word_embeddings": True, "pad_token_id": None,
        },
    ),
}  # fmt: skip
_ROTARY_POSITIONS, _ROTARY_WIDTH = 32768, 64  # of Qwen1.5-0.5B


@cache
def _catalog() -> dict[str, Callable[[int], nn.Module]]:
    from vramcast.profile.networks import encoders, language  # noqa: PLC0415 - they import transformers

    known = [*language.sources(), *encoders.sources()]
    return {name.lower(): source.make for source in known for name in (source.name.removeprefix("hf/"), *source.also)}


def _language(name: str, recipe: Recipe, *, whole: bool) -> Built:
    tokens = int(recipe.size) if isinstance(recipe.size, int) else 0

    def build() -> nn.Module:
        model = _language_model(name, tokens)
        model.config.use_cache = False
        if not whole:
            _shorten(model)
        if recipe.variant == "rotary caches":
            _add_rotary_caches(model)
        if recipe.variant == "separate experts":
            for layer in model.model.layers:  # type: ignore[union-attr]
                layer.mlp = _SeparateExperts(model.config)
        return model.to(DTYPES[recipe.weights])

    def batch_of() -> tuple[Any, Callable[[Any, Any], Tensor]]:
        ids = torch.zeros(recipe.batch, tokens, dtype=torch.long)
        loss = _keeping_outputs if recipe.variant == "outputs kept" else _LANGUAGE_LOSSES[recipe.loss]
        return {"input_ids": ids, "labels": torch.zeros_like(ids)}, loss

    return build, batch_of


_BLOCKS = {
    "Mistral-7B-v0.1": 32, "Mixtral-8x7B-Instruct-v0.1": 32, "Llama-2-70b-hf": 80, "gpt_bigcode-santacoder": 24,
    "Meta-Llama-3-8B": 32, "Qwen1.5-0.5B": 24,
}  # fmt: skip


def blocks_of(recipe: Recipe) -> int:
    """How many blocks the network has, if it is recorded with fewer; else 0."""
    return _BLOCKS.get(recipe.network.rsplit("/", maxsplit=1)[-1], 0)


def _shorten(model: Any) -> None:
    blocks = model.transformer.h if hasattr(model, "transformer") else model.model.layers
    del blocks[RECORDED_BLOCKS:]
    model.config.num_hidden_layers = RECORDED_BLOCKS


def _language_model(name: str, tokens: int) -> nn.Module:
    if name not in _EXTRA:
        return _catalog()[name.rsplit("/", maxsplit=1)[-1].lower()](tokens)
    import transformers  # noqa: PLC0415

    prefix, fields = _EXTRA[name]
    model: nn.Module = getattr(transformers, f"{prefix}ForCausalLM")(getattr(transformers, f"{prefix}Config")(**fields))
    return model


class _SeparateExperts(nn.Module):
    """Mixtral's experts before transformers 5: a module each, run one after the other. Tokens spread evenly."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.count, self.chosen = config.num_local_experts, config.num_experts_per_tok
        self.gate = nn.Linear(config.hidden_size, self.count, bias=False)
        # Not a list: lists of equal modules are what the recorder takes for the blocks of a network.
        for number in range(self.count):
            self.add_module(f"expert{number}", _Expert(config.hidden_size, config.intermediate_size))

    def forward(self, hidden: Tensor) -> Tensor:
        rows = hidden.view(-1, hidden.shape[-1])
        weights, experts = torch.topk(torch.softmax(self.gate(rows), 1, dtype=torch.float32), self.chosen)
        weights = (weights / weights.sum(-1, keepdim=True)).to(rows.dtype)
        mask = torch.zeros(*experts.shape, self.count, dtype=torch.long, device=rows.device)
        result = torch.zeros_like(rows)
        for number in range(self.count):
            expert = getattr(self, f"expert{number}")
            taken = torch.zeros(len(rows) * self.chosen // self.count, dtype=torch.long, device=rows.device)
            made = expert(rows[taken]) * weights[taken, taken, None]
            result.index_add_(0, taken, made.to(rows.dtype))
        del mask
        return result.view_as(hidden)


class _Expert(nn.Module):
    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.w1 = nn.Linear(width, inner, bias=False)
        self.w2 = nn.Linear(inner, width, bias=False)
        self.w3 = nn.Linear(width, inner, bias=False)

    def forward(self, rows: Tensor) -> Tensor:
        made: Tensor = self.w2(F.silu(self.w1(rows)) * self.w3(rows))
        return made


def _add_rotary_caches(model: nn.Module) -> None:
    """Until transformers 4.42 each of Qwen2's layers kept the sines and cosines of all positions."""
    for layer in model.model.layers:  # type: ignore[union-attr]
        for angle in ("cosines", "sines"):
            layer.self_attn.register_buffer(angle, torch.empty(_ROTARY_POSITIONS, _ROTARY_WIDTH))


def _shifted_copy(model: Any, batch: Any) -> Tensor:
    """transformers before 4.46. Encoder-decoders never shifted."""
    if getattr(model, "config", None) is not None and model.config.is_encoder_decoder:
        return _shifted_labels(model, batch)
    return _without_last(_logits(model, batch["input_ids"]), batch)


def _keeping_outputs(model: Any, batch: Any) -> Tensor:
    """`outputs = model(...)` in a loop: the name holds the logits until the next step has its own."""
    if model.config.is_encoder_decoder:
        outputs = model(**batch, use_cache=False)
        loss = outputs.loss
    else:
        outputs = model(input_ids=batch["input_ids"], use_cache=False)
        loss = _without_last(outputs.logits.float(), batch)
    model.held_by_the_loop = outputs
    return loss  # type: ignore[no-any-return]


def _shifted_16_bits(model: Any, batch: Any) -> Tensor:
    logits: Tensor = model(input_ids=batch["input_ids"], use_cache=False).logits
    return _without_last(logits, batch)


def _without_last(logits: Tensor, batch: Any) -> Tensor:
    shifted = logits[..., :-1, :].contiguous()
    labels = batch["labels"][..., 1:].contiguous()
    return F.cross_entropy(shifted.view(-1, shifted.shape[-1]), labels.view(-1))


def _logits(model: Any, ids: Tensor) -> Tensor:
    logits: Tensor = model(input_ids=ids, use_cache=False).logits
    return logits.float()


def _shifted_labels(model: Any, batch: Any) -> Tensor:
    loss: Tensor = model(**batch, use_cache=False).loss
    return loss


_LANGUAGE_LOSSES = {
    Loss.SHIFTED_COPY: _shifted_copy,
    Loss.SHIFTED_16_BITS: _shifted_16_bits,
    Loss.SHIFTED_LABELS: _shifted_labels,
}


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
