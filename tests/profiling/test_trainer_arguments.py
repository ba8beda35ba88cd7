"""What `vramcast advise` tells users of the Hugging Face Trainer to set exists."""

from __future__ import annotations

from transformers import TrainingArguments

from tests.advice.test_lines import ARGUMENTS


def test_the_advised_arguments_are_those_of_the_trainer() -> None:
    assert set(TrainingArguments.__dataclass_fields__) >= ARGUMENTS
