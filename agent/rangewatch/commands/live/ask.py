"""What `rangewatch trace` and `rangewatch level` share: ask a run's agents, wait, and report the outcome."""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any, TypedDict

from rangewatch.client.connection import ServerError, Unavailable
from rangewatch.client.server_api import Run, add_arguments, find_run, get, post, write_line
from rangewatch.core.command_parser import ERROR, INTERRUPTED, SERVER_ENVIRONMENT, CommandParser, command_parser

POLL_S = 0.5  # the server's own live pages are updated twice a second
AWAY_S = 30.0  # a server starts within seconds, and an agent tries again within 15 (limits.BACKOFF_LAST_S)
UNFINISHED = ("pending", "accepted")


class RankState(TypedDict):
    """What became of a command on one rank (docs/api.md)."""

    rank: int
    state: str
    reason: str
    first_step: int | None
    last_step: int | None
    live: bool


class Command(TypedDict):
    """What was asked, as the server shows it."""

    id: int
    states: list[RankState]


States = list[RankState]
"""What became of a command, by rank."""


def parser_of(name: str, description: str, examples: Mapping[str, str]) -> CommandParser:
    """A parser with what both commands take."""
    statuses = {0: "every rank has done it; with --no-wait, was asked to", 1: "some rank did not"} | ERROR
    parser = command_parser(
        name, description, examples=examples, statuses=statuses | INTERRUPTED, environment=SERVER_ENVIRONMENT
    )
    add_arguments(parser)
    parser.add_argument("--rank", type=int, action="append", help="this rank only (may repeat; default: all)")
    parser.add_argument("--no-wait", action="store_true", help="do not wait until the ranks have done it")
    return parser


def run(name: str, options: argparse.Namespace, body: dict[str, Any], emit: Callable[[str, States], None]) -> int:
    """Ask, wait, and `emit(run, states of the ranks that did it)`; the run by a name that a command line takes.

    0 when every rank did it (or was asked, with --no-wait), 1 when some did not, 2 for an error, 130 when interrupted.
    """
    try:
        asked_of = find_run(options.url, options.run)
        path = f"/api/v1/runs/{asked_of['id']}/commands"
        command = post(options.url, path, body | {"ranks": options.rank}, Command)
    except ServerError as error:
        return _complain(name, str(error), 2)
    except KeyboardInterrupt:
        return _complain(name, "interrupted before the server answered", 130)
    if options.no_wait:
        write_line(sys.stdout, f"Asked of {ranks_of(command['states'])}, as command {command['id']}.")
        return 0
    return _finish(name, options.url, f"{path}/{command['id']}", lambda states: emit(_name_of(asked_of), states))


def _finish(name: str, url: str, path: str, emit: Callable[[States], None]) -> int:
    """Wait and report; the exit status."""
    number = path.rpartition("/")[2]
    try:
        states = _wait(url, path)
    except Unavailable as error:
        return _complain(name, f"{error}; what was asked stands, as command {number}", 2)
    except ServerError as error:
        return _complain(name, f"{error}; it was asked as command {number}", 2)
    except KeyboardInterrupt:
        return _complain(name, f"stopped waiting; the request stands, as command {number}", 130)
    emit([each for each in states if each["state"] == "done"])
    return _undone(name, [each for each in states if each["state"] != "done"])


def _wait(url: str, path: str) -> States:
    """Until no rank that is still to answer is live; after an outage the ranks get time to find the server again."""
    reported, outage_s = "", -math.inf
    while True:
        states, was_away = _states(url, path)
        if was_away:
            reported, outage_s = "", time.monotonic()
        done = f"{sum(each['state'] == 'done' for each in states)} of {len(states)} ranks done"
        if done != reported:
            write_line(sys.stderr, done)
            reported = done
        unfinished = [each for each in states if each["state"] in UNFINISHED]
        may_answer = any(each["live"] for each in unfinished) or time.monotonic() - outage_s < AWAY_S
        if not (unfinished and may_answer):
            return states
        time.sleep(POLL_S)


def _states(url: str, path: str) -> tuple[States, bool]:
    """What became of it so far, and whether the server was away: commands outlive a restart, so ask for `AWAY_S`."""
    since_s = None
    while True:
        try:
            return get(url, path, Command)["states"], since_s is not None
        except Unavailable as error:
            if since_s is None:
                since_s = time.monotonic()
                write_line(sys.stderr, f"{error}; trying again")
            if time.monotonic() - since_s >= AWAY_S:
                raise
        time.sleep(POLL_S)


def _undone(name: str, states: States) -> int:
    groups: dict[str, States] = {}
    for each in states:
        why = "silent" if each["state"] in UNFINISHED else f"{each['state']}: {each['reason']}".rstrip(": ")
        groups.setdefault(why, []).append(each)
    for why, group in groups.items():
        _complain(name, f"{ranks_of(group)} {why}", 1)
    return 1 if states else 0


def ranks_of(states: States) -> str:
    """Runs of ranks are shortened: `rank 3`, `ranks 0-7, 9`."""
    spans: list[list[int]] = []
    for rank in sorted(each["rank"] for each in states):
        if spans and rank == spans[-1][1] + 1:
            spans[-1][1] = rank
        else:
            spans.append([rank, rank])
    text = ", ".join(str(low) if low == high else f"{low}-{high}" for low, high in spans)
    return f"rank{'s' if len(states) > 1 else ''} {text}"


def _name_of(run: Run) -> str:
    """The number, where the name cannot be typed, or would be taken for an option."""
    return run["name"] if run["name"].isprintable() and not run["name"].startswith("-") else str(run["id"])


def _complain(name: str, line: str, status: int) -> int:
    write_line(sys.stderr, f"rangewatch {name}: {line}")
    return status
