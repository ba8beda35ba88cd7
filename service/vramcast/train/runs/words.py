"""The words of published tables, as values of the annotations.

People describe runs in prose: `bfloat16+bf16-amp-flag`, `AdamW (8-bit bitsandbytes)`, `FSDP FULL_SHARD`. Each function
reads one column. What it cannot read, or what no annotation can say, leaves the row out for a reason that is counted.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from vramcast.errors import InvalidInput
from vramcast.names import Product
from vramcast.task.vocabulary import LoraTargets

_Table = Sequence[tuple[str, str]]


class LeftOut(InvalidInput):
    """The row cannot be compared with a forecast; the message is the reason, in words that can be counted."""


def _first(table: _Table, text: str) -> str | None:
    """The value of the first pattern found in the text."""
    lower = text.lower()
    return next((value for pattern, value in table if re.search(pattern, lower)), None)


_PRODUCTS: _Table = (
    (r"a100.*80|a100/h100 80", "NVIDIA-A100-SXM4-80GB"), (r"a100.*40gb/80gb", "NVIDIA-A100-SXM4-80GB"),
    (r"a100.*40", "NVIDIA-A100-SXM4-40GB"), (r"a800", "NVIDIA-A800-SXM4-80GB"), (r"a40\b", "NVIDIA-A40"),
    (r"a30\b", "NVIDIA-A30"), (r"a10g\b", "NVIDIA-A10G"), (r"a10\b", "NVIDIA-A10"), (r"a6000\b", "NVIDIA-RTX-A6000"),
    (r"a5000\b", "NVIDIA-RTX-A5000"), (r"a4000\b", "NVIDIA-RTX-A4000"), (r"h200\b", "NVIDIA-H200"),
    (r"h100.*nvl", "NVIDIA-H100-NVL"), (r"h100", "NVIDIA-H100-80GB-HBM3"), (r"h800", "NVIDIA-H800"),
    (r"h20\b", "NVIDIA-H20"), (r"b200\b", "NVIDIA-B200"), (r"l40s", "NVIDIA-L40S"), (r"l40\b", "NVIDIA-L40"),
    (r"\bl4\b", "NVIDIA-L4"), (r"\bt4\b", "Tesla-T4"), (r"v100.*16", "Tesla-V100-SXM2-16GB"),
    (r"v100", "Tesla-V100-SXM2-32GB"), (r"p100", "Tesla-P100-PCIE-16GB"), (r"k80", "Tesla-K80"),
    (r"2080 ?ti", "NVIDIA-GeForce-RTX-2080-Ti"), (r"3060\b", "NVIDIA-GeForce-RTX-3060"),
    (r"3080(?! ?ti)", "NVIDIA-GeForce-RTX-3080"), (r"3090", "NVIDIA-GeForce-RTX-3090"),
    (r"4060\b", "NVIDIA-GeForce-RTX-4060"), (r"4080\b", "NVIDIA-GeForce-RTX-4080"),
    (r"4090", "NVIDIA-GeForce-RTX-4090"), (r"5090", "NVIDIA-GeForce-RTX-5090"), (r"mi300x", "AMD-Instinct-MI300X"),
    (r"mi355x", "AMD-Instinct-MI355X"),
)  # fmt: skip


def product(gpu: str, *, context_counts: bool) -> Product:
    """`context_counts`: the counter shows the whole device. Torch's own counters hardly depend on the product."""
    known = named_product(gpu)
    if known is None and not context_counts:
        known = Product("Tesla-V100-SXM2-32GB")
    if known is None:
        raise LeftOut(f"GPU not known: {gpu.strip() or 'not stated'}")
    return known


def named_product(gpu: str) -> Product | None:
    known = _first(_PRODUCTS, gpu)
    return None if known is None else Product(known)


_PRECISIONS: _Table = (
    (r"not stated|see repo|\?", ""), (r"fp16 weights\+grads", "fp16"), (r"bfloat16\+", "bf16"), (r"float16\+", "fp16"),
    (r"amp_fp8|fp8 current|bf16\+fp8", ""), (r"autocast; fp32 weights", "amp-fp16"),
    (r"fp32 master", "bf16"), (r"amp_bf16|bf16[ -]mixed", "amp-bf16"), (r"mixed|^amp$|^amp_fp16", "amp-fp16"),
    (r"bfloat16|bf16", "bf16"), (r"float16|fp16|llm\.int8|^int[48]$", "fp16"), (r"tf32", "tf32"), (r"fp32", "fp32"),
)  # fmt: skip


