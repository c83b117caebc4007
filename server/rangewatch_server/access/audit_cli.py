"""`rangewatch audit`: what was done with the role admin, and with `rangewatch token`."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from rangewatch.core.command_parser import ERROR, CommandParser, command_parser
from rangewatch_server.access.token_cli import DB_ENVIRONMENT, add_db, opened, shown_time, write_table
from rangewatch_server.core.errors import DatabaseError
from rangewatch_server.store.tokens import NoTables, Record

LISTED = 50


def main(argv: Sequence[str]) -> int:
    """0, 2 for an error."""
    options = parser().parse_args(argv)
    try:
        with opened(options.db) as store:
            records = store.records(max(options.limit, 1))
    except NoTables:
        records = []
    except DatabaseError as error:
        sys.stderr.write(f"rangewatch audit: {error}\n")
        return 2
    write_table([("TIME", "WHO", "FROM", "WHAT", "STATUS", "DETAIL"), *map(_row, records)])
    return 0


def parser() -> CommandParser:
    """What the command takes."""
    made = command_parser(
        "audit",
        "Who did what, the newest first. A server shows it at /api/v1/audit.",
        examples={"rangewatch audit --limit 200": "the newest 200 records"},
        statuses={0: "done"} | ERROR,
        environment=DB_ENVIRONMENT,
    )
    add_db(made)
    made.add_argument("--limit", type=int, default=LISTED, metavar="N", help="records shown (default: %(default)s)")
    return made


def _row(record: Record) -> tuple[str, ...]:
    status = "-" if record.status is None else str(record.status)
    return shown_time(record.time_ns), record.who, record.client or "-", record.what, status, record.detail
