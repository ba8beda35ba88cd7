"""Types for names, so that mypy rejects a node's name in place of a pod's UID."""

from __future__ import annotations

from typing import NewType

NodeName = NewType("NodeName", str)
PodUid = NewType("PodUid", str)
# A GPU product as GPU Feature Discovery spells it, without the -SHARED and -MIG- suffixes.
Product = NewType("Product", str)
# An extended resource of a device plugin, such as nvidia.com/gpu.
Resource = NewType("Resource", str)
