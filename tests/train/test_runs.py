"""Published runs are read as a pod would describe them, and what cannot be compared is counted."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from vramcast.forecast.counters import Counter
from vramcast.forecast.forecaster import PhysicsForecaster
from vramcast.task.vocabulary import Attention, Length, Level, Optimizer, Precision, Quantization
from vramcast.train.progress import Progress
from vramcast.train.runs import words
from vramcast.train.runs.counters import counter
from vramcast.train.runs.judging import evaluate_runs
from vramcast.train.runs.reader import RunEnding, Runs, read_runs
from vramcast.train.runs.words import LeftOut

COLUMNS = (
    "source", "licence", "model", "model_ref", "gpu", "n_gpus", "batch_per_gpu", "grad_accum", "seq_len", "image_size",
    "precision", "optimizer", "method", "lora_rank", "lora_targets", "quant", "checkpointing", "attention",
    "parallelism", "zero_stage", "framework", "kernels", "mem_gib", "mem_kind", "mem_gib_2", "mem_kind_2", "outcome",
    "trust", "note", "fail_batch", "task", "mem_raw", "mem_unit",
)  # fmt: skip
LORA = {
    "licence": "Apache-2.0", "model": "Llama-3.1-8B", "model_ref": "meta-llama/Llama-3.1-8B",
    "gpu": "NVIDIA A100 80GB", "n_gpus": "1", "batch_per_gpu": "4", "seq_len": "2048",
    "precision": "bfloat16+bf16-amp-flag", "optimizer": "adamw_torch (HF Trainer default)", "method": "lora",
    "lora_rank": "16", "lora_targets": "q_proj k_proj v_proj o_proj", "checkpointing": "on",
    "attention": "flash_attention_2", "parallelism": "none", "mem_gib": "24.0",
    "mem_kind": "nvidia-smi memory.used peak minus start", "mem_gib_2": "21.0",
    "mem_kind_2": "torch max_memory_allocated rank0", "outcome": "ok", "trust": "high",
}  # fmt: skip


def read(folder: Path, *rows: dict[str, str]) -> Runs:
    write(folder, *rows)
    return read_runs(folder)


def write(folder: Path, *rows: dict[str, str]) -> None:
    (folder / "runs").mkdir(exist_ok=True)
    with (folder / "runs" / "table.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, COLUMNS, restval="")
        writer.writeheader()
        writer.writerows(rows)


def test_a_row_becomes_the_task_that_a_pod_would_describe(tmp_path: Path) -> None:
    (run,) = read(tmp_path, LORA).runs
    assert (run.network, run.product, run.ending) == ("hf/Llama-3.1-8B", "NVIDIA-A100-SXM4-80GB", RunEnding.MEASURED)
    assert (run.task.precision, run.task.lora_rank, run.task.lora_targets) == (Precision.BF16, 16, "attention")
    assert (run.task.batch_size, run.task.sequence_length, run.task.gradient_checkpointing) == (4, 2048, True)
    assert run.gib == {Counter.DEVICE: 24.0, Counter.ALLOCATED: 21.0}
    assert run.primary is Counter.DEVICE


def test_repeats_are_one_run_with_the_median_of_each_figure(tmp_path: Path) -> None:
    (run,) = read(tmp_path, LORA, {**LORA, "mem_gib": "25.0"}, {**LORA, "mem_gib": "30.0"}).runs
    assert (run.repeats, run.gib[Counter.DEVICE]) == (3, 25.0)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"model_ref": "nobody/knows", "model": "nobody"}, "a network that the catalog does not know"),
        ({"seq_len": ""}, "length not stated"),
        ({"batch_per_gpu": ""}, "batch not stated"),
        ({"precision": "not stated"}, "precision not stated, or none that an annotation has"),
        ({"lora_rank": "64 (script; not stated)"}, "rank not stated"),
        ({"lora_rank": "high"}, "a rank that is no number"),
        ({"mem_gib": "0.001"}, "an impossible figure"),
        ({"mem_gib": "-3"}, "an impossible figure"),
        ({"mem_gib": "nan"}, "an impossible figure"),
        ({"mem_gib": "24576"}, "an impossible figure"),  # in MiB
        ({"mem_gib": "81.5"}, "more than the GPU has"),
        ({"mem_raw": "24576", "mem_unit": "GB"}, "mixed units"),
        ({"mem_raw": "24.0", "mem_unit": "MiB"}, "mixed units"),
        ({"mem_gib": "much"}, "a figure that is no number"),
        ({"mem_gib": "12"}, "tensors that take more than the device shows"),
        ({"mem_kind": "not stated", "mem_kind_2": ""}, "counter not stated, or not of the training run"),
        ({"gpu": "Cerebras"}, "GPU not known: Cerebras"),
        ({"trust": "low"}, "trust low"),
        ({"outcome": "boundary"}, "outcome boundary"),
        ({"method": "ia3"}, "method ia3"),
        ({"method": "qlora"}, "quantization not stated"),
        ({"checkpointing": "segments of 2 blocks"}, "checkpoints some blocks only, or offloads activations"),
        (
            {"checkpointing": "on (every block) backend=unsloth"},
            "checkpoints some blocks only, or offloads activations",
        ),
        ({"kernels": "compile inductor"}, "compiled steps"),
        ({"parallelism": "TP=2 PP=1"}, "tensor, pipeline, sequence or expert parallelism"),
    ],
)
def test_what_cannot_be_compared_is_counted_by_its_reason(tmp_path: Path, change: dict[str, str], reason: str) -> None:
    found = read(tmp_path, {**LORA, **change})
    assert not found.runs
    assert found.left_out == {("table", reason): 1}


@pytest.mark.parametrize(
    ("change", "varies"),
    [({}, False), ({"seq_len": "~277 mean"}, True), ({"seq_len": "1024 cap"}, True),
     ({"note": "seq length is a cap, batch padded to longest"}, True)],
)  # fmt: skip
def test_lengths_that_vary_are_told_apart(tmp_path: Path, change: dict[str, str], varies: bool) -> None:
    assert read(tmp_path, {**LORA, **change}).runs[0].varies is varies


@pytest.mark.parametrize(
    ("change", "length"),
    [({}, Length.FIXED), ({"seq_len": "1024 cap"}, Length.LONGEST), ({"seq_len": "~277 mean"}, Length.PADDED),
     ({"seq_len": "~277 mean", "kernels": "accelerated-peft-bnb-padding-free"}, Length.PACKED)],
)  # fmt: skip
def test_a_task_says_what_its_length_is(tmp_path: Path, change: dict[str, str], length: Length) -> None:
    assert read(tmp_path, {**LORA, **change}).runs[0].task.length is length


FSDP = {**LORA, "n_gpus": "4", "parallelism": "FSDP FULL_SHARD (accelerate.yaml)"}


@pytest.mark.parametrize(
    ("change", "masters"),
    [({}, False), ({"method": "full"}, True), ({"method": "full", "precision": "bfloat16 pure"}, False)],
)
def test_under_fsdp_a_flag_for_amp_means_fp32_copies_of_what_is_trained(
    tmp_path: Path, change: dict[str, str], masters: bool
) -> None:
    (run,) = read(tmp_path, {**FSDP, **change}).runs
    assert (run.task.zero_stage, run.task.framework, run.task.master_weights) == (3, "fsdp", masters)


def test_a_quantized_base_under_fsdp_has_no_masters(tmp_path: Path) -> None:
    (run,) = read(tmp_path, {**FSDP, "method": "qlora", "quant": "bnb-nf4"}).runs
    assert (run.task.zero_stage, run.task.master_weights) == (3, False)


IMAGES = {
    **LORA, "seq_len": "", "checkpointing": "off", "method": "full", "lora_rank": "", "lora_targets": "",
    "attention": "eager (softmax(QK) materialised)", "precision": "fp16 AMP (autocast; fp32 weights)",
    "image_size": "224",
}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "attention"), [("timm/resnet50", None), ("timm/vit_base_patch16_224", Attention.EAGER)]
)
def test_how_attention_is_computed_is_said_where_there_is_attention(
    tmp_path: Path, name: str, attention: Attention | None
) -> None:
    assert read(tmp_path, {**IMAGES, "model": name, "model_ref": name}).runs[0].task.attention is attention


def test_the_image_size_of_a_denoiser_is_in_pixels(tmp_path: Path) -> None:
    video = {"model": "THUDM/CogVideoX-2b", "model_ref": "THUDM/CogVideoX-2b", "image_size": "49x480x720"}
    (run,) = read(tmp_path, {**IMAGES, **video, "attention": "sdpa"}).runs
    assert run.task.input_size == (3, 49, 480, 720)


def test_rows_of_a_licence_that_forbids_it_are_never_trained_on(tmp_path: Path) -> None:
    assert read(tmp_path, {**LORA, "licence": "AGPL-3.0 (docs in repo)"}).runs[0].evaluate_only
    assert not read(tmp_path, LORA).runs[0].evaluate_only


@pytest.mark.parametrize(
    ("said", "precision"),
    [
        ({"method": "full"}, Precision.AMP_BF16),
        ({"method": "lora"}, Precision.BF16),
        ({"method": "full", "parallelism": "DeepSpeed ZeRO-2", "n_gpus": "2"}, Precision.BF16),
        ({"method": "full", "framework": "HF Trainer"}, Precision.BF16),
    ],
)
def test_trainers_of_denoisers_name_the_precision_of_autocast(
    tmp_path: Path, said: dict[str, str], precision: Precision
) -> None:
    """What they train is in fp32, unless DeepSpeed keeps such copies."""
    video = {"model": "THUDM/CogVideoX-2b", "model_ref": "THUDM/CogVideoX-2b", "image_size": "49x480x720"}
    row = {**LORA, **video, "seq_len": "", "precision": "bf16", "framework": "diffusers/accelerate", **said}
    (run,) = read(tmp_path, row).runs
    assert run.task.precision is precision


@pytest.mark.parametrize(
    ("text", "value"),
    [("bfloat16 pure", "bf16"), ("float16+fp16-amp-flag", "fp16"), ("fp16 AMP (autocast; fp32 weights)", "amp-fp16"),
     ("fp16 mixed (DeepSpeed fp16: fp16 weights+grads, fp32 master)", "fp16"), ("amp_bf16", "amp-bf16"),
     ("int8-sdnq base, bf16 adapters", "bf16"), ("fp32", "fp32"), ("4bit + NF4 + bf16 CD + GC", "bf16")],
)  # fmt: skip
def test_precisions_are_read(text: str, value: str) -> None:
    assert words.precision(text) == Precision(value)


@pytest.mark.parametrize(
    ("text", "value"),
    [("AdamW (8-bit bitsandbytes)", "adam8bit"), ("SGD momentum 0.9", "sgd-momentum"), ("optimi-lion", "lion"),
     ("SGD without state (inferred)", "sgd"), ("AdamW (DeepSpeed FusedAdam)", "adamw")],
)  # fmt: skip
def test_optimizers_are_read(text: str, value: str) -> None:
    assert words.optimizer(text) == Optimizer(value)


@pytest.mark.parametrize(
    ("text", "value"), [("bnb-nf4", "nf4"), ("gptq-4bit", "int4"), ("fp8-torchao", "int8"), ("INT8", "int8")]
)
def test_quantizations_are_read(text: str, value: str) -> None:
    assert words.quantization(text) == Quantization(value)


@pytest.mark.parametrize(
    ("parallelism", "gpus", "found"),
    [
        ("none", "1", words.Sharding(0, 1)),
        ("DDP", "8", words.Sharding(0, 8)),
        ("FSDP FULL_SHARD (accelerate.yaml)", "4", words.Sharding(3, 4)),
        ("FSDP SHARD_GRAD_OP DEFAULT", "4", words.Sharding(2, 4)),
        ("FSDP tp=1 pp=1", "8", words.Sharding(3, 8)),
        ("DeepSpeed ZeRO-2 + optimizer CPU offload", "2", words.Sharding(2, 2, "optimizer")),
        ("DeepSpeed ZeRO-3 + param/optim CPU offload", "2", words.Sharding(3, 2, "parameters")),
    ],
)
def test_sharding_is_read(parallelism: str, gpus: str, found: words.Sharding) -> None:
    assert words.sharding(parallelism, gpus, "AdamW") == found


@pytest.mark.parametrize(
    ("kind", "found"),
    [
        ("torch max_memory_allocated (max over GPUs)", Counter.ALLOCATED),
        ("torch active_bytes.all.peak (max over ranks)", Counter.ALLOCATED),
        ("torch reserved_bytes.all.peak (max over ranks)", Counter.RESERVED),
        ("nvidia-smi memory.used peak minus start, mean over GPUs", Counter.DEVICE),
        ("torch max_memory_reserved minus value at start, whole run incl. evaluation", None),
        ("same counter after validation (VAE + text encoder loaded)", None),
        ("none: run fitted on the card", None),
        ("not stated", None),
    ],
)
def test_counters_are_told_apart(kind: str, found: Counter | None) -> None:
    assert counter(kind) is found


@pytest.mark.parametrize(
    ("text", "parallelism", "found"),
    [
        ("HF Trainer; torch==2.4.1 transformers==4.44.2", "none", "torch==2.4,transformers==4.44"),
        ("timm benchmark.py, torch 1.12", "none", "torch==1.12"),
        ("torch 2.5.1+cu121", "FSDP FULL_SHARD", "torch==2.5,fsdp"),
        ("Composer", "DeepSpeed ZeRO-2", "deepspeed"),
        ("mmdetection", "DDP", ""),
    ],
)
def test_versions_are_read_from_prose(text: str, parallelism: str, found: str) -> None:
    assert words.framework(text, parallelism) == found


def test_repeats_over_library_versions_are_one_run_with_the_usual_versions(tmp_path: Path) -> None:
    notes = ("transformers==4.44.2", "transformers==4.45.1", "transformers==4.45.2")
    (run,) = read(tmp_path, *({**LORA, "note": note} for note in notes)).runs
    assert (run.repeats, run.task.framework) == (3, "transformers==4.45")


def test_offload_needs_sharding() -> None:
    with pytest.raises(LeftOut, match="offload without sharding"):
        words.sharding("none", "1", "AdamW + CPUOffloadOptimizer")


def test_slices_have_every_counter_and_what_was_left_out(tmp_path: Path) -> None:
    write(tmp_path, LORA, {**LORA, "batch_per_gpu": "8", "outcome": "oom", "mem_gib": "", "mem_gib_2": ""},
          {**LORA, "method": "ia3"})  # fmt: skip
    report = evaluate_runs(tmp_path, PhysicsForecaster(0.05), Progress(quiet=True))
    whole = report["slices"][0]
    assert (whole["slice"], whole["rows"], whole["oom_rows"]) == ("runs/table", 1, 1)
    assert set(whole["counters"]) == {Counter.DEVICE, Counter.ALLOCATED}
    for figures in whole["counters"].values():
        assert set(figures["coverage"]) == set(figures["over_reservation"]) == {"0.1", "0.05", "0.01"}
        assert 0 <= figures["median_error"] < 1
    assert report["left_out"] == {"table": {"method ia3": 1}}


@pytest.mark.parametrize(("raw", "unit"), [
    ("24576", "MiB"), ("25.8", "GB"), ("24", "GB (rounded)"), ("25769803776", "bytes"), ("", "MiB"),
    ("1.02 / 24.0", "GiB"), ("7", ""), ("7", "percent"),
])  # fmt: skip
def test_the_raw_figure_may_say_the_same_in_another_unit(tmp_path: Path, raw: str, unit: str) -> None:
    """GB is both, and what nobody can read contradicts nothing."""
    assert len(read(tmp_path, {**LORA, "mem_raw": raw, "mem_unit": unit}).runs) == 1


def test_a_figure_of_an_unnamed_gpu_is_not_held_against_another(tmp_path: Path) -> None:
    allocated = {"gpu": "", "mem_gib": "90", "mem_kind": "torch max_memory_allocated", "mem_gib_2": ""}
    assert len(read(tmp_path, {**LORA, **allocated}).runs) == 1


def test_networks_that_stay_beside_the_trained_one_are_told(tmp_path: Path) -> None:
    task = "text-to-video diffusion finetune (text encoder+VAE resident)"
    assert read(tmp_path, {**LORA, "task": task}).left_out == {("table", "other networks stay on the GPU"): 1}


def test_a_percentile_of_a_run_with_varying_lengths_is_not_its_peak(tmp_path: Path) -> None:
    kind = {"mem_kind": "torch memory_reserved 99th pct during training", "mem_gib_2": ""}
    same, mixed = read(tmp_path, {**LORA, **kind}, {**LORA, **kind, "seq_len": "2048 cap"}).runs
    assert same.peak
    assert not mixed.peak


def test_a_directory_without_published_runs_has_no_slices(tmp_path: Path) -> None:
    assert evaluate_runs(tmp_path, PhysicsForecaster(0.05), Progress(quiet=True))["slices"] == []


ZOO = {
    "licence": "Apache-2.0", "model": "mask-rcnn_r50_fpn_1x_coco",
    "model_ref": "configs/mask_rcnn/mask-rcnn_r50_fpn_1x_coco.py", "gpu": "V100", "n_gpus": "8", "batch_per_gpu": "2",
    "image_size": "1333x800", "precision": "fp32", "optimizer": "SGD",
    "method": "full (frozen stages per note)", "checkpointing": "off", "parallelism": "DDP", "mem_gib": "4.4",
    "mem_kind": "torch max_memory_allocated (max over GPUs)", "outcome": "ok", "trust": "high",
    "note": "detector=MaskRCNN; backbone type=ResNet,depth=50,num_stages=4,frozen_stages=1,norm_eval=True; neck=FPN",
}  # fmt: skip


def activations(folder: Path, **change: str) -> int:
    (run,) = read(folder, {**ZOO, **change}).runs
    assert run.task.activations is not None
    return run.task.activations


def test_a_detector_is_described_by_its_backbone_and_decoder(tmp_path: Path) -> None:
    (run,) = read(tmp_path, ZOO).runs
    assert (run.network, run.task.level, run.gib) == ("openmmlab/MaskRCNN", Level.SUMMARY, {Counter.ALLOCATED: 4.4})
    plain = activations(tmp_path)
    assert activations(tmp_path, note=ZOO["note"].replace("MaskRCNN", "RetinaNet"), model="retinanet_r50_fpn") < plain
    assert activations(tmp_path, note=ZOO["note"].replace("depth=50", "depth=101")) > plain
    assert activations(tmp_path, note=ZOO["note"].replace("frozen_stages=1,", "")) > plain
    assert activations(tmp_path, image_size="666x400") < plain / 2


def test_a_segmenter_keeps_logits_of_all_its_classes(tmp_path: Path) -> None:
    note = "decode=PSPHead; backbone type=ResNetV1c,depth=50,dilations=(1, 1, 2, 4),strides=(1, 2, 1, 1)"
    few, many = (activations(tmp_path, note=note, image_size="512x512", model=f"pspnet_r50-d8_{data}-512x512")
                 for data in ("cityscapes", "ade20k"))  # fmt: skip
    assert many - few == 5 * (150 - 19) * 512 * 512


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"note": ZOO["note"].replace("MaskRCNN", "Mask2Former")}, "a decoder, or a neck, that no rule describes"),
        ({"note": ZOO["note"].replace("neck=FPN", "neck=FPG")}, "a decoder, or a neck, that no rule describes"),
        ({"note": "point clouds"}, "a network that the catalog does not know, nor its backbone"),
        ({"image_size": ""}, "image size not stated, or not that of one image"),
    ],
)
def test_what_no_rule_describes_is_left_out(tmp_path: Path, change: dict[str, str], reason: str) -> None:
    assert read(tmp_path, {**ZOO, **change}).left_out == {("table", reason): 1}


def test_a_file_with_fewer_columns_or_cut_rows_is_counted_and_does_not_stop_the_others(tmp_path: Path) -> None:
    write(tmp_path, LORA)
    (tmp_path / "runs" / "another.csv").write_text(
        "model,mem_gib,outcome\nnobody,12,ok\nLlama-3.1-8B\n", encoding="utf-8"
    )
    found = read_runs(tmp_path)
    assert len(found.runs) == 1
    assert sum(count for (source, _), count in found.left_out.items() if source == "another") == 2


def test_a_name_that_stands_for_another_network_is_left_out(tmp_path: Path) -> None:
    name = "timm/ig_resnext101_32x48d"
    found = read(tmp_path, {**IMAGES, "model": name, "model_ref": name})
    assert found.left_out == {("table", "a name that timm gives to another network"): 1}


def test_tables_of_their_own_form_are_read_with_the_defaults_of_their_scripts(tmp_path: Path) -> None:
    (tmp_path / "extra").mkdir()
    (tmp_path / "extra" / "ms_swift_a100.csv").write_text(
        "LoRA,Model Type [LoRA],Max Length,Training Speed (samples/s),GPU Memory (GiB)\n"
        "LoRA,yi-6b-chat,1024,4.0,14.1\nLoRA,yi-6b-chat,8192,-,OOM\nFull,qwen-7b-chat,2048,3.30,74.26\n"
        "Quantization,qwen-7b-chat,int4 (bnb),2.41,23.85\n", encoding="utf-8",
    )  # fmt: skip
    (tmp_path / "extra" / "qwen_a100_80g.csv").write_text(
        "Profiling,Model Size,Method,#Nodes,#GPUs per node,256,512\nProfiling,7B,Q-LoRA,1,1,11.5G / 3.0s/it,-\n"
        "Profiling,7B,LoRA,1,1,20.1G / 1.2s/it,-\n"
        "Profiling,7B,LoRA (emb),1,1,33.7G / 1.4s/it,34.1G / 1.6s/it\n", encoding="utf-8",
    )  # fmt: skip
    found = read_runs(tmp_path)
    told = [(run.source, run.network, run.method, run.task.sequence_length, run.task.length) for run in found.runs]
    assert told == [
        ("ms_swift_a100", "hf/Yi-6B", "lora", 1024, Length.LONGEST),
        ("ms_swift_a100", "hf/Qwen1.5-7B", "full", 2048, Length.LONGEST),
        ("ms_swift_a100", "hf/Qwen1.5-7B", "qlora", 2048, Length.LONGEST),
        ("qwen_a100_80g", "hf/Qwen1.5-7B", "lora", 256, Length.FIXED),
    ]
    assert found.left_out == {
        ("ms_swift_a100", "a figure that is no number"): 1,
        ("qwen_a100_80g", "method lora+emb"): 2,
        ("qwen_a100_80g", "a quantized network under DeepSpeed, which has no autocast as recordings do"): 1,
    }


def test_a_table_that_tells_gpus_by_their_figures_counts_those_that_it_cannot_name(tmp_path: Path) -> None:
    (tmp_path / "extra").mkdir()
    (tmp_path / "extra" / "schedtune_5gpus.csv").write_text(
        "model,batchsize,activations,parameters,input,peak mem usage,Pipelines/CUDA cores,Memory bandwidth (GB/s)\n"
        "resnet18,8,227.25,44.59,4.59,1719,10496,935.8\nresnet18,8,227.25,44.59,4.59,1660,2560,448\n"
        "resnet18,8,227.25,44.59,4.59,16000,2496,240.6\n", encoding="utf-8",
    )  # fmt: skip
    found = read_runs(tmp_path)
    (run,) = found.runs
    assert (run.network, str(run.product)) == ("torchvision/resnet18", "NVIDIA-GeForce-RTX-3090")
    assert (run.task.batch_size, run.task.precision, run.gib) == (8, Precision.FP32, {Counter.DEVICE: 1.679})
    assert found.left_out == {
        ("schedtune_5gpus", "GPU not known: 2560 cores, 448 GB/s"): 1,
        ("schedtune_5gpus", "more than the GPU has"): 1,
    }


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("1024", (1024, 1024)),
        ("49x480x720", (49, 480, 720)),
        ("train resolution=None ; doc: Resolution: 1024x1024.", (1024, 1024)),
        ("train resolution=480 pixel_area; doc: Resolution: 832x480, 81f.", (81, 480, 832)),
        ("train resolution=1024 pixel_area; doc: Training resolution: 512 px square crop.", (512, 512)),
        ("not stated", None),
    ],
)
def test_image_sizes_are_read_as_height_and_width_with_the_frames_first(
    text: str, found: tuple[int, ...] | None
) -> None:
    assert words.sides(text) == found


def test_what_trainers_call_their_models_is_found_in_the_catalog(tmp_path: Path) -> None:
    denoiser = {**LORA, "model_ref": "wan t2v-480p-1.3b-2.1", "model": "Wan", "lora_targets": "",
                "image_size": "doc: Resolution: 832x480, 81f.", "quant": "int8-torchao"}  # fmt: skip
    foundry = {**LORA, "model_ref": "mosaicml/llm-foundry yamls/mpt-*.yaml", "model": "MPT-125m", "method": "full"}
    first, second = read(tmp_path, denoiser, foundry).runs
    assert (first.network, first.task.input_size) == ("diffusers/Wan2.1-T2V-1.3B", (3, 81, 480, 832))
    assert first.task.quantization is Quantization.INT8
    assert second.network == "hf/llm-foundry-mpt-125m"
