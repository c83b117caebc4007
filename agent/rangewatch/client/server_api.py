"""What the commands that talk to a running server share: requests, errors in one line, a run by name, safe output."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from typing import Any, TextIO, TypedDict, TypeVar

import msgspec
import urllib3

from rangewatch.core.options import Options

TIMEOUT_S = 30.0

Shape = TypeVar("Shape")


class Overflow(TypedDict):
    """Where a run overflowed first."""

    step: int
    rank: int


class RunLine(TypedDict):
    """A run as GET /api/v1/runs lists it: what the commands read of it (docs/api.md has the rest)."""

    id: int
    name: str


class Run(RunLine):
    """A run as GET /api/v1/runs/{id} shows it."""

    first_step: int | None
    last_step: int | None
    first_overflow: Overflow | None


class _Listed(TypedDict):
    runs: list[RunLine]


class _Runs(_Listed, total=False):
    """A page of runs, newest first; `next` is the `before` of the one after it, not there on the last."""

    next: int | None


class Refusal(TypedDict):
    error: str
    code: str


class ServerError(Exception):
    """Why there is no answer, in one line."""


class Unavailable(ServerError):
    """No server answers, or not now: the same may be answered later."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The run, and where its server is."""
    parser.add_argument("run", help="name or number of the run")
    parser.add_argument("--url", default=default_url(), help="server (default: %(default)s)")


def default_url() -> str:
    """Where a server is when nothing else is said."""
    return os.environ.get("RANGEWATCH_URL", "").strip() or "http://127.0.0.1:8642"


def find_run(url: str, name: str) -> Run:
    """The run with that name or number. Raises `ServerError`, also when they are two runs: `delete` asks with it."""
    newest: list[RunLine] = []
    found: list[RunLine] = []
    for page in _pages(url):
        newest = newest or page[:5]
        found += [run for run in page if name in (run["name"], str(run["id"]))]
        if found and not name.isdecimal():  # a number may be another run's name, which is not known before the end
            break
    if not found:
        known = ", ".join(run["name"] for run in newest) or "none yet"
        raise ServerError(f"no run {name!r} at {url}; there are: {known}")
    if len(found) > 1:
        named = " and ".join(f"number {run['id']} ({run['name']!r})" for run in found[:2])
        raise ServerError(f"{name!r} may mean {named}: give the name of the one, or the number of the other")
    return get(url, f"/api/v1/runs/{found[0]['id']}", Run)


def _pages(url: str) -> Iterator[list[RunLine]]:
    """All runs, newest first. Raises `ServerError`, also for a list that goes round."""
    page = get(url, "/api/v1/runs", _Runs)
    yield page["runs"]
    while (before := page.get("next")) is not None:
        page = get(url, f"/api/v1/runs?before={before}", _Runs)
        after = page.get("next")
        if after is not None and after >= before:
            raise ServerError(f"the server at {url} does not list its runs to the end")
        yield page["runs"]


def get(url: str, path: str, shape: type[Shape]) -> Shape:
    """The JSON at `path`, which fits `shape` and may hold more. Raises `ServerError`."""
    return _request("GET", url, path, shape)


def post(url: str, path: str, body: dict[str, Any], shape: type[Shape]) -> Shape:
    """The JSON that answers `body` as JSON, which fits `shape` and may hold more. Raises `ServerError`."""
    return _request("POST", url, path, shape, json=body)


def write_line(stream: TextIO, line: str) -> None:
    """Write a line that may hold a server's words: runs and modules have any name, and a terminal obeys an ESC.

    What is not printable, newlines too, or not in the terminal's encoding is written as in a Python string: `\\x1b`.
    """
    shown = "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in line)
    encoding = stream.encoding or "utf-8"
    stream.write(shown.encode(encoding, "backslashreplace").decode(encoding) + "\n")


def _request(method: str, url: str, path: str, shape: type[Shape], **options: Any) -> Shape:
    """No redirect is followed: the token would go along."""
    address, headers = checked(url).rstrip("/") + path, authorization()
    try:
        answer = urllib3.request(
            method, address, headers=headers, timeout=TIMEOUT_S, retries=False, redirect=False, **options
        )
        body = answer.json()
        if answer.status in (200, 201):
            msgspec.convert(body, shape)  # checks; returns only the fields that the shape has
            return body
        refusal = msgspec.convert(body, Refusal)
    except (urllib3.exceptions.HTTPError, ValueError, RecursionError):  # ValueError: no JSON, or not of that shape
        raise Unavailable(f"no Rangewatch server answers at {url}") from None
    raise error_of(answer.status, refusal)


def error_of(status: int, refusal: Refusal) -> ServerError:
    """What is raised for an answer of this status."""
    return (Unavailable if status in (429, 503) else ServerError)(refusal["error"])


def checked(url: str) -> str:
    try:
        return Options(url=url).url
    except ValueError as error:
        raise ServerError(str(error).removeprefix("rangewatch option ")) from None


def authorization(given: str | None = None) -> dict[str, str]:
    """The header for a token, without the space around it; default: RANGEWATCH_TOKEN's. Raises `ServerError`."""
    token = (os.environ.get("RANGEWATCH_TOKEN", "") if given is None else given).strip()
    if not (token.isascii() and token.isprintable()):
        whose = "RANGEWATCH_TOKEN" if given is None else "what was given"
        raise ServerError(f"{whose} is no token: it must be printable ASCII")
    return {"Authorization": f"Bearer {token}"} if token else {}
