"""`rangewatch prune`: remove detail, and at last runs, by age and size. `--dry-run` shows what would go."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from typing import TypedDict
from urllib.parse import urlencode

from rangewatch.client.connection import ServerError
from rangewatch.client.server_api import get, write_line
from rangewatch.commands.maintenance.requests import PLACE_ENVIRONMENT, add_place, follow, offline, reported, run
from rangewatch.core.command_parser import ERROR, INTERRUPTED, CommandParser, command_parser

MOST = 1e9  # GB or days: what the server takes


class _Plan(TypedDict):
    lines: list[str]


def main(argv: Sequence[str]) -> int:
    """Do it or show it; 0, 2 for an error, 130 when interrupted."""
    options = parser().parse_args(argv)
    return run("prune", lambda: _prune(options))


def parser() -> CommandParser:
    """What the command takes."""
    made = command_parser(
        "prune",
        "Remove what the policy says: single steps first, then coarser columns, and at last, for size only, runs that "
        "have ended. Around overflows, skipped steps and failures everything stays. Without --keep-days and --keep-gb: "
        "the server's own policy, or with --db RANGEWATCH_KEEP_DAYS and RANGEWATCH_KEEP_GB.",
        examples={
            "rangewatch prune --keep-days 30 --dry-run": "what would go",
            "rangewatch prune --db old.db --keep-gb 20 --vacuum": "a database that no server has open, made small",
        },
        statuses={0: "it is done, or shown"} | ERROR | INTERRUPTED,
        environment=PLACE_ENVIRONMENT
        | {
            "RANGEWATCH_KEEP_DAYS": "with --db: --keep-days, where that is not given",
            "RANGEWATCH_KEEP_GB": "with --db: --keep-gb, where that is not given",
        },
    )
    add_place(made)
    add = made.add_argument
    add("--dry-run", action="store_true", help="show what would go")
    add(
        "--keep-days", type=_positive, metavar="DAYS", help="keep single steps for this many days (default: the policy)"
    )
    add(
        "--keep-gb", type=_positive, metavar="GB",
        help="keep at most this many GB (10^9 bytes) in all (default: the policy)",
    )  # fmt: skip
    add("--vacuum", action="store_true", help="with --db, SQLite: rewrite the file, so that it is as small as can be")
    return made


def _positive(text: str) -> float:
    """An amount that leaves something: 0 or less would remove all that may go. Raises `ArgumentTypeError`."""
    try:
        amount = float(text)
    except ValueError:
        amount = 0.0
    if not 0 < amount <= MOST:  # NaN is neither
        raise argparse.ArgumentTypeError(f"{text!r} must be a number, more than 0 and at most {MOST:.0e}")
    return amount


def _prune(options: argparse.Namespace) -> int:
    limits = {name: each for name in ("keep_days", "keep_gb") if (each := getattr(options, name)) is not None}
    if options.db is not None:
        for line in offline("prune")(options.db, _env() | limits, options.dry_run, options.vacuum, reported):
            write_line(sys.stdout, line)
        return 0
    if options.vacuum:
        raise ServerError("--vacuum rewrites the file, which needs --db and the server stopped")
    path = f"/api/v1/prune?{urlencode(limits)}"
    for line in get(options.url, path, _Plan)["lines"]:
        write_line(sys.stdout, line)
    if not options.dry_run:
        follow("POST", options.url, path)
    return 0


def _env() -> dict[str, float]:
    """The settings of the server, where there is none."""
    bounds: dict[str, float] = {}
    for name, variable in (("keep_days", "RANGEWATCH_KEEP_DAYS"), ("keep_gb", "RANGEWATCH_KEEP_GB")):
        if text := os.environ.get(variable, "").strip():
            try:
                bounds[name] = _positive(text)
            except argparse.ArgumentTypeError as error:
                raise ServerError(f"{variable}: {error}") from None
    return bounds