def precision(text: str, *, mixed: bool = False) -> str:
    """`mixed`: 16 bits are those of autocast, and trained weights have 32."""
    known = _first(_PRECISIONS, text)
    if mixed and known in ("bf16", "fp16"):
        return f"amp-{known}"
    if not known:
        raise LeftOut("precision not stated, or none that an annotation has")
    return known


_OPTIMIZERS: _Table = (
    (r"without state", "sgd"), (r"sgd", "sgd-momentum"), (r"8.?bit", "adam8bit"), (r"lion", "lion"),
    (r"adafactor", "adafactor"), (r"rmsprop", "rmsprop"), (r"badam|muon|lora-fa", ""), (r"adamw", "adamw"),
    (r"adam", "adam"), (r"^$|deepspeed", "adamw"),
)  # fmt: skip


def optimizer(text: str) -> str:
    known = _first(_OPTIMIZERS, text.strip())
    if not known:
        raise LeftOut(f"optimizer {text}")
    return known


_QUANTIZATIONS: _Table = (
    (r"^$", ""), (r"/", "?"), (r"gptq", "int4"), (r"nf4|fp4|4.?bit|int4", "nf4"), (r"int8|fp8", "int8"),
)  # fmt: skip


def quantization(text: str) -> str:
    """Empty: none. fp8 and int8 take the same bytes, and so do the formats with four bits."""
    known = _first(_QUANTIZATIONS, text.strip())
    if known in (None, "?"):
        raise LeftOut(f"quantization {text}")
    return str(known)


_ATTENTIONS: _Table = (
    (r"^$|fused softmax|^fused|^diffusers", ""), (r"rwkv", "?"), (r"flash|cudnn|sdpa", "sdpa"), (r"eager", "eager"),
)  # fmt: skip


def attention(text: str) -> str:
    """Flash attention and `sdpa` take the same memory."""
    known = _first(_ATTENTIONS, text.strip())
    if known in (None, "?"):
        raise LeftOut(f"attention {text}")
    return str(known)


def checkpointing(text: str, *, matters: bool) -> bool:
    lower = text.lower().strip()
    if not lower or "not stated" in lower or "?" in lower:
        if matters:
            raise LeftOut("checkpointing not stated")
        return False
    if lower.startswith("on") and "unsloth" not in lower:
        return True
    if lower == "off":
        return False
    raise LeftOut("checkpoints some blocks only, or offloads activations")


def kernels(text: str) -> str:
    lower = text.lower()
    if "compile" in lower:
        raise LeftOut("compiled steps")
    if "moe" in lower:
        raise LeftOut("kernels of their own for experts")
    if "cut cross" in lower or "liger" in lower or "unsloth" in lower:
        return "liger"
    return "fused" if "foak" in lower else ""


_ADAPTERS = ("lora", "qlora")
_TARGETS: dict[frozenset[str], str] = {
    frozenset({"q", "v"}): LoraTargets.QV,
    frozenset({"q", "k", "v", "o"}): LoraTargets.ATTENTION,
    frozenset({"q", "k", "v", "o", "gate", "up", "down"}): LoraTargets.ALL_LINEAR,
}
_MODULE = re.compile(r"\b(?:to_)?(q|k|v|o|out|gate|up|down)(?:_proj)?\b")


def lora(method: str, rank: str, targets: str, *, frozen_base: str) -> dict[str, str]:
    """The annotations of an adapter; nothing if all weights are trained."""
    word = method.split(" (", maxsplit=1)[0].strip().lower()
    if word in ("full", "full unet"):
        return {}
    if word not in _ADAPTERS:
        raise LeftOut(f"method {word}")
    if word == "qlora" and not frozen_base:
        raise LeftOut("quantization not stated")
    if "not stated" in rank:
        raise LeftOut("rank not stated")
    try:
        found = {"lora-rank": str(int(float(rank or "16")))}
    except ValueError as error:
        raise LeftOut("a rank that is no number") from error
    modules = frozenset(match.replace("out", "o") for match in _MODULE.findall(targets.lower()))
    if known := _TARGETS.get(modules):
        found["lora-targets"] = known
    return found


