"""The simulated cluster, on made-up measurements."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from zlib import crc32

import pytest
from bench.cluster.__main__ import LOADS, Row
from bench.cluster.jobs import Job, Kind, Measured, Trace, draw_jobs, read_measured, read_trace, with_kinds
from bench.cluster.policies import GPU_MIB, Policy, gpumemnet, human, oracle, ours, policies, whole
from bench.cluster.report import (
    CHOOSING,
    CURVE_POLICIES,
    VARIED,
    VARIED_ORACLE,
    WHOLE,
    Curve,
    Table,
    by_rule,
    choice,
    page,
)
from bench.cluster.simulate import PEAK_SECONDS, TEAMS, Simulation, Tally

from vramcast.forecast.forecaster import PhysicsForecaster

SMALL = Kind("ResNet18", "CIFAR-10", 32, False, 6_000, 0.5, 0.2)
LARGE = Kind("ResNet50", "ImageNet", 64, False, 20_000, 1.0, 0.8)
# A small job beside a small one takes 1.5 times as long.
MEASURED = Measured((SMALL, LARGE), ((1.5, 1.2), (1.1, 2.0)))
HOUR = 3600.0


def simulate(policy: Policy, *jobs: Job, gpus: int = 8) -> Tally:
    return Simulation(MEASURED, policy, PhysicsForecaster(0.05), gpus).run(jobs)


def test_whole_gpus_slow_nothing_and_jobs_wait_for_one() -> None:
    jobs = [Job(f"job-{number}", 0, 0.0, HOUR) for number in range(9)]
    tally = simulate(Policy("whole", whole), *jobs)
    assert tally.slowdowns == pytest.approx([1.0] * 9)
    assert sorted(tally.waits) == pytest.approx([0.0] * 8 + [HOUR])
    assert (tally.gpu_seconds, tally.makespan) == pytest.approx((9 * HOUR, 2 * HOUR))


def test_jobs_on_one_gpu_take_as_long_as_measured() -> None:
    """Both run at two thirds of their speed until the short one ends; then the other goes on alone."""
    tally = simulate(Policy("pack", oracle), Job("long", 0, 0.0, 2 * HOUR), Job("short", 0, 0.0, HOUR))
    assert sorted(tally.times) == pytest.approx([1.5 * HOUR, 2.5 * HOUR])
    assert tally.gpu_seconds == pytest.approx(2.5 * HOUR)


def test_the_oracle_prefers_an_empty_gpu_to_one_where_jobs_harm_each_other() -> None:
    tally = simulate(Policy("oracle", oracle, harmless_loss=0.4), Job("a", 0, 0.0, HOUR), Job("b", 0, 0.0, HOUR))
    assert tally.slowdowns == pytest.approx([1.0, 1.0])


def test_memory_that_really_runs_out_kills_the_later_job_which_comes_again_and_ends() -> None:
    def too_little(kind: Kind, deaths: int, name: str) -> dict[str, str]:
        return human(1.0, 0.0)(replace(kind, memory_mib=GPU_MIB if deaths else 3_000), 0, name)

    jobs = [Job("first", 1, 0.0, HOUR), Job("second", 1, 1.0, HOUR)]
    tally = simulate(Policy("too little", too_little), *jobs)
    assert (tally.ooms, tally.jobs_with_oom) == (1, {"second"})
    assert tally.lost_seconds == pytest.approx(PEAK_SECONDS)
    assert len(tally.times) == 2


@pytest.mark.parametrize("sees_memory", [True, False])
def test_what_a_job_alone_on_its_gpu_showed_decides_where_the_next_ones_of_its_kind_go(sees_memory: bool) -> None:
    """It keeps the GPU busy and hardly touches its memory. Where only the first is seen, it seems to harm others."""
    calm = Measured((replace(SMALL, busy=1.0, traffic=0.01),), ((1.0,),))
    policy = replace(ours("0.05, learned", 0.05, limit=1.1), sees_memory=sees_memory)
    simulation = Simulation(calm, policy, PhysicsForecaster(0.05), 8)
    names = [f"job-{number}" for number in range(99)]
    first, *later = [name for name in names if crc32(name.encode()) % TEAMS == 0][:3]  # of one team
    simulation.run([Job(first, 0, 0.0, HOUR)])
    tally = simulation.run([Job(name, 0, 0.0, HOUR) for name in later])
    assert tally.gpu_seconds == pytest.approx(HOUR if sees_memory else 2 * HOUR)


def test_every_policy_ends_every_job_and_the_same_seed_gives_the_same_result() -> None:
    jobs = [Job(f"job-{number}", number % 2, 60.0 * number, HOUR) for number in range(30)]
    for policy in policies():
        one, two = (simulate(policy, *jobs) for _ in range(2))
        assert len(one.times) == 30, policy.name
        assert one == two


def test_a_second_run_keeps_what_was_learned() -> None:
    ours = next(policy for policy in policies() if policy.name == "vramcast 0.05, cold")
    simulation = Simulation(MEASURED, ours, PhysicsForecaster(0.05), 8)
    first = simulation.run([Job(f"first-{number}", 0, 7200.0 * number, HOUR) for number in range(40)])
    again = simulation.run([Job(f"again-{number}", 0, 7200.0 * number, HOUR) for number in range(40)])
    error = [abs(tally.promised_mib_seconds / tally.used_mib_seconds - 1) for tally in (first, again)]
    assert error[1] < error[0]
    assert again.makespan == pytest.approx(first.makespan)


def test_a_class_of_gpumemnet_is_its_upper_edge() -> None:
    assert gpumemnet(SMALL, 0, "job")["vramcast.dev/gpu-memory"] == "8192Mi"
    assert gpumemnet(SMALL, 1, "job")["vramcast.dev/gpu-memory"] == "16384Mi"


def test_arrivals_bring_the_load_that_was_asked_for() -> None:
    trace = Trace((HOUR, 3 * HOUR), ((0,), (1,)), (1.0, 2.0, 30.0))
    jobs = draw_jobs(trace, "gavel", 500, 8, 0.5, 3)
    assert sum(job.seconds for job in jobs) / (8 * jobs[-1].arrives) == pytest.approx(0.5)
    assert {job.kind for job in jobs} == {0, 1}
    others = with_kinds(draw_jobs(trace, "lucid", 500, 8, 0.5, 3), 5, 3)
    assert {job.kind for job in others} == set(range(5))


def test_measurements_are_read_and_pairs_without_one_are_filled(tmp_path: Path) -> None:
    (tmp_path / "lucid_alone.csv").write_text(
        "model,dataset,batchsize,amp,speed,gpu_util,gmem_util,gmem,label\n"
        "PPO,LunarLander,32,0,5,12,0,2051.0,0\nResNet50,ImageNet,64,0,5,100,80,8570.0,2\n"
    )
    columns = ["model", "dataset", "gpu_num", "batchsize", "amp", "speed"]
    header = ",".join(f"{name}{side}" for side in (1, 2) for name in columns)
    (tmp_path / "lucid_pairs.csv").write_text(
        f"{header}\nPPO,LunarLander,1,32,0,0.8,ResNet50,ImageNet,1,64,0,0.5\n"
        "PPO,LunarLander,1,32,0,1.25,PPO,LunarLander,1,32,0,0.5\n"
    )
    measured = read_measured(tmp_path)
    assert measured.slowdowns[0][1] == pytest.approx(1.25)
    assert measured.slowdowns[1][0] == pytest.approx(2.0)
    assert measured.slowdowns[0][0] == pytest.approx(1.5)  # of a job that was "faster than alone", and one that was not
    assert measured.slowdowns[1][1] == 1.0
    assert measured.slowdown(0, [1, 1]) == pytest.approx(1.5)
    (tmp_path / "gavel_jobs.csv").write_text(
        "trace,job_type,batch_size,gpus,steps,arrival_seconds\nt,ResNet-50,32,1,7200,0\nt,A3C,,1,36000,60\nt,A3C,,2,1,70\n"
    )
    pairs = tmp_path / "gavel.csv"
    pairs.write_text(
        "gpu,jobA,tputA_iso\nv100,\"('ResNet-50 (batch size 32)', 1)\",2.0\nv100,\"('A3C', 1)\",10.0\n"
        "k80,\"('A3C', 1)\",1.0\n"
    )
    trace = read_trace(tmp_path, pairs, measured.kinds)
    assert trace.seconds == (3600.0, 3600.0)
    assert trace.alike == ((1,), (0,))


def row(mix: str, policy: str, seed: int, harmless: float = 1.5, gpu_hours: float = 60.0, hours: float = 1.0) -> Row:
    gpu_hours = (100.0 if policy == "whole GPUs" else gpu_hours) + seed % CHOOSING
    return Row(mix, policy, seed, harmless, gpu_hours, 9.0, hours, 2.0, 0.1, 1.1, 0.2, 0.0, 0.0, 0.0, 1.2, 3000.0)


def varied(seed: int, guess_hours: float = 1.25) -> list[Row]:
    """A limit of 2 saves more GPU-hours, and jobs take half as long again."""
    found = []
    for mix in ("gavel", "lucid"):
        for name in (VARIED, VARIED_ORACLE):
            found += [row(mix, name, seed, *values) for values in ((1.0, 80.0, 1.0), (2.0, 60.0, 1.5))]
        found += [row(mix, name, seed, gpu_hours=100.0, hours=guess_hours) for name in CURVE_POLICIES[1:]]
        found.append(row(mix, CURVE_POLICIES[0], seed))
    return found


def test_the_page_has_every_policy_and_what_it_changed() -> None:
    names = [policy.name for policy in policies()]
    table = Table([row(mix, name, seed) for mix in LOADS for name in names for seed in (0, 1)])
    rows = [*varied(CHOOSING), *varied(CHOOSING + 1)]
    text = page(table, Curve(rows), Curve(rows, VARIED_ORACLE), 2, 400, 32)
    assert all(f"| {name} | -40 % (-40 to -40) |" in text for name in names if name != "whole GPUs")
    assert "| whole GPUs | +0 % (+0 to +0) |" in text


def test_a_guess_is_compared_where_jobs_are_as_fast_as_with_it() -> None:
    limit, ratios = Curve(varied(CHOOSING)).as_fast_as("gavel", CURVE_POLICIES[1])
    assert limit == pytest.approx(1.5)
    assert ratios == [pytest.approx(0.7)]


def test_the_default_is_chosen_by_what_it_saves_and_costs_on_other_jobs() -> None:
    assert "| 2 | -40.0 %, +50.0 ± 0.0 % | -40.0 %, +50.0 ± 0.0 % |" in choice(Curve(varied(CHOOSING)))


@pytest.mark.parametrize(("hours", "chosen"), [((0.9, 0.95), 2.0), ((0.9, 1.05), 1.0), ((1.01, 1.2), None)])
def test_the_rule_takes_the_value_that_saves_most_while_jobs_end_no_later(
    hours: tuple[float, float], chosen: float | None
) -> None:
    rows = [row(mix, WHOLE, CHOOSING) for mix in ("gavel", "lucid")]
    rows += [row(mix, VARIED, CHOOSING, limit, 100 - 20 * limit, time) for mix in ("gavel", "lucid")
             for limit, time in zip((1.0, 2.0), hours, strict=True)]  # fmt: skip
    assert by_rule(Curve(rows)) == chosen


def test_the_rule_leaves_a_margin_of_a_standard_error() -> None:
    """1 % sooner on average, and once 5 % later."""
    times = (0.97, 0.95, 1.05)
    rows = [row(mix, WHOLE, CHOOSING + seed) for mix in ("gavel", "lucid") for seed in range(3)]
    rows += [row(mix, VARIED, CHOOSING + seed, 1.5, hours=time) for mix in ("gavel", "lucid")
             for seed, time in enumerate(times)]  # fmt: skip
    assert by_rule(Curve(rows)) is None
