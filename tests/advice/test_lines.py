"""The lines that carry out a proposal are Python, and name what exists."""

from __future__ import annotations

import re

from tests.advice.test_advise import parsed
from vramcast.advice.lines import changed_annotations, lines
from vramcast.advice.options import ChangedTask, candidates
from vramcast.hardware.short_names import find_product
from vramcast.task.vocabulary import PREFIX

# Fields of transformers.TrainingArguments: tests/profiling/test_trainer_arguments.py.
ARGUMENTS = {
    "gradient_checkpointing", "bf16", "fp16", "optim", "per_device_train_batch_size", "gradient_accumulation_steps",
    "deepspeed", "use_liger_kernel",
}  # fmt: skip
TASKS = (
    {"model": "gpt2", "batch-size": "8", "sequence-length": "512", "attention": "eager"},
    {"model": "gpt2", "batch-size": "8", "sequence-length": "512", "precision": "bf16", "lora-rank": "16"},
    {"model": "timm/resnet50", "batch-size": "6", "data-parallel-size": "4"},
)


def changes() -> list[ChangedTask]:
    return [
        candidate
        for task in TASKS
        for gpu in ("A10", "T4")
        for candidate in candidates(parsed(task), find_product(gpu))
    ]


def test_every_line_is_python() -> None:
    for candidate in changes():
        found = lines(candidate.task, candidate.changed)
        for line in found.pytorch:
            compile(line, "<pytorch>", "exec")
        for line in found.trainer:
            argument = re.fullmatch(r"(\w+)=(.*)", line)
            compile(f"TrainingArguments({line})" if argument else line, "<trainer>", "exec")
            assert argument is None or argument[1] in ARGUMENTS, line


def test_every_change_has_a_line_in_each() -> None:
    for candidate in changes():
        found = lines(candidate.task, candidate.changed)
        assert bool(found.pytorch) == bool(found.trainer) == bool(candidate.changed), candidate.changed


def test_annotations_that_only_count_together_come_together() -> None:
    for candidate in changes():
        said = changed_annotations(candidate.task, candidate.changed)
        assert PREFIX + "zero-stage" not in said or PREFIX + "data-parallel-size" in said
