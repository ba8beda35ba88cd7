from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vramcast.errors import MAX_SHOWN, FieldError, InvalidTask
from vramcast.task.framework import is_older, runs_with
from vramcast.task.task import REQUEUE, Task, describe, parse_task, task_fingerprint
from vramcast.task.vocabulary import (
    KEYS,
    MAX_PROFILE_LENGTH,
    PREFIX,
    Allocator,
    Architecture,
    Attention,
    Cap,
    Kernels,
    Kind,
    Length,
    Level,
    LoraTargets,
    Offload,
    Optimizer,
    Precision,
    Quantization,
    Written,
)

SUMMARY = {"parameters": "25.6M", "activations": "11.1M", "batch-size": "32"}


def task(**values: str) -> Task:
    parsed = parse_task({PREFIX + name.replace("_", "-"): text for name, text in values.items()})
    assert parsed is not None
    return parsed


def mistakes(annotations: dict[str, str]) -> InvalidTask:
    with pytest.raises(InvalidTask) as caught:
        parse_task({PREFIX + name: text for name, text in annotations.items()})
    return caught.value


def test_annotations_with_another_prefix_are_ignored() -> None:
    assert parse_task({}) is None
    assert parse_task({"kubectl.kubernetes.io/x": "y", "vramcast.development/model": "z", "vramcast.dev": "w"}) is None


def test_annotations_that_vramcast_writes_describe_no_task() -> None:
    assert parse_task({**dict.fromkeys(Written, "anything"), REQUEUE: "7"}) is None


def test_the_users_own_number_outranks_every_description() -> None:
    parsed = task(gpu_memory="16Gi", model="timm/resnet50", **{k.replace("-", "_"): v for k, v in SUMMARY.items()})
    assert (parsed.level, parsed.gpu_memory_mib) == (Level.GIVEN, 16 * 1024)


@pytest.mark.parametrize(
    ("annotations", "level"),
    [
        ({"gpu-memory": "1Gi"}, Level.GIVEN),
        (SUMMARY, Level.SUMMARY),
        ({"model": "timm/resnet50"}, Level.NAME),
        ({"model": "timm/resnet50", **SUMMARY}, Level.NAME),
        ({"profile": "v1:abc", "model": "x"}, Level.PROFILE),
    ],
)
def test_the_most_detailed_level_counts(annotations: dict[str, str], level: Level) -> None:
    parsed = parse_task({PREFIX + name: text for name, text in annotations.items()})
    assert parsed is not None
    assert parsed.level is level


