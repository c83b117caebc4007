"""`rangewatch serve`: the dashboard server on one address."""

from __future__ import annotations

import argparse
import errno
import gc
import logging
import os
import socket
import ssl
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

import msgspec
import uvicorn
from fastapi import FastAPI

from rangewatch.core.command_parser import CommandParser, command_parser
from rangewatch_server.alerts.config import ConfigError
from rangewatch_server.core import logs
from rangewatch_server.core.errors import DatabaseError
from rangewatch_server.core.logs import FORMATS, LEVELS
from rangewatch_server.core.settings import (
    ALERTS_PERCENT,
    DEFAULT_HOST,
    DEFAULT_PORT,
    LEAST_FREE_BYTES,
    MAX_STREAMS,
    Settings,
    SettingsError,
    check,
    check_reach,
    is_loopback,
)
from rangewatch_server.http import static
from rangewatch_server.http.app import create_app
from rangewatch_server.http.connections import ConnectionLimit, Files, bound_handshakes, bounded, raise_file_limit
from rangewatch_server.http.drain import DRAIN_S, Drain
from rangewatch_server.http.health import network_advice
from rangewatch_server.http.tls import tls_context
from rangewatch_server.store.condition import file_system
from rangewatch_server.store.engine import hold
from rangewatch_server.store.tokens import AccessStore, NoTables

logger = logging.getLogger("rangewatch.server")

GUESSABLE = 16  # characters: a random token of fewer has under 96 bits, and one that was thought up far fewer


def main(argv: Sequence[str]) -> int:
    """Run until interrupted; the exit status."""
    try:
        settings = check(_settings(parser().parse_args(argv)))
        return _serve(settings)
    except (SettingsError, DatabaseError, ConfigError) as error:
        sys.stderr.write(f"rangewatch serve: {error}\n")
        return 2


def parser() -> CommandParser:
    """What the command takes."""
    names = (
        "host port db token allow-host tls-cert tls-key forwarded-allow-ips max-streams sync keep-days "
        "keep-gb min-free-mib alerts alerts-percent otlp otlp-every log-format log-level"
    )
    made = command_parser(
        "serve",
        "Agents send to it, browsers look at it; it needs no other service. It runs until Ctrl-C or SIGTERM, and then "
        "stores what it has taken. docs/operations.md has more.",
        examples={
            "rangewatch serve": "http://127.0.0.1:8642 for this machine, one SQLite file",
            "rangewatch serve --host 0.0.0.0 --db postgresql://user@host/name": "for others, who need a token then "
            "(rangewatch token create)",
        },
        statuses={0: "stopped", 2: "wrong arguments, or it cannot start, with one line that says why"},
        environment={
            f"RANGEWATCH_{each.replace('-', '_').upper()}": f"--{each}, where that is not given"
            f"{'; several by commas' if each == 'allow-host' else ''}"
            for each in names.split()
        },
    )
    for add in (_add_address, _add_access, _add_storage, _add_alerts, _add_otlp, _add_log):
        add(made)
    return made


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
        metavar="N",
        help="port; 0 takes a free one (default: %(default)s)",
    )


def _add_access(parser: argparse.ArgumentParser) -> None:
    add, env = parser.add_argument, os.environ.get
    add(
        "--token",
        default=env("RANGEWATCH_TOKEN", ""),
        help="ask agents and browsers for this token, which may do everything; better given as RANGEWATCH_TOKEN, which "
        "other users cannot see. Tokens that may do less: rangewatch token create (default: ask for none)",
    )
    add(
        "--allow-host",
        action="append",
        default=None,
        metavar="NAME",
        help="a further name browsers reach this server by (may repeat; default: none)",
    )
    add(
        "--tls-cert",
        default=env("RANGEWATCH_TLS_CERT", ""),
        metavar="FILE",
        help="certificate chain (PEM): https only (default: plain http)",
    )
    add(
        "--tls-key",
        default=env("RANGEWATCH_TLS_KEY", ""),
        metavar="FILE",
        help="its private key (PEM, not encrypted; default: none)",
    )
    add(
        "--forwarded-allow-ips",
        default=env("RANGEWATCH_FORWARDED_ALLOW_IPS", ""),
        metavar="ADDRESSES",
        help="proxies whose X-Forwarded-For and X-Forwarded-Proto are believed (default: none)",
    )
    add(
        "--max-streams",
        default=env("RANGEWATCH_MAX_STREAMS", str(MAX_STREAMS)),
        metavar="N",
        help="live pages that one client may have open (default: %(default)s)",
    )


