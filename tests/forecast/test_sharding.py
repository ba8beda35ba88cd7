"""One rank's view of a tape: what each framework keeps, gathers and reduces."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.forecast.steps import MIB, Model, at_mark, live_bytes, peak_bytes, recorded, stored_bytes
from vramcast.forecast.accumulation import accumulated
from vramcast.forecast.rank_view import GATHER, MAIN, Plan, Scheme
from vramcast.forecast.sharding import shard
from vramcast.forecast.tape import Moment, Role, Tape
from vramcast.forecast.update import with_update
from vramcast.task.vocabulary import Optimizer

MODEL = Model()
WEIGHTS = 2 * MODEL.root_bytes + MODEL.units * MODEL.unit_bytes
ADAPTED = Model(frozen=True, checkpointing=True)
SHARDED = (Scheme.FSDP, Scheme.FSDP_GRADIENTS, Scheme.ZERO_3)
# DeepSpeed's default bucket would dwarf this model.
SMALL_BUCKET = 4 * MIB


def plan(scheme: Scheme, ranks: int = 4, *, masters: bool = False, offload: bool = False) -> Plan:
    return Plan(scheme, ranks, masters=masters, offload=offload, bucket_elements=SMALL_BUCKET)


def test_ddp_keeps_buckets_as_large_as_all_gradients() -> None:
    alone, rank = recorded(MODEL), shard(recorded(MODEL), plan(Scheme.DDP))
    buckets = rank.sizes[rank.roles == Role.WORKSPACE]
    assert buckets.sum() == WEIGHTS
    assert peak_bytes(rank) == peak_bytes(alone) + WEIGHTS


def test_ddp_closes_a_bucket_once_it_has_25_mib_and_the_first_at_once() -> None:
    rank = shard(recorded(MODEL), plan(Scheme.DDP))
    buckets = rank.sizes[rank.roles == Role.WORKSPACE].tolist()
    assert buckets == [7 * MIB, 32 * MIB, 32 * MIB, 7 * MIB]


def test_ddp_on_one_gpu_changes_nothing() -> None:
    tape = recorded(MODEL)
    assert shard(tape, plan(Scheme.DDP, ranks=1)) is tape


@pytest.mark.parametrize("scheme", [Scheme.FSDP, Scheme.FSDP_GRADIENTS])
@pytest.mark.parametrize(("masters", "widened"), [(False, 1), (True, 2)])
def test_fsdp_stores_a_share_of_the_weights_and_fp32_copies_only_as_masters(
    scheme: Scheme, masters: bool, widened: int
) -> None:
    rank = shard(recorded(MODEL), plan(scheme, masters=masters))
    assert stored_bytes(rank, Role.WEIGHT) == widened * WEIGHTS // 4


def test_fsdp_shards_hold_the_original_parameters_that_the_optimizer_steps() -> None:
    rank = shard(recorded(MODEL), plan(Scheme.FSDP, ranks=1))
    assert sorted(rank.sizes[rank.roles == Role.WEIGHT].tolist()) == [7 * MIB] * 2 + [16 * MIB] * 4
    half = shard(recorded(MODEL), plan(Scheme.FSDP, ranks=2))
    assert sorted(half.sizes[half.roles == Role.WEIGHT].tolist()) == [7 * MIB] + [8 * MIB] * 4


def test_fsdp_widens_what_is_trained_and_not_what_is_frozen() -> None:
    rank = shard(recorded(ADAPTED), plan(Scheme.FSDP, masters=True))
    assert stored_bytes(rank, Role.FROZEN) == ADAPTED.units * ADAPTED.unit_bytes // 4
    assert stored_bytes(rank, Role.WEIGHT, unit=1) == 2 * ADAPTED.adapter_bytes // 4


def test_fsdp_frees_a_unit_behind_its_forward_and_keeps_the_root() -> None:
    rank = shard(recorded(MODEL), plan(Scheme.FSDP))
    gathered = (rank.streams == GATHER).nonzero()[0].tolist()
    freed = {~event: at for at, event in enumerate(rank.events.tolist()) if event < 0}
    first_backward = next(mark.event for mark in rank.marks if mark.moment is Moment.BACKWARD)
    first_update = next(mark.event for mark in rank.marks if mark.moment is Moment.UPDATE)
    root, *units = gathered[: 1 + MODEL.units]
    assert rank.sizes[root] == 2 * MODEL.root_bytes
    assert first_backward < freed[root] <= first_update
    assert all(freed[unit] <= first_backward for unit in units)


def test_fsdp_that_shards_gradients_only_keeps_units_from_forward_to_backward() -> None:
    full, gradients = (at_mark(shard(recorded(MODEL), plan(scheme)), Moment.BACKWARD) for scheme in SHARDED[:2])
    assert gradients - full == MODEL.units * MODEL.unit_bytes


def live_of(tape: Tape, size: int) -> Tape:
    """The tape with only the storages of this size."""
    return replace(tape, sizes=np.where(tape.sizes == size, size, 0))


def test_fsdp_gathers_the_next_unit_early_unless_checkpointing_hides_it() -> None:
    def most_gathered(model: Model) -> int:
        rank = shard(recorded(model), plan(Scheme.FSDP))
        gathered = replace(rank, sizes=np.where(rank.streams == GATHER, rank.sizes, 0))
        return peak_bytes(live_of(gathered, model.unit_bytes)) // model.unit_bytes

    assert most_gathered(MODEL) == 2
    assert most_gathered(replace(MODEL, checkpointing=True)) == 1


@pytest.mark.parametrize(("checkpointing", "kept"), [(True, 2), (False, 1)])
def test_fsdp_keeps_inputs_of_frozen_units_and_with_checkpointing_their_gradients(
    checkpointing: bool, kept: int
) -> None:
    model = replace(ADAPTED, checkpointing=checkpointing)
    alone, rank = recorded(model), shard(recorded(model), plan(Scheme.FSDP))
    before, held = (at_mark(live_of(tape, model.hidden_bytes), Moment.LEAVE_BACKWARD) for tape in (alone, rank))
    assert held - before == kept * (model.units - 1) * model.hidden_bytes
    assert at_mark(live_of(rank, model.hidden_bytes), Moment.UPDATE) == 0


def test_fsdp_ends_a_step_with_a_share_of_the_gradients() -> None:
    rank = shard(recorded(MODEL), plan(Scheme.FSDP))
    assert at_mark(rank, Moment.UPDATE) == 2 * WEIGHTS // 4


def test_fsdp_that_accumulates_keeps_whole_gradients_until_the_last_batch() -> None:
    tape = accumulated(recorded(replace(MODEL, steps=3)), 2)
    synced = shard(tape, plan(Scheme.FSDP))
    rank = shard(tape, replace(plan(Scheme.FSDP), unsynced=True))
    assert peak_bytes(rank) >= peak_bytes(synced) + WEIGHTS // 2
    assert at_mark(rank, Moment.UPDATE) == at_mark(synced, Moment.UPDATE) == 2 * WEIGHTS // 4


def test_fsdp_that_accumulates_drops_the_inputs_of_frozen_units_behind_each_batch() -> None:
    """`no_sync` keeps gradients whole; what hooks hold goes when a backward pass ends, as it always does."""
    tape = accumulated(recorded(replace(ADAPTED, steps=3)), 2)
    rank = shard(tape, replace(plan(Scheme.FSDP), unsynced=True))
    begin, end = [], []
    live = np.concatenate([[0], live_bytes(live_of(rank, ADAPTED.hidden_bytes))])
    for mark in rank.marks:
        if mark.moment is Moment.FORWARD:
            begin.append(int(live[mark.event]))
        elif mark.moment is Moment.UPDATE:
            end.append(int(live[mark.event]))
    held = (ADAPTED.units - 1) * ADAPTED.hidden_bytes
    once = shard(recorded(ADAPTED), plan(Scheme.FSDP))
    assert peak_bytes(live_of(rank, ADAPTED.hidden_bytes)) == peak_bytes(live_of(once, ADAPTED.hidden_bytes)) > held
    assert end == [0] * len(end)


def test_fsdp_in_host_memory_leaves_nothing_between_steps() -> None:
    rank = shard(recorded(MODEL), plan(Scheme.FSDP, offload=True))
    assert at_mark(rank, Moment.UPDATE) == 0


def test_zero_3_updates_with_22_bytes_for_each_weight_that_a_rank_owns() -> None:
    """16-bit weights and gradients, fp32 masters, and for the update one 16-bit and one fp32 copy of the gradients.

    `update.py` adds 8 bytes of states.
    """
    rank = shard(recorded(MODEL), plan(Scheme.ZERO_3))
    owned = WEIGHTS // 2 // 4
    update = [mark for mark in rank.marks if mark.moment is Moment.UPDATE][-1].event
    assert live_bytes(rank)[update - 3 : update].max() == (2 + 4 + 2 + 2 + 4) * owned + 2 * SMALL_BUCKET


def test_zero_3_without_checkpointing_holds_gathered_weights_that_it_released() -> None:
    large = replace(MODEL, unit_bytes=600_000_000)  # beyond the distance within which weights are kept
    plain, checkpointed = (
        at_mark(shard(recorded(model), plan(Scheme.ZERO_3)), Moment.BACKWARD)
        for model in (large, replace(large, checkpointing=True))
    )
    assert plain - checkpointed >= large.unit_bytes


@pytest.mark.parametrize("scheme", [Scheme.ZERO_1, Scheme.ZERO_2])
def test_zero_1_and_2_keep_all_16_bit_weights_that_the_optimizer_does_not_step(scheme: Scheme) -> None:
    rank = shard(recorded(MODEL), plan(scheme))
    assert stored_bytes(rank, Role.WEIGHT, unit=-1) == WEIGHTS
    assert stored_bytes(rank, Role.WEIGHT, unit=0) == 2 * WEIGHTS // 4


def test_zero_1_keeps_all_gradients_until_the_update_and_zero_2_its_own() -> None:
    first, second = (
        at_mark(shard(recorded(MODEL), plan(scheme)), Moment.LEAVE_BACKWARD)
        for scheme in (Scheme.ZERO_1, Scheme.ZERO_2)
    )
    assert first > second


def test_zero_2_offloaded_looks_for_infinities_in_the_largest_gradient() -> None:
    rank = shard(recorded(MODEL), plan(Scheme.ZERO_2, offload=True, ranks=1))
    largest = MODEL.unit_bytes // 2
    assert 11 * largest in rank.sizes.tolist()
    assert stored_bytes(rank, Role.WEIGHT, unit=0) == 0


@pytest.mark.parametrize("scheme", [Scheme.ZERO_2, *SHARDED])
@pytest.mark.parametrize("model", [MODEL, replace(MODEL, checkpointing=True), ADAPTED])
def test_more_ranks_never_need_more(scheme: Scheme, model: Model) -> None:
    needs = [peak_bytes(shard(recorded(model), plan(scheme, ranks=ranks))) for ranks in (1, 2, 4, 8)]
    assert needs == sorted(needs, reverse=True)


@pytest.mark.parametrize("scheme", list(Scheme))
@pytest.mark.parametrize("model", [MODEL, replace(MODEL, checkpointing=True), ADAPTED])
def test_running_ahead_needs_no_less_and_every_step_ends_as_the_one_before(scheme: Scheme, model: Model) -> None:
    tape = recorded(replace(model, steps=3))
    prompt, ahead = (shard(tape, plan(scheme), ahead=late) for late in (False, True))
    assert peak_bytes(ahead) >= peak_bytes(prompt)
    for rank in (prompt, ahead):
        assert at_mark(rank, Moment.UPDATE, -1) == at_mark(rank, Moment.UPDATE, -2)


@pytest.mark.parametrize("scheme", [Scheme.DDP, Scheme.ZERO_2])
def test_schemes_that_gather_nothing_stay_on_the_main_stream(scheme: Scheme) -> None:
    assert set(shard(recorded(MODEL), plan(scheme)).streams.tolist()) <= {MAIN}


@pytest.mark.parametrize(
    ("scheme", "masters", "bytes_per_weight"),
    [(Scheme.FSDP, False, 2), (Scheme.FSDP, True, 4), (Scheme.ZERO_1, True, 4), (Scheme.ZERO_3, True, 4)],
)
def test_the_optimizer_steps_what_a_rank_owns(scheme: Scheme, masters: bool, bytes_per_weight: int) -> None:
    rank = with_update(shard(recorded(MODEL), plan(scheme, masters=masters)), Optimizer.ADAMW, sharded=True)
    owned = WEIGHTS // 2 // 4
    assert stored_bytes(rank, Role.STATE) == 2 * bytes_per_weight * owned
