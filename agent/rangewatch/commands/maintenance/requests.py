"""What `backup`, `restore`, `prune` and `delete` share: long answers of a running server, and databases without one.

With `--url` nothing of the server is needed here; with `--db` the server's packages do the work.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any, TypedDict

import msgspec
import urllib3

from rangewatch.client.connection import Connection, ServerError, Unavailable, default_url
from rangewatch.client.server_api import write_line
from rangewatch.core.command_parser import SERVER_ENVIRONMENT

CONNECT_S = 30.0
READ_S = 3_600.0  # the server writes a whole snapshot before the first byte of a backup: 100 GB at 30 MB/s
MAX_LINE_BYTES = 1 << 16


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
    function: Callable[..., Any] = getattr(module, name)
    return function


def run(name: str, work: Callable[[], int]) -> int:
    """The exit status of `work`; 2 for an error, 130 when interrupted."""
    try:
        return work()
    except (ServerError, OSError) as error:
        write_line(sys.stderr, f"rangewatch {name}: {error}")
        return 2
    except KeyboardInterrupt:
        write_line(sys.stderr, f"rangewatch {name}: interrupted; the server finishes what it has begun")
        return 130


def opened(method: str, url: str, path: str, **options: Any) -> AbstractContextManager[urllib3.BaseHTTPResponse]:
    """An answer that may be long in coming. Raises `ServerError`."""
    return Connection(url, timeout_s=urllib3.Timeout(connect=CONNECT_S, read=READ_S)).open(method, path, **options)


def follow(method: str, url: str, path: str, **options: Any) -> None:
    """Print the lines of a long answer; raises `ServerError` with the last one when it failed."""
    with opened(method, url, path, **options) as answer:
        for line in _lines(answer):
            if "error" in line:
                raise ServerError(line["error"])
            if line.get("done"):
                return
            reported(line.get("line", ""))
    raise Unavailable("the server broke off; ask again")


def _lines(answer: urllib3.BaseHTTPResponse) -> Iterator[_Line]:
    rest = b""
    for part in answer.stream(1 << 16):
        *whole, rest = (rest + part).split(b"\n")
        if len(rest) > MAX_LINE_BYTES:
            return
        for each in whole:
            try:
                yield msgspec.json.decode(each, type=_Line)
            except msgspec.MsgspecError:
                return
