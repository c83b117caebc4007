"""Routes of the page and its files (`site`). No path of a request reaches the file system: what there is was listed."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from rangewatch_server.errors import ApiError
from rangewatch_server.site import Asset, gzipped, site

router = APIRouter()

FOR_GOOD = "public, max-age=31536000, immutable"
ASK_AGAIN = "no-cache"


def _serve(request: Request, asset: Asset, cache_control: str) -> Response:
    headers = {"cache-control": cache_control, "etag": asset.etag, "vary": "accept-encoding"}
    if request.headers.get("if-none-match") == asset.etag:
        return Response(status_code=304, headers=headers)
    if "gzip" in request.headers.get("accept-encoding", ""):
        headers["content-encoding"] = "gzip"
        return Response(gzipped(asset), media_type=asset.media_type, headers=headers)
    return Response(asset.body, media_type=asset.media_type, headers=headers)


@router.get("/static/{path:path}", include_in_schema=False)
def static(path: str, request: Request) -> Response:
    """A file of web/, with the version before it or not."""
    first, _, rest = path.partition("/")
    name = rest if first.startswith("v-") else path
    now = site()
    # A page that was loaded before an upgrade goes on with what there is now, and keeps none of it.
    return _serve(request, now.named(name), FOR_GOOD if name != path and first == now.version else ASK_AGAIN)


@router.get("/{path:path}", include_in_schema=False)
def page(path: str, request: Request) -> Response:
    """Every page is the one shell; its script reads the URL."""
    if path.startswith("api/"):
        raise ApiError(404, "not_found", "no such route")
    return _serve(request, site().shell, ASK_AGAIN)