@pytest.mark.parametrize(
    ("name", "text", "field", "value"),
    [
        ("gpu-memory", "16Gi", "gpu_memory_mib", 16384),
        ("gpu-memory", "1048577", "gpu_memory_mib", 2),
        ("share", "true", "share", True),
        ("share", " TRUE ", "share", True),
        ("gpus", "2", "gpus", 2),
        ("cap", "off", "cap", Cap.OFF),
        ("max-oom-risk", "0.01", "max_oom_risk", 0.01),
        ("max-slowdown", "1.3", "max_slowdown", 1.3),
        ("architecture", "cnn", "architecture", Architecture.CNN),
        ("parameters", "7B", "parameters", 7 * 10**9),
        ("parameters", "25600000", "parameters", 25_600_000),
        ("parameters", "7e9", "parameters", 7 * 10**9),
        ("layers", "50", "layers", 50),
        ("activations", "11.1M", "activations", 11_100_000),
        ("model", " timm/resnet50 ", "model", "timm/resnet50"),
        ("profile", "v1:abc", "profile", "v1:abc"),
        ("batch-size", "32", "batch_size", 32),
        ("input-size", "3x224x224", "input_size", (3, 224, 224)),
        ("input-size", "3X224X224", "input_size", (3, 224, 224)),
        ("sequence-length", "4k", "sequence_length", 4000),
        ("precision", "AMP-BF16", "precision", Precision.AMP_BF16),
        ("optimizer", "adam8bit", "optimizer", Optimizer.ADAM8BIT),
        ("task", "fine-tuning", "kind", Kind.FINE_TUNING),
        ("gradient-checkpointing", "true", "gradient_checkpointing", True),
        ("gradient-accumulation", "4", "gradient_accumulation", 4),
        ("attention", "Flash", "attention", Attention.FLASH),
        ("kernels", "liger", "kernels", Kernels.LIGER),
        ("lora-rank", "16", "lora_rank", 16),
        ("lora-targets", "qv", "lora_targets", LoraTargets.QV),
        ("lora-targets", "v_proj, q_proj", "lora_targets", LoraTargets.QV),
        ("lora-targets", "o_proj,v_proj,k_proj,q_proj", "lora_targets", LoraTargets.ATTENTION),
        ("lora-targets", "q_proj,k_proj,v_proj,o_proj,gate_proj,up_proj,down_proj", "lora_targets", "all-linear"),
        ("lora-targets", "to_out.0,to_k,to_k", "lora_targets", "to_k,to_out.0"),
        ("quantization", "none", "quantization", Quantization.NONE),
        ("upcast", "false", "upcast", False),
        ("zero-stage", "0", "zero_stage", 0),
        ("data-parallel-size", "8", "data_parallel_size", 8),
        ("master-weights", "false", "master_weights", False),
        ("offload", "optimizer", "offload", Offload.OPTIMIZER),
        ("allocator", "expandable-segments", "allocator", Allocator.EXPANDABLE_SEGMENTS),
        ("framework", "Transformers == 4.44, fsdp", "framework", "fsdp,transformers==4.44"),
        ("length", "padded", "length", Length.PADDED),
    ],
)
def test_every_key_is_read_into_its_field(name: str, text: str, field: str, value: object) -> None:
    others = {
        "gpu-memory": "1Gi", "lora-rank": "8", "precision": "bf16", "zero-stage": "3", "data-parallel-size": "8",
        "quantization": "nf4",
    }  # fmt: skip
    parsed = parse_task({PREFIX + key: words for key, words in {**others, name: text}.items()})
    assert getattr(parsed, field) == value


def test_the_table_above_and_the_vocabulary_name_the_same_keys() -> None:
    marks = test_every_key_is_read_into_its_field.pytestmark  # type: ignore[attr-defined]
    assert {row[0] for row in marks[0].args[1]} == KEYS.keys()


