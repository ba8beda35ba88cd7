"""Runs of image networks: timm in fp32 and under AMP, and what torchvision builds of the zoos of OpenMMLab."""

from __future__ import annotations

import re
from pathlib import Path

from bench.recordings.cases import Case, Cases, Counters, Recipe, Row, collapsed, read_rows

_RTX_3090 = "NVIDIA-GeForce-RTX-3090"
_FP32_ROWS = 100
# timm builds resnext101_32x8d for all of the old names ig_resnext101_32x8d, 16d, 32d and 48d.
_MISNAMED = re.compile(r"\big_(?=resnext101_32x\d+d)")
# These runs were read from the whole device: the driver's reserve, the context, and all kernels of cuDNN and cuBLAS,
# which CUDA 11 loaded at once.
_WHOLE_DEVICE_MIB = 1679
# The same of the RTX 3090 of the AMP runs, which nobody read: `python -m bench.recordings.context` finds it.
_RTX_3090_CUDA_11_MIB = 2100


def timm_intervals(data: Path) -> Cases:
    """The largest batch that ran on an RTX 3090; the next one of the ladder did not.

    cuDNN's autotuner was on, but what it takes for speed does not count: where memory is short, torch takes kernels
    that need less. They ran torch 1.12, whose `zero_grad` keeps the gradients.
    """
    found = Cases()
    rows: list[Row] = []
    for row in read_rows(data / "runs" / "timm_train_amp_intervals.csv"):
        found.rows += 1
        if row["outcome"] != "interval":
            found.left_out[f"outcome {row['outcome']}"] += 1
        elif row["kernels"] != "contiguous":
            found.left_out["channels last"] += 1
        elif "pt112" not in row["source_path"]:
            found.left_out["an older torch of the same run"] += 1
        else:
            rows.append(row)
    for row in rows:
        recipe = Recipe(
            network=_MISNAMED.sub("", row["model_ref"]), batch=int(row["batch_per_gpu"]), size=int(row["image_size"]),
            autocast="fp16", attention="eager",
        )  # fmt: skip
        found.cases.append(
            Case(
                row["model"], recipe, _RTX_3090, "sgd-momentum", {}, context_mib=_RTX_3090_CUDA_11_MIB,
                kept_gradients=True, next_batch=int(row["fail_batch"]),
            )
        )  # fmt: skip
    return found


def timm_fp32(data: Path) -> Cases:
    found = Cases()
    rows = []
    for row in read_rows(data / "measurements.csv"):
        if row["source"] != "timm-a100":
            continue
        found.rows += 1
        if row["outcome"] != "ok":
            found.left_out[f"outcome {row['outcome']}"] += 1
        else:
            rows.append(row)
    step = max(1, len(rows) // _FP32_ROWS)
    found.left_out[f"thinned to every {step}th"] += len(rows) - len(rows[::step])
    for row in rows[::step]:
        recipe = Recipe(network=row["profile"], batch=int(row["batch_size"]), size=0, attention="sdpa", autotuned=True)
        measured = {Counters.DEVICE: float(row["memory_mib"]) / 1024}
        title = f"{row['profile']} batch {row['batch_size']}"
        found.cases.append(Case(title, recipe, row["gpu"], row["optimizer"], measured, context_mib=_WHOLE_DEVICE_MIB))
    return found


_DETECTORS = (
    (re.compile(r"faster-rcnn_r50_fpn_(1x|2x)_coco"), "fasterrcnn_resnet50_fpn"),
    (re.compile(r"mask-rcnn_r50_fpn_(1x|2x)_coco"), "maskrcnn_resnet50_fpn"),
    (re.compile(r"retinanet_r50_fpn_(1x|2x)_coco"), "retinanet_resnet50_fpn"),
    (re.compile(r"fcos_r50.*_1x_coco"), "fcos_resnet50_fpn"),
    (re.compile(r"faster-rcnn_r101_fpn_(1x|2x)_coco"), "fasterrcnn_resnet101_fpn"),
    (re.compile(r"mask-rcnn_r101_fpn_(1x|2x)_coco"), "maskrcnn_resnet101_fpn"),
    (re.compile(r"retinanet_r101_fpn_(1x|2x)_coco"), "retinanet_resnet101_fpn"),
    (re.compile(r"ssd300_coco"), "ssd300_vgg16"),
)
_SEGMENTERS = (
    (re.compile(r"fcn_r50b?-d8_.*"), "fcn_resnet50"),
    (re.compile(r"fcn_r101b?-d8_.*"), "fcn_resnet101"),
    (re.compile(r"deeplabv3_r50b?-d8_.*"), "deeplabv3_resnet50"),
    (re.compile(r"deeplabv3_r101b?-d8_.*"), "deeplabv3_resnet101"),
)


def zoos(data: Path) -> Cases:
    found = Cases()
    for file, networks in (("mmdetection_zoo.csv", _DETECTORS), ("mmsegmentation_zoo.csv", _SEGMENTERS)):
        rows = []
        for row in read_rows(data / "runs" / file):
            found.rows += 1
            match = next((network for pattern, network in networks if pattern.fullmatch(row["model"])), "")
            if not match:
                found.left_out["torchvision does not build it"] += 1
            elif row["trust"] != "high" or row["precision"] != "fp32" or not row["batch_per_gpu"]:
                found.left_out["mixed precision, or settings not pinned"] += 1
            else:
                rows.append({**row, "network": match})
        keys = ("network", "batch_per_gpu", "image_size")
        for row, runs in collapsed(rows, keys, ("mem_gib",)):
            found.cases.append(_zoo_case(row, runs))
    return found


_CLASSES = {"cityscapes": 19, "ade20k": 150, "voc12aug": 21, "pascal-context-59": 59, "pascal-context": 60}


def _classes(model: str) -> int:
    """Of the data set in its name: the logits of all pixels are as large as this."""
    return next(count for name, count in _CLASSES.items() if name in model)


def _zoo_case(row: Row, runs: int) -> Case:
    sides = tuple(int(side) for side in row["image_size"].split("|")[0].strip().split("x"))
    detection = "detection" in row["task"]
    height, width = (min(sides), max(sides)) if detection else sides
    recipe = Recipe(
        network=f"torchvision/{row['network']}", batch=int(row["batch_per_gpu"]), size=(height, width),
        variant="frozen stages" if detection else f"{_classes(row['model'])} classes",
    )  # fmt: skip
    name = f"{row['model']} {row['batch_per_gpu']} x {row['image_size']}"
    # The zoo divides bytes by 1024**2 and then by 1000 or 1024.
    measured = {Counters.ALLOCATED: float(row["mem_gib"])}
    kind = "detection" if detection else "segmentation"
    return Case(name, recipe, "Tesla-V100-SXM2-32GB", "sgd-momentum", measured, kind=kind, runs=runs)
