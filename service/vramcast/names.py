"""The names that decisions are keyed by, told apart by type so that a node is never taken for a pod."""

from __future__ import annotations

from typing import NewType

NodeName = NewType("NodeName", str)
PodUid = NewType("PodUid", str)
# A GPU product as GPU Feature Discovery spells it, without the -SHARED and -MIG- suffixes.
Product = NewType("Product", str)
# An extended resource that a device plugin hands out, such as nvidia.com/gpu.
Resource = NewType("Resource", str)
