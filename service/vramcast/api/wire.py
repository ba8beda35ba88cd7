"""kube-scheduler's extender protocol: Go field names, decoded only as far as needed.

Most of a body is node names. They stay raw until they are needed, and where every node passes they go back unchanged.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import compress
from typing import TypeVar

import msgspec
import numpy as np

from vramcast.errors import InvalidRequest
from vramcast.placement.board import Board
from vramcast.placement.fit import MAX_SCORE, Reasons
from vramcast.placement.name_index import Ints, Records
from vramcast.placement.pool_table import Bools
from vramcast.placement.promises import Demand
from vramcast.placement.reasons import Reason, reason_text
from vramcast.task.pod import Metadata, Pod

T = TypeVar("T")
_NULL = msgspec.Raw(b"null")


@dataclass(frozen=True, slots=True)
class Reply:
    """A response body, and what the log and the metrics record about it. `cause` names an error."""

    body: bytes
    pod: str = ""
    node: str = ""
    decision: str = ""
    cause: str = ""


class ExtenderArgs(msgspec.Struct, rename="pascal", frozen=True):
    """The body of filter and prioritize. `nodeCacheCapable` decides which of the two node fields is null."""

    pod: Pod
    nodes: msgspec.Raw = _NULL
    node_names: msgspec.Raw = _NULL


class BindingArgs(msgspec.Struct, frozen=True):
    pod_name: str = msgspec.field(name="PodName")
    pod_namespace: str = msgspec.field(name="PodNamespace")
    pod_uid: str = msgspec.field(name="PodUID")
    node: str = msgspec.field(name="Node")


class MetaPod(msgspec.Struct, frozen=True):
    uid: str = msgspec.field(name="UID")


class MetaVictims(msgspec.Struct, rename="pascal", frozen=True):
    pods: list[MetaPod] | None = None
    num_pdb_violations: int = msgspec.field(name="NumPDBViolations", default=0)


class Victims(msgspec.Struct, rename="pascal", frozen=True):
    pods: list[Pod] | None = None
    num_pdb_violations: int = msgspec.field(name="NumPDBViolations", default=0)


class PreemptionArgs(msgspec.Struct, rename="pascal", frozen=True):
    pod: Pod
    node_name_to_victims: dict[str, Victims] | None = None
    node_name_to_meta_victims: dict[str, MetaVictims] | None = None


class _NodeList(msgspec.Struct, frozen=True):
    items: list[msgspec.Raw] | None = None


class _NamedNode(msgspec.Struct, frozen=True):
    metadata: Metadata


_ARGS = msgspec.json.Decoder(ExtenderArgs)
_BINDING = msgspec.json.Decoder(BindingArgs)
_PREEMPTION = msgspec.json.Decoder(PreemptionArgs)
_NAMES = msgspec.json.Decoder(list[str])
_NODES = msgspec.json.Decoder(_NodeList)
_NAMED = msgspec.json.Decoder(_NamedNode)
encode = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True)
class Asked:
    """The nodes that a call asks about, by column of the board.

    `rows` are the quoted names as they came, if they are equally long: selecting some is one copy. Shape: (asked,).
    Otherwise `names` has them. `items` are whole nodes, from a scheduler that keeps no cache.
    """

    columns: Ints
    names: Sequence[str] = ()
    rows: Records | None = None
    items: Sequence[msgspec.Raw] | None = None

    def each(self, chosen: Bools, before: bytes = b"", after: bytes = b"") -> bytes | memoryview:
        """The chosen names as JSON, each between `before` and `after`, separated by commas."""
        if self.rows is not None:
            return _each_row(self.rows if chosen.all() else self.rows[chosen], before, _record(after + b","))
        quoted = [encode(name) for name in compress(self.names, chosen.tobytes())]
        return before + (after + b"," + before).join(quoted) + after if quoted else b""


def _each_row(names: Records, before: bytes, after: Records) -> memoryview:
    """One fixed-size record per name instead of one string. `after`: one for all or one each, ending in a comma."""
    fields = [("before", len(before)), ("name", names.itemsize), ("after", after.itemsize)]
    rows = np.empty(len(names), dtype=[(field, f"V{size}") for field, size in fields if size])
    if before:
        rows["before"] = np.void(before)
    rows["name"] = names
    rows["after"] = after
    return rows.view(np.uint8).data[:-1]


def decode_args(body: bytes) -> ExtenderArgs:
    return _decode(_ARGS, body)


def decode_binding(body: bytes) -> BindingArgs:
    return _decode(_BINDING, body)


def decode_preemption(body: bytes) -> PreemptionArgs:
    return _decode(_PREEMPTION, body)


def ask_board(args: ExtenderArgs, board: Board) -> Asked:
    """Raises InvalidRequest."""
    if args.node_names != _NULL:
        raw = memoryview(args.node_names)
        if (found := board.find(raw)) is not None:
            columns, rows = found
            return Asked(columns, rows=rows)
        names = _decode(_NAMES, args.node_names)
        return Asked(board.columns(names), names)
    items = (_decode(_NODES, args.nodes).items or []) if args.nodes != _NULL else []
    names = [_decode(_NAMED, item).metadata.name or "" for item in items]
    return Asked(board.columns(names), names, items=items)


def _record(text: bytes) -> Records:
    return np.frombuffer(text, dtype=f"V{len(text)}")


# What follows a name, by score. All are equally long, which JSON allows.
_SCORES = np.frombuffer(b"".join(b',"Score":%2d},' % points for points in range(MAX_SCORE + 1)), dtype="V13")


def _decode(decoder: msgspec.json.Decoder[T], body: bytes | msgspec.Raw) -> T:
    try:
        return decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidRequest(f"the body is not what kube-scheduler sends: {error}") from None


def check_nodes(args: ExtenderArgs) -> None:
    """Raises InvalidRequest if `everything_passes` would send back something other than nodes."""
    if args.node_names != _NULL:
        _decode(_NAMES, args.node_names)
    elif args.nodes != _NULL:
        _decode(_NODES, args.nodes)


def everything_passes(args: ExtenderArgs) -> bytes:
    """Send the nodes back as they came."""
    nodes = args.nodes if args.node_names == _NULL else _NULL
    return b'{"Nodes":%b,"NodeNames":%b,"FailedNodes":{},"FailedAndUnresolvableNodes":{},"Error":""}' % (
        bytes(nodes),
        bytes(args.node_names),
    )


def filter_error(message: str) -> bytes:
    return encode(
        {"Nodes": None, "NodeNames": None, "FailedNodes": {}, "FailedAndUnresolvableNodes": {}, "Error": message}
    )


def filter_result(
    args: ExtenderArgs, asked: Asked, fits: Bools, reasons: Reasons, texts: Mapping[Reason, str],
    evictable: Bools | None = None,
) -> bytes:  # fmt: skip
    """The nodes that fit, and a reason for each of the others.

    `evictable`: nodes where evicting pods would help. Preemption considers those and no others, and does not start
    again while their evicted pods terminate.
    """
    if fits.all():
        return everything_passes(args)
    helped = np.zeros(len(fits), dtype=np.bool_) if evictable is None else evictable
    unresolvable = _failed(asked, reasons, texts, ~helped)
    resolvable = _failed(asked, reasons, texts, helped) if helped.any() else []
    answer = [
        *_passed(asked, fits),
        b',"FailedNodes":{',
        *resolvable,
        b'},"FailedAndUnresolvableNodes":{',
        *unresolvable,
    ]
    return b"".join([*answer, b'},"Error":""}'])


def _failed(asked: Asked, reasons: Reasons, texts: Mapping[Reason, str], chosen: Bools) -> Iterator[bytes | memoryview]:
    return _with_commas(
        asked.each((reasons == reason) & chosen, after=b":" + encode(text)) for reason, text in texts.items()
    )


def _passed(asked: Asked, fits: Bools) -> list[bytes | memoryview]:
    if asked.items is None:
        return [b'{"Nodes":null,"NodeNames":[', asked.each(fits), b"]"]
    passed = map(bytes, compress(asked.items, fits.tobytes()))
    return [b'{"Nodes":{"metadata":{},"items":[', b",".join(passed), b']},"NodeNames":null']


def _with_commas(parts: Iterable[bytes | memoryview]) -> Iterator[bytes | memoryview]:
    for number, part in enumerate(filter(len, parts)):
        if number:
            yield b","
        yield part


def reason_texts(demand: Demand, reasons: Iterable[Reason]) -> dict[Reason, str]:
    """Texts contain only the pod's own numbers, so that the scheduler can group nodes by text."""
    ask = demand.ask
    return {reason: reason_text(reason, demand.largest_need_mib, ask.count, ask.resource) for reason in reasons}


def priorities(asked: Asked, scores: Ints) -> bytes:
    """As one copy where the names are records; else grouped by score, because the scheduler ignores the order."""
    if asked.rows is not None:
        return b"".join([b"[", _each_row(asked.rows, b'{"Host":', _SCORES[scores]), b"]"])
    occurring = np.flatnonzero(np.bincount(scores)).tolist()
    groups = (asked.each(scores == points, b'{"Host":', b',"Score":%d}' % points) for points in occurring)
    return b"".join([b"[", *_with_commas(groups), b"]"])


def binding_result(error: str = "") -> bytes:
    return encode({"Error": error})


def preemption_result(victims: Mapping[str, MetaVictims]) -> bytes:
    return encode({"NodeNameToMetaVictims": victims})
