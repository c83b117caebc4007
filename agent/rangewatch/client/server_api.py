"""What the commands that talk to a running server share: its JSON by shape, a run by name, safe output."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Any, TextIO, TypedDict, TypeVar

from rangewatch.client.connection import Connection, ServerError, default_url

TIMEOUT_S = 30.0

Shape = TypeVar("Shape")


class Overflow(TypedDict):
    """Where a run overflowed first."""

    step: int
    rank: int


class SkippedOverflow(Overflow):
    """Where the first step that the loss scaler skipped overflowed. `what`: "nan" or "inf"."""

    fqn: str
    kind: str
    what: str


class RunLine(TypedDict):
    """A run as GET /api/v1/runs lists it: what the commands read of it (docs/api.md has the rest)."""

    id: int
    name: str


class _Run(RunLine):
    first_step: int | None
    last_step: int | None
    first_overflow: Overflow | None


class Run(_Run, total=False):
    """A run as GET /api/v1/runs/{id} shows it. `first_skipped`: the first overflow that the loss scaler skipped;
    `reason`: why it ended, in a line. An older server does not say these.
    """

    state: str
    reason: str | None

    first_skipped: SkippedOverflow | None


class _Listed(TypedDict):
    runs: list[RunLine]


class _Runs(_Listed, total=False):
    """A page of runs, newest first; `next` is the `before` of the one after it, not there on the last."""

    next: int | None


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The run, and where its server is."""
    parser.add_argument("run", help="name or number of the run")
    parser.add_argument("--url", default=default_url(), help="server (default: %(default)s)")


def find_run(url: str, name: str) -> Run:
    """The run with that name or number. Raises `ServerError`, also when they are two runs: `delete` asks with it."""
    newest: list[RunLine] = []
    matching: list[RunLine] = []
    for page in _pages(url):
        newest = newest or page[:5]
        matching += [run for run in page if name in (run["name"], str(run["id"]))]
        if matching and not name.isdecimal():  # a number may be another run's name, which is not known before the end
            break
    if not matching:
        known = ", ".join(run["name"] for run in newest) or "none yet"
        raise ServerError(f"no run {name!r} at {url}; there are: {known}")
    if len(matching) > 1:
        named = " and ".join(f"number {run['id']} ({run['name']!r})" for run in matching[:2])
        raise ServerError(f"{name!r} may mean {named}: give the name of the one, or the number of the other")
    return get(url, f"/api/v1/runs/{matching[0]['id']}", Run)


ENDED_BADLY = ("failed", "died")
STOPPED = ("interrupted", "terminated")
"""States of a run that a user ended, by Ctrl-C, or a scheduler."""


def ending(run: Run) -> str | None:
    """How it ended, in a line; None where it has finished, or goes on."""
    state = run.get("state")
    if state not in (*ENDED_BADLY, *STOPPED):
        return None
    reason = run.get("reason")
    was = "" if state in ENDED_BADLY else "was "
    return f"the run {was}{state}" + (f": {reason}" if reason else "")


def steps_of(run: Run) -> str:
    """Those that it has."""
    return "no steps yet" if run["last_step"] is None else f"steps {run['first_step']} to {run['last_step']}"


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
    answer: Shape = Connection(url, timeout_s=TIMEOUT_S).request("GET", path, shape)
    return answer


def post(url: str, path: str, body: dict[str, Any], shape: type[Shape]) -> Shape:
    """The JSON that answers `body` as JSON, which fits `shape` and may hold more. Raises `ServerError`."""
    answer: Shape = Connection(url, timeout_s=TIMEOUT_S).request("POST", path, shape, json=body)
    return answer


def write_line(stream: TextIO, line: str) -> None:
    """Write a line that may hold a server's words: runs and modules have any name, and a terminal obeys an ESC.

    What is not printable, newlines too, or not in the terminal's encoding is written as in a Python string: `\\x1b`.
    """
    shown = "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in line)
    encoding = stream.encoding or "utf-8"
    stream.write(shown.encode(encoding, "backslashreplace").decode(encoding) + "\n")