def _add_storage(parser: argparse.ArgumentParser) -> None:
    add, env = parser.add_argument, os.environ.get
    add(
        "--db",
        default=env("RANGEWATCH_DB", ""),
        metavar="DATABASE",
        help="SQLite file, or postgresql://user@host/name (default: a file in your data directory)",
    )
    add(
        "--sync",
        default=env("RANGEWATCH_SYNC", "normal"),
        metavar="{normal,full}",
        help="normal: what is acknowledged survives the end of the server; full: a power cut too, each commit waits "
        "for the disk (default: %(default)s)",
    )
    add(
        "--keep-days",
        default=env("RANGEWATCH_KEEP_DAYS", ""),
        metavar="DAYS",
        help="steps older than these days lose detail, but around events (default: all is kept; docs/retention.md)",
    )
    add(
        "--keep-gb",
        default=env("RANGEWATCH_KEEP_GB", ""),
        metavar="GB",
        help="above these GB (10^9 bytes) the oldest steps lose detail, and at last the oldest ended runs go "
        "(default: no limit)",
    )
    add(
        "--min-free-mib",
        default=env("RANGEWATCH_MIN_FREE_MIB", str(LEAST_FREE_BYTES >> 20)),
        metavar="MIB",
        help="/readyz fails when the SQLite file's disk has less room, in MiB (default: %(default)s)",
    )


def _add_alerts(parser: argparse.ArgumentParser) -> None:
    add, env = parser.add_argument, os.environ.get
    add(
        "--alerts",
        default=env("RANGEWATCH_ALERTS", ""),
        metavar="FILE",
        help="TOML file of thresholds, and of where alerts are sent: webhooks, Slack, e-mail (docs/alerts.md; "
        "default: the rules' own thresholds, and nobody is sent anything)",
    )
    add(
        "--alerts-percent",
        default=env("RANGEWATCH_ALERTS_PERCENT", f"{ALERTS_PERCENT:g}"),
        metavar="PERCENT",
        help="of one core, the most that the rules take in the mean: alerts come sooner with more (default: "
        "%(default)s)",
    )


def _add_otlp(parser: argparse.ArgumentParser) -> None:
    add, env = parser.add_argument, os.environ.get
    add(
        "--otlp",
        default=env("RANGEWATCH_OTLP", ""),
        metavar="URL",
        help="push metrics and alerts to an OpenTelemetry collector, by OTLP over HTTP, such as http://127.0.0.1:4318 "
        "(pip install 'rangewatch[otlp]'; docs/operations.md; default: nothing is pushed)",
    )
    add(
        "--otlp-every",
        default=env("RANGEWATCH_OTLP_EVERY", "60"),
        metavar="SECONDS",
        help="seconds between two pushes of metrics (default: %(default)s)",
    )


def _add_log(parser: argparse.ArgumentParser) -> None:
    add, env = parser.add_argument, os.environ.get
    add(
        "--log-format",
        default=env("RANGEWATCH_LOG_FORMAT", "text"),
        metavar=f"{{{','.join(FORMATS)}}}",
        help="of the log on stderr (default: %(default)s)",
    )
    add(
        "--log-level",
        default=env("RANGEWATCH_LOG_LEVEL", "warning"),
        metavar=f"{{{','.join(LEVELS)}}}",
        help="the least that the log has; debug has a line a request (default: %(default)s)",
    )


