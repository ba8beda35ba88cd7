"""Forecasts beyond the training data, against published figures: language models in bf16, LoRA, quantized, other GPUs.

    python bench/extra.py --data DIR [--rows]

DIR contains `ms_swift_a100.csv`, `qwen_a100_80g.csv`, `peft_l40s.csv` and `schedtune_5gpus.csv`, each optional.
Networks are described by public facts (width, depth, vocabulary). Rows that do not fully describe their run are left
out. Nothing is fitted to these figures. Some tables exclude the CUDA context, as noted in their reader.
"""

from __future__ import annotations

import argparse
import csv
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from vramcast.forecast.catalog import builtin_artifact
from vramcast.forecast.description import Description, Op, OpKind
from vramcast.forecast.model import ModelForecaster, load_artifact
from vramcast.hardware.products import context_mib
from vramcast.names import Product
from vramcast.task.quantity import GIB, MIB
from vramcast.task.task import Task
from vramcast.task.vocabulary import Architecture, Level, Optimizer, Precision, Quantization

A100_80 = Product("NVIDIA-A100-SXM4-80GB")
L40S = Product("NVIDIA-L40S")
_RISK = 0.05


@dataclass(frozen=True, slots=True)
class Decoder:
    """Public facts about a decoder-only language model."""

    hidden: int
    blocks: int
    feed: int
    keys: int  # width of the keys; less than `hidden` if heads share them
    vocabulary: int
    parameters: float  # billions


DECODERS = {
    "qwen-1_8b": Decoder(2048, 24, 5504, 2048, 151936, 1.837),
    "qwen-7b": Decoder(4096, 32, 11008, 4096, 151936, 7.721),
    "qwen-14b": Decoder(5120, 40, 13696, 5120, 152064, 14.167),
    "qwen-72b": Decoder(8192, 80, 24576, 8192, 152064, 72.288),
    "yi-6b": Decoder(4096, 32, 11008, 512, 64000, 6.061),
    "yi-34b": Decoder(7168, 60, 20480, 1024, 64000, 34.389),
    "baichuan2-7b": Decoder(4096, 32, 11008, 4096, 125696, 7.506),
    "baichuan2-13b": Decoder(5120, 40, 13696, 5120, 125696, 13.897),
    "chatglm3-6b": Decoder(4096, 28, 13696, 256, 65024, 6.244),
    "llama-3.2-3b": Decoder(3072, 28, 8192, 1024, 128256, 3.213),
}


@dataclass(frozen=True, slots=True)
class Run:
    table: str
    name: str
    network: Description | None
    task: Task
    product: Product
    measured_mib: float
    with_context: bool = True


def describe(facts: Decoder, tokens: int) -> Description:
    """The leaf modules of every block, and what autograd saves with fused attention."""
    ops: list[Op] = [_op("Embedding", OpKind.EMBEDDING, tokens, tokens * facts.hidden)]
    for _ in range(facts.blocks):
        ops += _block(facts, tokens)
    ops += [_norm(facts, tokens), _linear(facts.hidden, facts.vocabulary, tokens)]
    # Per token: two norms with their copies, one input per group of projections, queries, keys and values before and
    # after the rotation, the attention output, and four tensors of the gated feed-forward.
    kept = facts.blocks * (10 * facts.hidden + 3 * facts.keys + 4 * facts.feed) + 2 * facts.hidden + facts.vocabulary
    return Description(
        ops=tuple(ops),
        parameters=round(facts.parameters * 1e9),
        input_elements=tokens,
        family="transformer",
        saved_bytes_per_sample=4 * tokens * kept,
        largest_saved_bytes_per_sample=4 * tokens * facts.vocabulary,
        sequence_length=tokens,
    )


def _block(facts: Decoder, tokens: int) -> Iterator[Op]:
    yield _norm(facts, tokens)
    for width in (facts.hidden, facts.keys, facts.keys, facts.hidden):
        yield _linear(facts.hidden, width, tokens)
    yield _norm(facts, tokens)
    yield _linear(facts.hidden, facts.feed, tokens)
    yield _op("SiLU", OpKind.KEEPS_INPUT, tokens * facts.feed, tokens * facts.feed)
    yield _linear(facts.hidden, facts.feed, tokens)
    yield _linear(facts.feed, facts.hidden, tokens)


def _op(name: str, kind: OpKind, read: int, made: int) -> Op:
    return Op(name, kind, read, made, shape=(made,))


def _norm(facts: Decoder, tokens: int) -> Op:
    return Op("RMSNorm", OpKind.LAYER_NORM, tokens * facts.hidden, tokens * facts.hidden, parameters=facts.hidden)


def _linear(read: int, made: int, tokens: int) -> Op:
    return Op(
        "Linear", OpKind.LINEAR, tokens * read, tokens * made, parameters=read * made, channels_in=read,
        channels_out=made, positions=tokens, shape=(tokens, made),
    )  # fmt: skip


def _task(**settings: object) -> Task:
    defaults = {"batch_size": 1, "precision": Precision.BF16, "optimizer": Optimizer.ADAMW}
    return Task(Level.PROFILE, **(defaults | settings))  # type: ignore[arg-type]


