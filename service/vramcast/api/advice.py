"""What would have to change for a waiting pod to start. Each piece of advice is tried, not guessed."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

from vramcast.advice import search
from vramcast.advice.report import time_change, words
from vramcast.advice.search import Room
from vramcast.errors import InvalidTask
from vramcast.forecast.report import usable_mib
from vramcast.hardware.products import PRODUCTS
from vramcast.hardware.short_names import short_name
from vramcast.hardware.vendors import SHARED_GPU
from vramcast.names import Product
from vramcast.placement.promises import Demand, State
from vramcast.service import Service
from vramcast.task.pod import Ask, PodRecord
from vramcast.task.quantity import human_mib
from vramcast.task.task import Task
from vramcast.task.vocabulary import Level

# One after the other, with other calls in between; each takes about 0.1 ms.
_MOST_ENDINGS_TRIED = 400
_MOST_ENDINGS_SHOWN = 3
_MOST_PRODUCTS = 6
_MOST_SETTINGS = 2
_MOST_TRIED = 60
# How many GPUs the pod gets is settled: it has asked for them.
_FIXED = ("zero-stage", "data-parallel-size", "gpus")

Rooms = dict[Product, int]


@dataclass(frozen=True, slots=True)
class Suggestion:
    kind: str
    text: str
    detail: str = ""


async def advise(service: Service, pod: PodRecord, demand: Demand) -> list[dict[str, Any]]:
    """Empty if nothing that can be tried would help."""
    ledger = service.state.ledger
    if ledger.fits_somewhere(demand):
        return [asdict(Suggestion("fits", "It fits now. The scheduler will try it again within seconds."))]
    found = [*await _endings(service, demand), *_sharing(service, pod, demand)]
    if pod.task is not None and pod.task.level is not Level.GIVEN:
        rooms = _rooms(service, demand.ask)
        found += await service.workers.inspection(_smaller, service, pod.task, rooms)
    found += _products(service, demand)
    return [asdict(suggestion) for suggestion in found]


async def _endings(service: Service, demand: Demand) -> list[Suggestion]:
    """Pods whose end alone would make enough room."""
    ledger, found = service.state.ledger, []
    promises = [p for p in ledger.promises() if p.state is State.BOUND and p.resource == demand.ask.resource]
    for number, promise in enumerate(promises[:_MOST_ENDINGS_TRIED]):
        if number % 10 == 9:
            await asyncio.sleep(0)
        if ledger.promise_of(promise.uid) is None or promise.node not in ledger.nodes:
            continue
        if ledger.fits_after(demand, promise.node, {promise.uid}):
            need = human_mib(promise.need_mib) if promise.need_mib else "a device"
            found.append(Suggestion("wait", f"It fits when {promise.pod} ends.", f"{need} on {promise.node}"))
        if len(found) == _MOST_ENDINGS_SHOWN:
            break
    return found


def _sharing(service: Service, pod: PodRecord, demand: Demand) -> Iterator[Suggestion]:
    if demand.ask.resource == SHARED_GPU or pod.task is None:
        return
    shared = replace(demand, ask=Ask(SHARED_GPU, demand.ask.count))
    if service.state.ledger.fits_somewhere(shared):
        yield Suggestion("share", "It fits on a GPU that it shares with other pods.", 'vramcast.dev/share: "true"')


def _rooms(service: Service, ask: Ask) -> Rooms:
    """By product, the most that `count` GPUs of one node have free now."""
    ledger = service.state.ledger
    table = ledger.board.tables.get(ask.resource)
    if table is None:
        return {}
    best, rooms = table.best_rooms(ask.count), {}
    usable = table.offered & ~table.mixed
    if ask.resource != SHARED_GPU:
        usable &= table.free_devices >= ask.count
    for product, number in ledger.board.product_ids.items():
        room_mib = int(best[usable & (table.product_ids == number)].max(initial=0))
        if room_mib > 0:
            rooms[product] = room_mib
    return dict(sorted(rooms.items(), key=lambda item: -item[1])[:_MOST_PRODUCTS])


def _smaller(service: Service, task: Task, rooms: Rooms) -> list[Suggestion]:
    """On a worker: a smaller batch, or a setting that saves memory, that fits into what is free now."""
    found = []
    batch = _largest_batch(service, task, rooms)
    if batch is not None:
        value, product, need_mib = batch
        found.append(
            Suggestion("batch", f"It fits with batch-size {value}.", f"{human_mib(need_mib)} on {short_name(product)}")
        )
    for product, room_mib in list(rooms.items())[:1]:
        advice = search.advise(service.forecaster, task, Room(product, room_mib), _FIXED, (), _MOST_TRIED)
        for proposal in advice.proposals[:_MOST_SETTINGS]:
            needs = f"{human_mib(proposal.forecast.need_mib)} on {short_name(product)}"
            detail = f"{needs}, time per step {time_change(proposal)}"
            found.append(Suggestion("setting", f"It fits with {words(proposal)}.", detail))
    return found


def _largest_batch(service: Service, task: Task, rooms: Rooms) -> tuple[int, Product, int] | None:
    best: tuple[int, Product, int] | None = None
    low, high = 1, task.batch_size - 1
    while low <= high:
        middle = (low + high + 1) // 2
        fit = _fits(service, replace(task, batch_size=middle), rooms)
        if fit is None:
            high = middle - 1
        else:
            best, low = (middle, *fit), middle + 1
    return best


def _fits(service: Service, task: Task, rooms: Rooms) -> tuple[Product, int] | None:
    for product, room_mib in rooms.items():
        try:
            need_mib = service.forecaster.forecast(task, product).need_mib
        except InvalidTask:
            return None
        if need_mib <= room_mib:
            return product, need_mib
    return None


def _products(service: Service, demand: Demand) -> Iterator[Suggestion]:
    """A GPU that would hold it when empty: one of this cluster, or else the smallest that exists."""
    ledger = service.state.ledger
    sizes = {
        pool.product: max(pool.memory_mib) for node in ledger.nodes.values() for pool in node.pools if pool.memory_mib
    }
    large = [
        (size, product)
        for product, size in sizes.items()
        if demand.needs_mib.get(product, demand.largest_need_mib) <= size
    ]
    if large:
        _, product = min(large)
        names = ", ".join(short_name(name) for _, name in sorted(large)[:3])
        yield Suggestion("product", f"{_article(product)} would hold it, empty.", f"large enough here: {names}")
        return
    need_mib = demand.largest_need_mib
    known = [(size, name) for name in map(Product, PRODUCTS) if (size := usable_mib(name)) and size >= need_mib]
    if known:
        _, name = min(known)
        text = f"No GPU here is large enough. {_article(name)} would hold it."
        yield Suggestion("product", text, f"it needs {human_mib(need_mib)}")
    else:
        text = f"No known GPU has {human_mib(need_mib)}."
        yield Suggestion("product", text, "spread it over more GPUs, or use a smaller batch")


def _article(product: Product) -> str:
    """An L40S, a T4: by how the first letter is pronounced."""
    name = short_name(product)
    return f"{'An' if name[0] in 'AEFHILMNORSX' else 'A'} {name}"


def invalid(error: InvalidTask) -> list[dict[str, Any]]:
    return [asdict(Suggestion("annotation", "Correct the annotation.", str(each))) for each in error.errors]
