"""Runs `vramcast profile` on well-known networks, each in a process of its own, as a user does."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass, replace

from vramcast.forecast.peaks import peaks
from vramcast.forecast.recorded import is_recording, task_tape
from vramcast.forecast.storage import decode
from vramcast.task.task import parse_task
from vramcast.task.vocabulary import PREFIX

MOST_SECONDS = 60
MOST_CHARACTERS = 16 << 10
_LLAMA_3_8B = json.dumps({
    "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8,
    "intermediate_size": 14336, "vocab_size": 128256,
})  # fmt: skip

_T5_BASE = json.dumps({
    "d_model": 768, "d_kv": 64, "d_ff": 3072, "num_layers": 12, "num_decoder_layers": 12, "num_heads": 12,
})  # fmt: skip


@dataclass(frozen=True, slots=True)
class Command:
    name: str
    arguments: tuple[str, ...]
    most_characters: int = MOST_CHARACTERS


COMMANDS = (
    Command(
        "Llama-3-8B, LoRA, bf16",
        ("transformers:LlamaConfig", "--args", _LLAMA_3_8B, "--sequence-length", "2048", "--precision", "bf16",
         "--set", "lora-rank=16", "--batch-size", "4"),
        4 << 10,
    ),
    Command("T5-base, bf16", ("transformers:T5Config", "--args", _T5_BASE, "--sequence-length", "512", "--precision",
                              "bf16", "--batch-size", "16")),
    Command("Mask R-CNN, fp32", ("torchvision.models.detection:maskrcnn_resnet50_fpn", "--input", "3x800x800",
                                 "--batch-size", "2")),
    Command("SDXL's UNet, bf16", ("bench.profiles.networks:sdxl_unet", "--input", "4x128x128", "--precision", "bf16",
                                  "--batch-size", "2")),
    Command("ViT-L/16, amp-fp16", ("torchvision.models:vit_l_16", "--input", "3x224x224", "--precision", "amp-fp16",
                                   "--batch-size", "64")),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Profile:
    command: Command
    seconds: float
    cpu_seconds: float
    text: str  # the annotation
    why_no_recording: str
    pieces: int = 0
    events: int = 0
    peak: str = ""


def run(command: Command) -> Profile:
    began, used = time.monotonic(), _children_seconds()
    shown = subprocess.run(
        [sys.executable, "-m", "vramcast", "profile", *command.arguments, "--output", "json"],
        check=True, stdout=subprocess.PIPE,
    )  # fmt: skip
    seconds, cpu_seconds = time.monotonic() - began, _children_seconds() - used
    said = json.loads(shown.stdout)
    text = said["annotations"][f"{PREFIX}profile"]
    found = Profile(command, seconds, cpu_seconds, text, said["why_no_recording"] or "")
    if not is_recording(text):
        return found
    pieces = decode(text).pieces
    task = parse_task(said["annotations"])
    assert task is not None
    peak = str(peaks(task_tape(text, task)).moment)
    return replace(found, pieces=len(pieces), events=sum(len(one.template.events) for one in pieces), peak=peak)


def _children_seconds() -> float:
    times = os.times()
    return times.children_user + times.children_system
