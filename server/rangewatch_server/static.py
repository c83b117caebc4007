"""The page, its modules, and plotly.min.js out of the plotly package. No path of a request reaches the file system:
files are listed once, at start.

The page names its files by what they hold (`/static/v-DIGEST/app.js`; what a module imports is beside it), so that a
browser has to ask for them once, and lists all modules, so that it need not find one by reading another.
"""

from __future__ import annotations

import gzip
import hashlib
import importlib.util
import mimetypes
import time
from functools import cache, lru_cache
from pathlib import Path

import msgspec
from fastapi import APIRouter, Request, Response

from rangewatch_server.errors import ApiError

router = APIRouter()

GZIP_LEVEL = 6  # plotly.min.js: 4.8 MB to 1.5 MB in 0.25 s, once
PLOTLY = "plotly.min.js"
FOR_GOOD = "public, max-age=31536000, immutable"
ASK_AGAIN = "no-cache"
MOST_VERSIONS = 1_000  # of files that are edited while the server runs: only of a checkout
TYPES = {".js": "text/javascript", ".css": "text/css", ".html": "text/html", ".svg": "image/svg+xml"}


class Asset(msgspec.Struct, frozen=True):
    """A file as it is served."""

    body: bytes
    gzipped: bytes
    media_type: str
    etag: str


@cache
def web_dir() -> Path:
    """`web/`: beside this package in a wheel, at the top of the tree in a checkout."""
    here = Path(__file__).resolve().parent
    found = [path for path in (here / "web", here.parents[1] / "web") if (path / "index.html").is_file()]
    if not found:
        raise FileNotFoundError("web/index.html is missing from the installation")
    return found[0]


@cache
def assets() -> dict[str, Path]:
    """URL path below /static/ -> file, all there are."""
    root = web_dir()
    return {path.relative_to(root).as_posix(): path for path in root.rglob("*") if path.suffix in TYPES}


@cache
def plotly() -> Asset:
    """plotly.min.js of the installed plotly package, compressed once."""
    spec = importlib.util.find_spec("plotly")  # found, not imported: the package takes 0.3 s and 60 MB
    assert spec is not None and spec.origin is not None
    return _asset(Path(spec.origin).parent / "package_data" / PLOTLY)


def _asset(path: Path) -> Asset:
    """A file as it is now: one of a checkout may have been edited."""
    found = path.stat()
    return _read(path, found.st_mtime_ns, found.st_size)


@lru_cache(MOST_VERSIONS)
def _read(path: Path, _mtime_ns: int, _size: int) -> Asset:
    return _packed(path.read_bytes(), TYPES.get(path.suffix) or mimetypes.guess_type(path.name)[0])


def _packed(body: bytes, media_type: str | None) -> Asset:
    etag = f'"{hashlib.blake2b(body, digest_size=12).hexdigest()}"'
    zipped = gzip.compress(body, GZIP_LEVEL, mtime=0)
    return Asset(body, zipped, media_type or "application/octet-stream", etag)


def version() -> str:
    """Of all files of `web/` together, as they are now or were within the last second (200 files take 1 ms)."""
    return _version_at(int(time.monotonic()))


@lru_cache(maxsize=1)
def _version_at(_second: int) -> str:
    found = hashlib.blake2b(digest_size=8)
    for name, path in sorted(assets().items()):
        found.update(f"{name} {_asset(path).etag}\n".encode())
    return f"v-{found.hexdigest()}"


@lru_cache(maxsize=4)
def _shell(now: str) -> Asset:
    """index.html with the addresses of this version."""
    text = _asset(assets()["index.html"]).body.decode()
    modules = [
        f'  <link rel="modulepreload" href="/static/{name}">\n' for name in sorted(assets()) if name.endswith(".js")
    ]
    text = text.replace("</head>", f"{''.join(modules)}</head>").replace('"/static/', f'"/static/{now}/')
    return _packed(text.encode(), TYPES[".html"])


def _serve(request: Request, asset: Asset, cache_control: str) -> Response:
    headers = {"cache-control": cache_control, "etag": asset.etag, "vary": "accept-encoding"}
    if request.headers.get("if-none-match") == asset.etag:
        return Response(status_code=304, headers=headers)
    if "gzip" in request.headers.get("accept-encoding", ""):
        headers["content-encoding"] = "gzip"
        return Response(asset.gzipped, media_type=asset.media_type, headers=headers)
    return Response(asset.body, media_type=asset.media_type, headers=headers)


@router.get("/vendor/plotly.min.js", include_in_schema=False)
def vendor(request: Request) -> Response:
    """Plotly.js; cached for a day, then revalidated by its digest."""
    return _serve(request, plotly(), "public, max-age=86400, stale-while-revalidate=604800")


@router.get("/static/{path:path}", include_in_schema=False)
def static(path: str, request: Request) -> Response:
    """A file of web/, with the version before it or not."""
    first, _, rest = path.partition("/")
    name = rest if first.startswith("v-") else path
    found = assets().get(name)
    if found is None:
        raise ApiError(404, "not_found", "no such file")
    # A page that was loaded before an upgrade goes on with what there is now, and keeps none of it.
    return _serve(request, _asset(found), FOR_GOOD if name != path and first == version() else ASK_AGAIN)


@router.get("/{path:path}", include_in_schema=False)
def page(path: str, request: Request) -> Response:
    """Every page is the one shell; its script reads the URL."""
    if path.startswith("api/"):
        raise ApiError(404, "not_found", "no such route")
    return _serve(request, _shell(version()), ASK_AGAIN)
