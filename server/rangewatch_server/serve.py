"""`rangewatch serve`: the dashboard server on one address."""

from __future__ import annotations

import argparse
import errno
import logging
import os
import socket
import sys
from collections.abc import Sequence

import msgspec
import uvicorn

from rangewatch_server.app import create_app
from rangewatch_server.live import Broker
from rangewatch_server.settings import DEFAULT_HOST, DEFAULT_PORT, Settings, SettingsError, check
from rangewatch_server.store.engine import DatabaseError

GRACE_S = 5  # for requests in progress at shutdown; live pages are told to end at once


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
        epilog="Every option has an environment variable: RANGEWATCH_HOST, _PORT, _DB, _TOKEN, _ALLOW_HOST.",
    )
    env = os.environ.get
    parser.add_argument(
        "--host",
        default=env("RANGEWATCH_HOST", DEFAULT_HOST),
        help="address to listen on (default: %(default)s, this machine only)",
    )
    parser.add_argument(
        "--port",
        default=env("RANGEWATCH_PORT", str(DEFAULT_PORT)),
        help="port; 0 takes a free one (default: %(default)s)",
    )
    parser.add_argument(
        "--db",
        default=env("RANGEWATCH_DB", ""),
        help="SQLite file, or postgresql://user@host/name (default: a file in your data directory)",
    )
    parser.add_argument(
        "--token",
        default=env("RANGEWATCH_TOKEN", ""),
        help="ask agents and browsers for this token; better given as RANGEWATCH_TOKEN, which other users cannot see",
    )
    parser.add_argument(
        "--allow-host",
        action="append",
        default=None,
        metavar="NAME",
        help="a further name browsers reach this server by (may repeat)",
    )
    return parser  # fmt: skip


def _settings(arguments: argparse.Namespace) -> Settings:
    try:
        port = int(arguments.port)
    except ValueError:
        raise SettingsError(f"--port {arguments.port!r}: must be a number") from None
    named = arguments.allow_host or [name for name in os.environ.get("RANGEWATCH_ALLOW_HOST", "").split(",") if name]
    return Settings(host=arguments.host, port=port, db=arguments.db, token=arguments.token, allowed_hosts=tuple(named))


def _serve(settings: Settings) -> int:
    listening = _listen(settings)
    port: int = listening.getsockname()[1]
    settings = msgspec.structs.replace(settings, port=port)
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    app = create_app(settings)
    config = uvicorn.Config(
        app, log_level="warning", access_log=False, timeout_graceful_shutdown=GRACE_S, server_header=False
    )
    sys.stdout.write(f"Rangewatch is at {settings.address}\n  database: {_shown(settings)}\n  stop with Ctrl-C\n")
    sys.stdout.flush()
    _Server(config, app.state.broker).run(sockets=[listening])
    return 0


class _Server(uvicorn.Server):
    """Ends live pages first, or the graceful shutdown would wait for them."""

    def __init__(self, config: uvicorn.Config, broker: Broker) -> None:
        super().__init__(config)
        self.broker = broker

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """As uvicorn's, after the live streams."""
        self.broker.stop()
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