def ms_swift(path: Path) -> Iterator[Run]:
    """With the defaults of its scripts: bf16, batch 1, 2048 tokens, checkpointing, LoRA rank 8."""
    for row in _rows(path):
        table, model, value = row[0], row[1], row[2] if len(row) > 2 else ""
        facts = DECODERS.get(re.sub(r"-chat.*", "", model))
        gib = row[5] if table.startswith("Use Flash") else row[-1]
        if facts is None or "2*A100" in " ".join(row) or not re.fullmatch(r"[\d.]+", gib):
            continue
        settings: dict[str, object] = {"gradient_checkpointing": True, "lora_rank": 8}
        tokens = 2048
        if table in ("LoRA", "Full"):
            tokens = int(value)
            settings["lora_rank"] = 8 if table == "LoRA" else None
        elif table == "Batch Size":
            settings["batch_size"] = int(value)
        elif table == "Quantization" and value.startswith("int"):
            settings["quantization"] = Quantization.INT4 if value.startswith("int4") else Quantization.INT8
        elif table.startswith("Use Flash"):
            if value != "&#x2714;":
                continue  # unfused attention is a different graph
            settings["gradient_checkpointing"] = row[3] == "&#x2714;"
        elif table != "Quantization":
            continue
        name = f"{model} {value}"
        yield Run(f"ms-swift, {table}", name, describe(facts, tokens), _task(**settings), A100_80, float(gib) * 1024)


def qwen(path: Path) -> Iterator[Run]:
    """The single-GPU runs in its README: batch 1, checkpointing, LoRA rank 64."""
    lengths = (256, 512, 1024, 2048, 4096, 8192)
    methods = {"LoRA": Quantization.NONE, "Q-LoRA": Quantization.INT4}
    for row in _rows(path):
        facts = DECODERS.get(f"qwen-{row[1].lower().replace('.', '_')}")
        if facts is None or row[2] not in methods or row[3:5] != ["1", "1"]:
            continue
        task = _task(gradient_checkpointing=True, lora_rank=64, quantization=methods[row[2]])
        for tokens, cell in zip(lengths, row[5:], strict=False):
            found = re.match(r"([\d.]+)G", cell)
            if found:
                measured = float(found[1]) * 1e9 / MIB
                yield Run(f"Qwen, {row[2]}", f"{row[1]} {tokens}", describe(facts, tokens), task, A100_80, measured)


def peft(path: Path) -> Iterator[Run]:
    """LoRA and full fine-tuning of Llama-3.2-3B, batch 4, up to 768 tokens. Counted by PyTorch, without the context."""
    with path.open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            plain = row["peft"] in ("LORA", "") and row["optim"] == "AdamW" and row["status"] == "success"
            if not row["model"].endswith("Llama-3.2-3B") or not plain or row["dtype"] != "bfloat16":
                continue
            rank = int(row["r"]) if row["peft"] else None
            task = _task(
                batch_size=int(row["bs"]), lora_rank=rank, gradient_checkpointing=row["gc"] == "True"
            )  # fmt: skip
            network = describe(DECODERS["llama-3.2-3b"], int(row["max_seq"]))
            name = f"rank {rank}" if rank else "full"
            table = "PEFT, LoRA" if rank else "PEFT, full"
            yield Run(table, name, network, task, L40S, float(row["mem_res_99"]) / MIB, with_context=False)


def schedtune(path: Path) -> Iterator[Run]:
    """CNNs described by the table's own activations and parameters, on the GPUs that this project knows."""
    known = {"2496": "Tesla-K80", "5120": "Tesla-V100-SXM2-16GB", "10496": "NVIDIA-GeForce-RTX-3090"}
    with path.open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            product = known.get(row["Pipelines/CUDA cores"])
            if product is None:
                continue
            batch = int(row["batchsize"])
            task = Task(
                Level.SUMMARY, architecture=Architecture.CNN, batch_size=batch, optimizer=Optimizer.SGD_MOMENTUM,
                parameters=round(float(row["parameters"]) * MIB / 4),
                activations=round(float(row["activations"]) * MIB / 4 / batch),
            )  # fmt: skip
            measured = float(row["peak mem usage"])
            yield Run(f"SchedTune, {product}", f"{row['model']} {batch}", None, task, Product(product), measured)


def _rows(path: Path) -> Iterator[list[str]]:
    with path.open(newline="", encoding="utf-8") as file:
        yield from (row for row in csv.reader(file) if row)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--rows", action="store_true", help="print every run, not only the table")
    chosen = parser.parse_args()
    readers = {"ms_swift_a100.csv": ms_swift, "qwen_a100_80g.csv": qwen, "peft_l40s.csv": peft,
               "schedtune_5gpus.csv": schedtune}  # fmt: skip
    forecaster = ModelForecaster(load_artifact(builtin_artifact()), _RISK)
    judged: dict[str, list[tuple[float, float]]] = {}
    for name, read in readers.items():
        if (chosen.data / name).exists():
            for run in read(chosen.data / name):
                judged.setdefault(run.table, []).append(_judge(forecaster, run, show=chosen.rows))
    print("| runs | rows | median error | median forecast / measured | coverage at 0.05 | median over-reservation |")
    print("|---|---|---|---|---|---|")
    for table, ratios in judged.items():
        medians, bounds = np.array(ratios).T
        print(
            f"| {table} | {len(medians)} | {np.median(np.abs(medians - 1)):.1%} | {np.median(medians):.2f} | "
            f"{(bounds >= 1).mean():.0%} | {np.median(bounds) - 1:.0%} |"
        )


def _judge(forecaster: ModelForecaster, run: Run, *, show: bool) -> tuple[float, float]:
    """Median and bound, over the measured memory."""
    forecast = forecaster.forecast_network(run.network, run.task, run.product, _RISK)
    excluded = 0 if run.with_context else context_mib(run.product) * MIB
    median, bound = forecast.median_bytes - excluded, forecast.bound_bytes - excluded
    if show:
        measured = run.measured_mib * MIB
        print(f"{run.table:32} {run.name:24} {measured / GIB:7.2f} {median / GIB:7.2f} {bound / GIB:7.2f} GiB")
    return median / MIB / run.measured_mib, bound / MIB / run.measured_mib


if __name__ == "__main__":
    main()
