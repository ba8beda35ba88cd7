"""The calibration of recorded forecasts: how measured runs miss their recordings, by kind of run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.train.test_runs import LORA as LORA_ROW
from tests.train.test_runs import write as write_runs
from vramcast.forecast.counters import Counter
from vramcast.forecast.recorded_bounds import UNCALIBRATED, Figure, Method, RecordedCalibration, RunKind
from vramcast.names import Product
from vramcast.task.task import Task
from vramcast.task.vocabulary import Level, Precision
from vramcast.train.progress import Progress
from vramcast.train.recorded import Miss, fit, fit_recorded
from vramcast.train.recorded_accuracy import accuracy
from vramcast.train.runs.reader import MeasuredRun, RunEnding

A100 = Product("NVIDIA-A100-SXM4-80GB")
RUN = MeasuredRun("table", "a", Task(Level.NAME, model="a"), A100, RunEnding.MEASURED, {Counter.DEVICE: 20.0})
LORA = RunKind(Method.LORA)
CELL = "device/fixed"  # the widest, which any number of networks fills
NARROW = "device/fixed/single/lora/plain"


def misses(by_network: dict[str, list[float]], kind: RunKind = LORA) -> list[Miss]:
    return [
        Miss(replace(RUN, network=network), kind, Figure.DEVICE, Counter.DEVICE, ratio)
        for network, ratios in by_network.items()
        for ratio in ratios
    ]


def drawn(networks: int, runs: int, *, between: float, within: float, seed: int = 0) -> dict[str, list[float]]:
    """Networks that miss by `between`, and their runs by `within` more."""
    random = np.random.default_rng(seed)
    own = random.normal(0.0, between, networks)
    return {f"n{at}": list(random.normal(own[at], within, runs)) for at in range(networks)}


def test_a_network_with_many_runs_counts_once() -> None:
    few = fit(misses({"a": [0.0], "b": [0.3]})).cells[CELL]
    many = fit(misses({"a": [0.0] * 500, "b": [0.3]})).cells[CELL]
    assert many.shift == pytest.approx(few.shift)
    assert many.beyond(0.05) == pytest.approx(few.beyond(0.05))


def test_one_network_hardly_shifts_the_bound_and_many_do() -> None:
    one = fit(misses({"a": [0.2]})).cells[CELL]
    assert 0 < one.shift < 0.1
    assert fit(misses({f"n{at}": [0.2] for at in range(40)})).cells[CELL].shift == pytest.approx(0.2, abs=0.03)


def test_more_networks_that_agree_tighten_the_bound() -> None:
    margins = [fit(misses({f"n{at}": [0.0] for at in range(count)})).cells[CELL].beyond(0.05) for count in (1, 4, 16)]
    assert margins == sorted(margins, reverse=True)
    assert margins[-1] < 0.75 * margins[0]  # what sources differ by stays


def test_less_risk_has_a_wider_bound() -> None:
    cell = fit(misses(drawn(5, 4, between=0.1, within=0.03))).cells[CELL]
    assert cell.beyond(0.5) < cell.beyond(0.1) < cell.beyond(0.05) < cell.beyond(0.01)


@pytest.mark.parametrize("networks", [3, 6, 20])
def test_the_stated_risk_is_kept_on_networks_that_were_not_measured(networks: int) -> None:
    """Over many draws, because three networks say little about the fourth."""
    covered = []
    for seed in range(60):
        everything = drawn(networks + 10, 6, between=0.12, within=0.04, seed=seed)
        known = dict(list(everything.items())[:networks])
        cell = fit(misses(known)).cells[CELL]
        unseen = [ratio for name, ratios in everything.items() if name not in known for ratio in ratios]
        covered += [ratio <= cell.beyond(0.05) for ratio in unseen]
    assert 0.92 <= np.mean(covered) <= 0.995


def test_a_narrow_cell_of_one_network_borrows_from_the_networks_of_wider_ones() -> None:
    """Its bound lies closer than if nothing else were known."""
    lonely = fit(misses({"a": [0.01]})).cells[NARROW]
    agreeing = misses({f"n{at}": [0.0] for at in range(12)}, RunKind(Method.FULL))
    borrowing = fit([*misses({"a": [0.01]}), *agreeing]).cells[NARROW]
    differing = misses(drawn(12, 2, between=0.2, within=0.01), RunKind(Method.FULL))
    wary = fit([*misses({"a": [0.01]}), *differing]).cells[NARROW]
    assert borrowing.beyond(0.05) < lonely.beyond(0.05) < wary.beyond(0.05)


def test_a_cell_without_runs_is_answered_by_the_wider_one() -> None:
    calibration = fit(misses({"a": [0.1], "b": [0.15]}))
    quantized = calibration.bounds(RunKind(Method.QUANTIZED, fused=True), A100)
    assert quantized.device == calibration.cells["device/fixed/single"]
    assert calibration.bounds(RunKind(sharded=True), A100).device == calibration.cells[CELL]
    assert calibration.bounds(RunKind(varies=True), A100).device is None


def test_a_network_that_two_sources_measured_counts_for_each() -> None:
    """They may agree on it and differ in what else they do."""
    one = misses({"a": [0.0], "b": [0.1]})
    other = [replace(miss, run=replace(miss.run, source="another")) for miss in misses({"a": [0.2]})]
    assert fit([*one, *other]).cells[CELL].shift > fit(one).cells[CELL].shift
    assert fit([*one, *other]).cells[CELL].networks == 2


def two_sources(apart: float, networks: int = 4) -> list[Miss]:
    random = np.random.default_rng(1)
    return [
        replace(miss, run=replace(miss.run, source=source))
        for source, middle in (("one", 0.0), ("other", apart), ("third", apart / 2))
        for miss in misses({f"n{at}": [middle + random.normal(0.0, 0.01)] for at in range(networks)})
    ]


def test_sources_that_differ_by_more_than_their_networks_widen_the_bound() -> None:
    """Beyond what they add to the spread, because one more source may be further off."""

    def margin(apart: float) -> float:
        cell = fit(two_sources(apart)).cells[CELL]
        return cell.beyond(0.05) - cell.shift

    assert margin(0.0) < margin(0.1) < margin(0.2)


def test_one_source_says_nothing_about_what_sources_differ_by() -> None:
    alike, unlike = (fit(misses(drawn(6, 3, between=spread, within=0.01))).cells[CELL] for spread in (0.0, 0.01))
    assert alike.beyond(0.05) > 0.1
    assert unlike.beyond(0.05) == pytest.approx(alike.beyond(0.05), abs=0.02)


def test_of_many_networks_the_bound_is_what_one_more_exceeds_at_the_stated_risk() -> None:
    images = RunKind(images=True)
    cell = fit(misses({f"n{at}": [0.01 * at] for at in range(100)}, images)).cells["device/images/full"]
    assert cell.beyond(0.05) == pytest.approx(0.95)
    assert cell.beyond(0.01) == pytest.approx(0.99)


def test_figures_that_are_no_peaks_are_judged_and_teach_nothing(tmp_path: Path) -> None:
    """PEFT's are percentiles of a run that empties its cache: of a run that does not, they say nothing."""
    peak = {**LORA_ROW, "mem_gib_2": "", "seq_len": "2048 cap", "mem_gib": "40"}
    percentile = {**peak, "mem_kind": "torch memory_reserved 99th pct during training"}
    write_runs(tmp_path, peak)
    taught = fit_recorded(tmp_path, Progress(quiet=True))
    write_runs(tmp_path, peak, {**percentile, "model": "Llama-3.2-3B", "model_ref": "meta-llama/Llama-3.2-3B"})
    judged = fit_recorded(tmp_path, Progress(quiet=True))
    assert judged["recorded"] == taught["recorded"]
    pools = {(e["unseen"], e["slice"]): e["held"]["rows"] for e in judged["recorded_accuracy"] if "held" in e}
    assert pools["network", "samples of varying length"] == 2
    assert pools["network", "samples of varying length, table on one GPU"] == 2