def _settings(arguments: argparse.Namespace) -> Settings:
    named = arguments.allow_host or [name for name in os.environ.get("RANGEWATCH_ALLOW_HOST", "").split(",") if name]
    return Settings(
        host=arguments.host, port=_number("--port", arguments.port), db=arguments.db, token=arguments.token,
        allowed_hosts=tuple(named), tls_cert=arguments.tls_cert, tls_key=arguments.tls_key,
        forwarded_allow_ips=arguments.forwarded_allow_ips, max_streams=_number("--max-streams", arguments.max_streams),
        least_free_bytes=_number("--min-free-mib", arguments.min_free_mib) << 20,
        sync=arguments.sync, keep_days=_amount("--keep-days", arguments.keep_days),
        keep_gb=_amount("--keep-gb", arguments.keep_gb), log_format=arguments.log_format, log_level=arguments.log_level,
        alerts=arguments.alerts, alerts_percent=_amount("--alerts-percent", arguments.alerts_percent) or 0.0,
        otlp=arguments.otlp,
        otlp_every_s=_amount("--otlp-every", arguments.otlp_every) or 0.0,
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
    files = raise_file_limit()
    bound_handshakes()
    check_reach(settings, lambda: _has_tokens(settings))
    context = None if not settings.tls_cert else tls_context(settings.tls_cert, settings.tls_key)
    listening = _listen(settings)
    settings = msgspec.structs.replace(settings, port=listening.getsockname()[1])
    try:
        with hold(settings.database_url):  # before the database is opened: migrations write
            _run(settings, listening, context, files)
    finally:
        listening.close()
    return 0


def _has_tokens(settings: Settings) -> bool:
    """Whether somebody could log in to this database. Raises `DatabaseError`."""
    store = AccessStore(settings.database_url)
    try:
        return any(each.revoked_ns is None for each in store.read().tokens)
    except NoTables:
        return False
    finally:
        store.dispose()


def _run(settings: Settings, listening: socket.socket, context: ssl.SSLContext | None, files: Files) -> None:
    app = create_app(settings)
    _warn_of_token(settings)
    _warn_of_network(settings)
    # A page's thread gives Python's lock away with each row that it reads, and waits for it again: 1,024 rows beside a
    # busy thread took 1.4 to 1.8 s at the default of 5 ms, and 0.1 s at this.
    sys.setswitchinterval(0.0005)
    # What starting has made stays: a full collection walks it in 60 ms, in the middle of some request.
    gc.collect()
    gc.freeze()
    # h11 by name: where httptools is installed uvicorn would take that, which has no bound on headers (connections.py).
    # No WebSocket: we have none, and where its library is installed one would leave these bounds behind. asyncio's own
    # loop, also where uvloop is installed, which would not know of our time for handshakes.
    config = uvicorn.Config(
        app, http=bounded(ConnectionLimit(files.connections)), ws="none", loop="asyncio", backlog=files.backlog,
        log_config=None, access_log=False, timeout_graceful_shutdown=int(DRAIN_S),
        server_header=False, proxy_headers=bool(settings.forwarded_allow_ips),
        forwarded_allow_ips=settings.forwarded_allow_ips or None,
        ssl_context_factory=None if context is None else lambda *_: context,
    )  # fmt: skip
    sys.stdout.write(f"Rangewatch is at {settings.address}\n  database: {_shown(settings)}\n  stop with Ctrl-C\n")
    sys.stdout.flush()
    threading.Thread(target=static.prepare, name="rangewatch-site", daemon=True).start()
    drain = Drain(app.state.writer)
    _Server(config, app, drain).run(sockets=[listening])
    drain.done()


def _warn_of_token(settings: Settings) -> None:
    if settings.token and len(settings.token) < GUESSABLE and not is_loopback(settings.host):
        logger.warning("the token has %d characters and may be guessed; rangewatch token create", len(settings.token))


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
