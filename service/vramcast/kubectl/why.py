"""`kubectl vramcast why POD`: why a pod waits, node by node, and what would have to change."""

from __future__ import annotations

import json
from collections.abc import Sequence
from difflib import get_close_matches
from typing import Any
from urllib.parse import quote

from vramcast.kubectl.api_server import ApiServer
from vramcast.kubectl.errors import NotKnown, Outdated, Trouble
from vramcast.kubectl.service_view import ServiceView
from vramcast.kubectl.tables import plural, size, visible, write, write_table

_NODES_SHOWN = 20
_STATES = {"placed": "is placed", "running": "runs", "done": "has ended"}
_NO_TASK = {
    "another system hands out its GPU": "Another system hands out its GPU. vramcast only measures it.",
    "no task is described": "It describes no task, so vramcast leaves it to the scheduler.",
}

Json = dict[str, Any]


def explain(api: ApiServer, view: ServiceView, namespace: str, name: str, output: str) -> None:
    name = name.split("/", 1)[1] if name.startswith(("pod/", "pods/")) else name
    scheduler = _ask_scheduler(api, namespace, name)
    path = f"/pods/{quote(namespace, safe='')}/{quote(name, safe='')}"
    try:
        known = view.get(path)
    except NotKnown:
        if not scheduler["exists"]:
            raise Trouble(_no_such_pod(api, view, namespace, name)) from None
        known = None
    nodes = _nodes(view, path) if known is not None and known["pod"]["state"] == "waiting" else None
    if output == "json":
        write(json.dumps({"scheduler": scheduler, "known": known, "explanation": nodes}, indent=2))
        return
    if known is None:
        write(f"vramcast has nothing to do with pod {namespace}/{name}: it asks for no GPU and describes no task.")
        _write_scheduler(scheduler)
        return
    _write_known(known, nodes, scheduler, wide=output == "wide")


def _ask_scheduler(api: ApiServer, namespace: str, name: str) -> Json:
    """What the pod's own scheduler says, by the rights that the user has on the pod."""
    answer = api.get(f"/api/v1/namespaces/{quote(namespace, safe='')}/pods/{quote(name, safe='')}")
    if answer.status == 403:
        return {"exists": None, "name": "", "message": f"not shown: {answer.message}"}
    if answer.status != 200:
        return {"exists": False, "name": "", "message": ""}
    pod = answer.json()
    conditions = pod.get("status", {}).get("conditions") or ()
    said = [each.get("message", "") for each in conditions if each.get("type") == "PodScheduled"]
    gated = pod["spec"].get("schedulingGates")
    message = "".join(said) or ("" if pod["spec"].get("nodeName") or gated else "has not tried it yet: does it run?")
    return {"exists": True, "name": pod["spec"].get("schedulerName", ""), "message": message}


def _no_such_pod(api: ApiServer, view: ServiceView, namespace: str, name: str) -> str:
    answer = api.get(f"/api/v1/namespaces/{quote(namespace, safe='')}/pods")
    content = answer.json() if answer.status == 200 else {}
    names = [item["metadata"]["name"] for item in content.get("items", ())]
    own = [key.split("/", 1)[1] for key in _known_names(view, f"{namespace}/")]
    names = list(dict.fromkeys([*names, *own]))
    near = [each for each in names if each.startswith(f"{name}-")] or get_close_matches(name, names)
    elsewhere = [key for key in _known_names(view, f"/{name}") if key.endswith(f"/{name}")]
    text = f"there is no pod {name} in namespace {namespace}"
    if elsewhere:
        return f"{text}; there is {', '.join(elsewhere[:3])}: name its namespace with -n"
    return f"{text}; did you mean {', '.join(near[:3])}?" if near else f"{text} (-n names another namespace)"


def _known_names(view: ServiceView, wanted: str) -> list[str]:
    return [line["pod"] for line in view.get("/pods", q=wanted, limit=100)["pods"]]


def _nodes(view: ServiceView, path: str) -> Json:
    """All pages as one."""
    try:
        whole: Json = view.get(f"{path}/nodes")
    except NotKnown as error:  # it ended meanwhile, or the service is too old to say
        raise Outdated(str(error)) from None
    after = whole.get("next_after")
    while after:
        page = view.get(f"{path}/nodes", after=after)
        whole["nodes"] += page["nodes"]
        whole["feasible"] += page["feasible"]
        after = page["next_after"]
    return whole


