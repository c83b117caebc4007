"""`rangewatch replay PATH`: send what ranks left in their spools, when no watcher did and no rank can any more."""

from __future__ import annotations

import argparse
import itertools
import math
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec

from rangewatch.client.connection import ServerError, checked_token, checked_url
from rangewatch.client.server_api import write_line
from rangewatch.commands.maintenance.requests import reported
from rangewatch.core.command_parser import CommandParser, command_parser
from rangewatch.delivery.spool import place
from rangewatch.delivery.spool.folder import Folder, SpoolError
from rangewatch.delivery.spool.upload import Tally, upload
from rangewatch.delivery.transport import Transport

REPORT_EVERY_S = 2.0
SENT, NOT_SENT, ERROR, INTERRUPTED = 0, 1, 2, 130


class Result(msgspec.Struct):
    """What is known of one spool. `state`: `waiting`, `in_use`, `unreadable`, `refused`, `sent` or `left`."""

    path: str
    state: str
    reason: str = ""
    run: str = ""
    rank: int = -1
    host: str = ""
    url: str = ""
    batches: int = 0
    bytes: int = 0
    sent: int = 0
    rejected: int = 0
    damaged: int = 0
    """Batches that cannot be read, and are not among `batches`."""


def main(argv: Sequence[str]) -> int:
    """Send them; 0 when all was sent, 1 when something was not, 2 for an error, 130 when interrupted."""
    options = parser().parse_args(argv)
    try:
        return _replay(options)
    except (ServerError, OSError) as error:
        write_line(sys.stderr, f"rangewatch replay: {error}")
        return ERROR
    except KeyboardInterrupt:
        write_line(sys.stderr, "rangewatch replay: interrupted; run the same command again to continue")
        return INTERRUPTED


def parser() -> CommandParser:
    """What the command takes."""
    made = command_parser(
        "replay",
        "Send what ranks left in their spools to the server. What the server has already is not stored twice, and what "
        "was broken off goes on. A spool that was sent is removed; one of which a batch was refused for good stays.",
        examples={
            "rangewatch replay --list": "what there is on this machine",
            "rangewatch replay --url http://dashboard:8642": "send it to this server",
        },
        statuses={
            SENT: "all was sent", NOT_SENT: "something was not", ERROR: "wrong arguments, or an error",
            INTERRUPTED: "interrupted; run the same command again to continue",
        },
        environment={
            "RANGEWATCH_TOKEN": "the token, where --token is not given",
            "RANGEWATCH_SPOOL_DIR": "where this user's spools are, if not in the temporary folder",
        },
    )  # fmt: skip
    made.add_argument(
        "path", type=Path, nargs="?", metavar="FOLDER",
        help="a rank's spool, a job's folder or all of them (default: this user's spools)",
    )  # fmt: skip
    made.add_argument("--url", type=_url, help="server (default: the one that the rank sent to)")
    made.add_argument(
        "--token", type=_token, help="token for it (default: RANGEWATCH_TOKEN, which a list of processes hides)"
    )
    made.add_argument("--list", action="store_true", help="show the spools, and send nothing")
    made.add_argument("--keep", action="store_true", help="leave the spools as they are, to be sent again")
    made.add_argument(
        "--force", action="store_true", help="send also what a running rank, or another replay, is sending; it is kept"
    )
    made.add_argument(
        "--wait",
        type=_wait,
        default=30.0,
        metavar="S",
        help="seconds to wait for a server that does not answer (default: %(default)g)",
    )
    made.add_argument("--json", action="store_true", help="one object a spool, a line each")
    return made


def _url(text: str) -> str:
    try:
        return checked_url(text)
    except ServerError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _token(text: str) -> str:
    if not (text.isascii() and text.isprintable()):
        raise argparse.ArgumentTypeError("it must be printable ASCII")
    return text


def _wait(text: str) -> float:
    seconds = float(text)
    if not 0 <= seconds < math.inf:
        raise argparse.ArgumentTypeError(f"{text} is no number of seconds")
    return seconds


def _replay(options: argparse.Namespace) -> int:
    tops = _usual_tops() if options.path is None else [options.path]
    if options.path is not None and not options.path.is_dir():
        raise ServerError(f"{options.path} is no folder")
    token = options.token or checked_token()
    results: list[Result] = []
    for path in itertools.chain.from_iterable(map(place.spools, tops)):
        away = {each.url for each in results if each.state == "left" and each.sent + each.rejected < each.batches}
        result = _about(path) if options.list else _sent(path, options, token, away)
        _show(result, options)
        results.append(result)
    if not results and not options.json:
        write_line(sys.stdout, f"no spool in {' and '.join(map(str, tops))}")
    return SENT if options.list or all(each.state == "sent" for each in results) else NOT_SENT