@pytest.mark.parametrize("key", KEYS.values(), ids=KEYS)
def test_every_documented_example_is_valid(key: object) -> None:
    assert key.parse(key.example.strip('"')) is not None  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("gpu-memory", "16GB", "did you mean 16G?"),
        ("gpu-memory", "16", "did you mean 16Gi?"),
        ("gpu-memory", "16m", "less than 1Mi"),
        ("gpu-memory", "0", "more than nothing"),
        ("gpu-memory", "-16Gi", "more than nothing"),
        ("gpu-memory", "2Ti", "more than any GPU has"),
        ("gpu-memory", "1e999", "more than any GPU has"),
        ("gpu-memory", "lots", "a Kubernetes quantity such as 16Gi"),
        ("share", "yes", '"true" or "false"'),
        ("share", "1", '"true" or "false"'),
        ("gpus", "0", "from 1 to 64"),
        ("gpus", "65", "from 1 to 64"),
        ("gpus", "-1", "from 1 to 64"),
        ("gpus", "1.5", "whole number"),
        ("cap", "strict", "one of soft, off"),
        ("max-oom-risk", "1%", "a probability from 0.0001 to 0.5"),
        ("max-oom-risk", "0", "a probability"),
        ("max-oom-risk", "nan", "a probability"),
        ("max-slowdown", "0.9", "how many times as long as alone, from 1 to 10"),
        ("max-slowdown", "30%", "did you mean 1.3?"),
        ("max-oom-risk", "0.9", "a probability"),
        ("architecture", "convnet", "one of mlp, cnn, transformer"),
        ("parameters", "25.6 million", "such as 25.6M"),
        ("parameters", "1e99", "whole number from 1"),
        ("parameters", "-7B", "whole number from 1"),
        ("parameters", "0.5", "whole number from 1"),
        ("layers", "100001", "whole number from 1 to 100000"),
        ("activations", "", "such as 21.5M"),
        ("model", "  ", "a name such as timm/resnet50"),
        ("profile", "", "`vramcast profile`"),
        ("batch-size", "thirty-two", "such as 32"),
        ("batch-size", "9" * 41, "such as 32"),
        ("input-size", "3,224,224", "such as 3x224x224"),
        ("input-size", "3x0x224", "such as 3x224x224"),
        ("input-size", "1x2x3x4x5x6", "such as 3x224x224"),
        ("sequence-length", "-512", "such as 512"),
        ("precision", "float16", "one of fp32, tf32, fp16"),
        ("optimizer", "adamW2", "one of sgd, sgd-momentum"),
        ("task", "train", "one of training, fine-tuning, inference"),
        ("gradient-checkpointing", "on", '"true" or "false"'),
        ("gradient-accumulation", "0", "whole number from 1"),
        ("attention", "quadratic", "one of flash, sdpa, eager"),
        ("kernels", "cuda", "one of none, fused, liger"),
        ("lora-rank", "0", "whole number from 1"),
        ("lora-targets", "q_proj;v_proj", "or names of modules such as q_proj,v_proj"),
        ("quantization", "gptq", "one of none, int8, int4, nf4"),
        ("zero-stage", "4", "from 0 to 3"),
        ("data-parallel-size", "0", "from 1"),
        ("offload", "disk", "one of none, optimizer, parameters"),
        ("master-weights", "none", '"true" or "false"'),
        ("length", "any", "one of fixed, longest, padded, packed"),
        ("allocator", "jemalloc", "one of default, expandable-segments"),
        ("upcast", "fp32", '"true" or "false"'),
        ("framework", "", "such as transformers==4.44,torch==2.4"),
        ("framework", "transformers>=4.44", "did you mean transformers==4.44?"),
        ("framework", "transformers==new", "such as transformers==4.44,torch==2.4"),
        ("framework", "pytorch==2.4", "not pytorch (did you mean torch?)"),
        ("framework", "jax", "libraries out of torch, transformers, fsdp, deepspeed"),
        ("framework", "torch==2.4,torch==2.5", "each library once; torch is there twice"),
        ("framework", "deepspeed,fsdp", "deepspeed or fsdp, not both"),
    ],
)
def test_a_mistake_is_reported_with_key_value_and_what_was_expected(name: str, text: str, expected: str) -> None:
    (error,) = mistakes({name: text}).errors
    assert (error.field, error.value) == (PREFIX + name, text)
    assert expected in error.expected


def test_every_key_has_a_mistake_in_the_table_above() -> None:
    marks = test_a_mistake_is_reported_with_key_value_and_what_was_expected.pytestmark  # type: ignore[attr-defined]
    assert {row[0] for row in marks[0].args[1]} == KEYS.keys()


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("batch_size", "batch-size"), ("batchsize", "batch-size"), ("Batch-Size", "batch-size"),
        ("gpu-mem", "gpu-memory"), ("gpu_memory", "gpu-memory"), ("gpumemory", "gpu-memory"), ("params", "parameters"),
        ("optimiser", "optimizer"), ("seq-length", "sequence-length"), ("shared", "share"), ("gpu", "gpus"),
        ("max_oom_risk", "max-oom-risk"), ("lora_rank", "lora-rank"),
    ],
)  # fmt: skip
def test_for_a_misspelt_key_the_nearest_one_is_suggested(written: str, meant: str) -> None:
    (error,) = mistakes({written: "1"}).errors
    assert error.expected == f"no annotation has this name; did you mean {PREFIX}{meant}?"


