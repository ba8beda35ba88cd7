"""What a recording says about a case, counter by counter. Without torch, as a forecast is made."""

from __future__ import annotations

from bench.recordings.cases import Case, Counters
from bench.recordings.loops import gradients_until_backward

from vramcast.forecast.accumulation import accumulated
from vramcast.forecast.peaks import AllocatorSettings, peaks
from vramcast.forecast.physics import context_part
from vramcast.forecast.rank_view import Scheme
from vramcast.forecast.sharding import shard
from vramcast.forecast.tape import Tape
from vramcast.forecast.update import with_update
from vramcast.hardware.products import PRODUCTS
from vramcast.names import Product
from vramcast.task.vocabulary import Optimizer

GIB = 1 << 30
MIB = 1 << 20
_CLOSE_ENOUGH = 16 * MIB


def context_bytes(product: str) -> int:
    """As the forecast has it. Nothing is added for cuDNN: what its kernels take differs from driver to driver."""
    return round(context_part(Product(product), cudnn=False, norms=False).size_bytes)


def capacity_bytes(product: str) -> int:
    """What the allocator may reserve on an otherwise empty GPU."""
    spec = PRODUCTS[product]
    return (spec.memory_mib - spec.reserve_mib - spec.context_mib) * MIB


def answered(case: Case, tape: Tape) -> dict[Counters, float]:
    """GiB for each counter that was measured."""
    prompt, ahead = _views(case, tape)
    settings = AllocatorSettings(capacity_bytes(case.product), case.expandable_segments)
    allocated = peaks(prompt, AllocatorSettings())
    reserved = allocated if ahead is prompt else peaks(ahead, AllocatorSettings())
    limited = peaks(ahead, settings) if reserved.reserved_bytes > capacity_bytes(case.product) else reserved
    if case.expandable_segments:
        limited = peaks(ahead, settings)
    found = {
        Counters.ALLOCATED: allocated.active_bytes,
        Counters.ACTIVE: reserved.active_bytes,
        Counters.RESERVED: limited.reserved_bytes,
        Counters.DEVICE: limited.reserved_bytes + (case.context_mib * MIB or context_bytes(case.product)),
    }
    return {counter: found[counter] / GIB for counter in case.measured_gib}


def room_bytes(case: Case) -> int:
    """What the allocator may reserve beside all that the device shows without it."""
    return (PRODUCTS[case.product].memory_mib - case.context_mib) * MIB


def needed_bytes(case: Case, tape: Tape) -> int:
    """The smallest room in which this batch runs: before the allocator fails, it frees what it caches."""
    steps = _views(case, tape)[1]
    found = peaks(steps, AllocatorSettings())
    fails, runs = found.active_bytes - 1, found.reserved_bytes
    while runs - fails > _CLOSE_ENOUGH:
        middle = (fails + runs) // 2
        if peaks(steps, AllocatorSettings(middle)).out_of_memory is None:
            runs = middle
        else:
            fails = middle
    return runs


def _views(case: Case, tape: Tape) -> tuple[Tape, Tape]:
    """The tape as `max_memory_allocated` counts, and with what the host's running ahead keeps busy."""
    if case.plan is None:
        tape = gradients_until_backward(tape) if case.late_zero_grad else tape
        # Gradients that are kept are added to, as those of a second batch.
        whole = _with_update(case, accumulated(tape, 2) if case.kept_gradients else tape)
        return whole, whole
    prompt = _with_update(case, shard(tape, case.plan))
    if case.plan.scheme is Scheme.DDP:
        return prompt, prompt
    return prompt, _with_update(case, shard(tape, case.plan, ahead=True))


def _with_update(case: Case, tape: Tape) -> Tape:
    if case.plan is not None and case.plan.offload:
        return tape
    sharded = case.plan is not None and case.plan.scheme is not Scheme.DDP
    wide = case.recipe.lora_rank or (case.plan is not None and case.plan.masters) or case.recipe.weights == "fp32"
    return with_update(
        tape, Optimizer(case.optimizer), element_bytes=4 if wide else 2, fused=case.fused, sharded=sharded
    )
