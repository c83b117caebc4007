"""The command line of `rangewatch demo`."""

from __future__ import annotations

import argparse
import math
import time

from rangewatch.core.command_parser import ERROR, CommandParser, command_parser

DEFAULT_PORT = 8642
DEFAULT_STEPS = 450
DEFAULT_LR_FACTOR = 67.0
DESCRIPTION = """
Trains a small transformer on this machine's CPUs, on two ranks in fp16, with Rangewatch attached and the dashboard open
beside it. The loss goes down while one feed-forward layer, whose learning rate is too high, loses headroom; after some
twenty to thirty seconds it overflows, and the loss scale falls. Nothing of that is staged: the overflow is a real one.
"""


def parse_options(argv: list[str]) -> argparse.Namespace:
    """`url port db run ranks steps seed exit json`, checked; ends the process with one line where they are wrong."""
    made = parser()
    options = made.parse_args(argv)
    if options.url and (options.port or options.db):
        made.error("--url names a running server; --port and --db are for one that the demo starts")
    options.run = options.run or time.strftime("demo-%Y%m%d-%H%M%S")
    return options


def parser() -> CommandParser:
    """What the command takes."""
    made = command_parser(
        "demo",
        DESCRIPTION,
        examples={
            "rangewatch demo": "a dashboard and two ranks, until Ctrl-C",
            "rangewatch demo --exit --json": "the training alone, with its result as JSON",
        },
        statuses={0: "it ran to its end", 1: "it failed; one line says why"} | ERROR
        | {130: "interrupted before the last step"},
        environment={"RANGEWATCH_TOKEN": "the token that the server of --url asks for, if it does"},
    )  # fmt: skip
    add = made.add_argument
    add("--url", help="send to this running server instead of starting one (default: start one)")
    add(
        "--port",
        metavar="N",
        type=_port,
        help=f"port of the server it starts (default: {DEFAULT_PORT}, or the next free one)",
    )
    add("--db", metavar="FILE", help="database file of the server it starts (default: a temporary file, which is kept)")
    add("--run", metavar="NAME", help="name of the run (default: demo- and the time)")
    add("--ranks", metavar="N", type=_positive, default=2, help="training processes (default: %(default)s)")
    add("--steps", metavar="N", type=_positive, default=DEFAULT_STEPS, help="training steps (default: %(default)s)")
    add("--seed", metavar="N", type=_seed, default=0, help="the same seed trains the same steps (default: %(default)s)")
    add(
        "--lr-factor",
        metavar="X",
        type=_factor,
        default=DEFAULT_LR_FACTOR,
        help="learning rate of the layer that will overflow, over the model's; more, and it comes sooner "
        "(default: %(default)g)",
    )
    add("--exit", action="store_true", help="end after the last step instead of keeping the dashboard up")
    add("--json", action="store_true", help="print one JSON object about the training to standard output")
    return made


def _positive(text: str) -> int:
    return _between(text, 1, 10**9)


def _port(text: str) -> int:
    return _between(text, 1, 65535)


def _seed(text: str) -> int:
    return _between(text, 0, 2**32 - 1)


def _factor(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number") from None
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"{text} is not a positive number")
    return value


def _between(text: str, least: int, most: int) -> int:
    try:
        value = int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number") from None
    if not least <= value <= most:
        raise argparse.ArgumentTypeError(f"{value} is not between {least} and {most}")
    return value
