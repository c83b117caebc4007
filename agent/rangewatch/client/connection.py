"""Requests to one server, with one token."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import urlencode

import msgspec
import urllib3

from rangewatch.client.server_api import Refusal, Unavailable, authorization, checked, default_url, error_of

TIMEOUT_S = 60.0
PIECE_BYTES = 1 << 16

Query = Mapping[str, str | int | float | Sequence[str] | None]


class Connection:
    """`url` default: RANGEWATCH_URL or this machine's server. `token` default: RANGEWATCH_TOKEN. Raises `ServerError`
    for what is no URL or token.
    """

    def __init__(self, url: str | None = None, token: str | None = None) -> None:
        self.url = checked(url or default_url()).rstrip("/")
        self._headers = authorization(token)
        self._pool = urllib3.PoolManager(timeout=TIMEOUT_S, retries=False)

    def get(self, path: str, query: Query | None = None) -> Any:
        """The JSON there. What is None in `query` is left out. Raises `ServerError`."""
        return _decoded(self.read(path, query), self.url)

    def read(self, path: str, query: Query | None = None) -> bytes:
        """The same as it came."""
        return b"".join(self.stream(path, query))

    def stream(self, path: str, query: Query | None = None) -> Iterator[bytes]:
        """The same in pieces, as they come. Raises `Unavailable` where they end before the end."""
        answer = self._answer(path, query)
        try:
            yield from answer.stream(PIECE_BYTES)
        except urllib3.exceptions.HTTPError:
            raise Unavailable(f"{self.url} broke the answer off") from None
        finally:
            answer.release_conn()

    def _answer(self, path: str, query: Query | None) -> urllib3.BaseHTTPResponse:
        """With status 200. No redirect is followed: the token would go along."""
        given = {name: value for name, value in (query or {}).items() if value is not None}
        address = f"{self.url}{path}" + (f"?{urlencode(given, doseq=True)}" if given else "")
        try:
            answer = self._pool.request("GET", address, headers=self._headers, redirect=False, preload_content=False)
            if answer.status == 200:
                return answer
            body = answer.data
        except urllib3.exceptions.HTTPError:
            raise Unavailable(f"no Rangewatch server answers at {self.url}") from None
        try:
            refusal = msgspec.json.decode(body, type=Refusal)
        except msgspec.DecodeError:
            raise Unavailable(f"{self.url} answers, but not as a Rangewatch server does ({answer.status})") from None
        raise error_of(answer.status, refusal)


def _decoded(body: bytes, url: str) -> Any:
    try:
        return msgspec.json.decode(body)
    except msgspec.DecodeError:
        raise Unavailable(f"{url} answers, but not as a Rangewatch server does") from None