@pytest.mark.parametrize(
    ("name", "written", "meant"),
    [
        ("precision", "16-mixed", "amp-fp16"), ("precision", "bf16-mixed", "amp-bf16"),
        ("precision", "bfloat16", "bf16"),
        ("precision", "amp_bf16", "amp-bf16"), ("optimizer", "adamw_torch", "adamw"), ("optimizer", "AdamW8", "adamw"),
        ("task", "train", "training"), ("task", "finetuning", "fine-tuning"), ("architecture", "vit", "transformer"),
        ("max-oom-risk", "1%", "0.01"), ("attention", "flash_attention_2", "flash"), ("kernels", "foak", "fused"),
        ("allocator", "expandable_segments:True", "expandable-segments"), ("offload", "offload_param", "parameters"),
    ],
)  # fmt: skip
def test_for_a_value_of_another_tool_the_equivalent_is_suggested(name: str, written: str, meant: str) -> None:
    (error,) = mistakes({**SUMMARY, name: written}).errors
    assert error.expected.endswith(f"(did you mean {meant}?)")


def test_for_a_key_unlike_any_other_all_keys_are_listed() -> None:
    (error,) = mistakes({"zzz": "1"}).errors
    assert all(name in error.expected for name in KEYS)


def test_all_mistakes_are_reported_at_once() -> None:
    error = mistakes({"batch_size": "32", "precision": "half", "gpu-memory": "16GB", "zero-stage": "2"})
    assert [e.field.removeprefix(PREFIX) for e in error.errors] == [
        "batch_size", "precision", "gpu-memory", "zero-stage",
    ]  # fmt: skip
    assert all(str(e) in str(error) for e in error.errors)


def test_an_invalid_value_is_not_also_reported_as_missing() -> None:
    (error,) = mistakes({**SUMMARY, "zero-stage": "2", "data-parallel-size": "eight"}).errors
    assert error.field == PREFIX + "data-parallel-size"


def test_thousands_of_mistakes_are_counted_not_listed() -> None:
    error = mistakes({f"batch-siz{n:05d}": "1" for n in range(8000)})
    assert len(error.errors) == 8000
    assert str(error).endswith(f"and {8000 - MAX_SHOWN} more")
    assert len(str(error)) < 4000


@pytest.mark.parametrize(
    ("annotations", "field"),
    [
        ({"gpu-memory": "1Gi", "input-size": "3x2x2", "sequence-length": "5"}, "sequence-length"),
        ({**SUMMARY, "task": "inference", "optimizer": "adam"}, "optimizer"),
        ({**SUMMARY, "task": "inference", "lora-rank": "8"}, "lora-rank"),
        ({**SUMMARY, "task": "inference", "gradient-checkpointing": "true"}, "gradient-checkpointing"),
        ({**SUMMARY, "zero-stage": "3"}, "zero-stage"),
        ({**SUMMARY, "quantization": "nf4"}, "quantization"),
        ({**SUMMARY, "task": "inference", "gradient-accumulation": "4"}, "gradient-accumulation"),
        ({**SUMMARY, "task": "inference", "offload": "optimizer"}, "offload"),
        ({**SUMMARY, "lora-targets": "qv"}, "lora-targets"),
        ({**SUMMARY, "attention": "flash"}, "attention"),
        ({**SUMMARY, "attention": "flash", "precision": "fp32"}, "attention"),
        ({**SUMMARY, "offload": "parameters"}, "offload"),
        ({**SUMMARY, "master-weights": "false"}, "master-weights"),
        ({**SUMMARY, "master-weights": "false", "zero-stage": "1", "data-parallel-size": "8"}, "master-weights"),
        ({**SUMMARY, "offload": "parameters", "zero-stage": "2", "data-parallel-size": "8"}, "offload"),
        ({**SUMMARY, "upcast": "false"}, "upcast"),
        ({**SUMMARY, "upcast": "true", "quantization": "int4", "lora-rank": "16"}, "upcast"),
    ],
)
def test_keys_that_contradict_each_other_are_refused(annotations: dict[str, str], field: str) -> None:
    (error,) = mistakes(annotations).errors
    assert error.field == PREFIX + field


