"""`rangewatch import PATH`: scalars of TensorBoard's event files or of a CSV file, as runs of a server."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from rangewatch.client.connection import ServerError, checked_token, checked_url, default_url
from rangewatch.client.server_api import write_line
from rangewatch.commands.importing.scalars import ImportFailed, Scalars, plain, send
from rangewatch.commands.importing.sources import event_files, read_csv, read_tensorboard
from rangewatch.core.command_parser import ERROR, INTERRUPTED, SERVER_ENVIRONMENT, CommandParser, command_parser
from rangewatch.delivery.transport import Transport


def main(argv: Sequence[str]) -> int:
    """Send them; 0, 1 when there are no scalars, 2 for an error (of one file, too), 130 when interrupted."""
    options = parser().parse_args(argv)
    try:
        return _import(options)
    except (ServerError, ImportFailed, OSError) as error:
        write_line(sys.stderr, f"rangewatch import: {error}")
        return 2
    except KeyboardInterrupt:
        write_line(sys.stderr, "rangewatch import: interrupted; run the same command again to continue")
        return 130


def parser() -> CommandParser:
    """What the command takes."""
    made = command_parser(
        "import",
        "Send the numbers that another tool has recorded to a running server. Each folder with TensorBoard's event "
        "files becomes a run and each of its scalars a series (needs rangewatch[tensorboard]); a CSV file becomes one "
        "run, with a series a column and a column of steps, as W&B's tables and Lightning's CSVLogger have it. The "
        "same again changes nothing, and what has grown meanwhile gets what is new. Images, histograms and the like "
        "are left out.",
        examples={
            "rangewatch import runs/": "every run below this folder",
            "rangewatch import lightning_logs/version_3 --run gpt-base": "one run, by a name of its own",
            "rangewatch import base.csv": "the columns of a table, by its column step, _step or global_step",
            "rangewatch import runs/ --list": "what there is, without a server",
        },
        statuses={0: "the server has them", 1: "there is nothing to send"} | ERROR | INTERRUPTED,
        environment=SERVER_ENVIRONMENT,
    )
    made.add_argument(
        "path", type=Path, metavar="PATH", help="a folder with event files in it or below it, or a CSV file"
    )
    made.add_argument("--url", default=default_url(), help="server (default: %(default)s)")
    made.add_argument("--run", metavar="NAME", help="name of the run, before the names of what is below PATH "
                      "(default: PATH's name)")  # fmt: skip
    made.add_argument("--list", action="store_true", help="list what would be sent, and send nothing")
    return made


def _import(options: argparse.Namespace) -> int:
    token = checked_token()
    transport = Transport(checked_url(options.url), token)
    sent = failed = 0
    try:
        for source, run in _runs(options.path, plain(options.run or _name(options.path.resolve()))):
            if isinstance(run, Scalars):
                sent += _one(run, source, transport, is_list=options.list)
            else:
                failed += 1
                write_line(sys.stderr, f"rangewatch import: {run}")
    finally:
        transport.close()
    if not sent and not failed:
        write_line(sys.stderr, f"rangewatch import: no TensorBoard scalars in {options.path}")
    return 2 if failed else 0 if sent else 1


def _name(path: Path) -> str:
    """What follows the last dot is a file's type, and of a folder, `llama-3.1`, a part of its name."""
    return path.name if path.is_dir() else path.stem


def _runs(top: Path, base: str) -> Iterator[tuple[str, Scalars | Exception]]:
    """Each run with where it is from, or why a file gave none; the others go on. Raises `ImportFailed` for no `top`."""
    if not top.exists():
        raise ImportFailed(f"there is no {top}")
    if top.is_file():
        yield "CSV", read_csv(base, top)
        return
    for folder, files in event_files(top):
        try:
            yield "TensorBoard", read_tensorboard(_below(base, top, folder), files)
        except (ImportFailed, OSError) as error:
            yield "TensorBoard", error


def _below(base: str, top: Path, folder: Path) -> str:
    """The name of what is in `folder`, where `base` is that of `top`."""
    inner = plain(folder.relative_to(top).as_posix())
    return base if inner == "." else f"{base}/{inner}"


def _one(scalars: Scalars, source: str, transport: Transport, *, is_list: bool) -> bool:
    """Whether it had any."""
    for reason, count in scalars.left_out.items():
        write_line(sys.stderr, f"{scalars.name}: {count} values left out, {reason}")
    if not scalars.values:
        return False
    steps = scalars.steps()
    what = f"{scalars.count()} values of {len(scalars.values)} series, steps {steps[0]} to {steps[-1]}"
    if not is_list:
        send(scalars, source, transport, _Progress(scalars.name).emit)
    write_line(sys.stdout, f"{scalars.name}: {what}")
    return True


class _Progress:
    """Tells on a terminal how far it is."""

    def __init__(self, name: str) -> None:
        self._name = name

    def emit(self, done: int, batches: int) -> None:
        if sys.stderr.isatty() and (done % 20 == 0 or done == batches > 20):
            write_line(sys.stderr, f"{self._name}: {done} of {batches} batches")