def _usual_tops() -> list[Path]:
    """This user's spools: a `spool_dir` that was on a network has them in the temporary folder."""
    spool_dir = os.environ.get("RANGEWATCH_SPOOL_DIR", "").strip() or None
    return list(dict.fromkeys(place.base_path(each) for each in (spool_dir, None)))


def _about(path: Path) -> Result:
    """What `--list` shows."""
    try:
        folder = Folder(path)
        result = _described(folder)
        result.state = "in_use" if folder.is_in_use() else "waiting"
    except (SpoolError, OSError) as error:
        return Result(str(path), "unreadable", str(error))
    return result


def _sent(path: Path, options: argparse.Namespace, token: str | None, away: set[str]) -> Result:
    """`away`: servers that another spool was left for. They are tried, and not waited for."""
    try:
        folder = Folder(path)
        is_ours = folder.claim()
        try:
            result = _described(folder)
            result.url = options.url or folder.url
            wait_s = 0.0 if result.url in away else options.wait
            if not is_ours and not options.force:
                result.state, result.reason = "in_use", _who(folder)
            elif token and not options.url and folder.user != os.geteuid():
                result.state = "refused"
                result.reason = f"it is user {folder.user}'s, so --url must say which server the token is for"
            else:
                keeps = options.keep or (not is_ours and folder.is_in_use())
                transport = Transport(result.url, token, has_ended=is_ours)
                _upload(folder, transport, result, wait_s, keeps=keeps, is_quiet=options.json)
        finally:
            folder.release()
    except (SpoolError, OSError) as error:
        return Result(str(path), "unreadable", str(error))
    return result


def _upload(
    folder: Folder, transport: Transport, result: Result, wait_s: float, *, keeps: bool, is_quiet: bool
) -> None:
    tally, is_done = Tally(), False
    try:
        is_done = upload(folder, transport, wait_s, tally, _Progress(result, is_quiet=is_quiet).emit, keeps=keeps)
    except OSError as error:  # a file went away, or cannot be read
        tally.reason = str(error)
    transport.close()
    result.sent, result.rejected, result.reason = tally.sent, tally.rejected, tally.reason
    result.damaged = tally.damaged
    result.state = "sent" if is_done and not tally.leaves and not tally.damaged else "left"
    if is_done and not tally.leaves and not keeps:
        folder.remove()


def _described(folder: Folder) -> Result:
    batches = nbytes = 0
    for batch in folder.batches():
        batches, nbytes = batches + 1, nbytes + len(batch.body)
    info = folder.info
    return Result(
        str(folder.path), "waiting", "", info.run, info.rank, info.host, folder.url, batches, nbytes,
        damaged=folder.damaged,
    )  # fmt: skip


def _who(folder: Folder) -> str:
    if folder.has_ended:
        return "its watcher is sending it, that of a newer run, or another replay; --force sends it anyway"
    running = f"rank {folder.info.rank} still runs (process {folder.pid})"
    return f"{running}, or another process sends it; --force sends it anyway"


class _Progress:
    def __init__(self, result: Result, *, is_quiet: bool) -> None:
        self._result, self._is_quiet = result, is_quiet
        self._reported_s = time.monotonic()

    def emit(self, tally: Tally) -> None:
        """After each batch and before each wait; a line every few seconds."""
        if not self._is_quiet and time.monotonic() - self._reported_s >= REPORT_EVERY_S:
            self._reported_s = time.monotonic()
            done = tally.sent + tally.rejected + tally.without_opening
            waits = f"; waiting: {tally.reason}" if tally.reason else ""
            reported(f"{_name(self._result)}: {done} of {self._result.batches} batches{waits}")


def _show(result: Result, options: argparse.Namespace) -> None:
    if options.json:
        sys.stdout.write(msgspec.json.encode(result).decode() + "\n")
        return
    damage = f", {result.damaged} more damaged" if result.damaged else ""
    size = f"{result.batches} batches, {result.bytes / 1e6:.1f} MB{damage}"
    lines = {
        "waiting": f"{_name(result)}: {size} for {result.url}, in {result.path}",
        "in_use": f"{_name(result)}: in use{f': {result.reason}' if result.reason else f', {size}, in {result.path}'}",
        "unreadable": f"{result.path}: {result.reason}",
        "refused": f"{_name(result)}, in {result.path}: {result.reason}",
        "sent": f"{_name(result)}: {result.sent} batches sent to {result.url}",
        "left": f"{_name(result)}: {result.sent} of {result.batches} batches sent to {result.url}; {result.reason}",
    }
    write_line(sys.stdout, lines[result.state])


def _name(result: Result) -> str:
    return f"{result.run} rank {result.rank} ({result.host})"
