"""DeepSpeed's ZeRO, as one rank sees it, with its default buckets.

All stages train 16-bit weights by fp32 copies (masters) of which a rank owns 1/N.

Stages 1 and 2 keep all 16-bit weights in one flat buffer. Gradients move into a bucket of `bucket_elements`; a full
bucket is flattened once more to be reduced, and the rank's own part is kept. Stage 3 shards the weights too, and
gathers them up to a billion elements ahead. What it has released is still there during backward unless checkpointing
computes the layer again, because autograd keeps each gathered weight that a matrix product used.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, islice

import numpy as np

from vramcast.forecast.rank_view import GATHER, REDUCE, Plan, RankView, Scheme, share
from vramcast.forecast.tape import Mark, Moment, Role, Tape

_HALF, _SINGLE, _DOUBLE = 2, 4, 8  # bytes
# Looking for infinities makes two fp32 copies and three masks of a gradient.
_OVERFLOW_CHECK = 2 * _SINGLE + 3
_MAX_LIVE = 1_000_000_000  # elements: stage3_max_live_parameters and stage3_max_reuse_distance
_SUB_GROUP = 1_000_000_000  # elements that stage 3 updates at once
_REDUCTIONS = 2  # in flight before stage 3 waits
_ROOT = 0
# A member of an enum takes five times as long to look up as a name, and there are hundreds of marks.
_STEP, _FORWARD, _BACKWARD, _UPDATE = Moment.STEP, Moment.FORWARD, Moment.BACKWARD, Moment.UPDATE
_ENTER, _LEAVE, _ENTER_BACKWARD = Moment.ENTER, Moment.LEAVE, Moment.ENTER_BACKWARD
_TEMPORARY, _WORKSPACE = Role.TEMPORARY, Role.WORKSPACE


class _ZeroView(RankView):
    """What the stages share: masters, and gradients that move into a bucket."""

    def __init__(self, tape: Tape, plan: Plan, *, ahead: bool) -> None:
        super().__init__(tape, ahead=ahead)
        self.plan = plan
        self.roles[self.gradients] = Role.TEMPORARY
        self.units[self.gradients] = -1
        self.made_seen = self.gradients
        self.keeps_gradients = False  # they are freed when they are in the bucket
        self._elements_of = (tape.sizes // _HALF).tolist()
        trained = tape.sizes[tape.roles == Role.WEIGHT]
        self.elements = int(trained.sum()) // _HALF
        self.largest = int(trained.max(initial=0)) // _HALF
        self.owned = max(1, share(self.elements, plan.ranks))
        self.bucket: list[int] = []  # elements of the gradients in it
        self.filled = 0  # their sum
        self.waiting: list[int] = []  # gradients too large for the bucket

    def make_masters(self) -> None:
        if not self.plan.offload:
            self.write.make(_SINGLE * self.owned, Role.WEIGHT, _ROOT)

    def made(self, gradient: int) -> None:
        elements = self._elements_of[gradient]
        if self.filled and self.filled + elements > self.plan.bucket_elements:
            self.reduce()
        self.filled += elements
        self.bucket.append(elements)
        if elements > self.plan.bucket_elements:
            self.waiting.append(gradient)
        else:
            self.copied(gradient)

    def copied(self, gradient: int) -> None:
        """A gradient is in the bucket."""
        self.write.free(gradient)

    def reduce(self) -> None:
        raise NotImplementedError

    def temporary(self, size: int, stream: int = 0) -> None:
        self.write.free(self.write.make(size, Role.TEMPORARY, stream=stream))


class ReplicatedZeroView(_ZeroView):
    """Stages 1 and 2."""

    def __init__(self, tape: Tape, plan: Plan, *, ahead: bool) -> None:
        super().__init__(tape, plan, ahead=ahead)
        self._buffer: int | None = None  # of the bucket
        self._reduced = 0  # elements in this backward pass
        self._own: int | None = None  # the rank's own part of the gradients
        self._whole: list[int] = []  # stage 1 keeps all gradients until the update
        self.not_here = (Role.WEIGHT,)
        if plan.scheme is Scheme.ZERO_1:
            self.roles[self.gradients] = Role.GRADIENT

    def loaded(self) -> None:
        self.write.make(_HALF * self.elements, Role.WEIGHT)
        self.make_masters()
        if self.plan.offload:
            self.write.make(_HALF * self.largest, Role.WORKSPACE)
        else:
            self.temporary(_SINGLE * self.owned)  # gradients with which the states are made

    def made(self, gradient: int) -> None:
        if self.plan.scheme is Scheme.ZERO_1:
            self._whole.append(gradient)
        else:
            super().made(gradient)

    def at(self, mark: Mark) -> None:
        if mark.moment is Moment.UPDATE:
            self._before_update()
        super().at(mark)
        if mark.moment is Moment.BACKWARD:
            self._reduced = 0
            self._buffer = self.write.make(_HALF * self.plan.bucket_elements, Role.WORKSPACE)
        elif mark.moment is Moment.STEP:
            self._after_update()

    def reduce(self) -> None:
        """Gradients come last parameters first. This is the last rank, which owns those: it has the highest peak."""
        before, self._reduced = self._reduced, self._reduced + self.filled
        if before // self.owned != (self._reduced - 1) // self.owned:
            self.temporary(_HALF * self.filled)  # slices of two owners are concatenated
        if before < self.owned and self.plan.offload:
            # What the rank owns leaves for the host, after its norm and a look for infinities.
            for elements in self.bucket:
                self.temporary(_DOUBLE * elements)
                self._look_for_infinities(elements)
                self.temporary(_SINGLE * elements)
        elif self._own is None and not self.plan.offload:
            self._own = self.write.make(_HALF * self.owned, Role.GRADIENT)
        self.write.free_all(self.waiting)
        self.waiting.clear()
        self.bucket.clear()
        self.filled = 0

    def _look_for_infinities(self, elements: int) -> None:
        self.temporary(_OVERFLOW_CHECK * elements)

    def _before_update(self) -> None:
        if self.plan.scheme is Scheme.ZERO_1:
            self.filled = min(self.elements, self.plan.bucket_elements)
        if self.filled:
            self.reduce()
        if self._buffer is not None:
            self.write.free(self._buffer)
            self._buffer = None
        self.wait_for_gpu()
        if self._own is None:
            return
        self._look_for_infinities(min(self.largest, self.owned))
        flat = self.write.make(_HALF * self.owned, Role.TEMPORARY)
        widened = self.write.make(_SINGLE * self.owned, Role.GRADIENT)
        self.write.free_all((flat, self._own, *self._whole))
        self._whole.clear()
        self._own = widened

    def _after_update(self) -> None:
        if self._own is not None:
            self.write.free(self._own)
            self._own = None
        elif self.plan.offload:
            self.write.free_all(self._whole)
            self._whole.clear()


@dataclass(slots=True)
class _Part:
    """Weights that are gathered together: a unit, or the root's before and after the units."""

    sizes: list[int]
    elements: int = 0
    live: Sequence[int] | None = None  # gathered storages

    def __post_init__(self) -> None:
        self.elements = sum(self.sizes) // _HALF