@pytest.mark.parametrize(
    "annotations",
    [
        {**SUMMARY, "quantization": "int8", "task": "inference"},
        {**SUMMARY, "quantization": "nf4", "lora-rank": "16"},
        {**SUMMARY, "zero-stage": "3", "data-parallel-size": "8"},
        {**SUMMARY, "zero-stage": "0"},
        {**SUMMARY, "offload": "parameters", "zero-stage": "3", "data-parallel-size": "1"},
        {**SUMMARY, "offload": "parameters", "task": "inference"},
        {**SUMMARY, "offload": "optimizer"},
        {**SUMMARY, "master-weights": "false", "zero-stage": "3", "data-parallel-size": "8"},
        {**SUMMARY, "master-weights": "true", "zero-stage": "1", "data-parallel-size": "8"},
        {**SUMMARY, "attention": "flash", "precision": "amp-bf16"},
        {**SUMMARY, "upcast": "true", "quantization": "int8", "lora-rank": "16"},
        {**SUMMARY, "attention": "eager", "kernels": "fused", "allocator": "expandable-segments"},
        {**SUMMARY, "lora-rank": "16", "lora-targets": "q_proj,k_proj", "gradient-accumulation": "8"},
    ],
)
def test_keys_that_go_together_are_accepted(annotations: dict[str, str]) -> None:
    assert parse_task({PREFIX + name: text for name, text in annotations.items()}) is not None


@pytest.mark.parametrize(
    ("annotations", "field", "expected"),
    [
        ({"share": "true"}, "gpu-memory", "share alone is not enough"),
        ({"batch-size": "8"}, "gpu-memory", "batch-size alone is not enough"),
        ({"parameters": "7B"}, "activations", "a summary also needs activations, batch-size"),
        ({"parameters": "7B", "activations": "1M"}, "batch-size", "a summary also needs batch-size"),
    ],
)
def test_an_incomplete_description_is_refused_with_what_is_missing(
    annotations: dict[str, str], field: str, expected: str
) -> None:
    (error,) = mistakes(annotations).errors
    assert error.field == PREFIX + field
    assert expected in error.expected


def test_defaults_are_listed_as_assumptions() -> None:
    assert task(model="timm/resnet50").assumptions == (
        "batch-size 1", "precision fp32", "optimizer adamw", "task training",
    )  # fmt: skip
    assert task(model="x", task="inference", batch_size="2").assumptions == ("precision fp32",)
    assert task(gpu_memory="1Gi").assumptions == ()


def test_which_modules_get_adapters_is_an_assumption_only_with_lora() -> None:
    assert "lora-targets all-linear" in task(model="hf/gpt2", lora_rank="8").assumptions
    assert not any("lora" in assumption for assumption in task(model="hf/gpt2").assumptions)
    assert not any("targets" in text for text in task(model="hf/gpt2", lora_rank="8", lora_targets="qv").assumptions)


@pytest.mark.parametrize(
    ("annotations", "note"),
    [
        ({"profile": "v1:abc", "model": "timm/resnet50"}, "profile counts, not model"),
        ({"model": "timm/resnet50", **SUMMARY, "architecture": "cnn"},
         "model counts, not parameters, activations, architecture"),
    ],
)  # fmt: skip
def test_a_description_that_another_one_outranks_is_told(annotations: dict[str, str], note: str) -> None:
    parsed = parse_task({PREFIX + name: text for name, text in annotations.items()})
    assert parsed is not None
    assert note in parsed.assumptions


@pytest.mark.parametrize("name", KEYS)
def test_a_megabyte_of_text_is_refused_without_parsing_it(name: str) -> None:
    (error,) = mistakes({name: "1" * (1 << 20)}).errors
    assert "characters" in error.expected
    assert len(str(error)) < 300


def test_only_a_profile_may_be_long() -> None:
    assert task(profile="v" * MAX_PROFILE_LENGTH).level is Level.PROFILE
    assert len(mistakes({"model": "m" * 257}).errors) == 1


def test_a_task_is_described_in_one_line() -> None:
    assert describe(task(gpu_memory="16Gi")) == "gpu-memory 16.0 GiB"
    summary = task(**{k.replace("-", "_"): v for k, v in SUMMARY.items()}, architecture="cnn")
    assert describe(summary) == "cnn, batch 32, fp32, training"
    assert describe(task(model="hf/gpt2")) == "hf/gpt2, batch 1, fp32, training"


