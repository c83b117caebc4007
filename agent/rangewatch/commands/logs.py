"""`rangewatch logs RUN`: the last lines of a rank's stderr, as the server has them."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from typing import TypedDict
from urllib.parse import urlencode

from rangewatch.client.connection import ServerError
from rangewatch.client.server_api import add_arguments, find_run, get, write_line
from rangewatch.core.command_parser import ERROR, SERVER_ENVIRONMENT, CommandParser, command_parser


class Stderr(TypedDict):
    """What is read of GET /api/v1/runs/{id}/stderr (docs/api.md)."""

    rank: int
    step: int | None
    lines: list[str]
    is_cut: bool
    note: str


def main(argv: Sequence[str]) -> int:
    """Print the lines; 0, 1 when there are none, 2 for an error."""
    options = parser().parse_args(argv)
    try:
        return _logs(options)
    except ServerError as error:
        write_line(sys.stderr, f"rangewatch logs: {error}")
        return 2


def parser() -> CommandParser:
    """What the command takes."""
    made = command_parser(
        "logs",
        "Print the last lines that a rank wrote to stderr, of a training that was told to send them "
        "(stderr_tail=True). Where they are from, and what is missing, is printed on stderr.",
        examples={
            "rangewatch logs my-run": "of the rank that died or failed first",
            "rangewatch logs my-run --rank 3": "of rank 3",
        },
        statuses={0: "there are lines", 1: "there are none, or they were not recorded"} | ERROR,
        environment=SERVER_ENVIRONMENT,
    )
    add_arguments(made)
    add = made.add_argument
    add("--rank", type=int, help="this rank (default: the first that died, or else failed, or else the lowest)")
    add("--json", action="store_true", help="print what the server says, as JSON")
    return made


def _logs(options: argparse.Namespace) -> int:
    run = find_run(options.url, options.run)
    query = "" if options.rank is None else "?" + urlencode({"rank": options.rank})
    tail = get(options.url, f"/api/v1/runs/{run['id']}/stderr{query}", Stderr)
    if options.json:
        write_line(sys.stdout, json.dumps(tail).replace("\x7f", "\\u007f"))
        return int(not tail["lines"])
    step = "" if tail["step"] is None else f", step {tail['step']}"
    before = " There was more before." if tail["is_cut"] else ""
    write_line(sys.stderr, f"run {run['name']}, rank {tail['rank']}{step}: {tail['note']}{before}")
    for line in tail["lines"]:
        write_line(sys.stdout, line)
    return int(not tail["lines"])
