"""The libraries that a job runs with: the same script takes more or less memory with another version of them."""

from __future__ import annotations

import re
from difflib import get_close_matches

from vramcast.task.forms import Form, Value

# FSDP has torch's version. It and DeepSpeed shard differently.
DEEPSPEED, FSDP = "deepspeed", "fsdp"
TRANSFORMERS = "transformers"
TORCH = "torch"
LIBRARIES = (
    TORCH, TRANSFORMERS, FSDP, DEEPSPEED, "accelerate", "bitsandbytes", "diffusers", "lightning", "peft", "timm",
    "torchvision", "trl", "unsloth",
)  # fmt: skip
_ALSO_CALLED = {"pytorch": TORCH, "hf": TRANSFORMERS, "huggingface": TRANSFORMERS, "zero": DEEPSPEED, "fsdp2": FSDP,
                "pytorch-lightning": "lightning"}  # fmt: skip
_VERSION = r"[0-9]{1,4}(\.[0-9]{1,4}){0,3}"
_ONE = rf"({'|'.join(LIBRARIES)})(=={_VERSION})?"
_SAID = re.compile(rf"([a-z0-9-]+)(?:==({_VERSION}))?", re.ASCII)
_EXPECTED = "libraries with or without a version, such as transformers==4.44,torch==2.4"


def _parse(text: str) -> Value:
    found: dict[str, str] = {}
    for part in (part.strip().lower() for part in text.split(",")):
        match = _SAID.fullmatch(part.replace(" ", ""))
        if match is None:
            raise ValueError(f"expected {_EXPECTED}{_meant(part)}")
        name, version = match[1], match[2]
        if name not in LIBRARIES:
            near = get_close_matches(name[:40], LIBRARIES, n=1, cutoff=0.6)
            meant = _ALSO_CALLED.get(name) or (near[0] if near else "")
            also = f" (did you mean {meant}?)" if meant else ""
            raise ValueError(f"expected libraries out of {', '.join(LIBRARIES)}, not {name[:40]}{also}")
        if name in found:
            raise ValueError(f"expected each library once; {name} is there twice")
        found[name] = version or ""
    if {DEEPSPEED, FSDP} <= found.keys():
        raise ValueError(f"expected {DEEPSPEED} or {FSDP}, not both: a job is sharded by one of them")
    return ",".join(f"{name}=={version}" if version else name for name, version in sorted(found.items()))


def _meant(part: str) -> str:
    """Ranges are what requirements have; a run has one version."""
    match = re.fullmatch(rf"([a-z-]{{1,20}})\s*[<>=~!]+\s*({_VERSION})", part)
    return f" (did you mean {match[1]}=={match[2]}?)" if match else ""


_TWICE = rf"(?!.*\b({'|'.join(LIBRARIES)})\b.*\b\1\b)"
_BOTH = "".join(rf"(?!.*\b{one}\b.*\b{other}\b)" for one, other in ((DEEPSPEED, FSDP), (FSDP, DEEPSPEED)))
libraries = Form(_parse, _EXPECTED, rf"^{_TWICE}{_BOTH}{_ONE}(,{_ONE})*$")


def runs_with(framework: str, library: str) -> bool:
    return any(part.partition("==")[0] == library for part in framework.split(","))


def is_older(framework: str, library: str, than: tuple[int, ...]) -> bool:
    """Whether the task says a version below this one. False if it says none."""
    said = dict(part.partition("==")[::2] for part in framework.split(",")).get(library)
    return bool(said) and tuple(int(number) for number in (said or "").split(".")) < than