def _write_known(known: Json, nodes: Json | None, scheduler: Json, *, wide: bool) -> None:
    line = known["pod"]
    if nodes is None:
        _write_placed(line)
        return
    write(f"Pod {line['pod']} waits. {_headline(line, known, nodes)}")
    if line["task"]:
        write(f"Task: {visible(line['task'])}")
    if known["needs_mib"]:
        needs = ", ".join(f"{size(need)} on {product}" for product, need in sorted(known["needs_mib"].items()))
        write(f"Needs: {visible(needs)}")
    _write_scheduler(scheduler)
    if nodes["nodes"]:
        write()
        _write_nodes(nodes["nodes"], wide=wide)
    _write_changes(known, nodes, scheduler)


def _headline(line: Json, known: Json, nodes: Json) -> str:
    if known["error"]:
        passed = nodes.get("policy") == "pass"
        return "Its description is invalid" + (", so it is scheduled without a forecast." if passed else ".")
    if "error" in nodes and not line["reasons"]:
        return _NO_TASK.get(nodes["error"], str(nodes["error"]))
    if nodes.get("feasible"):
        return f"vramcast would let it on {plural(nodes['feasible'], 'node')} of {len(nodes['nodes'])}."
    if not line["reasons"]:
        return "The cluster has no node with a GPU." if not nodes["nodes"] else "No node fits."
    first, *others = line["reasons"]
    more = f", and {plural(sum(each['nodes'] for each in others), 'node')} for other reasons" if others else ""
    return visible(f"{first['text']} ({plural(first['nodes'], 'node')}{more}).")


def _write_scheduler(scheduler: Json) -> None:
    if scheduler["message"]:
        write(visible(f"Scheduler {scheduler['name']}: {scheduler['message']}".replace("Scheduler :", "Scheduler:")))


def _write_placed(line: Json) -> None:
    where = f" on {line['node']}" if line["node"] else ""
    indices = f", GPU {', '.join(map(str, line['gpus']))}" if line["gpus"] else ""
    write(visible(f"Pod {line['pod']} does not wait: it {_STATES[line['state']]}{where}{indices}."))
    if line["task"]:
        write(f"Task: {visible(line['task'])}")
    write(f"Promised {size(line['need_mib'])}, uses {size(line['used_mib'])}, peak {size(line['peak_mib'])}.")


def _write_nodes(nodes: list[Json], *, wide: bool) -> None:
    def order(node: Json) -> tuple[bool, int, str]:
        return not node["fits"], min((gpu["short_mib"] for gpu in node["gpus"]), default=1 << 40), node["node"]

    ordered = sorted(nodes, key=order)
    if wide:
        titles = ("NODE", "FITS", "GPU", "SIZE", "FREE", "SHORT BY", "REASON")
        write_table(titles, [row for node in ordered for row in _gpu_rows(node)])
        return
    write_table(("NODE", "FITS", "GPUS", "MOST FREE", "SHORT BY", "REASON"), map(_node_row, ordered[:_NODES_SHOWN]))
    if len(ordered) > _NODES_SHOWN:
        write(f"... and {plural(len(ordered) - _NODES_SHOWN, 'more node')}: -o wide shows all, GPU by GPU")


def _node_row(node: Json) -> tuple[str, ...]:
    gpus = node["gpus"]
    free = max((max(0, gpu["room_mib"]) for gpu in gpus), default=None)
    short = min((gpu["short_mib"] for gpu in gpus), default=None)
    return node["node"], _fits(node), str(len(gpus)), size(free), size(short) if short else "-", _reason(node)


def _gpu_rows(node: Json) -> Sequence[tuple[str, ...]]:
    fits, reason = _fits(node), _reason(node)
    rows = [
        (node["node"], fits, str(gpu["index"]), size(gpu["size_mib"]), size(max(0, gpu["room_mib"])),
         size(gpu["short_mib"]) if gpu["short_mib"] else "-", reason)
        for gpu in node["gpus"]
    ]  # fmt: skip
    return rows or [(node["node"], fits, "-", "-", "-", "-", reason)]


def _fits(node: Json) -> str:
    return "yes" if node["fits"] else "no"


def _reason(node: Json) -> str:
    return ": ".join(filter(None, (node["text"], node["problem"]))) or "-"


def _write_changes(known: Json, nodes: Json, scheduler: Json) -> None:
    changes = []
    for advice in known["advice"]:
        if advice["kind"] == "fits" and scheduler["message"]:
            changes.append(
                "vramcast has room. If the scheduler's message above stays, its own rules keep the pod off these "
                "nodes: taints, CPU, memory, affinity."
            )
        else:
            changes.append(f"{advice['text']}{' (' + advice['detail'] + ')' if advice['detail'] else ''}")
    if not nodes.get("feasible"):
        changes += [each["remedy"] for each in known["pod"]["reasons"]]
    if changes:
        write("\nWhat would have to change:")
    for change in dict.fromkeys(changes):
        write(visible(f"- {change}"))
