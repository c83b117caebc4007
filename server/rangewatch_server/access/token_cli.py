"""`rangewatch token create|list|revoke`: who may send, look and change; beside running servers or without one."""

from __future__ import annotations

import argparse
import os
import re
import secrets
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime, timezone

from alembic.migration import MigrationContext

from rangewatch.core.command_parser import ERROR, CommandParser, command_parser
from rangewatch_server.access.principals import ROLES
from rangewatch_server.core.errors import DatabaseError
from rangewatch_server.core.settings import Settings
from rangewatch_server.store.engine import open_database
from rangewatch_server.store.tokens import AccessStore, NoTables, Token, digest_of

PREFIX = "rangewatch_"  # so that what looks for secrets in repositories and logs knows one
TOKEN_BYTES = 32
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,63}")
BY_HAND = "rangewatch token"
DB_ENVIRONMENT = {"RANGEWATCH_DB": "the servers' database, where --db is not given"}
WIDEST = 60  # characters of a column that others are lined up after: one long path would push all of them away


def main(argv: Sequence[str]) -> int:
    """0, 1 when there is no such token, 2 for an error."""
    options = parser().parse_args(argv)
    work: Callable[[AccessStore, argparse.Namespace], int] = options.work
    try:
        with opened(options.db) as store:
            return work(store, options)
    except DatabaseError as error:
        sys.stderr.write(f"rangewatch token: {error}\n")
        return 2


def parser() -> CommandParser:
    """What the command takes."""
    made = command_parser(
        "token",
        "Tokens of the servers of one database. What changes is in force within seconds; no server need be restarted. "
        "Once there is a token, every server of the database asks for one.",
        examples={
            "rangewatch token create anna --role view": "a token for a browser",
            "rangewatch token create cluster --role ingest": "a token for agents, as their RANGEWATCH_TOKEN",
            "rangewatch token revoke anna": "end it, and the sessions that were begun with it",
        },
        statuses={0: "done", 1: "there is no such token"} | ERROR,
        environment=DB_ENVIRONMENT,
    )
    _add_subcommands(made)
    return made


def _add_subcommands(made: CommandParser) -> None:
    commands = made.add_subparsers(required=True, metavar="create|list|revoke")
    create = commands.add_parser("create", help="make a token, which is shown this once")
    create.add_argument("name", type=_name, help="whose it is, as the audit will say: letters, digits and . _ @ -")
    create.add_argument(
        "--role", action="append", required=True, choices=ROLES,
        help="ingest: agents may send; view: people may look; admin: they may change, too (may repeat)",
    )  # fmt: skip
    create.set_defaults(work=_create)
    commands.add_parser("list", help="the tokens there are, but not the tokens themselves").set_defaults(work=_list)
    revoke = commands.add_parser("revoke", help="end a token, and the sessions of browsers that logged in with it")
    revoke.add_argument("name", help="whose it is, as it was made")
    revoke.set_defaults(work=_revoke)
    for each in commands.choices.values():
        add_db(each)


def add_db(parser: argparse.ArgumentParser) -> None:
    """Where the tokens are."""
    parser.add_argument(
        "--db", default=os.environ.get("RANGEWATCH_DB", ""), metavar="DATABASE",
        help="the servers' database, as rangewatch serve --db (default: RANGEWATCH_DB, or the file that serve takes)",
    )  # fmt: skip


@contextmanager
def opened(db: str) -> Iterator[AccessStore]:
    """The tokens of a database. Raises `DatabaseError`."""
    store = AccessStore(Settings(db=db).database_url)
    try:
        yield store
    finally:
        store.dispose()


def _name(text: str) -> str:
    if not NAME.fullmatch(text):
        raise argparse.ArgumentTypeError("a name has 1 to 64 letters, digits and . _ @ -, and begins with the former")
    return text


def _create(store: AccessStore, options: argparse.Namespace) -> int:
    token = PREFIX + secrets.token_urlsafe(TOKEN_BYTES)
    roles = [role for role in ROLES if role in options.role]
    is_first = not _tokens(store, options.db)
    number = store.begin_record(BY_HAND, "", f"create {options.name}")
    store.create(options.name, digest_of(token), roles)
    store.end_record(number, 201, " ".join(roles))
    sys.stdout.write(f"{token}\n")  # alone on stdout, for $(...)
    sys.stderr.write(f"The token {options.name!r} may {' and '.join(roles)}. It is shown this once.\n")
    if is_first:
        sys.stderr.write("It is the first one: from now on every server of this database asks for a token.\n")
    if store.path is not None and not store.path.with_suffix("").exists():
        file = _plain(str(store.path.with_suffix("")))
        sys.stderr.write(f"No server has used {file} yet: give `rangewatch serve` the same --db.\n")
    return 0


def _tokens(store: AccessStore, db: str) -> tuple[Token, ...]:
    """Those there are. An empty PostgreSQL database gets its tables first, as a server would make them."""
    try:
        return store.read().tokens
    except NoTables:
        with store.engine.connect() as connection:
            schema = MigrationContext.configure(connection).get_current_revision()
        if schema is not None:  # to migrate it here would break the older servers that may run on it
            raise DatabaseError(
                f"the database has schema {schema}: start a server of this version on it first"
            ) from None
        open_database(Settings(db=db).database_url).dispose()
        return store.read().tokens


def _list(store: AccessStore, _: argparse.Namespace) -> int:
    try:
        stored = store.read()
    except NoTables:
        stored = None
    if stored is None or not stored.tokens:
        sys.stdout.write("There is no token: rangewatch token create NAME --role view\n")
        return 0
    rows = [("NAME", "ROLES", "CREATED", "BROWSERS", "REVOKED")]
    for each in stored.tokens:
        sessions = sum(session.token_id == each.id for session in stored.sessions)
        revoked = "" if each.revoked_ns is None else shown_time(each.revoked_ns)
        rows.append((each.name, ", ".join(each.roles), shown_time(each.created_ns), str(sessions), revoked))
    write_table(rows)
    return 0


def _revoke(store: AccessStore, options: argparse.Namespace) -> int:
    if not any(each.name == options.name and each.revoked_ns is None for each in store.read().tokens):
        sys.stderr.write(f"rangewatch token: there is no live token {options.name[:64]!r}\n")
        return 1
    number = store.begin_record(BY_HAND, "", f"revoke {options.name[:64]}")
    is_revoked = store.revoke(options.name)
    store.end_record(number, 200 if is_revoked else 404, "")
    sys.stdout.write(f"Revoked {options.name}: no server takes it any more within seconds.\n")
    return 0


def shown_time(time_ns: int) -> str:
    """In UTC, to the second."""
    return datetime.fromtimestamp(time_ns / 1e9, timezone.utc).strftime("%Y-%m-%d %H:%M:%SZ")


def write_table(rows: Sequence[Sequence[str]]) -> None:
    """Columns of one width. What is not printable is escaped: names and paths come from the network."""
    plain = [[_plain(cell) for cell in row] for row in rows]
    widths = [min(max(map(len, column)), WIDEST) for column in zip(*plain, strict=True)]
    for row in plain:
        sys.stdout.write("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() + "\n")


def _plain(text: str) -> str:
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)
