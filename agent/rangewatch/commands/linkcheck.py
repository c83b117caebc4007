"""`rangewatch linkcheck`: tests every rank and every pair of ranks, and says which GPU or link is bad or slow."""

from __future__ import annotations

import argparse
import os
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType
from typing import NoReturn

from rangewatch.checks.linkcheck import faults, launch
from rangewatch.checks.linkcheck.coordinator import Plan
from rangewatch.checks.linkcheck.launch import LaunchError, PlaceError, find
from rangewatch.checks.linkcheck.output import Output, open_streams, to_stderr
from rangewatch.checks.linkcheck.tasks import GLOO, NCCL
from rangewatch.client.connection import ServerError, checked_token, checked_url, default_url
from rangewatch.core.command_parser import ERROR, CommandParser, command_parser

INTERRUPTED = 130
MOST_RANKS = 1024
"""Of one host: each is a process."""


def main(argv: Sequence[str]) -> int:
    """0: all is fine; 1: something bad or slow was found; 2: it could not run, or not post; 130: interrupted.

    Under a launcher rank 0 has the verdict, and the others' status is 0 unless they could not take part.
    """
    open_streams()
    made = parser()
    options = made.parse_args(argv)
    previous = signal.signal(signal.SIGTERM, _interrupt)
    try:
        return _run(made, options)
    except (LaunchError, PlaceError, ServerError) as error:
        to_stderr(f"rangewatch linkcheck: {error}")
        return 2
    except OSError as error:
        to_stderr(f"rangewatch linkcheck: out of processes, sockets or files: {error.strerror or error}")
        return 2
    except KeyboardInterrupt:
        to_stderr("rangewatch linkcheck: interrupted")
        return INTERRUPTED
    finally:
        signal.signal(signal.SIGTERM, previous)


def _run(made: CommandParser, options: argparse.Namespace) -> int:
    place = find(os.environ) if options.nproc is None else None
    world_size = place.world_size if place is not None else options.nproc or launch.gpu_count()
    if world_size < 1:
        made.error("this host has no GPU: give --nproc N, or start it with torchrun or srun")
    for fault in options.inject:
        if max(fault.ranks) >= world_size:
            made.error(f"--inject: there is no rank {max(fault.ranks)} among {world_size}")
    if place is not None and place.rank > 0:
        return launch.follow(place, options.inject, options.join_timeout)
    output = _output(options)
    launch.allow_descriptors(0 if place is not None and place.is_hosted else world_size)
    plan = Plan(
        world_size, options.backend, options.timeout, options.join_timeout, options.bytes, options.rounds, options.slow
    )
    if place is None:
        result = launch.alone(plan, options.inject, output.emit)
    else:
        result = launch.lead(place, plan, options.inject, output.emit)
    return output.finish(result)


def _output(options: argparse.Namespace) -> Output:
    """Bad input is reported before a test, not after it."""
    url = None if options.post is None else checked_url(options.post)
    token = checked_token()
    if options.json not in (None, "-"):
        _check_writable(Path(options.json).absolute())
    return Output(options.json, url, token, options.run or time.strftime("linkcheck-%Y%m%d-%H%M%S"))


def _check_writable(path: Path) -> None:
    if not path.parent.is_dir():
        raise LaunchError(f"--json: there is no directory {path.parent}")
    if path.is_dir():
        raise LaunchError(f"--json: {path} is a directory")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise LaunchError(f"--json: {path} cannot be written")


def parser() -> CommandParser:
    """What the command takes."""
    made = command_parser(
        "linkcheck",
        "Tests each rank alone, all together, every pair in rounds of disjoint pairs, and smaller groups; names the "
        "rank or link that hangs, dies, is slow or delivers wrong values. Start it with torchrun or srun, on the hosts "
        "of a training that is not running, or by itself with --nproc.",
        examples={
            "rangewatch linkcheck": "every GPU of this host",
            "torchrun --nnodes 4 --nproc-per-node 8 ... --no-python rangewatch linkcheck --post": "every GPU of a job; "
            "the result goes to the dashboard too",
        },
        statuses={
            0: "no problem; also a rank of a launcher that could take part and is not rank 0",
            1: "something bad or slow was found", INTERRUPTED: "interrupted",
        }
        | ERROR,
        environment={
            "RANGEWATCH_URL": "the dashboard of --post, where no URL is given with it",
            "RANGEWATCH_TOKEN": "the token that it asks for, if it does",
        },
    )  # fmt: skip
    _add_tests(made)
    _add_result(made)
    made.add_argument("--inject", type=faults.parse, action="append", default=[], help=argparse.SUPPRESS)
    return made


def _add_tests(made: CommandParser) -> None:
    add = made.add_argument
    add("--nproc", type=_whole(1, MOST_RANKS), metavar="N",
        help="start this many ranks on this host (default: one a GPU)")  # fmt: skip
    add("--backend", choices=(NCCL, GLOO), default="",
        help="backend (default: nccl where every rank has a GPU, else gloo)")  # fmt: skip
    add("--timeout", type=_seconds, default=15.0, metavar="S",
        help="seconds of one phase of a test (default: %(default)g)")  # fmt: skip
    add("--join-timeout", type=_seconds, default=60.0, metavar="S",
        help="seconds for all ranks to join (default: %(default)g)")  # fmt: skip
    add("--bytes", type=_whole(4, 1 << 34), default=0, metavar="N",
        help="bytes of the large message (default: 64 MiB; gloo: 4 MiB)")  # fmt: skip
    add("--rounds", type=_whole(1, 1 << 20), default=0, metavar="N",
        help="test only this many rounds of pairs (default: all)")  # fmt: skip
    add("--slow", type=_factor, default=3.0, metavar="X",
        help="slow is this many times the usual (default: %(default)g)")  # fmt: skip


def _add_result(made: CommandParser) -> None:
    add = made.add_argument
    add("--json", nargs="?", const="-", metavar="FILE",
        help="the result as JSON, to FILE or standard output (default: as text)")  # fmt: skip
    add("--post", nargs="?", const=default_url(), metavar="URL",
        help="post to this dashboard (default: do not; without URL: %(const)s)")  # fmt: skip
    add("--run", type=_name, help="name of the run that is posted (default: linkcheck and the time)")


def _whole(least: int, most: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        if not text.isascii() or not text.isdecimal() or not least <= int(text) <= most:
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from {least} to {most}")
        return int(text)

    return parse


def _seconds(text: str) -> float:
    return _number(text, 1.0, 3600.0)


def _factor(text: str) -> float:
    return _number(text, 1.5, 1000.0)


def _number(text: str, least: float, most: float) -> float:
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not least <= value <= most:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from {least:g} to {most:g}")
    return value


def _name(text: str) -> str:
    if not text.strip() or not text.isprintable() or len(text) > 200:
        raise argparse.ArgumentTypeError("is not a name: up to 200 printable characters")
    return text


def _interrupt(signal_number: int, frame: FrameType | None) -> NoReturn:
    raise KeyboardInterrupt
