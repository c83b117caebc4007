"""`rangewatch serve`: the dashboard server on one address."""

from __future__ import annotations

import argparse
import errno
import gc
import logging
import os
import socket
import sys
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

import msgspec
import uvicorn
from fastapi import FastAPI

from rangewatch_server import logs
from rangewatch_server.app import create_app
from rangewatch_server.connections import BoundedConnection, raise_file_limit
from rangewatch_server.drain import DRAIN_S, Drain
from rangewatch_server.logs import FORMATS, LEVELS
from rangewatch_server.readiness import network_advice
from rangewatch_server.settings import DEFAULT_HOST, DEFAULT_PORT, LEAST_FREE_BYTES, Settings, SettingsError, check
from rangewatch_server.store.condition import file_system
from rangewatch_server.store.engine import DatabaseError
from rangewatch_server.store.single import hold

logger = logging.getLogger("rangewatch.server")


def main(argv: Sequence[str]) -> int:
    """Run until interrupted; the exit status."""
    try:
        settings = check(_settings(_parser().parse_args(argv)))
        return _serve(settings)
    except (SettingsError, DatabaseError) as error:
        sys.stderr.write(f"rangewatch serve: {error}\n")
        return 2


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="rangewatch serve",
        description="Start the dashboard. Agents send to it, browsers look at it; it needs no other service.",
        epilog="Every option has an environment variable: RANGEWATCH_HOST, _PORT, _DB, _TOKEN, _ALLOW_HOST, "
        "_SYNC, _KEEP_DAYS, _KEEP_GB, _MIN_FREE_MIB, _LOG_FORMAT, _LOG_LEVEL. docs/operations.md has more.",
    )
    for add in (_add_address, _add_storage, _add_log):
        add(parser)
    return parser


def _add_address(parser: argparse.ArgumentParser) -> None:
    add, env = parser.add_argument, os.environ.get
    add(
        "--host",
        default=env("RANGEWATCH_HOST", DEFAULT_HOST),
        help="address to listen on (default: %(default)s, this machine only)",
    )
    add(
        "--port",
        default=env("RANGEWATCH_PORT", str(DEFAULT_PORT)),
        help="port; 0 takes a free one (default: %(default)s)",
    )
    add(
        "--token",
        default=env("RANGEWATCH_TOKEN", ""),
        help="ask agents and browsers for this token; better given as RANGEWATCH_TOKEN, which other users cannot see",
    )
    add(
        "--allow-host",
        action="append",
        default=None,
        metavar="NAME",
        help="a further name browsers reach this server by (may repeat)",
    )


def _add_storage(parser: argparse.ArgumentParser) -> None:
    add, env = parser.add_argument, os.environ.get
    add(
        "--db",
        default=env("RANGEWATCH_DB", ""),
        help="SQLite file, or postgresql://user@host/name (default: a file in your data directory)",
    )
    add(
        "--sync",
        default=env("RANGEWATCH_SYNC", "normal"),
        help="normal: what is acknowledged survives the end of the server; full: a power cut too, each commit waits "
        "for the disk (default: %(default)s)",
    )
    add(
        "--keep-days",
        default=env("RANGEWATCH_KEEP_DAYS", ""),
        metavar="DAYS",
        help="older steps lose detail, but around events (default: all detail is kept; docs/retention.md)",
    )
    add(
        "--keep-gb",
        default=env("RANGEWATCH_KEEP_GB", ""),
        metavar="GB",
        help="above this size the oldest steps lose detail, and at last the oldest ended runs go (default: no limit)",
    )
    add(
        "--min-free-mib",
        default=env("RANGEWATCH_MIN_FREE_MIB", str(LEAST_FREE_BYTES >> 20)),
        metavar="MIB",
        help="/readyz fails when the SQLite file's disk has less room (default: %(default)s)",
    )


def _add_log(parser: argparse.ArgumentParser) -> None:
    add, env = parser.add_argument, os.environ.get
    add(
        "--log-format",
        default=env("RANGEWATCH_LOG_FORMAT", "text"),
        help=f"of the log on stderr: {' or '.join(FORMATS)} (default: %(default)s)",
    )
    add(
        "--log-level",
        default=env("RANGEWATCH_LOG_LEVEL", "warning"),
        help=f"{', '.join(LEVELS)} (default: %(default)s; debug has a line a request)",
    )


