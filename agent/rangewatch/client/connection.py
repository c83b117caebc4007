"""HTTP to one server: its address, the token, a time limit, and why there is no answer, as one line of text."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypedDict, TypeVar
from urllib.parse import urlencode

import msgspec
import urllib3

from rangewatch.core.options import Options

TIMEOUT_S = 60.0
UNAUTHORIZED = 401
PIECE_BYTES = 1 << 16
MAX_REFUSAL_BYTES = 1 << 16

Query = Mapping[str, str | int | float | Sequence[str] | None]
Shape = TypeVar("Shape")


class ServerError(Exception):
    """Why there is no answer, in one line."""


class Unavailable(ServerError):
    """No server answers, or not now: the same may be answered later."""


class _Refusal(TypedDict):
    error: str
    code: str


class Connection:
    """`url` default: RANGEWATCH_URL or this machine's server. `token` default: RANGEWATCH_TOKEN. Raises `ServerError`
    for what is no URL or token.
    """

    def __init__(
        self, url: str | None = None, token: str | None = None, timeout_s: float | urllib3.Timeout = TIMEOUT_S
    ) -> None:
        self.url = checked_url(url or default_url()).rstrip("/")
        token = checked_token(token)
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._pool = urllib3.PoolManager(timeout=timeout_s, retries=False)

    def get(self, path: str, query: Query | None = None) -> Any:
        """The JSON there. What is None in `query` is left out. Raises `ServerError`."""
        return self.request("GET", path + _encoded(query), Any)

    def request(self, method: str, path: str, shape: type[Shape] | Any, **options: Any) -> Any:
        """The JSON of an answer, which fits `shape` and may hold more. Raises `ServerError`."""
        with self.open(method, path, **options) as answer:
            data = answer.read()
        try:
            body = json.loads(data)  # msgspec refuses half a surrogate, which a name may hold
            msgspec.convert(body, shape)  # checks; returns only the fields that the shape has
        except (msgspec.MsgspecError, ValueError, RecursionError):
            raise self._no_server() from None
        return body

    def read(self, path: str, query: Query | None = None) -> bytes:
        """What is there, as it came. Raises `ServerError`."""
        return b"".join(self.stream(path, query))

    def stream(self, path: str, query: Query | None = None) -> Iterator[bytes]:
        """The same in pieces, as they come. Raises `Unavailable` where they end before the end."""
        with self.open("GET", path + _encoded(query)) as answer:
            yield from answer.stream(PIECE_BYTES)

    @contextmanager
    def open(
        self, method: str, path: str, headers: Mapping[str, str] | None = None, **options: Any
    ) -> Iterator[urllib3.BaseHTTPResponse]:
        """An answer with status 200 or 201, to be read as it comes; `options` are those of urllib3's `request`.

        No redirect is followed: the token would go along. Raises `ServerError`, also where the answer breaks off.
        """
        answer = None
        try:
            answer = self._pool.request(
                method,
                self.url + path,
                headers={**self._headers, **(headers or {})},
                redirect=False,
                preload_content=False,
                **options,
            )
            if answer.status not in (200, 201):
                raise self._refused(answer)
            yield answer
        except urllib3.exceptions.HTTPError:
            raise self._no_server() if answer is None else Unavailable(f"{self.url} broke the answer off") from None
        finally:
            if answer is not None:
                answer.close()

    def _refused(self, answer: urllib3.BaseHTTPResponse) -> ServerError:
        try:
            refusal = msgspec.json.decode(answer.read(MAX_REFUSAL_BYTES), type=_Refusal)
        except (msgspec.MsgspecError, ValueError, RecursionError):
            return self._no_server()
        said = refusal["error"]
        if answer.status == UNAUTHORIZED:
            said += ". Put the token into the environment variable RANGEWATCH_TOKEN"
        return (Unavailable if answer.status in (429, 503) else ServerError)(said)

    def _no_server(self) -> Unavailable:
        return Unavailable(f"no Rangewatch server answers at {self.url}")


def _encoded(query: Query | None) -> str:
    given = {name: value for name, value in (query or {}).items() if value is not None}
    return f"?{urlencode(given, doseq=True)}" if given else ""


def default_url() -> str:
    """Where a server is when nothing else is said."""
    return os.environ.get("RANGEWATCH_URL", "").strip() or "http://127.0.0.1:8642"


def checked_url(url: str) -> str:
    """The address of a server. Raises `ServerError`."""
    try:
        return Options(url=url).url
    except ValueError as error:
        raise ServerError(str(error).removeprefix("rangewatch option ")) from None


def checked_token(given: str | None = None) -> str | None:
    """A token without the space around it, or None where there is none; default: RANGEWATCH_TOKEN's. Raises
    `ServerError`.
    """
    token = (os.environ.get("RANGEWATCH_TOKEN", "") if given is None else given).strip()
    if not (token.isascii() and token.isprintable()):
        whose = "RANGEWATCH_TOKEN" if given is None else "what was given"
        raise ServerError(f"{whose} is no token: it must be printable ASCII")
    return token or None
