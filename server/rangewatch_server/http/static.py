"""Routes of the page and its files (`site`). No path of a request reaches the file system: what there is was listed.

The files of `web/` as they are served: all as they were at one look, and what is made of them.

The page names its files by what they hold (`/static/v-DIGEST/icon.svg`), so that a browser has to ask for them once,
and its modules are one of them (`bundle`). Each is also there under its own name, for a debugger and `import()`.
"""

from __future__ import annotations

import gzip
import hashlib
import re
import time
from contextlib import suppress
from functools import cache, cached_property, lru_cache
from pathlib import Path, PurePosixPath

import msgspec
from fastapi import APIRouter, Request, Response

from rangewatch_server.core.errors import ApiError
from rangewatch_server.http.bundle import bundle, source_map

GZIP_LEVEL = 6
ENTRY = "shell/app.js"
BUNDLE = "app.bundle.js"
BUNDLE_MAP = f"{BUNDLE}.map"
MOST_VERSIONS = 1_000  # of files that are edited while the server runs: only of a checkout
TYPES = {".js": "text/javascript", ".css": "text/css", ".html": "text/html", ".svg": "image/svg+xml"}


class Asset(msgspec.Struct, frozen=True):
    """A file as it is served."""

    body: bytes
    media_type: str
    etag: str
    kept_gzipped: bytes | None = None


@lru_cache(MOST_VERSIONS)
def gzipped(asset: Asset) -> bytes:
    """Made when it is sent: to compress all modules, which are sent as one, takes longer than anything else here."""
    return asset.kept_gzipped or gzip.compress(asset.body, GZIP_LEVEL, mtime=0)


@cache
def web_dir() -> Path:
    """`web/`: beside this package in a wheel, at the top of the tree in a checkout."""
    here = Path(__file__).resolve().parents[1]
    folders = [path for path in (here / "web", here.parents[1] / "web") if (path / "index.html").is_file()]
    if not folders:
        raise FileNotFoundError("web/index.html is missing from the installation")
    return folders[0]


def assets() -> dict[str, Path]:
    """URL path below /static/ -> file, all there are. A library is kept compressed (`.gz`), as it is sent."""
    root = web_dir()
    named = {path.relative_to(root).as_posix().removesuffix(".gz"): path for path in root.rglob("*")}
    return {name: path for name, path in named.items() if PurePosixPath(name).suffix in TYPES}


def _asset(path: Path) -> Asset | None:
    """A file as it is now: one of a checkout may have been edited, or be gone."""
    try:
        stat = path.stat()
        return _read(path, stat.st_mtime_ns, stat.st_size)
    except FileNotFoundError:
        return None


@lru_cache(MOST_VERSIONS)
def _read(path: Path, _mtime_ns: int, _size: int) -> Asset:
    media_type = TYPES.get(PurePosixPath(path.name.removesuffix(".gz")).suffix, "application/octet-stream")
    body = path.read_bytes()
    return _packed(gzip.decompress(body), media_type, body) if path.suffix == ".gz" else _packed(body, media_type)


def _packed(body: bytes, media_type: str, gzipped: bytes | None = None) -> Asset:
    return Asset(body, media_type, f'"{hashlib.blake2b(body, digest_size=12).hexdigest()}"', gzipped)


class Site:
    """All files of `web/` as they were at one look, and what is made of them: nothing of it is of another version."""

    def __init__(self, files: tuple[tuple[str, Asset], ...]) -> None:
        self._files = dict(files)

    def named(self, name: str) -> Asset:
        """Raises `ApiError` 404."""
        if name == BUNDLE:
            return self._bundle
        if name == BUNDLE_MAP:
            return self._bundle_map
        if name not in self._files:
            raise ApiError(404, "not_found", "no such file")
        return self._files[name]

    @cached_property
    def version(self) -> str:
        """Of all files together."""
        digests = "".join(f"{name} {asset.etag}\n" for name, asset in self._files.items())
        return f"v-{hashlib.blake2b(digests.encode(), digest_size=8).hexdigest()}"

    @cached_property
    def shell(self) -> Asset:
        """index.html with the addresses of this version."""
        text = self._files["index.html"].body.decode().replace(f"/static/{ENTRY}", f"/static/{BUNDLE}")
        return _packed(text.replace('"/static/', f'"/static/{self.version}/').encode(), TYPES[".html"])

    @cached_property
    def _bundle(self) -> Asset:
        return _packed(bundle(self._modules, ENTRY, BUNDLE_MAP).encode(), TYPES[".js"])

    @cached_property
    def _bundle_map(self) -> Asset:
        return _packed(source_map(self._modules, ENTRY).encode(), "application/json")

    @property
    def _modules(self) -> dict[str, str]:
        ours = {name: asset for name, asset in self._files.items() if name.endswith(".js")}
        return {name: asset.body.decode() for name, asset in ours.items() if asset.kept_gzipped is None}


def site() -> Site:
    """As it is now, or was within the last second: to look takes 5 ms."""
    return _site_at(int(time.monotonic()))


def prepare() -> None:
    """Make what the first page would wait for: 0.2 s. What is wrong with the files, who asks for them hears."""
    with suppress(FileNotFoundError, ValueError):
        _ = site().shell
        gzipped(site().named(BUNDLE))


@lru_cache(maxsize=1)
def _site_at(_second: int) -> Site:
    read = ((name, _asset(path)) for name, path in sorted(assets().items()))
    return _site_of(tuple((name, asset) for name, asset in read if asset is not None))


@lru_cache(maxsize=4)
def _site_of(files: tuple[tuple[str, Asset], ...]) -> Site:
    return Site(files)


router = APIRouter()

FOR_GOOD = "public, max-age=31536000, immutable"
ASK_AGAIN = "no-cache"
OF_RUN = re.compile(r"runs/(?P<id>[0-9]{1,18})(?:/|$)", re.ASCII)


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
    answer = _serve(request, site().shell, ASK_AGAIN)
    if run := OF_RUN.match(path):
        # All that a page of a run shows waits for this answer, which can come while the script is still on its way.
        answer.headers["link"] = f"</api/v1/runs/{run['id']}>; rel=preload; as=fetch; crossorigin"
    return answer
