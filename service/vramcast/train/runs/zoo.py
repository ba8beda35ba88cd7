"""Describes detection and segmentation networks of OpenMMLab's zoos by summaries.

The catalog has their backbones and not the networks. What a decoder keeps for backward grows with the image: so many
elements for each pixel, or for each image where regions are cut out. The rules below are rounded from the zoo's own
figures; each decoder's error was judged by rules that its own rows did not make (docs/forecast.md). A decoder without a
rule is left out.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from vramcast.forecast.catalog import Line, builtin_catalog
from vramcast.train.runs.words import LeftOut

Row = Mapping[str, str]

_DECODER_PARAMETERS = 15_000_000
# Region heads look at what a pyramid found, dense heads predict at once.
_REGIONS = frozenset({"FasterRCNN", "MaskRCNN", "CascadeRCNN", "GridRCNN", "MaskScoringRCNN", "PointRend",
                      "PanopticFPN", "RPN"})  # fmt: skip
_DENSE = frozenset({"RetinaNet", "FCOS", "ATSS", "PAA", "TOOD", "DDOD", "FSAF", "FOVEA", "RepPointsDetector", "LAD",
                    "KnowledgeDistillationSingleStageDetector"})  # fmt: skip
_SEGMENTERS = frozenset({"FCNHead", "PSPHead", "ASPPHead", "DepthwiseSeparableASPPHead", "ISAHead", "DAHead", "EncHead",
                         "NLHead", "APCHead", "GCHead", "PSAHead", "CCHead", "ANNHead", "DMHead", "DNLHead", "EMAHead",
                         "FCNHead,OCRHead"})  # fmt: skip
_ROTATED_DENSE = re.compile(r"retinanet|reppoints|fcos|atss|fsaf|r3det|s2anet|gwd|kld|csl|kfiou")
_ROTATED_REGIONS = re.compile(r"rcnn|roi_trans|gliding")
# Elements kept for each pixel.
_OF_REGIONS, _OF_DENSE = 95, 11
_OF_GROUP_NORM = 55
_OF_UNFROZEN = 370  # the first stage, which most detectors leave as it is
_OF_CLASS = 5  # logits at full size, what the loss makes of them, and their gradients
# Elements kept for each image.
_OF_MASKS, _OF_CASCADE, _OF_CASCADED_MASKS = 45_000_000, 40_000_000, 170_000_000
# Backbones of detectors keep a little less than to classify, those whose strides became dilations much more.
_DETECTING, _DILATED = 0.88, 3.4
_CLASSES = {"cityscapes": 19, "ade20k": 150, "coco-stuff": 171, "pascal-context-59": 59, "pascal-context": 60,
            "voc": 21, "isaid": 16, "loveda": 7, "potsdam": 6, "vaihingen": 6, "mapillary": 65, "nighttime": 19,
            "dark-zurich": 19}  # fmt: skip
_SWINS = {("96", "6"): "tiny", ("96", "18"): "small", ("128", "18"): "base", ("192", "18"): "large"}
_TRANSFORMERS = {"384": "small", "768": "base", "1024": "large"}


@dataclass(frozen=True, slots=True)
class Network:
    decoder: str
    parameters: int
    activations: int  # elements per sample
    architecture: str


def is_zoo(row: Row) -> bool:
    return row["model_ref"].endswith(".py") or row["model_ref"].startswith("configs/")


def network(row: Row, sides: tuple[int, ...] | None) -> Network:
    """Raises LeftOut."""
    line = _backbone(row)
    decoder = _decoder(row)
    if sides is None or len(sides) != 2:
        raise LeftOut("image size not stated, or not that of one image")
    pixels = sides[0] * sides[1]
    described = builtin_catalog().describe(line.name, (3, *sides), None).network
    kept = (described.saved_bytes_per_sample or 0) / 4
    more = _segmenting(row, pixels) if decoder in _SEGMENTERS else _detecting(row, decoder, pixels)
    share = _DILATED if decoder in _SEGMENTERS else _DETECTING
    activations = round(share * kept + more)
    return Network(decoder, line.parameters + _DECODER_PARAMETERS, activations, line.family)


def _segmenting(row: Row, pixels: int) -> int:
    classes = next((count for name, count in _CLASSES.items() if name in row["model"]), 0)
    if not classes:
        raise LeftOut("number of classes not known")
    return _OF_CLASS * classes * pixels


def _detecting(row: Row, decoder: str, pixels: int) -> int:
    name = row["model"]
    kept = pixels * (_OF_REGIONS if decoder in _REGIONS else _OF_DENSE)
    kept += pixels * (_OF_GROUP_NORM * ("gn" in name) + _OF_UNFROZEN * ("frozen_stages=1" not in row["note"]))
    masks = decoder in _REGIONS and ("mask" in name or decoder in ("MaskScoringRCNN", "PointRend", "PanopticFPN"))
    cascade = "cascade" in name
    return kept + _OF_MASKS * masks + _OF_CASCADE * cascade + _OF_CASCADED_MASKS * (masks and cascade)


def _decoder(row: Row) -> str:
    found = re.search(r"(?:detector|decode)=([^;]*)", row["note"])
    decoder, name = found[1].strip() if found else "", row["model"]
    if not found and _ROTATED_DENSE.search(name):
        return "RetinaNet"
    if not found and _ROTATED_REGIONS.search(name):
        return "FasterRCNN"
    neck = _said(row, "neck") or "FPN"
    if decoder in _SEGMENTERS and "strides=(1, 2, 1, 1)" in row["note"]:
        return decoder
    if decoder in _REGIONS | _DENSE and neck == "FPN":
        return decoder
    raise LeftOut("a decoder, or a neck, that no rule describes")


def _backbone(row: Row) -> Line:
    found = re.search(r"backbone type=([\w.]+)", row["note"])
    name = _backbone_name(row, found[1].rpartition(".")[2] if found else "")
    line = builtin_catalog().find(f"timm/{name}") if name else None
    if line is None:
        raise LeftOut("a network that the catalog does not know, nor its backbone")
    return line


def _backbone_name(row: Row, kind: str) -> str:
    depth, arch, width = _said(row, "depth"), _said(row, "arch"), _said(row, "embed_dims")
    if kind == "SwinTransformer":
        blocks = re.search(r"depths=\[2, 2, (\d+), 2\]", row["note"])
        size = _SWINS.get((width, blocks[1] if blocks else ""))
        return f"swin_{size}_patch4_window7_224" if size else ""
    if kind == "HRNet":
        channels = re.search(r"(?:w|hr)(\d\d)", row["model"])
        return f"hrnet_w{channels[1]}" if channels else ""
    if kind == "RegNet":
        flops = re.fullmatch(r"regnet([xy])_([\d.]+)(gf|mf)", arch)
        return f"regnet{flops[1]}_{round(float(flops[2]) * (10 if flops[3] == 'gf' else 0.01)):03d}" if flops else ""
    names = {
        "ResNet": f"resnet{depth}", "ResNetV1c": f"resnet{depth}", "ResNetV1d": f"resnet{depth}",
        "ResNeXt": f"resnext{depth}_{_said(row, 'groups')}x{_said(row, 'base_width')}d",
        "ResNeSt": f"resnest{depth}{'d' if depth == '50' else 'e'}", "Res2Net": f"res2net{depth}_26w_4s",
        "ConvNeXt": f"convnext_{arch}", "MobileNetV2": "mobilenetv2_100",
        "VisionTransformer": f"vit_{_TRANSFORMERS.get(width, '')}_patch16_224",
    }  # fmt: skip
    return names.get(kind, "")


def _said(row: Row, name: str) -> str:
    found = re.search(rf"\b{name}=([^,;]+)", row["note"])
    return found[1].strip() if found else ""
