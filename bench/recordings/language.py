"""Runs of language models: fms-acceleration (one GPU and FSDP), DeepSpeed sweeps, xMem."""

from __future__ import annotations

from pathlib import Path

from bench.recordings.cases import Case, Cases, Counters, Loss, Recipe, Row, collapsed, read_rows

from vramcast.forecast.rank_view import Plan, Scheme

_A100_80 = "NVIDIA-A100-SXM4-80GB"
_FMS_KEYS = (
    "model_ref", "n_gpus", "batch_per_gpu", "grad_accum", "seq_len", "precision", "method", "quant", "kernels",
)  # fmt: skip
_FUSED = "foak"
_QUANTIZATIONS = {"": "none", "bnb-nf4": "nf4", "gptq-4bit": "int4"}
_TRUSTED = {"high", "medium"}


def fms_plain(data: Path) -> Cases:
    return _fms(data, gpus=range(1, 2), fused=False)


def fms_fused(data: Path) -> Cases:
    return _fms(data, gpus=range(1, 2), fused=True)


def fms_fsdp(data: Path) -> Cases:
    return _fms(data, gpus=range(2, 9), fused=None)


def _fms(data: Path, gpus: range, fused: bool | None) -> Cases:
    """`fused`: fused kernels only, plain ones only, or both."""
    found = Cases()
    rows: list[Row] = []
    for row in read_rows(data / "runs" / "fms_acceleration.csv"):
        if int(row["n_gpus"]) not in gpus or (fused is not None and (_FUSED in row["kernels"]) is not fused):
            continue
        found.rows += 1
        if reason := _not_comparable(row):
            found.left_out[reason] += 1
        else:
            rows.append(row)
    for row, runs in collapsed(rows, _FMS_KEYS, ("mem_gib", "mem_gib_2")):
        found.cases.append(_fms_case(row, runs))
    return found


def _not_comparable(row: Row) -> str:
    reasons = (
        (row["outcome"] != "ok", f"outcome {row['outcome']}"),
        (row["trust"] not in _TRUSTED, f"trust {row['trust']}"),
        (row["seq_len"].startswith("~"), "samples of varying length"),
        (not row["mem_gib_2"], "no second counter"),
        ("not stated" in row["precision"], "precision not stated"),
        ("moe" in row["kernels"] or "padding-free" in row["kernels"], f"kernels {row['kernels']}"),
    )
    return next((reason for applies, reason in reasons if applies), "")


def _fms_case(row: Row, runs: int) -> Case:
    weights = "bf16" if row["precision"].startswith("bfloat16") else "fp16"
    flagged = "amp-flag" in row["precision"]
    gpus, kernels = int(row["n_gpus"]), row["kernels"]
    # FSDP's own mixed precision casts what it gathers, so nothing is left for autocast to cast.
    recipe = Recipe(
        network=f"hf/{_BASES.get(row['model_ref'], row['model_ref'])}",
        batch=int(row["batch_per_gpu"]),
        size=int(row["seq_len"]),
        weights=weights,
        autocast=weights if flagged else "",
        attention="flash",
        checkpointing="reentrant",
        lora_rank=int(float(row["lora_rank"] or 0)),
        lora_dropout=0.1 if row["lora_rank"] else 0.0,
        quantization=_QUANTIZATIONS[row["quant"]],
        upcast=kernels == "baseline-peft-bnb" and gpus == 1,
        kernels="liger" if "liger" in kernels else "fused" if _FUSED in kernels else "none",
        fused_activations=False,  # of Liger it takes the loss only
        # Nearly all of these runs had transformers 4.39 to 4.45. Llama's heads were never repeated.
        repeated_heads="Mistral" in row["model_ref"] or "Mixtral" in row["model_ref"],
        # GPTBigCode leaves its logits as they are, unless autocast asks for a loss in fp32.
        loss=Loss.SHIFTED_16_BITS if "bigcode" in row["model_ref"] and not flagged else Loss.SHIFTED_COPY,
        variant="separate experts" if "Mixtral" in row["model_ref"] else "",
    )
    plan = Plan(Scheme.FSDP, gpus, masters=flagged) if gpus > 1 else None
    name = f"{row['model']} {row['method']} {row['precision']} {kernels} "
    name += f"{gpus} x {row['batch_per_gpu']} x {row['seq_len']}"
    measured = {Counters.ALLOCATED: float(row["mem_gib_2"]), Counters.DEVICE: float(row["mem_gib"])}
    kind = row["method"] if row["method"] != "qlora" else _QUANTIZATIONS[row["quant"]].replace("int4", "gptq")
    return Case(name, recipe, _A100_80, "adamw", measured, plan=plan, kind=kind, runs=runs)


