"""How the bench of recordings reads measured runs, and sums up errors. Needs neither torch nor the measurements."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest
from bench.recordings.answers import MIB, needed_bytes, room_bytes
from bench.recordings.cases import Case, Counters, Loss, Recipe, collapsed
from bench.recordings.language import fms_fsdp, fms_fused, fms_plain, zero
from bench.recordings.loops import gradients_until_backward
from bench.recordings.slices import bias, distance, error, inside

from vramcast.forecast.rank_view import Plan, Scheme
from vramcast.forecast.tape import Mark, Moment, Role, Tape

_RUN = {
    "model": "Mistral-7B-v0.1", "model_ref": "mistralai/Mistral-7B-v0.1", "n_gpus": "1", "batch_per_gpu": "4",
    "grad_accum": "1", "seq_len": "4096", "precision": "bfloat16 pure", "method": "lora", "lora_rank": "16",
    "quant": "", "kernels": "none", "outcome": "ok", "trust": "high", "mem_gib": "27", "mem_gib_2": "24",
}  # fmt: skip


def write(folder: Path, name: str, rows: list[dict[str, str]]) -> Path:
    path = folder / "runs" / name
    path.parent.mkdir(exist_ok=True)
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, fieldnames=list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return folder


def runs(folder: Path, *changes: dict[str, str]) -> Path:
    return write(folder, "fms_acceleration.csv", [{**_RUN, **change} for change in changes])


def test_repeats_over_library_versions_count_once_with_their_median(tmp_path: Path) -> None:
    found = fms_plain(runs(tmp_path, {"mem_gib": "27"}, {"mem_gib": "28"}, {"mem_gib": "40"}))
    (case,) = found.cases
    assert case.runs == 3
    assert case.measured_gib == {Counters.ALLOCATED: 24.0, Counters.DEVICE: 28.0}


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"outcome": "oom"}, "outcome oom"),
        ({"trust": "low"}, "trust low"),
        ({"seq_len": "~277 mean"}, "samples of varying length"),
        ({"mem_gib_2": ""}, "no second counter"),
        ({"kernels": "aadp-padding-free"}, "kernels aadp-padding-free"),
    ],
)
def test_rows_that_cannot_be_compared_are_counted_by_reason(
    tmp_path: Path, change: dict[str, str], reason: str
) -> None:
    found = fms_plain(runs(tmp_path, {}, change))
    assert len(found.cases) == 1
    assert found.rows == 2
    assert found.left_out == {reason: 1}


def test_slices_of_the_same_table_do_not_overlap(tmp_path: Path) -> None:
    data = runs(tmp_path, {}, {"kernels": "foak-fast-kernels-liger"}, {"n_gpus": "2"})
    plain, fused, sharded = (read(data).cases for read in (fms_plain, fms_fused, fms_fsdp))
    assert [case.recipe.kernels for case in (*plain, *fused, *sharded)] == ["none", "liger", "none"]


def test_a_row_s_settings_reach_its_recording(tmp_path: Path) -> None:
    change = {"precision": "bfloat16+bf16-amp-flag", "quant": "bnb-nf4", "kernels": "baseline-peft-bnb"}
    (case,) = fms_plain(runs(tmp_path, change)).cases
    recipe = case.recipe
    assert (recipe.weights, recipe.autocast, recipe.quantization, recipe.upcast) == ("bf16", "bf16", "nf4", True)
    assert (recipe.lora_rank, recipe.lora_dropout, recipe.loss) == (16, 0.1, Loss.SHIFTED_COPY)


def test_only_the_amp_flag_means_fp32_masters_under_fsdp(tmp_path: Path) -> None:
    data = runs(tmp_path, {"n_gpus": "2"}, {"n_gpus": "2", "precision": "bfloat16+bf16-amp-flag"})
    pure, flagged = (case.plan for case in fms_fsdp(data).cases)
    assert pure == Plan(Scheme.FSDP, 2)
    assert flagged == Plan(Scheme.FSDP, 2, masters=True)


def test_dense_sweeps_are_thinned_and_their_ends_kept(tmp_path: Path) -> None:
    row = {
        "model": "Qwen1.5-0.5B", "model_ref": "Qwen/Qwen1.5-0.5B", "gpu": "NVIDIA RTX 3090 24GB", "n_gpus": "1",
        "batch_per_gpu": "1", "optimizer": "AdamW (DeepSpeed FusedAdam)", "checkpointing": "off", "kernels": "",
        "zero_stage": "3", "outcome": "ok", "mem_gib": "13", "mem_gib_2": "11",
    }  # fmt: skip
    rows = [{**row, "seq_len": str(length)} for length in range(8, 2049, 8)]
    found = zero(write(tmp_path, "gpjt_deepspeed_sweeps.csv", rows))
    lengths = [case.recipe.size for case in found.cases]
    assert (lengths[0], lengths[-1], len(lengths)) == (64, 2048, 6)
    assert sum(found.left_out.values()) + len(found.cases) == found.rows == len(rows)


def test_a_figure_that_is_missing_stays_missing() -> None:
    rows = [{"key": "a", "figure": "1"}, {"key": "a", "figure": ""}, {"key": "b", "figure": ""}]
    assert [(row["figure"], runs) for row, runs in collapsed(rows, ("key",), ("figure",))] == [("1.0", 2), ("", 1)]


def test_errors_have_no_sign_and_biases_have_one() -> None:
    assert error([0.9, 1.2, 1.0]) == "10.0 %"
    assert bias([0.9, 0.95, 1.2]) == "-5.0 %"


@pytest.mark.parametrize(("fits", "fails", "side"), [(1.0, 3.0, 0), (2.5, 3.0, 1), (1.0, 1.5, -1)])
def test_a_limit_between_two_batches_is_inside_their_interval(fits: float, fails: float, side: int) -> None:
    far = distance(fits, fails, 2.0)
    assert (far > 0) - (far < 0) == side


def test_intervals_are_summed_up_by_share_and_mean_distance() -> None:
    assert inside([0.0, 0.0, 0.0, -0.4]) == "75 %; 0.1000"


def test_a_batch_needs_the_smallest_room_in_which_it_runs() -> None:
    """The first tensor is freed, and then the allocator gives its block back for the second one."""
    marks = (Mark(0, Moment.STEP), Mark(3, Moment.UPDATE), Mark(4, Moment.END))
    sizes, roles = np.array([200 * MIB, 300 * MIB]), np.array([Role.TEMPORARY] * 2, np.uint8)
    tape = Tape(sizes, roles, np.array([-1, -1], np.int16), np.array([0, ~0, 1, ~1], np.int32), marks)
    case = Case("", Recipe("timm/any", 1, 224), "NVIDIA-GeForce-RTX-3090", "sgd", {}, context_mib=2100)
    assert 300 * MIB <= needed_bytes(case, tape) < 320 * MIB
    assert room_bytes(case) == (24576 - 2100) * MIB


def test_fused_kernels_of_fms_take_only_the_loss_of_liger_and_old_libraries_repeated_heads(tmp_path: Path) -> None:
    kernels = {"kernels": "foak-fast-kernels-liger"}
    mistral, llama = fms_fused(runs(tmp_path, kernels, {**kernels, "model_ref": "NousResearch/Llama-2-70b-hf"})).cases
    assert not mistral.recipe.fused_activations
    assert mistral.recipe.repeated_heads
    assert not llama.recipe.repeated_heads


def test_gradients_that_a_loop_drops_late_are_there_during_forward() -> None:
    """Two steps of a weight with one activation. The second step frees the gradient of the first."""
    roles = [Role.WEIGHT, Role.SAVED, Role.GRADIENT, Role.SAVED, Role.GRADIENT]
    marks = [
        Mark(1, Moment.STEP), Mark(1, Moment.FORWARD), Mark(2, Moment.BACKWARD), Mark(4, Moment.UPDATE),
        Mark(4, Moment.STEP), Mark(5, Moment.FORWARD), Mark(6, Moment.BACKWARD), Mark(8, Moment.END),
    ]  # fmt: skip
    events = [0, 1, 2, ~1, ~2, 3, 4, ~3]
    tape = Tape(
        np.full(5, 8), np.array(roles, np.uint8), np.full(5, -1, np.int16), np.array(events, np.int32), tuple(marks)
    )
    late = gradients_until_backward(tape)
    assert late.events.tolist() == [0, 1, 2, ~1, 3, ~2, 4, ~3]
    assert [mark.event for mark in late.marks] == [1, 1, 2, 4, 4, 4, 6, 8]
