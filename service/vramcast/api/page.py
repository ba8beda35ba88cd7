"""GET /: the page, its files, and GET /table: the same as plain HTML, for browsers without JavaScript.

The page is read-only and loads nothing from elsewhere. Its policy allows no inline script and no other host.
"""

from __future__ import annotations

from html import escape
from importlib.resources import files
from typing import Annotated, Any

from fastapi import APIRouter, Query
from fastapi.responses import HTMLResponse, Response
from starlette.exceptions import HTTPException

from vramcast.api.cluster_view import GpuBarJson, show_nodes
from vramcast.api.probes import ServiceOf
from vramcast.task.quantity import human_mib

router = APIRouter(include_in_schema=False)

_FILES = files("vramcast.api") / "page_files"
_KINDS = {"js": "text/javascript; charset=utf-8", "css": "text/css; charset=utf-8", "svg": "image/svg+xml"}
HEADERS = {
    # Styles are in files. `style` attributes are set through the object model, which the policy allows.
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    # A service of another version must not be asked by an old page.
    "Cache-Control": "no-cache",
}
_A_PAGE = 200


@router.get("/")
async def show_page() -> Response:
    return HTMLResponse((_FILES / "index.html").read_text(), headers=HEADERS)


@router.get("/page/{name}")
async def show_file(name: str) -> Response:
    _, _, kind = name.rpartition(".")
    if kind not in _KINDS or name not in {each.name for each in _FILES.iterdir()}:
        raise HTTPException(404)
    return Response((_FILES / name).read_bytes(), media_type=_KINDS[kind], headers=HEADERS)


@router.get("/table")
async def show_table(service: ServiceOf, offset: Annotated[int, Query(ge=0, le=1_000_000)] = 0) -> Response:
    names = sorted(service.state.ledger.nodes)
    nodes = await show_nodes(service, names[offset : offset + _A_PAGE])
    rows = [_row(node, pool, gpu) for node in nodes for pool in node["pools"] for gpu in pool["gpus"]]
    waiting = [pod.key for pod in service.state.pods.values() if pod.node is None][:_A_PAGE]
    following = offset + _A_PAGE
    more = f'<p><a href="table?offset={following}">more nodes</a></p>' if following < len(names) else ""
    listed = "".join(f"<li>{visible(pod)}</li>" for pod in waiting) or "<li>none</li>"
    text = (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>vramcast</title>'
        '<link rel="stylesheet" href="page/style.css"></head><body><main>'
        f"<h1>vramcast</h1><p>{len(names)} nodes. This page does not update itself: reload it.</p>"
        '<table class="wide"><thead><tr><th>node</th><th>GPU</th><th>product</th><th>size</th><th>promised</th>'
        "<th>used</th><th>unmanaged</th><th>free</th><th>held by</th></tr></thead><tbody>"
        f"{''.join(rows)}</tbody></table>{more}<h2>Waiting pods</h2><ul>{listed}</ul></main></body></html>"
    )
    return HTMLResponse(text, headers=HEADERS)


def _row(node: dict[str, Any], pool: dict[str, Any], gpu: GpuBarJson) -> str:
    sizes = (gpu[part] for part in ("size_mib", "promised_mib", "used_mib", "unmanaged_mib", "room_mib"))
    holders = ", ".join(visible(holder["pod"]) for holder in gpu["holders"])
    cells = [visible(node["name"]), str(gpu["index"]), visible(pool["product"]), *map(human_mib, sizes), holders]
    return "<tr>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>"


def visible(text: str) -> str:
    """As HTML, with control characters replaced."""
    return escape("".join(letter if letter.isprintable() else "\ufffd" for letter in text))
