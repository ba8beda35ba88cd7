"""Reads `extra/`: language models that were fine-tuned with ms-swift, Qwen's scripts and PEFT, and SchedTune's CNNs.

Each file has a form of its own. Its rows are written as rows of `runs/` are, with the defaults of the scripts, and read
on by the same code. Qwen's first models have the shapes of Qwen1.5, which the catalog has.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Iterator
from pathlib import Path

Row = dict[str, str]

_NETWORKS = {
    "qwen-1_8b": "Qwen/Qwen1.5-1.8B", "qwen-7b": "Qwen/Qwen1.5-7B", "qwen-14b": "Qwen/Qwen1.5-14B",
    "yi-6b": "01-ai/Yi-6B", "yi-34b": "01-ai/Yi-34B", "openbuddy-zephyr-7b": "mistralai/Mistral-7B-v0.1",
}  # fmt: skip
_TUNED = {
    "licence": "Apache-2.0", "gpu": "NVIDIA A100 80GB", "n_gpus": "1", "batch_per_gpu": "1", "grad_accum": "16",
    "precision": "bf16", "optimizer": "AdamW", "method": "lora", "checkpointing": "on", "attention": "flash",
    "parallelism": "none", "outcome": "ok", "trust": "medium",
}  # fmt: skip
_QWEN_QUANTIZED = {
    "method": "qlora", "quant": "gptq-4bit", "precision": "fp16", "parallelism": "DeepSpeed ZeRO-2",
}  # fmt: skip
_YES = "&#x2714;"
_FIGURE = re.compile(r"[0-9.]+")


def _ms_swift(path: Path) -> Iterator[Row]:
    """Batch 1, up to 2,048 tokens, LoRA rank 8 on attention, checkpointing, where its table does not say otherwise."""
    for table, model, value, *others in _cells(path, at_least=4):
        if "Model" in model or table == "md-table":
            continue
        row = {**_TUNED, **_named(model), "lora_rank": "8", "lora_targets": "q k v o",
               "mem_kind": "torch max_memory_reserved"}  # fmt: skip
        row |= {"seq_len": "2048 cap", "mem_gib": others[-1]}
        if table in ("LoRA", "Full"):
            row |= {"seq_len": f"{value} cap", "method": table.lower()}
        elif table == "Batch Size":
            row["batch_per_gpu"] = value
        elif table == "Quantization" and value.startswith("int"):
            row |= {"method": "qlora", "quant": f"{value[3:4]}bit nf4" if "bnb" in value else f"{value} gptq-4bit"}
            if value.startswith("int8"):
                row["quant"] = "int8"
        elif table.startswith("Use Flash"):
            flash, checkpointing = value == _YES, others[0] == _YES
            row |= {"attention": "flash" if flash else "eager", "checkpointing": "on" if checkpointing else "off"}
        elif table.startswith("LoRA Rank"):
            row |= {"lora_rank": value, "mem_gib": others[-2]}
        elif table == "Gradient Accumulation Steps":
            row["grad_accum"] = value
        elif table != "Quantization":
            row["method"] = table.lower()
        yield row


def _qwen(path: Path) -> Iterator[Row]:
    """Batch 1, samples padded to the length, checkpointing, LoRA rank 64 on all linear layers.

    GPTQ wants fp16, and for fp16 their scripts call DeepSpeed on one GPU too.
    """
    lengths: list[str] = []
    for _, size, method, nodes, gpus, *figures in _cells(path, at_least=6):
        if size == "Model Size":
            lengths = figures
            continue
        quantized = _QWEN_QUANTIZED if method == "Q-LoRA" else {}
        row = {**_TUNED, **_named(f"qwen-{size.lower().replace('.', '_')}"), "lora_rank": "64",
               "lora_targets": "q k v o gate up down", "n_gpus": gpus, "mem_kind": "device memory"}  # fmt: skip
        # In brackets: embeddings are trained too, or it ran on several nodes.
        row |= quantized or {"method": method.lower().replace(" (", "+").rstrip(")")}
        if nodes != "1":
            row["n_gpus"] = ""
        for tokens, cell in zip(lengths, figures, strict=False):
            figure = re.match(r"([0-9.]+)G", cell)
            if figure:
                yield {**row, "seq_len": tokens, "mem_gib": f"{float(figure[1]) * 1e9 / 2**30:.3f}"}


def _peft(path: Path) -> Iterator[Row]:
    """Batch 4, up to 768 tokens. What torch reserved while it trained: the 99th percentile, without evaluation.

    The script empties the cache every ten steps, so this is less than the peak of a run that does not.
    """
    with path.open(newline="", encoding="utf-8") as file:
        for source in csv.DictReader(file):
            yield {
                **_TUNED, "model": source["model"], "model_ref": source["model"], "gpu": source["gpu"],
                "batch_per_gpu": source["bs"], "grad_accum": "", "seq_len": f"{source['max_seq']} cap",
                "precision": source["dtype"], "optimizer": source["optim"],
                "method": source["peft"].lower() or "full", "lora_rank": source["r"], "attention": "sdpa",
                "checkpointing": "on" if source["gc"] == "True" else "off", "framework": f"torch {source['torch']}",
                "lora_targets": "q v", "outcome": "ok" if source["status"] == "success" else source["status"],
                "mem_gib": f"{float(source['mem_res_99'] or 0) / 2**30:.3f}",
                "mem_kind": "torch memory_reserved 99th pct during training",
            }  # fmt: skip


# By CUDA cores and GB/s, which is how the table tells its GPUs.
_SCHEDTUNE_GPUS = {
    ("2496", "240.6"): "Tesla K80", ("5120", "900"): "Tesla V100 16GB", ("10496", "935.8"): "GeForce RTX 3090",
}  # fmt: skip


def _schedtune(path: Path) -> Iterator[Row]:
    """torchvision's networks in fp32 at 224 pixels: the table's inputs have that size.

    It names neither its optimizer nor its torch, which was 1.10 at most: the paper was accepted before 1.11 came out.
    """
    with path.open(newline="", encoding="utf-8") as file:
        for source in csv.DictReader(file):
            told = source["Pipelines/CUDA cores"], source["Memory bandwidth (GB/s)"]
            yield {
                "licence": "MIT", "model": source["model"], "model_ref": f"torchvision {source['model']}",
                "gpu": _SCHEDTUNE_GPUS.get(told, f"{told[0]} cores, {told[1]} GB/s"), "n_gpus": "1",
                "batch_per_gpu": source["batchsize"], "image_size": "224x224", "precision": "fp32",
                "optimizer": "SGD", "method": "full", "checkpointing": "off", "parallelism": "none", "outcome": "ok",
                "framework": "torch 1.10",
                "trust": "medium", "mem_gib": f"{float(source['peak mem usage']) / 1024:.3f}", "mem_kind": "nvidia-smi",
            }  # fmt: skip


READERS: dict[str, Callable[[Path], Iterator[Row]]] = {
    "ms_swift_a100": _ms_swift, "qwen_a100_80g": _qwen, "peft_l40s": _peft,
    "schedtune_5gpus": _schedtune,
}  # fmt: skip


def _named(model: str) -> Row:
    known = _NETWORKS.get(re.sub(r"-chat.*", "", model), model)
    return {"model": model, "model_ref": known}


def _cells(path: Path, *, at_least: int) -> Iterator[list[str]]:
    with path.open(newline="", encoding="utf-8") as file:
        yield from (row for row in csv.reader(file) if len(row) >= at_least)
