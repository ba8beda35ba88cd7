"""RFC 6902, as far as the webhook uses it, written apart from the code that makes the patches."""

from __future__ import annotations

from collections.abc import Iterable
from copy import deepcopy
from typing import Any


def patched(document: Any, operations: Iterable[dict[str, Any]]) -> Any:
    document = deepcopy(document)
    for operation in operations:
        *parents, last = (step.replace("~1", "/").replace("~0", "~") for step in operation["path"].split("/")[1:])
        holder = document
        for step in parents:
            holder = holder[int(step) if isinstance(holder, list) else step]
        value = deepcopy(operation["value"])
        if isinstance(holder, list) and operation["op"] == "replace":
            holder[int(last)] = value
        elif isinstance(holder, list):
            assert (operation["op"], last) == ("add", "-")
            holder.append(value)
        else:
            assert operation["op"] == ("replace" if holder.get(last) is not None else "add"), operation
            holder[last] = value
    return document
