"""Which pods were on which GPU, and when, so that a sample can be attributed to them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace

from vramcast.hardware.vendors import SHARED_GPU
from vramcast.names import NodeName, PodUid
from vramcast.placement.promises import Promise


@dataclass(frozen=True, slots=True)
class Tenant:
    """One pod on one node, from `since` until it ended (seconds since the epoch)."""

    uid: PodUid
    pod: str  # namespace/name
    node: NodeName
    shared: bool
    count: int
    gpu_indices: tuple[int, ...]  # empty: unknown
    promised_mib: int | None  # None: undescribed
    since: float
    until: float | None = None


class Tenancy:
    """`lag_seconds`: how much older than its timestamp a value may be, and so how long an ended pod still shows."""

    def __init__(self, lag_seconds: float) -> None:
        self._lag_seconds = lag_seconds
        self._present: dict[PodUid, Tenant] = {}
        self._past: dict[NodeName, list[Tenant]] = {}

    def __len__(self) -> int:
        return len(self._present)

    def update(self, promises: Iterable[Promise], now: float, since: Callable[[Promise], float]) -> None:
        """Match the ledger: pods without a promise have left. `since` is called once per pod."""
        seen = {promise.uid: promise for promise in promises}
        for uid in self._present.keys() - seen.keys():
            self.leave(uid, now)
        for uid, promise in seen.items():
            known = self._present.get(uid)
            moved = known is None or known.node != promise.node
            self._present[uid] = tenant_of(promise, since(promise) if moved or known is None else known.since)

    def enter(self, tenant: Tenant) -> None:
        """Add a tenant whose start is known exactly."""
        self._present[tenant.uid] = tenant

    def leave(self, uid: PodUid, at: float) -> None:
        tenant = self._present.pop(uid, None)
        if tenant is not None:
            self._past.setdefault(tenant.node, []).append(replace(tenant, until=at))

    def forget_before(self, at: float) -> None:
        """Drop tenants that no later sample can concern."""
        for node, past in list(self._past.items()):
            kept = [tenant for tenant in past if tenant.until is None or tenant.until + self._lag_seconds >= at]
            if kept:
                self._past[node] = kept
            else:
                del self._past[node]

    def by_node(self) -> dict[NodeName, list[Tenant]]:
        """Present and recently gone tenants, for the samples of one poll."""
        found: dict[NodeName, list[Tenant]] = {node: list(past) for node, past in self._past.items()}
        for tenant in self._present.values():
            found.setdefault(tenant.node, []).append(tenant)
        return found

    def there(self, tenants: Iterable[Tenant], at: float) -> Iterator[Tenant]:
        """Those of the tenants that a sample of that time may show."""
        for tenant in tenants:
            if tenant.since <= at and (tenant.until is None or at <= tenant.until + self._lag_seconds):
                yield tenant


def tenant_of(promise: Promise, since: float) -> Tenant:
    return Tenant(
        promise.uid, promise.pod, promise.node, promise.resource == SHARED_GPU, promise.count, promise.gpu_indices,
        promise.need_mib, since,
    )  # fmt: skip
