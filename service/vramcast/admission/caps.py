"""Hands the limits that bind will write to the runtimes of a pod's containers, as environment variables.

The webhook runs before a GPU is chosen, so a variable refers to an annotation. Until bind, or without a limit, the
annotation is missing and the variable empty: every form below must be harmless then.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Final

from vramcast.admission.change import (
    APPEND,
    AdmittedPod,
    Change,
    Object,
    entries,
    find_env,
    from_annotation,
    mapping,
)
from vramcast.admission.context import Context
from vramcast.admission.inject import is_ours
from vramcast.admission.limits import ANNOTATIONS, is_capped
from vramcast.settings import Runtime
from vramcast.task.vocabulary import Written
from vramcast.task.workloads import Place

_TORCH: Final = "PYTORCH_ALLOC_CONF"
# Where one of these is set, torch does not read the other.
_TORCH_OLD: Final = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF")
_TORCH_KEY: Final = "per_process_memory_fraction"
_TORCH_LIMIT: Final = "VRAMCAST_TORCH_LIMIT"
# The first version that knows the key. Earlier ones refuse to start with an unknown key in an old variable. They do not
# read the new variable: up to 2.8 they do not know it, and the CUDA allocator of 2.9 ignores it.
_TORCH_KNOWS: Final = (2, 10)
# pytorch/pytorch:2.10.0-cuda13.0. Not nvcr.io/nvidia/pytorch:26.01-py3, which is a date.
_TORCH_IMAGE: Final = re.compile(r"(?:^|/)pytorch:v?([0-9])\.([0-9]{1,2})\.[0-9]")
_JAX: Final = "XLA_PYTHON_CLIENT_MEM_FRACTION"
_JAX_NEW: Final = "XLA_CLIENT_MEM_FRACTION"  # with both set, JAX refuses to start
_TENSORFLOW: Final = "TF_PER_DEVICE_MEMORY_LIMIT_MB"
_TENSORFLOW_LIMIT: Final = "VRAMCAST_TENSORFLOW_LIMIT"
_MPS: Final = "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"
_HAMI_CORE: Final = "CUDA_DEVICE_MEMORY_LIMIT"

Hand = Callable[[Place, Object], Iterator[Change]]


def fill(pod: AdmittedPod, context: Context) -> list[Change]:
    ask = pod.record.ask
    if ask is None or not is_capped(pod.record.task, ask.resource) or not is_ours(pod.spec, context):
        return []
    return [
        change
        for place, container in pod.containers()
        for runtime in context.settings.capped_runtimes
        for change in _HANDS[runtime](place, container)
    ]  # fmt: skip


def _torch(place: Place, container: Object) -> Iterator[Change]:
    old = next((name for name in _TORCH_OLD if find_env(container, name)), None)
    if old is not None:
        if _knows_key(container):
            yield from _merge_torch(place, container, old)
    elif find_env(container, _TORCH):
        yield from _merge_torch(place, container, _TORCH)
    elif not _reads_config_map(container):
        yield Change((*place, "env", APPEND), from_annotation(_TORCH, Written.LIMIT_TORCH), _TORCH)


def _merge_torch(place: Place, container: Object, name: str) -> Iterator[Change]:
    """Keeps what the container sets, and adds the limit behind it.

    Variables expand only references to earlier ones, so the limit takes the setting's place, and the setting moves to
    the end. A comma at its end, before an empty limit, is fine for torch.
    """
    found = find_env(container, name)
    value = found[1].get("value") if found else None
    if found is None or not isinstance(value, str) or _TORCH_KEY in value or _TORCH_LIMIT in value:
        return
    if any(f"$({name})" in str(mapping(entry).get("value")) for entry in entries(container.get("env"))):
        return
    both = ",".join([*([value.rstrip(", ")] if value.strip(", ") else []), f"$({_TORCH_LIMIT})"])
    limited = from_annotation(_TORCH_LIMIT, Written.LIMIT_TORCH)
    yield Change((*place, "env", found[0]), limited, name, replaces=True)
    yield Change((*place, "env", APPEND), {"name": name, "value": both}, name)


def _jax(place: Place, container: Object) -> Iterator[Change]:
    if not find_env(container, _JAX_NEW):
        yield from _plain(_JAX, Runtime.JAX)(place, container)


def _tensorflow(place: Place, container: Object) -> Iterator[Change]:
    """TensorFlow ends at once if the variable is empty, and takes 0 for no limit."""
    if find_env(container, _TENSORFLOW) or _reads_config_map(container):
        return
    limited = from_annotation(_TENSORFLOW_LIMIT, Written.LIMIT_TENSORFLOW)
    yield Change((*place, "env", APPEND), limited, _TENSORFLOW)
    yield Change((*place, "env", APPEND), {"name": _TENSORFLOW, "value": f"0$({_TENSORFLOW_LIMIT})"}, _TENSORFLOW)


def _plain(name: str, runtime: Runtime) -> Hand:
    def hand(place: Place, container: Object) -> Iterator[Change]:
        if not find_env(container, name) and not _reads_config_map(container):
            yield Change((*place, "env", APPEND), from_annotation(name, ANNOTATIONS[runtime]), name)

    return hand


def _knows_key(container: Object) -> bool:
    found = _TORCH_IMAGE.search(str(container.get("image")))
    return found is not None and (int(found[1]), int(found[2])) >= _TORCH_KNOWS


def _reads_config_map(container: Object) -> bool:
    """Then the variable may be set there, and ours would override it."""
    return any("configMapRef" in mapping(entry) for entry in entries(container.get("envFrom")))


_HANDS: Final[dict[Runtime, Hand]] = {
    Runtime.TORCH: _torch,
    Runtime.JAX: _jax,
    Runtime.TENSORFLOW: _tensorflow,
    Runtime.MPS: _plain(_MPS, Runtime.MPS),
    Runtime.HAMI_CORE: _plain(_HAMI_CORE, Runtime.HAMI_CORE),
}
