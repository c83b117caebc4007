"""`rangewatch demo`: a server, two training ranks, and an account of them while the overflow comes about."""

from __future__ import annotations

import argparse
import importlib.util
import json
import signal
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from types import FrameType
from typing import NoReturn

from rangewatch.commands.demo.children import (
    Child,
    ChildFailed,
    LineReader,
    free_port,
    port_is_free,
    start_ranks,
    start_server,
)
from rangewatch.commands.demo.options import DEFAULT_PORT, parse_options
from rangewatch.commands.demo.options import parser as parser
from rangewatch.commands.demo.progress import Account, Progress, RunReader, is_server

LAST_ROWS_S = 10.0
"""How long after the last step the server may still be taking in rows."""
INTERRUPTED = 130
"""The shell's exit status for a program that Ctrl-C ended."""


class DemoError(Exception):
    """Why the demo cannot go on, in one line for the user."""


def main(argv: list[str]) -> int:
    """Runs the demo with the arguments that follow `rangewatch demo`; gives the exit status."""
    options = parse_options(argv)
    progress = Progress(sys.stderr if options.json else sys.stdout)
    previous = signal.signal(signal.SIGTERM, _interrupt)
    try:
        # The logs outlive the children: a child that fails is quoted from its log while the others are being ended.
        with tempfile.TemporaryDirectory(prefix="rangewatch-demo-logs-") as logs, ExitStack() as children:
            return _demo(options, progress, Path(logs), children)
    except (DemoError, ChildFailed) as error:
        sys.stderr.write(f"rangewatch demo: {error}\n")
        return 1
    except KeyboardInterrupt:
        progress.write("stopped before the last step")
        return INTERRUPTED
    finally:
        signal.signal(signal.SIGTERM, previous)


def _interrupt(signal_number: int, frame: FrameType | None) -> NoReturn:
    raise KeyboardInterrupt


def _demo(options: argparse.Namespace, progress: Progress, logs: Path, children: ExitStack) -> int:
    _require_libraries(needs_server=options.url is None)
    if options.url is None:
        url, server = _start_server(options, progress, logs, children)
    else:
        url, server = _running_server(options.url), None
    progress.write(f"dashboard: {url}")
    account = _train(options, url, progress, logs, children)
    if options.json:
        sys.stdout.write(json.dumps(account.result(url, options.run, options.ranks)) + "\n")
        sys.stdout.flush()
    if server is not None and not options.exit:
        _stay_up(server, url, progress)
    return 0


def _require_libraries(*, needs_server: bool) -> None:
    if importlib.util.find_spec("torch") is None:
        raise DemoError("the demo trains a model and needs torch: pip install 'rangewatch[agent]'")
    if needs_server and importlib.util.find_spec("uvicorn") is None:
        raise DemoError("the demo starts a server: pip install 'rangewatch[server]', or give one with --url")


def _running_server(url: str) -> str:
    if not is_server(url.rstrip("/")):
        raise DemoError(f"no Rangewatch server answers at {url}; start one with `rangewatch serve`")
    return url.rstrip("/")


def _start_server(
    options: argparse.Namespace, progress: Progress, logs: Path, children: ExitStack
) -> tuple[str, Child]:
    port, database = _choose_port(options, progress), _choose_database(options)
    url, server = start_server(port, database, logs, children)
    progress.write(f"database: {database}")
    return url, server


def _choose_port(options: argparse.Namespace, progress: Progress) -> int:
    if options.port is None:
        port = free_port(DEFAULT_PORT)
        if port != DEFAULT_PORT:
            progress.write(f"port {DEFAULT_PORT} is taken, using {port}")
        return port
    if not port_is_free(options.port):
        raise DemoError(f"port {options.port} is taken; choose another with --port, or leave it out")
    return int(options.port)


def _choose_database(options: argparse.Namespace) -> Path:
    if options.db is not None:
        return Path(options.db).absolute()
    # Not deleted at the end: the run can be browsed again with `rangewatch serve --db`.
    return Path(tempfile.mkdtemp(prefix="rangewatch-demo-")) / "rangewatch.db"


def _train(options: argparse.Namespace, url: str, progress: Progress, logs: Path, children: ExitStack) -> Account:
    arguments = ["--steps", str(options.steps), "--seed", str(options.seed)]
    arguments += ["--fresh-lr-factor", str(options.lr_factor)]
    environment = {"RANGEWATCH_URL": url, "RANGEWATCH_RUN": options.run}
    ranks = [children.enter_context(rank) for rank in start_ranks(arguments, options.ranks, environment, logs)]
    account = Account(options.steps, RunReader(url, options.run), progress)
    lines = LineReader(ranks[0].stdout)
    # sum, not all: every rank is asked each time, or one that fails goes unseen while rank 0 waits for it.
    while sum(rank.ended() for rank in ranks) < len(ranks):
        account.take(lines.next(timeout_s=0.2))
    while (line := lines.next(timeout_s=0.2)) is not None:
        account.take(line)
    account.finish(LAST_ROWS_S)
    return account


def _stay_up(server: Child, url: str, progress: Progress) -> None:
    progress.write("the dashboard stays up; press Ctrl-C to stop")
    try:
        while not server.ended():
            time.sleep(0.5)
    except KeyboardInterrupt:
        progress.write("stopped")
    except ChildFailed:
        # Killing the server and starting it again is a fair thing to try: the other one is not ours to end.
        if not is_server(url):
            raise
        progress.write(f"the demo's own server ended; another answers at {url} and stays up")
