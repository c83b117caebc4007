"""`rangewatch restore FILE`: the runs of a backup added to a running server, or to a database."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from rangewatch.maintenance import add_place, follow, offline, run, told


def main(argv: Sequence[str]) -> int:
    """Add them; 0, 2 for an error, 130 when interrupted."""
    options = _parser().parse_args(argv)
    return run("restore", lambda: _restore(options))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="rangewatch restore",
        description="Add the runs of a backup, while training goes on. Runs that are there by name are left alone.",
    )
    parser.add_argument("file", type=Path, help="what `rangewatch backup` wrote")
    add_place(parser)
    parser.add_argument("--replace", action="store_true", help="replace the runs that are there by name")
    return parser


def _restore(options: argparse.Namespace) -> int:
    if options.db is not None:
        offline("restore")(options.db, options.file, options.replace, told)
        return 0
    with options.file.open("rb") as file:
        headers = {"Content-Length": str(options.file.stat().st_size), "Content-Type": "application/vnd.sqlite3"}
        path = f"/api/v1/restore?replace={str(options.replace).lower()}"
        follow("PUT", options.url, path, body=file, headers=headers)
    return 0