def _settings(arguments: argparse.Namespace) -> Settings:
    named = arguments.allow_host or [name for name in os.environ.get("RANGEWATCH_ALLOW_HOST", "").split(",") if name]
    return Settings(
        host=arguments.host, port=_number("--port", arguments.port), db=arguments.db, token=arguments.token,
        allowed_hosts=tuple(named), least_free_bytes=_number("--min-free-mib", arguments.min_free_mib) << 20,
        sync=arguments.sync, keep_days=_amount("--keep-days", arguments.keep_days),
        keep_gb=_amount("--keep-gb", arguments.keep_gb), log_format=arguments.log_format, log_level=arguments.log_level,
    )  # fmt: skip


def _amount(name: str, given: str) -> float | None:
    """None when it is not given."""
    try:
        return float(given) if given else None
    except ValueError:
        raise SettingsError(f"{name} {given!r}: must be a number") from None


def _number(name: str, given: str) -> int:
    try:
        return int(given)
    except ValueError:
        raise SettingsError(f"{name} {given!r}: must be a number") from None


def _serve(settings: Settings) -> int:
    logs.configure(settings.log_format, settings.log_level)
    raise_file_limit()
    listening = _listen(settings)
    settings = msgspec.structs.replace(settings, port=listening.getsockname()[1])
    try:
        with hold(settings.database_url):  # before the database is opened: migrations write
            _run(settings, listening)
    finally:
        listening.close()
    return 0


def _run(settings: Settings, listening: socket.socket) -> None:
    app = create_app(settings)
    _warn_of_network(settings)
    # A page's thread gives Python's lock away with each row that it reads, and waits for it again: 1,024 rows beside a
    # busy thread took 1.4 to 1.8 s at the default of 5 ms, and 0.1 s at this.
    sys.setswitchinterval(0.0005)
    # What starting has made stays: a full collection walks it in 60 ms, in the middle of some request.
    gc.collect()
    gc.freeze()
    # h11 by name: where httptools is installed uvicorn would take that, which has no bound on headers (connections.py).
    config = uvicorn.Config(
        app, http=BoundedConnection, log_config=None, access_log=False, timeout_graceful_shutdown=int(DRAIN_S),
        server_header=False,
    )  # fmt: skip
    sys.stdout.write(f"Rangewatch is at {settings.address}\n  database: {_shown(settings)}\n  stop with Ctrl-C\n")
    sys.stdout.flush()
    drain = Drain(app.state.writer)
    _Server(config, app, drain).run(sockets=[listening])
    drain.done()


def _warn_of_network(settings: Settings) -> None:
    url = settings.database_url
    if url.get_backend_name() == "sqlite" and url.database:
        advice = network_advice(file_system(Path(url.database)))
        if advice:
            logger.warning("%s: %s", url.database, advice)


class _Server(uvicorn.Server):
    """Stops in order: nothing new, live pages end, answers in progress, then the writer (in the app's lifespan)."""

    def __init__(self, config: uvicorn.Config, app: FastAPI, drain: Drain) -> None:
        super().__init__(config)
        self.app = app
        self.drain = drain

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """The first signal drains, the second ends at once. uvicorn would die of the first one when it has drained."""
        if self.should_exit:
            self.drain.end_at_once(sig)
        self.should_exit = True
        self.app.state.draining = True
        self.drain.begin()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """As uvicorn's, after the live streams, or it would wait for them."""
        self.app.state.broker.stop()
        await super().shutdown(sockets)


def _listen(settings: Settings) -> socket.socket:
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    # Named TCP, or asyncio leaves Nagle's algorithm on and each answer waits 40 ms for a delayed ACK (measured).
    listening = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((settings.host, settings.port))
    except OSError as error:
        listening.close()
        reason = (
            "it is in use; give another --port, or 0 for a free one"
            if error.errno == errno.EADDRINUSE
            else error.strerror
        )
        raise SettingsError(f"cannot listen on {settings.host}:{settings.port}: {reason}") from None
    return listening


def _shown(settings: Settings) -> str:
    url = settings.database_url
    return url.database or "" if url.get_backend_name() == "sqlite" else url.render_as_string(hide_password=True)
