"""`rangewatch restore FILE`: the runs of a backup added to a running server, or to a database."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from rangewatch.commands.maintenance.requests import PLACE_ENVIRONMENT, add_place, follow, offline, reported, run
from rangewatch.core.command_parser import ERROR, INTERRUPTED, CommandParser, command_parser


def main(argv: Sequence[str]) -> int:
    """Add them; 0, 2 for an error, 130 when interrupted."""
    options = parser().parse_args(argv)
    return run("restore", lambda: _restore(options))


def parser() -> CommandParser:
    """What the command takes."""
    made = command_parser(
        "restore",
        "Add the runs of a backup, while training goes on. Runs that are there by name are left alone.",
        examples={
            "rangewatch restore runs.db": "into the running server",
            "rangewatch restore runs.db --db new.db --replace": "into a database that no server has open",
        },
        statuses={0: "every run of the backup is there"} | ERROR | INTERRUPTED,
        environment=PLACE_ENVIRONMENT,
    )
    made.add_argument("file", type=Path, metavar="FILE", help="what `rangewatch backup` wrote")
    add_place(made)
    made.add_argument("--replace", action="store_true", help="replace the runs that are there by name")
    return made


def _restore(options: argparse.Namespace) -> int:
    if options.db is not None:
        offline("restore")(options.db, options.file, options.replace, reported)
        return 0
    with options.file.open("rb") as file:
        headers = {"Content-Length": str(options.file.stat().st_size), "Content-Type": "application/vnd.sqlite3"}
        path = f"/api/v1/restore?replace={str(options.replace).lower()}"
        follow("PUT", options.url, path, body=file, headers=headers)
    return 0
