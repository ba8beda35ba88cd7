"""GPU resource names: what a pod may ask for, and the pool that vramcast hands out itself."""

from __future__ import annotations

import re

from vramcast.names import Resource

WHOLE_GPU = Resource("nvidia.com/gpu")
# The pool of GPUs that vramcast assigns by index. No device plugin knows this name.
SHARED_GPU = Resource("vramcast.dev/shared-gpu")
MAX_GPUS = 32

_GPU_RESOURCE = re.compile(r"nvidia\.com/(gpu(\.shared)?|mig-[0-9a-z.+-]+)")


def is_gpu_resource(name: str) -> bool:
    return name.startswith("nvidia.com/") and _GPU_RESOURCE.fullmatch(name) is not None
