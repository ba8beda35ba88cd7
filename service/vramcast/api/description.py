"""GET /openapi.json and GET /docs: the description of the API, and Swagger UI on it.

The files of Swagger UI come from a package and not from a CDN, because many clusters cannot reach one.
"""

from __future__ import annotations

from importlib.resources import files

import msgspec
from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse, Response
from starlette.exceptions import HTTPException

from vramcast.api.probes import ServiceOf

router = APIRouter(include_in_schema=False)

_SWAGGER = files("fastapi_offline") / "static"
_OWN = files("vramcast.api") / "docs_page"
_FILES = {
    "swagger-ui.css": (_SWAGGER, "text/css"),
    "swagger-ui-bundle.js": (_SWAGGER, "text/javascript"),
    "start.js": (_OWN, "text/javascript"),
}
# Swagger UI sets style attributes and has its icons in data: addresses.
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


@router.get("/openapi.json")
async def openapi(request: Request, service: ServiceOf) -> Response:
    # Generated with the first request, which takes 0.1 s.
    described = await service.workers.inspection(request.app.openapi)
    return Response(msgspec.json.encode(described), media_type="application/json")


@router.get("/docs")
async def docs() -> Response:
    return HTMLResponse((_OWN / "index.html").read_text(), headers={"Content-Security-Policy": _POLICY})


@router.get("/docs/{name}")
async def docs_file(name: str, service: ServiceOf) -> Response:
    if name not in _FILES:
        raise HTTPException(404)
    directory, kind = _FILES[name]
    content = await service.workers.inspection((directory / name).read_bytes)
    return Response(content, media_type=kind, headers={"Cache-Control": "max-age=3600"})
