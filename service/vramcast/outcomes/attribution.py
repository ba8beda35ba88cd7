"""Whose memory is it? Divides one node's readings of one moment among its pods and unmanaged memory.

Four kinds of telemetry, best first:

    the agent's                 a value for every pod that uses the GPU; a pod without one uses nothing
    a value for every pod       the rest is unmanaged memory
    a value for every GPU,      if one pod has the GPU to itself, the value is its own, minus what was there before it;
      with or without a pod       several pods cannot be told apart, and only their promises are known
    nothing                     promises alone count

Whatever is uncertain counts as unmanaged memory, never as free room. So does what a pod uses beyond its promise: a pod
that outgrew its promise counts at what it uses.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from vramcast.names import PodUid
from vramcast.outcomes.outcome import Truth
from vramcast.outcomes.readings import Device, PodValues, Reading
from vramcast.outcomes.tenancy import Tenant
from vramcast.placement.gpus import NodeGpus

# The context of every process on a GPU takes more than this.
LEAST_USED_MIB = 64


@dataclass(slots=True)
class Division:
    """`unmanaged_mib`: by GPU index on a sharing node; where the kubelet picks, of every device that it might pick."""

    unmanaged_mib: tuple[int, ...] = ()
    observed_mib: dict[PodUid, int] = field(default_factory=dict)  # on the pod's fullest GPU
    devices: dict[PodUid, Device] = field(default_factory=dict)  # that GPU
    truths: dict[PodUid, Truth] = field(default_factory=dict)  # where its memory there is known from
    unclear: set[PodUid] = field(default_factory=set)
    total_mib: dict[Device, int] = field(default_factory=dict)
    shared: set[Device] = field(default_factory=set)  # several of vramcast's pods use it
    vacant: set[Device] = field(default_factory=set)  # without a pod of vramcast's


@dataclass(frozen=True, slots=True)
class _Seen:
    """One device at one moment: the largest value without a known pod, and those with one."""

    nameless_mib: int | None
    by_tenant: Mapping[PodUid, int]
    told_apart: bool = False

    @property
    def total_mib(self) -> int:
        return max([self.nameless_mib or 0, *self.by_tenant.values()])


@dataclass(frozen=True, slots=True)
class _Moment:
    at: float
    before_mib: Mapping[Device, int]
    pod_values: PodValues
    division: Division


def divide(
    node: NodeGpus,
    readings: Iterable[Reading],
    tenants: Sequence[Tenant],
    at: float,
    before_mib: Mapping[Device, int],
    pod_values: PodValues = PodValues.AUTO,
) -> Division:
    """`tenants`: pods that may show at that time. `before_mib`: what was on each device while it had no tenant."""
    seen = _by_device(readings, tenants)
    moment = _Moment(at, before_mib, pod_values, Division())
    moment.division.total_mib.update((device, values.total_mib) for device, values in seen.items())
    if node.sharing:
        _divide_shared(node, seen, tenants, moment)
    else:
        _divide_kubelet(node, seen, tenants, moment)
    return moment.division


def _by_device(readings: Iterable[Reading], tenants: Sequence[Tenant]) -> dict[Device, _Seen]:
    known = {name: tenant.uid for tenant in tenants for name in (tenant.pod, tenant.uid)}
    nameless: dict[Device, int] = {}
    named: dict[Device, dict[PodUid, int]] = {}
    readings = list(readings)
    told_apart = {reading.device for reading in readings if reading.told_apart}
    for reading in readings:
        if reading.device in told_apart and not reading.told_apart:
            continue
        mib, uid = round(reading.value), known.get(reading.pod)
        if uid is None:
            nameless[reading.device] = max(mib, nameless.get(reading.device, 0))
        else:
            of_device = named.setdefault(reading.device, {})
            of_device[uid] = max(mib, of_device.get(uid, 0))
    sliced = {device.index for device in {*nameless, *named} if device.mig}
    # The value of a GPU that is cut into slices repeats the memory of its slices.
    return {
        device: _Seen(nameless.get(device), named.get(device, {}), device in told_apart)
        for device in sorted({*nameless, *named})
        if device.mig or device.index not in sliced
    }


def _divide_shared(node: NodeGpus, seen: Mapping[Device, _Seen], tenants: Sequence[Tenant], moment: _Moment) -> None:
    count = node.pools[0].count if node.pools else 0
    unmanaged = [0] * count
    for device, values in seen.items():
        if device.index < count:
            there = [t for t in tenants if not t.gpu_indices or device.index in t.gpu_indices]
            unmanaged[device.index] = _share_out(device, values, there, moment)
            moment.division.vacant.update(() if there else (device,))
    moment.division.unmanaged_mib = tuple(unmanaged)


def _divide_kubelet(node: NodeGpus, seen: Mapping[Device, _Seen], tenants: Sequence[Tenant], moment: _Moment) -> None:
    """Telemetry may name the pods on a device. A pod without a name in it sits on one of the unnamed devices."""
    placed = {uid for values in seen.values() for uid in values.by_tenant}
    nameless = [device for device, values in seen.items() if not values.by_tenant]
    lost = [tenant for tenant in tenants if tenant.uid not in placed]
    there = {device: [t for t in tenants if t.uid in values.by_tenant] for device, values in seen.items()}
    if len(seen) == len(nameless) == len(lost) == 1:
        # One GPU and one pod need no name.
        there[nameless[0]], nameless, lost = lost, [], []
    sliced = any(pool.replicas > 1 for pool in node.pools)
    unmanaged = _unmanaged_among(nameless, seen, lost)
    for device, here in there.items():
        if here:
            left = _share_out(device, seen[device], here, moment)
            # The device plugin gives a pod's whole GPU to nobody else, so unmanaged memory there does not matter.
            unmanaged.append(left if sliced else 0)
    moment.division.unclear.update(tenant.uid for tenant in lost if nameless)
    moment.division.vacant.update(() if lost else nameless)
    moment.division.unmanaged_mib = tuple(unmanaged)


def _unmanaged_among(nameless: Sequence[Device], seen: Mapping[Device, _Seen], lost: Iterable[Tenant]) -> list[int]:
    """Assume that unnamed pods sit on the fullest devices, the largest promise first."""
    used = sorted((seen[device].total_mib for device in nameless), reverse=True)
    promises = sorted(
        (promise for t in lost for promise in [t.promised_mib] * t.count),
        key=lambda promise: -1 if promise is None else -promise,
    )
    # An undescribed pod has its GPU to itself and may use all of it.
    taken = [mib if promise is None else promise for mib, promise in zip(used, promises, strict=False)]
    return [max(0, mib - (taken[place] if place < len(taken) else 0)) for place, mib in enumerate(used)]


def _share_out(device: Device, values: _Seen, there: Sequence[Tenant], moment: _Moment) -> int:
    """Returns the unmanaged memory of one device, and adds what is known about its pods to the division."""
    if _are_their_own(values, moment.pod_values):
        return _share_out_by_name(device, values, there, moment)
    total, before_mib = values.total_mib, min(moment.before_mib.get(device, 0), values.total_mib)
    if not there:
        return total
    if len(there) == 1:
        truth = Truth.POD_LABEL if there[0].uid in values.by_tenant else Truth.ALONE
        _observe(moment.division, there[0].uid, device, total - before_mib, truth)
    elif total - before_mib < LEAST_USED_MIB:
        # They are still pulling their images.
        for tenant in there:
            _observe(moment.division, tenant.uid, device, 0, Truth.ALONE)
    else:
        live = [tenant.uid for tenant in there if tenant.until is None or tenant.until >= moment.at]
        # A pod next to one that has just ended is not ambiguous for good, so it is not counted as such.
        moment.division.unclear.update(live if len(live) > 1 else ())
    if any(tenant.promised_mib is None for tenant in there):
        return before_mib
    return max(before_mib, total - sum(tenant.promised_mib or 0 for tenant in there))


def _share_out_by_name(device: Device, values: _Seen, there: Sequence[Tenant], moment: _Moment) -> int:
    division, own = moment.division, values.by_tenant
    truth = Truth.AGENT if values.told_apart else Truth.POD_LABEL
    outgrown = unseen = 0
    nameless = None if values.nameless_mib is None else values.nameless_mib - sum(own.values())
    # If nothing is left over, a pod without a value uses nothing yet.
    idle = nameless is not None and nameless - moment.before_mib.get(device, 0) < LEAST_USED_MIB
    idle = idle or values.told_apart
    for tenant in there:
        used = own.get(tenant.uid, 0 if idle else None)
        if used is None:
            division.unclear.add(tenant.uid)
            unseen += tenant.promised_mib or 0
        else:
            _observe(division, tenant.uid, device, used, truth)
            outgrown += max(0, used - tenant.promised_mib) if tenant.promised_mib is not None else 0
    # Whoever has no value may well use it.
    if sum(own.get(tenant.uid, 0 if idle else LEAST_USED_MIB) >= LEAST_USED_MIB for tenant in there) > 1:
        division.shared.add(device)
    return max(0, values.total_mib - sum(own.values()) - unseen) + outgrown


def _are_their_own(values: _Seen, pod_values: PodValues) -> bool:
    """Are these the pods' own values? Older exporters repeat the GPU's value for every pod on it."""
    own = values.by_tenant
    if values.told_apart:
        return True
    if pod_values is PodValues.AUTO:
        different = {*own.values(), *(() if values.nameless_mib is None else (values.nameless_mib,))}
        return bool(own) and len(different) > 1
    return bool(own) and pod_values is PodValues.POD


def _observe(division: Division, uid: PodUid, device: Device, mib: int, truth: Truth) -> None:
    if mib >= division.observed_mib.get(uid, -1):
        division.observed_mib[uid] = mib
        division.devices[uid] = device
        division.truths[uid] = truth