@dataclass(frozen=True, slots=True)
class Sharding:
    stage: int = 0
    ranks: int = 1
    offload: str = ""

    def annotations(self) -> dict[str, str]:
        found = {"data-parallel-size": str(self.ranks)} if self.ranks > 1 or self.stage else {}
        if self.stage:
            found["zero-stage"] = str(self.stage)
        if self.offload and (self.offload != "parameters" or self.stage == 3):
            found["offload"] = self.offload
        return found


_STAGES: _Table = (
    (r"no_shard|fsdp none", "0"), (r"zero-?2|stage ?2|shard_grad", "2"), (r"zero-?3|stage ?3|full_shard|fsdp", "3"),
    (r"zero-?1|stage ?1|distributed optimizer", "1"), (r"sharded|sharding", "?"), (r"", "0"),
)  # fmt: skip
_SPLIT = re.compile(r"(?:tp|pp|cp|ep|tensor_parallel_degree|sp)\s*=?\s*([0-9]+)", re.IGNORECASE)


def sharding(parallelism: str, gpus: str, optimizer_text: str) -> Sharding:
    if any(int(size) > 1 for size in _SPLIT.findall(parallelism)) or "naive model" in parallelism:
        raise LeftOut("tensor, pipeline, sequence or expert parallelism")
    ranks = int(gpus) if gpus.isdecimal() else 0
    stage = _first(_STAGES, parallelism) or "0"
    if stage == "?" or not ranks:
        raise LeftOut("sharding or number of GPUs not stated")
    both = f"{parallelism} {optimizer_text}".lower()
    if "ramtorch" in both:
        raise LeftOut("weights streamed from the host")
    offload = "" if "offload" not in both else "parameters" if "param" in both else "optimizer"
    if offload and not int(stage):
        raise LeftOut("offload without sharding")
    return Sharding(int(stage), ranks, offload)


@dataclass(frozen=True, slots=True)
class TokenCount:
    tokens: int
    varies: bool


_NUMBER = re.compile(r"[0-9]+")


def length(text: str) -> TokenCount | None:
    """None: not stated. The mean, or the cap, where samples differ."""
    number = _NUMBER.search(text.replace(",", ""))
    if number is None:
        return None
    return TokenCount(int(number[0]), text.startswith("~") or any(word in text for word in ("cap", "max", "mean")))


_CROP = re.compile(r"training resolution: ([0-9]+) px square")
_SHOWN = re.compile(r"resolution: ([0-9]+)x([0-9]+)(?:, ([0-9]+)f)?")  # width, height and frames


def sides(text: str) -> tuple[int, ...] | None:
    """Height and width, or frames, height and width; None: not stated."""
    lower = text.lower()
    if crop := _CROP.search(lower):
        return (int(crop[1]), int(crop[1]))
    if shown := _SHOWN.search(lower):
        frames = (int(shown[3]),) if shown[3] else ()
        return (*frames, int(shown[2]), int(shown[1]))
    first = text.split("|", maxsplit=1)[0].split(";", maxsplit=1)[0]
    numbers = [int(number) for number in _NUMBER.findall(first)]
    if not numbers or len(numbers) > 3:
        return None
    return (numbers[0], numbers[0]) if len(numbers) == 1 else tuple(numbers)


_LIBRARY_VERSION = re.compile(r"\b(torch|transformers)\s*(?:==|v)?\s*([0-9]+\.[0-9]+)", re.IGNORECASE)


def framework(text: str, parallelism: str) -> str:
    """The libraries that a row names with their versions, and what sharded the run; empty: none."""
    found = {name.lower(): f"{name.lower()}=={version}" for name, version in _LIBRARY_VERSION.findall(text)}
    lower = parallelism.lower()
    sharded_by = "fsdp" if "fsdp" in lower else "deepspeed" if "zero" in lower or "deepspeed" in lower else ""
    return ",".join([*sorted(found.values()), *([sharded_by] if sharded_by else [])])
