"""`rangewatch delete RUN`: remove a run from a running server. It asks first."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from rangewatch.client.server_api import add_arguments, find_run, write_line
from rangewatch.commands.maintenance.requests import opened, run
from rangewatch.core.command_parser import ERROR, INTERRUPTED, SERVER_ENVIRONMENT, CommandParser, command_parser


def main(argv: Sequence[str]) -> int:
    """Delete it; 0, 1 when it was not to be, 2 for an error, 130 when interrupted."""
    options = parser().parse_args(argv)
    return run("delete", lambda: _delete(options))


def parser() -> CommandParser:
    """What the command takes."""
    made = command_parser(
        "delete",
        "Delete a run with all that was recorded of it. It asks first. A training that still sends creates it again.",
        examples={"rangewatch delete my-run": "asks", "rangewatch delete 17 --yes": "by its number, and does not ask"},
        statuses={0: "it is deleted", 1: "it was not to be"} | ERROR | INTERRUPTED,
        environment=SERVER_ENVIRONMENT,
    )
    add_arguments(made)
    made.add_argument("--yes", action="store_true", help="do not ask")
    return made


def _delete(options: argparse.Namespace) -> int:
    run = find_run(options.url, options.run)
    what = f"run {run['id']}, {run['name']}, steps {run['first_step']} to {run['last_step']}"
    if not options.yes:
        write_line(sys.stderr, f"This deletes {what}, for good. Type yes to do it:")
        if sys.stdin.readline().strip().lower() != "yes":
            write_line(sys.stderr, "Nothing was deleted.")
            return 1
    with opened("DELETE", options.url, f"/api/v1/runs/{run['id']}") as answer:
        answer.drain_conn()
    write_line(sys.stdout, f"Deleted {what}.")
    return 0