class ShardedZeroView(_ZeroView):
    """Stage 3."""

    # Stage 3 waits for gathers, not for the computation that uses them, so the host runs ahead of it. How far depends
    # on the speed of both, and the code does not tell. On half of some published sweeps 8 and 12 were best (active
    # memory 1.4 and 1.2 % off, 2 gathers 3.5 %, 32 5.3 %); on the other half both are 1.7 % off.
    in_flight_limit = 8

    def __init__(self, tape: Tape, plan: Plan, *, ahead: bool) -> None:
        super().__init__(tape, plan, ahead=ahead)
        self.not_here = (Role.WEIGHT, Role.FROZEN)
        self._parts, self._order = _parts(tape)
        self._visits = [*self._order, *reversed(self._order)]  # parts in the order of use, for one step
        self._last_unit = max(self._parts)
        self._place = {name: at for at, name in enumerate(self._order)}
        self._elements_before = [0, *accumulate(self._parts[name].elements for name in self._visits)]
        self._live_elements = 0  # of the gathered parts
        self._now = -1
        self._reducing: deque[list[int]] = deque([[]])  # what each reduction in flight still reads
        self._widened: int | None = None  # the fp32 gradients of the update
        self._kept: dict[int, Sequence[int]] = {}  # part -> gathered weights that autograd still needs

    def loaded(self) -> None:
        total = sum(part.elements for part in self._parts.values())
        if not self.plan.offload:
            self.write.make(_HALF * share(total, self.plan.ranks), Role.WEIGHT)
        self.make_masters()
        self.write.make(_HALF * self.plan.bucket_elements, Role.WORKSPACE)
        if not self.plan.offload:
            self.write.make(_HALF * self.owned, Role.GRADIENT)

    def at(self, mark: Mark) -> None:
        _, moment, unit = mark
        if moment is _UPDATE:
            self._before_update()
        super().at(mark)
        if moment is _FORWARD:
            self._now = -1
            self._advance(self._order[0])
        elif moment is _BACKWARD:
            self._advance(self._order[-1])
        elif moment is _STEP:
            self._after_update()
        elif unit == _ROOT:
            return
        elif moment is _ENTER_BACKWARD or (moment is _ENTER and (self.phase is _FORWARD or self.checkpointed)):
            self._advance(unit)
        elif moment is _LEAVE:
            if unit == self._last_unit and self.phase is _FORWARD:
                self._advance(self._order[-1])
        elif unit in self._kept:
            self.write.free_all(self._kept.pop(unit))

    def _advance(self, part: int) -> None:
        """The next part is used: release what was used before, gather this one and prefetch."""
        here = self._now
        if here >= 0 and self._visits[here] == part:
            return
        upcoming = self._next_visit(part, here + 1)
        if upcoming is None:
            return
        for passed in dict.fromkeys(self._visits[max(0, here) : upcoming]):
            self._release_part(passed, upcoming)
        self._now = upcoming
        for name in islice(self._visits, upcoming, None):
            if name != part and self._live_elements >= _MAX_LIVE:
                break
            if self._parts[name].live is None:
                self._gather(name)

    def _next_visit(self, name: int, start: int) -> int | None:
        """Every part is visited twice: once on the way forward, once on the way back."""
        place = self._place.get(name)
        if place is None:
            return None
        back = len(self._visits) - 1 - place
        return place if place >= start else back if back >= start else None

    def _gather(self, name: int) -> None:
        self.in_flight()
        part = self._parts[name]
        self._live_elements += part.elements
        if self.plan.ranks == 1:  # the shard is the whole
            part.live = ()
            return
        count = len(part.sizes)
        first = self.write.make_all(part.sizes, _WORKSPACE, [max(_ROOT, name)] * count, GATHER)
        part.live = range(first, first + count)

    def _release_part(self, name: int, now: int) -> None:
        part = self._parts[name]
        if part.live is None:
            return
        again = self._next_visit(name, now)
        if again is not None and self._elements_before[again] - self._elements_before[now] < _MAX_LIVE:
            return
        if self.phase is _FORWARD and name > _ROOT and not self.checkpointed:
            self._kept[name] = part.live
        else:
            self.free_late(part.live)
        part.live = None
        self._live_elements -= part.elements

    def copied(self, gradient: int) -> None:
        """The stream that reduces has yet to read it."""
        if self.ahead:
            self._reducing[-1].append(gradient)
        else:
            self.write.free(gradient)

    def _wait_for_reductions(self, most: int) -> None:
        while len(self._reducing) > most:
            self.write.free_all(self._reducing.popleft())

    def reduce(self) -> None:
        self._wait_for_reductions(_REDUCTIONS)
        if len(self.bucket) > 1:  # one gradient alone is reduced where it is
            self.copied(self.write.make(_HALF * self.filled, _TEMPORARY, stream=REDUCE))
        self.bucket.clear()
        for number in self.waiting:
            self.copied(number)
        self.waiting.clear()
        self.filled = 0
        self._reducing.append([])

    def _before_update(self) -> None:
        if self.filled:
            self.reduce()
        self._wait_for_reductions(0)
        self._reducing.append([])
        for part in self._parts.values():
            self.free_late(part.live or ())
            part.live = None
        self._live_elements = 0
        self.wait_for_gpu()
        if not self.plan.offload:
            at_once = min(self.owned, _SUB_GROUP)
            flat = self.write.make(_HALF * at_once, Role.TEMPORARY)
            self._widened = self.write.make(_SINGLE * at_once, Role.GRADIENT)
            self.write.free(flat)

    def _after_update(self) -> None:
        if self._widened is not None:
            self.write.free(self._widened)
            self._widened = None


_BEFORE, _BEHIND = -1, 0  # the root's weights in front of the units and behind them


def _parts(tape: Tape) -> tuple[dict[int, _Part], list[int]]:
    """The weights by unit, and the order in which forward uses them."""
    stored = np.flatnonzero((tape.roles == Role.WEIGHT) | (tape.roles == Role.FROZEN))
    sizes: dict[int, list[int]] = {_BEFORE: []}
    in_units = False
    for storage in stored.tolist():
        unit = int(tape.units[storage])
        in_units = in_units or unit > _ROOT
        name = unit if unit > _ROOT else _BEHIND if in_units else _BEFORE
        sizes.setdefault(name, []).append(int(tape.sizes[storage]))
    sizes.setdefault(_BEHIND, [])
    units = sorted(unit for unit in sizes if unit > _ROOT)
    return {name: _Part(chosen) for name, chosen in sizes.items()}, [_BEFORE, *units, _BEHIND]
