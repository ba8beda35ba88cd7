"""Data parallelism at serving time: one recording answers every scheme and number of GPUs.

`shard` rewrites a tape as one rank sees it. The tape is that of the precision in which the model computes (bf16 or
fp16 with `masters`, when the framework keeps fp32 copies of what it trains). An open UPDATE slot stays open:
`update.py` fills it afterwards. Weights that the optimizer does not step, such as ZeRO's 16-bit copies, get unit -1.
"""

from __future__ import annotations

from vramcast.forecast.fsdp import FsdpView
from vramcast.forecast.rank_view import Plan, RankView, Scheme
from vramcast.forecast.tape import Role, Tape
from vramcast.forecast.zero import ReplicatedZeroView, ShardedZeroView


def shard(tape: Tape, plan: Plan, *, ahead: bool = False) -> Tape:
    """`ahead`: with the memory that cannot be reused yet because the host runs ahead of the GPU.

    The reserved memory and `active_bytes` include it, `max_memory_allocated` does not.
    """
    if plan.scheme is Scheme.DDP:
        return DdpView(tape, ahead=ahead).rewritten() if plan.ranks > 1 else tape
    if plan.scheme in {Scheme.FSDP, Scheme.FSDP_GRADIENTS}:
        return FsdpView(tape, plan, ahead=ahead).rewritten()
    if plan.scheme is Scheme.ZERO_3:
        return ShardedZeroView(tape, plan, ahead=ahead).rewritten()
    return ReplicatedZeroView(tape, plan, ahead=ahead).rewritten()


_BUCKET_BYTES = 25 << 20
_FIRST_BUCKET_BYTES = 1 << 20


class DdpView(RankView):
    """DistributedDataParallel copies gradients into buckets of 25 MiB, last parameters first, and keeps the buckets."""

    def loaded(self) -> None:
        limit, filled = _FIRST_BUCKET_BYTES, 0
        weights = self.source.sizes[self.source.roles == Role.WEIGHT]
        for size in reversed(weights.tolist()):
            filled += size
            if filled >= limit:
                self.write.make(filled, Role.WORKSPACE)
                limit, filled = _BUCKET_BYTES, 0
        if filled:
            self.write.make(filled, Role.WORKSPACE)