def test_rows_that_cannot_be_believed_teach_nothing(tmp_path: Path) -> None:
    good = {**LORA_ROW, "mem_gib_2": ""}
    write_runs(tmp_path, good)
    taught = fit_recorded(tmp_path, Progress(quiet=True))
    bad = ({"mem_gib": "24000"}, {"mem_raw": "24.0", "mem_unit": "MB"}, {"mem_gib": "90"}, {"seq_len": ""},
           {"model": "nobody", "model_ref": "nobody/knows"})  # fmt: skip
    write_runs(tmp_path, good, *({**good, "batch_per_gpu": "8", **change} for change in bad))
    assert fit_recorded(tmp_path, Progress(quiet=True)) == taught


LLAMA = MeasuredRun(
    "table", "hf/Llama-3.1-8B", Task(Level.NAME, model="hf/Llama-3.1-8B", batch_size=4, sequence_length=2048,
    precision=Precision.BF16, lora_rank=16), A100, RunEnding.MEASURED, {Counter.DEVICE: 60.0},
)  # fmt: skip


def test_accuracy_is_of_networks_that_the_calibration_has_not_seen() -> None:
    """What is asked for each network leaves out that network and nothing else."""
    asked: list[list[str]] = []
    runs = [LLAMA, replace(LLAMA, network="another", source="another")]

    def fit_others(left_out: Callable[[MeasuredRun], bool]) -> RecordedCalibration:
        asked.append([run.network for run in runs if left_out(run)])
        return UNCALIBRATED

    found = accuracy(runs, "network", lambda run: run.network, fit_others, Progress(quiet=True))
    assert asked == [["another"], ["hf/Llama-3.1-8B"]]
    slices = {entry["slice"]: entry for entry in found}
    assert {"all", "table", "another", "table/full/single/fixed"} <= slices.keys()
    assert (slices["all"]["unseen"], slices["all"]["rows"]) == ("network", 2)
    assert set(slices["all"]["counters"][Counter.DEVICE]["coverage"]) == {"0.1", "0.05", "0.01"}
