"""`rangewatch import PATH`: what TensorBoard, W&B or trackio has recorded, as runs of a server. Needs none of them."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from rangewatch.client.server_api import ServerError, authorization, checked, default_url, write_line
from rangewatch.commands.importing import tensorboard, trackio, wandb
from rangewatch.commands.importing.scalars import ImportFailed, Scalars, below, plain
from rangewatch.commands.importing.sending import send
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
        write_line(sys.stderr, "rangewatch import: interrupted; the same command goes on")
        return 130


def parser() -> CommandParser:
    """What the command takes."""
    made = command_parser(
        "import",
        "Send the numbers that TensorBoard, Weights & Biases or trackio has recorded to a running server. Each folder "
        "with TensorBoard's event files becomes a run and each of its scalars a series, and so does each run that W&B "
        "keeps in a folder, offline or not, and each of a trackio project. The same again changes nothing, and what "
        "has grown meanwhile gets what is new. Images, histograms and the like are left out.",
        examples={
            "rangewatch import runs/": "every run below this folder",
            "rangewatch import lightning_logs/version_3 --run gpt-base": "one run, by a name of its own",
            "rangewatch import wandb/": "the runs of W&B's folder",
            "rangewatch import ~/.cache/huggingface/trackio": "the runs of all projects of trackio",
            "rangewatch import runs/ --list": "what there is, without a server",
        },
        statuses={0: "the server has them", 1: "there is nothing to send"} | ERROR | INTERRUPTED,
        environment=SERVER_ENVIRONMENT,
    )
    made.add_argument("path", type=Path, metavar="FOLDER", help="with logs in it or below it; or a W&B or trackio file")
    made.add_argument("--url", default=default_url(), help="server (default: %(default)s)")
    made.add_argument("--run", metavar="NAME", help="name of the run, before the names of what is below FOLDER "
                      "(default: FOLDER's name)")  # fmt: skip
    made.add_argument("--list", action="store_true", help="show what there is, and send nothing")
    return made


def _import(options: argparse.Namespace) -> int:
    token = authorization().get("Authorization", "").removeprefix("Bearer ") or None
    transport = Transport(checked(options.url), token)
    sent = failed = 0
    try:
        for source, found in _found(options.path, plain(options.run or _name(options.path.resolve()))):
            if isinstance(found, Scalars):
                sent += _one(found, source, transport, is_list=options.list)
            else:
                failed += 1
                write_line(sys.stderr, f"rangewatch import: {found}")
    finally:
        transport.close()
    if not sent and not failed:
        write_line(sys.stderr, f"rangewatch import: there is nothing of TensorBoard, W&B or trackio in {options.path}")
    return 2 if failed else 0 if sent else 1


def _name(path: Path) -> str:
    """What follows the last dot is a file's type, and of a folder, `llama-3.1`, a part of its name."""
    return path.name if path.is_dir() else path.stem


def _found(top: Path, base: str) -> Iterator[tuple[str, Scalars | Exception]]:
    """Each run with where it is from, or why a file gave none; the others go on. Raises `ImportFailed` for no `top`."""
    if not top.exists():
        raise ImportFailed(f"there is no {top}")
    for source, runs in _sources(top, base):
        try:
            for scalars in runs:
                yield source, scalars
        except (ImportFailed, OSError) as error:
            yield source, error


def _sources(top: Path, base: str) -> Iterator[tuple[str, Iterator[Scalars]]]:
    """The runs of each folder of TensorBoard and of each other file, which are read only when they are asked for."""
    for folder, files in tensorboard.find(top):
        yield "TensorBoard", map(tensorboard.read, [below(base, top, folder)], [files])
    for path in wandb.find(top):
        yield "Weights & Biases", map(wandb.run, [base], [top], [path])
    for path in trackio.find(top):
        yield "trackio", trackio.read(below(base, top, path.with_suffix("")) if path != top else base, path)


def _one(scalars: Scalars, source: str, transport: Transport, *, is_list: bool) -> bool:
    """Whether it had any."""
    for reason, count in scalars.left_out.items():
        write_line(sys.stderr, f"{scalars.name}: {count} values left out, {reason}")
    for remark in scalars.remarks:
        write_line(sys.stderr, f"{scalars.name}: {remark}")
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
