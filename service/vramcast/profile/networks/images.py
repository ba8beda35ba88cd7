"""Hugging Face networks that see: classification, contrastive learning, features, masks and boxes."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

from vramcast.profile.inputs import Inputs
from vramcast.profile.networks.huggingface import make_network, widths
from vramcast.profile.sources import ModelSource, image_inputs

_VIT = {
    "vit-base-patch16-224": (768, 12, 12, 16, 224),
    "vit-base-patch16-384": (768, 12, 12, 16, 384),
    "vit-base-patch32-384": (768, 12, 12, 32, 384),
    "vit-large-patch16-224": (1024, 24, 16, 16, 224),
    "vit-huge-patch14-224-in21k": (1280, 32, 16, 14, 224),
}
# These add relative positions to the attention of every layer.
_BEIT = {
    "beit-base-patch16-224": ("Beit", ()),
    "data2vec-vision-base": ("Data2VecVision", ("data2vec-vision-base-ft1k",)),
}
_CLIP = {
    "clip-vit-base-patch32": (768, 12, 12, 32, 224, 512),
    "clip-vit-base-patch16": (768, 12, 12, 16, 224, 512),
    "clip-vit-large-patch14": (1024, 24, 16, 14, 224, 768),
    "clip-vit-large-patch14-336": (1024, 24, 16, 14, 336, 768),
}
_CLIP_TOKENS = 77
# Width, layers, heads and inner width of both halves; patch and side of the image.
_SIGLIP = {
    "siglip-base-patch16-224": (768, 12, 12, 3072, 16, 224),
    "siglip-base-patch16-384": (768, 12, 12, 3072, 16, 384),
    "siglip-large-patch16-256": (1024, 24, 16, 4096, 16, 256),
    "siglip-so400m-patch14-384": (1152, 27, 16, 4304, 14, 384),
}
_SIGLIP_TOKENS = 64
_DINOV2 = {"dinov2-small": (384, 12, 6), "dinov2-base": (768, 12, 12), "dinov2-large": (1024, 24, 16),
           "dinov2-giant": (1536, 40, 24)}  # fmt: skip
_DINOV2_SIDE = 518
_WITHOUT_BIAS = {"use_gated_mlp": True, "query_bias": False, "value_bias": False}
_DINOV3: dict[str, tuple[int, int, int, dict[str, Any]]] = {
    "dinov3-vits16-pretrain-lvd1689m": (384, 12, 6, {}),
    "dinov3-vitb16-pretrain-lvd1689m": (768, 12, 12, {}),
    "dinov3-vitl16-pretrain-lvd1689m": (1024, 24, 16, {}),
    "dinov3-vith16plus-pretrain-lvd1689m": (1280, 32, 20, {"use_gated_mlp": True}),
    "dinov3-vit7b16-pretrain-lvd1689m": (4096, 40, 32, {"intermediate_size": 8192, **_WITHOUT_BIAS}),
}
_SAM = {"sam-vit-base": (768, 12, 12, [2, 5, 8, 11]), "sam-vit-large": (1024, 24, 16, [5, 11, 17, 23]),
        "sam-vit-huge": (1280, 32, 16, [7, 15, 23, 31])}  # fmt: skip
_SAM_SIDE = 1024
# Width, layers, heads, the image that its positions were learned for, and whether every layer has positions.
_YOLOS = {
    "yolos-tiny": (192, 12, 3, [800, 1333], False),
    "yolos-small": (384, 12, 6, [512, 864], True),
    "yolos-base": (768, 12, 12, [800, 1344], True),
}
_YOLOS_SIDE = 512
_RESNET = {"model_type": "rt_detr_resnet", "out_features": ["stage2", "stage3", "stage4"]}
_BASIC = {"layer_type": "basic", "depths": [2, 2, 2, 2], "hidden_sizes": [64, 128, 256, 512], **_RESNET}
_RT_DETR: dict[str, dict[str, Any]] = {
    "rtdetr_r18vd": {
        "backbone_config": _BASIC, "encoder_in_channels": [128, 256, 512], "hidden_expansion": 0.5, "decoder_layers": 3,
    },
    "rtdetr_r50vd": {},
}  # fmt: skip
_RT_DETR_SIDE = 640


def sources() -> Iterator[ModelSource]:
    for name, (width, layers, heads, patch, side) in _VIT.items():
        fields = _seeing(width, layers, heads, patch_size=patch, image_size=side, num_labels=1000)
        yield _image_source(name, "ViT", fields, "ForImageClassification", side)
    for name, (kind, also) in _BEIT.items():
        fields = _seeing(768, 12, 12, patch_size=16, image_size=224, num_labels=1000, use_relative_position_bias=True)
        yield _image_source(name, kind, fields, "ForImageClassification", 224, also)
    for name, (width, layers, heads, patch, side, projected) in _CLIP.items():
        fields = {
            "projection_dim": projected,
            "text_config": widths(49408, projected, 12, projected // 64),
            "vision_config": _seeing(width, layers, heads, patch_size=patch, image_size=side),
        }
        yield _paired(name, "CLIP", fields, side, _CLIP_TOKENS)
    for name, (width, layers, heads, inner, patch, side) in _SIGLIP.items():
        both = _seeing(width, layers, heads) | {"intermediate_size": inner}
        fields = {"text_config": {"vocab_size": 32000, **both},
                  "vision_config": {"patch_size": patch, "image_size": side, **both}}  # fmt: skip
        yield _paired(name, "Siglip", fields, side, _SIGLIP_TOKENS)
    yield from _features()
    yield from _boxes_and_masks()


def _features() -> Iterator[ModelSource]:
    for name, (width, layers, heads) in _DINOV2.items():
        giant = {"use_swiglu_ffn": True} if name == "dinov2-giant" else {}
        fields = _seeing(width, layers, heads, patch_size=14, image_size=_DINOV2_SIDE, **giant)
        yield _image_source(name, "Dinov2", fields, "Model", 224)
    for name, (width, layers, heads, more) in _DINOV3.items():
        fields = _seeing(width, layers, heads, patch_size=16, image_size=224, num_register_tokens=4) | more
        short = name.partition("-pretrain")[0]
        yield _image_source(name, "DINOv3ViT", fields, "Model", 224, (short,))


def _boxes_and_masks() -> Iterator[ModelSource]:
    for name, (width, layers, heads, whole) in _SAM.items():
        seeing = _seeing(width, layers, heads, global_attn_indexes=whole, mlp_dim=4 * width)
        make = make_network("Sam", {"vision_config": seeing}, "Model")
        yield ModelSource(f"hf/{name}", make, image_inputs(), _SAM_SIDE, ())
    for name, (width, layers, heads, image, everywhere) in _YOLOS.items():
        fields = _seeing(width, layers, heads, image_size=image, num_labels=91, use_mid_position_embeddings=everywhere)
        yield _image_source(name, "Yolos", fields, "ForObjectDetection", _YOLOS_SIDE)
    for name, fields in _RT_DETR.items():
        make = make_network("RTDetr", {"num_labels": 80, **fields}, "ForObjectDetection")
        yield ModelSource(f"hf/{name}", make, image_inputs(), _RT_DETR_SIDE, (_RT_DETR_SIDE // 2,), real=True)


def _seeing(width: int, layers: int, heads: int, **more: Any) -> dict[str, Any]:
    fields = widths(0, width, layers, heads)
    del fields["vocab_size"]
    return fields | more


def _image_source(
    name: str, prefix: str, fields: dict[str, Any], head: str, side: int, also: tuple[str, ...] = ()
) -> ModelSource:
    make = make_network(prefix, fields, head)
    return ModelSource(f"hf/{name}", make, image_inputs(), side, (side // 2, 2 * side), also=also)


def _paired(name: str, prefix: str, fields: dict[str, Any], side: int, tokens: int) -> ModelSource:
    make = make_network(prefix, fields, "Model")
    return ModelSource(f"hf/{name}", make, partial(_image_and_text, tokens), side, (side // 2, 2 * side))


def _image_and_text(tokens: int, side: int) -> Inputs:
    return Inputs(shapes=((3, side, side),), sequence_length=tokens)
