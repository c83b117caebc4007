"""What `rangewatch trace` and `rangewatch level` share: ask a run's agents, wait, and tell what became of it."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from typing import Any

from rangewatch.server_api import ServerError, add_arguments, find_run, get, post

POLL_S = 0.5  # the server's own live pages are told twice a second
UNFINISHED = ("pending", "accepted")

States = list[dict[str, Any]]
"""What became of a command, by rank (docs/api.md)."""


def parser_of(name: str, description: str) -> argparse.ArgumentParser:
    """A parser with what both commands take."""
    parser = argparse.ArgumentParser(prog=f"rangewatch {name}", description=description)
    add_arguments(parser)
    parser.add_argument("--rank", type=int, action="append", help="this rank only (may repeat; default: all)")
    parser.add_argument("--no-wait", action="store_true", help="do not wait until the ranks have done it")
    return parser


def run(name: str, options: argparse.Namespace, body: dict[str, Any], tell: Callable[[str, States], None]) -> int:
    """Ask, wait, and `tell(run, states of the ranks that did it)`.

    0 when every rank did it (or was asked, with --no-wait), 1 when some did not, 2 for an error, 130 when interrupted.
    """
    try:
        asked_of = find_run(options.url, options.run)
        path = f"/api/v1/runs/{asked_of['id']}/commands"
        command = post(options.url, path, body | {"ranks": options.rank})
        if options.no_wait:
            _write(f"Asked of {ranks_of(command['states'])}, as command {command['id']}.")
            return 0
        states = _wait(options.url, f"{path}/{command['id']}")
    except ServerError as error:
        return _complain(name, str(error), 2)
    except KeyboardInterrupt:
        return _complain(name, "no longer waiting; what was asked stands", 130)
    tell(asked_of["name"], [each for each in states if each["state"] == "done"])
    return _undone(name, [each for each in states if each["state"] != "done"])


def _wait(url: str, path: str) -> States:
    """Until no rank that is still to answer is live."""
    told = None
    while True:
        states: States = get(url, path)["states"]
        done = f"{sum(each['state'] == 'done' for each in states)} of {len(states)} ranks done\n"
        if done != told:
            sys.stderr.write(done)
            sys.stderr.flush()
            told = done
        if not any(each["live"] for each in states if each["state"] in UNFINISHED):
            return states
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


def _write(line: str) -> None:
    sys.stdout.write(line + "\n")


def _complain(name: str, line: str, status: int) -> int:
    sys.stderr.write(f"rangewatch {name}: {line}\n")
    return status
