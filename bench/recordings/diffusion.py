"""Fine-tuning of diffusion transformers: CogVideoX (cogvideox-factory) and FLUX.2-klein (PEFT's method comparison)."""

from __future__ import annotations

from pathlib import Path

from bench.recordings.cases import Case, Cases, Counters, Recipe, collapsed, read_rows

_OPTIMIZERS = {"AdamW": "adamw", "AdamW (8-bit bitsandbytes)": "adam8bit"}


def diffusion(data: Path) -> Cases:
    found = Cases()
    _cogvideox(data, found)
    _flux(data, found)
    return found


def _cogvideox(data: Path, found: Cases) -> None:
    for row in read_rows(data / "runs" / "cogvideox_factory.csv"):
        found.rows += 1
        if row["outcome"] != "ok":
            found.left_out[f"outcome {row['outcome']}"] += 1
            continue
        if row["optimizer"] not in _OPTIMIZERS:
            found.left_out[f"optimizer {row['optimizer'].split(' (')[0]}"] += 1
            continue
        recipe = Recipe(
            network=f"diffusers/{row['model_ref']}",
            batch=int(row["batch_per_gpu"]),
            size=(49, 480, 720),
            weights="fp16" if row["model"].endswith("2b") else "bf16",
            autocast="fp16" if row["model"].endswith("2b") else "bf16",
            checkpointing="plain" if row["checkpointing"] == "on" else "",
            lora_rank=int(row["lora_rank"] or 0),
        )
        name = f"{row['model']} {row['method']} rank {row['lora_rank'] or '-'} {row['optimizer']}"
        name += f" batch {row['batch_per_gpu']}"
        measured = {Counters.RESERVED: float(row["mem_gib"])}
        kind = f"CogVideoX {row['method']}"
        optimizer = _OPTIMIZERS[row["optimizer"]]
        found.cases.append(Case(name, recipe, "NVIDIA-A100-SXM4-80GB", optimizer, measured, kind=kind))


def _flux(data: Path, found: Cases) -> None:
    rows = []
    for row in read_rows(data / "runs" / "peft_image_gen_and_history.csv"):
        if "klein" not in row["model_ref"]:
            continue
        found.rows += 1
        if row["method"] != "lora":
            found.left_out[f"adapter {row['method']}"] += 1
        else:
            rows.append(row)
    keys = ("model_ref", "batch_per_gpu", "image_size", "lora_rank", "lora_targets", "checkpointing")
    for row, runs in collapsed(rows, keys, ("mem_gib", "mem_gib_2")):
        recipe = Recipe(
            network=f"diffusers/{row['model_ref']}",
            batch=int(row["batch_per_gpu"]),
            size=(int(row["image_size"]), int(row["image_size"])),
            weights="bf16",
            checkpointing="plain" if row["checkpointing"] == "on" else "",
            lora_rank=int(float(row["lora_rank"] or 0)),
            lora_targets="all-linear",
        )
        measured = {Counters.RESERVED: float(row["mem_gib_2"])}
        name = f"{row['model']} LoRA {row['lora_rank']} batch {row['batch_per_gpu']} x {row['image_size']}"
        found.cases.append(Case(name, recipe, "NVIDIA-L40S", "adamw", measured, kind="FLUX.2-klein", runs=runs))