BERT = Task(Level.NAME, model="hf/bert-base-uncased", batch_size=16, precision=Precision.AMP_BF16)


def test_the_fingerprint_of_a_task_never_changes_because_learned_state_is_keyed_by_it() -> None:
    """A change here orphans every stored OOM record: jobs that ran out of memory would do so once more."""
    assert task_fingerprint(BERT) == "c5b4152b9a1aae91"


@pytest.mark.parametrize(
    "change",
    [
        {"share": True, "gpus": 2, "max_oom_risk": 0.01, "assumptions": ("task training",)},
        {"attention": Attention.SDPA, "upcast": True},
        {"kernels": Kernels.NONE, "gradient_accumulation": 1, "zero_stage": 0},
    ],
    ids=["how it is placed", "the usual attention", "defaults"],
)
def test_a_task_that_runs_the_same_thing_has_the_same_fingerprint(change: dict[str, Any]) -> None:
    assert task_fingerprint(replace(BERT, **change)) == task_fingerprint(BERT)


@pytest.mark.parametrize(
    "change",
    [
        {"batch_size": 17}, {"model": "hf/bert-base-cased"}, {"attention": Attention.EAGER}, {"kernels": Kernels.LIGER},
        {"lora_rank": 8}, {"lora_targets": "qv"}, {"gradient_accumulation": 2}, {"offload": Offload.OPTIMIZER},
        {"master_weights": False}, {"upcast": False}, {"framework": "transformers==4.44"}, {"length": Length.LONGEST},
        {"allocator": Allocator.EXPANDABLE_SEGMENTS}, {"level": Level.PROFILE},
    ],
    ids=str,
)  # fmt: skip
def test_a_task_that_runs_something_else_has_another_fingerprint(change: dict[str, Any]) -> None:
    assert task_fingerprint(replace(BERT, **change)) != task_fingerprint(BERT)


_NAMES = st.one_of(st.sampled_from(list(KEYS)), st.text(max_size=20))
_TEXTS = st.one_of(st.text(max_size=30), st.from_regex(r"-?[0-9]{1,6}(\.[0-9]{1,3})?([kMGTB]i?|e[0-9]{1,3})?"))


@given(st.dictionaries(_NAMES, _TEXTS, min_size=1, max_size=8))
def test_any_annotations_are_a_task_or_a_list_of_mistakes(annotations: dict[str, str]) -> None:
    errors: tuple[FieldError, ...] = ()
    parsed = None
    try:
        parsed = parse_task({PREFIX + name: text for name, text in annotations.items()})
    except InvalidTask as error:
        errors = error.errors
    assert bool(errors) != isinstance(parsed, Task)
    assert all(error.field.startswith(PREFIX) and error.expected for error in errors)


@pytest.mark.parametrize(
    ("settings", "upcasts"),
    [
        ({"quantization": "nf4"}, True),
        ({"quantization": "int8"}, True),
        ({"quantization": "int4"}, False),
        ({"quantization": "nf4", "upcast": "false"}, False),
        ({"quantization": "nf4", "zero-stage": "3", "data-parallel-size": "2"}, False),
        ({"quantization": "nf4", "zero-stage": "3", "data-parallel-size": "2", "upcast": "true"}, True),
        ({}, False),
    ],
)
def test_the_rest_of_a_quantized_network_is_upcast_as_peft_does_it(settings: dict[str, str], upcasts: bool) -> None:
    said = {"model": "hf/gpt2", "lora-rank": "8", **settings}
    parsed = parse_task({PREFIX + name: text for name, text in said.items()})
    assert parsed is not None
    assert parsed.upcasts is upcasts


@pytest.mark.parametrize(
    ("framework", "older"),
    [("transformers==4.44.2,torch==2.4", True), ("transformers==4.46", False), ("transformers==5", False),
     ("transformers", False), ("torch==2.4", False), ("", False)],
)  # fmt: skip
def test_a_version_is_older_only_if_it_is_said(framework: str, older: bool) -> None:
    assert is_older(framework, "transformers", (4, 46)) is older
    assert runs_with(framework, "transformers") is ("transformers" in framework)