# GPTQ checkpoints are the same networks.
_BASES = {
    "TheBloke/Mistral-7B-v0.1-GPTQ": "mistralai/Mistral-7B-v0.1",
    "TheBloke/Mixtral-8x7B-Instruct-v0.1-GPTQ": "mistralai/Mixtral-8x7B-Instruct-v0.1",
    "TheBloke/Llama-2-70B-GPTQ": "NousResearch/Llama-2-70b-hf",
}

_ZERO_KEYS = (
    "model_ref", "n_gpus", "batch_per_gpu", "seq_len", "optimizer", "checkpointing", "kernels", "zero_stage",
)  # fmt: skip


def zero(data: Path) -> Cases:
    """Dense sweeps over length and batch. Few steps of each are enough."""
    found = Cases()
    rows: list[Row] = []
    for row in read_rows(data / "runs" / "gpjt_deepspeed_sweeps.csv"):
        found.rows += 1
        if row["outcome"] != "ok":
            found.left_out[f"outcome {row['outcome']}"] += 1
        elif int(row["seq_len"]) < _SHORTEST:
            found.left_out[f"fewer than {_SHORTEST} tokens"] += 1
        else:
            rows.append(row)
    thinned = _thin([row for row, _ in collapsed(rows, _ZERO_KEYS, ("mem_gib", "mem_gib_2"))])
    found.left_out["thinned out of a dense sweep"] += len(rows) - len(thinned)
    found.cases += [_zero_case(row) for row in thinned]
    return found


_SHORTEST = 64
_KEPT_PER_SWEEP = 6


def _thin(rows: list[Row]) -> list[Row]:
    sweeps: dict[tuple[str, ...], list[Row]] = {}
    for row in rows:
        key = tuple(row[name] for name in ("model_ref", "n_gpus", "optimizer", "checkpointing", "kernels"))
        sweeps.setdefault(key, []).append(row)
    kept = []
    for sweep in sweeps.values():
        sweep.sort(key=lambda row: int(row["batch_per_gpu"]) * int(row["seq_len"]))
        count = min(_KEPT_PER_SWEEP, len(sweep))
        kept += [sweep[(at * (len(sweep) - 1)) // max(1, count - 1)] for at in range(count)]
    return kept


def _zero_case(row: Row) -> Case:
    stage, offload = int(row["zero_stage"]), "offloaded" in row["optimizer"]
    recipe = Recipe(
        network=f"hf/{row['model_ref']}",
        batch=int(row["batch_per_gpu"]),
        size=int(row["seq_len"]),
        weights="fp16",
        checkpointing="reentrant" if row["checkpointing"] == "on" else "",
        kernels="liger" if row["kernels"] == "liger" else "none",
        loss=Loss.SHIFTED_COPY,
        variant="rotary caches" if "Qwen" in row["model_ref"] else "",
    )
    plan = Plan(Scheme.ZERO_3 if stage == 3 else Scheme.ZERO_2, int(row["n_gpus"]), masters=True, offload=offload)
    name = f"{row['model']} ZeRO-{stage}{' offload' if offload else ''} {row['kernels']} ckpt {row['checkpointing']} "
    name += f"{row['n_gpus']} x {row['batch_per_gpu']} x {row['seq_len']}"
    product = _A100_80 if "A100" in row["gpu"] else "NVIDIA-GeForce-RTX-3090"
    measured = {Counters.ACTIVE: float(row["mem_gib_2"]), Counters.RESERVED: float(row["mem_gib"])}
    return Case(
        name, recipe, product, "adamw", measured, fused=True, plan=plan,
        expandable_segments=row["kernels"] == "expandable_segments", kind=f"ZeRO-{stage}",
    )  # fmt: skip


def xmem(data: Path) -> Cases:
    found = Cases()
    for row in read_rows(data / "xmem.csv"):
        found.rows += 1
        if row["ground_oom"] != "0":
            found.left_out["out of memory"] += 1
            continue
        name = row["profile"]
        language = name.startswith("hf/")
        recipe = Recipe(
            network=name.split("@", maxsplit=1)[0],
            batch=int(row["batch"]),
            size=int(float(row["seq_len"])) if language else int(row["input_size"].split("x")[0]),
            loss=Loss.SHIFTED_COPY,
            attention="eager" if language else "sdpa",
            variant="outputs kept" if language else "",
        )
        measured = {Counters.DEVICE: float(row["ground_nvml_bytes"]) / 2**30}
        title = f"{name} {row['optimizer']} batch {row['batch']} on {row['gpu']}"
        kind = "language models" if language else "CNNs"
        late = row["zero_grad_position"] == "before_backward"
        case = Case(title, recipe, row["gpu"], row["optimizer"], measured, late_zero_grad=late, kind=kind)
        found.cases.append(case)
    return found
