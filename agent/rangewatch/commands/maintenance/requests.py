"""What `backup`, `restore`, `prune` and `delete` share: long answers of a running server, and databases without one.

With `--url` nothing of the server is needed here; with `--db` the server's packages do the work.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypedDict

import msgspec
import urllib3

from rangewatch.client.server_api import (
    Refusal,
    ServerError,
    Unavailable,
    authorization,
    checked,
    default_url,
    write_line,
)
from rangewatch.core.command_parser import SERVER_ENVIRONMENT

CONNECT_S = 30.0
READ_S = 3_600.0  # the server writes a whole snapshot before the first byte of a backup: 100 GB at 30 MB/s
MAX_REFUSAL = 1 << 16  # bytes


class _Line(TypedDict, total=False):
    line: str
    error: str
    done: bool


PLACE_ENVIRONMENT = SERVER_ENVIRONMENT | {"RANGEWATCH_URL": "the server, where neither --url nor --db is given"}


def add_place(parser: argparse.ArgumentParser) -> None:
    """Where: a running server, or a database that no server has open."""
    place = parser.add_mutually_exclusive_group()
    place.add_argument("--url", default=default_url(), help="server (default: %(default)s)")
    place.add_argument("--db", help="SQLite file or postgresql:// URL, while no server has it open (default: --url)")


def reported(line: str) -> None:
    """Progress, for a person."""
    write_line(sys.stderr, line)


def offline(name: str) -> Callable[..., Any]:
    """A function of the server's `rangewatch_server.maintenance.command`. Raises `ServerError` where the server is
    not installed.
    """
    try:
        module = importlib.import_module("rangewatch_server.maintenance.command")
    except ModuleNotFoundError as error:
        raise ServerError(f"{error.name} is not installed; --db needs pip install 'rangewatch[server]'") from None
    found: Callable[..., Any] = getattr(module, name)
    return found


def run(name: str, work: Callable[[], int]) -> int:
    """The exit status of `work`; 2 for an error, 130 when interrupted."""
    try:
        return work()
    except (ServerError, OSError) as error:
        write_line(sys.stderr, f"rangewatch {name}: {error}")
        return 2
    except KeyboardInterrupt:
        write_line(sys.stderr, f"rangewatch {name}: interrupted; a server goes on with what it has begun")
        return 130


@contextmanager
def opened(method: str, url: str, path: str, **options: Any) -> Iterator[urllib3.BaseHTTPResponse]:
    """An answer that is read as it comes. No redirect is followed. Raises `ServerError`."""
    headers = authorization() | options.pop("headers", {})
    timeout = urllib3.Timeout(connect=CONNECT_S, read=READ_S)
    try:
        answer = urllib3.request(
            method, checked(url).rstrip("/") + path, headers=headers, timeout=timeout, retries=False, redirect=False,
            preload_content=False, **options,
        )  # fmt: skip
        if answer.status != 200:
            raise _refused(url, answer)
        yield answer
        answer.release_conn()
    except urllib3.exceptions.HTTPError:
        raise Unavailable(f"no Rangewatch server answers at {url}, or it broke off") from None


def follow(method: str, url: str, path: str, **options: Any) -> None:
    """Tell the lines of a long answer; raises `ServerError` with the last one when it failed."""
    with opened(method, url, path, **options) as answer:
        for line in _lines(answer):
            if "error" in line:
                raise ServerError(line["error"])
            if line.get("done"):
                return
            reported(line.get("line", ""))
    raise Unavailable("the server broke off; ask again")


def _lines(answer: urllib3.BaseHTTPResponse) -> Iterator[_Line]:
    kept = b""
    for part in answer.stream(1 << 16):
        *whole, kept = (kept + part).split(b"\n")
        if len(kept) > MAX_REFUSAL:
            return
        for each in whole:
            try:
                yield msgspec.json.decode(each, type=_Line)
            except msgspec.MsgspecError:
                return


def _refused(url: str, answer: urllib3.BaseHTTPResponse) -> ServerError:
    try:
        refusal = msgspec.json.decode(answer.read(MAX_REFUSAL), type=Refusal)
    except msgspec.MsgspecError:
        return Unavailable(f"no Rangewatch server answers at {url}")
    return (Unavailable if answer.status in (429, 503) else ServerError)(refusal["error"])
