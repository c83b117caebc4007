"""`rangewatch whatif RUN`: which tensors would survive in smaller formats, from a running server."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from typing import TypedDict
from urllib.parse import urlencode

from rangewatch.client.connection import ServerError
from rangewatch.client.server_api import add_arguments, find_run, get, write_line
from rangewatch.commands.live import ask
from rangewatch.core.command_parser import ERROR, INTERRUPTED, SERVER_ENVIRONMENT, CommandParser, command_parser
from rangewatch.core.options import OBSERVED_KINDS
from rangewatch.statistics.formats import BY_NAME

MOST_LINES = 20  # tensors of a format that are listed
NOTHING = (
    "nothing has been read for it in these steps. Ask a live run with --read, or train with "
    "attach(whatif_every=1000); tensors on an accelerator are not read yet"
)


class Value(TypedDict):
    """What would be left of a tensor in a format (docs/api.md)."""

    survives: bool
    flushed_fraction: float
    saturated_fraction: float
    sqnr_db: float | None
    scale_log2: float | None
    scale_spread_bits: float | None


class Tensor(TypedDict):
    """One tensor, by format."""

    label: str
    dtype: str
    formats: dict[str, Value]


class Format(TypedDict):
    """A format's account over all tensors."""

    name: str
    title: str
    survive: int
    least_sqnr_db: float | None
    module_count: int
    modules: list[str]
    code: str


class Limits(TypedDict):
    """What it takes to survive."""

    flushed_fraction: float
    saturated_fraction: float
    sqnr_db: float


class WhatIf(TypedDict):
    """GET /api/v1/runs/{id}/whatif."""

    start: int
    stop: int
    limits: Limits
    measured: int
    of: int
    formats: list[Format]
    tensors: list[Tensor]


def main(argv: Sequence[str]) -> int:
    """Print it; 0 when all that was read survives in the format that was named (or none was named), 1 when something
    does not or nothing was read, 2 for an error.
    """
    options = parser().parse_args(argv)
    if options.read:
        body = {"kind": "whatif", "modules": options.module}
        ranks = None if options.rank is None else [options.rank]
        asked = argparse.Namespace(url=options.url, run=options.run, rank=ranks, no_wait=False)
        status = ask.run("whatif", asked, body, lambda name, states: None)
        if status:
            return status
    try:
        return _show(options)
    except ServerError as error:
        write_line(sys.stderr, f"rangewatch whatif: {error}")
        return 2


def parser() -> CommandParser:
    """What the command takes."""
    made = command_parser(
        "whatif",
        "Say which tensors of a run would survive in smaller formats: how much of each would become zero, saturate, or "
        "be off, as far as tensors were read for it.",
        examples={
            "rangewatch whatif my-run --read": "have a live run read its tensors now, then say it for all formats",
            "rangewatch whatif my-run --format mxfp4 --kind output": "the worst outputs in MXFP4, and what to keep",
        },
        statuses={0: "all survive in --format, or it was not given", 1: "some do not, or nothing was read"}
        | ERROR
        | INTERRUPTED,
        environment=SERVER_ENVIRONMENT,
    )
    add_arguments(made)
    add = made.add_argument
    add("--read", action="store_true", help="have the live run read its tensors first, in its next steps")
    add(
        "--module", action="append", default=[], metavar="PATTERN",
        help="with --read: of these modules, such as 'blocks.3.*' (may repeat; default: all)",
    )  # fmt: skip
    add(
        "--format", choices=sorted(BY_NAME), metavar="NAME",
        help=f"list what does not survive in this one (default: a line for each): {', '.join(BY_NAME)}",
    )  # fmt: skip
    add(
        "--kind",
        action="append",
        default=[],
        choices=OBSERVED_KINDS,
        metavar="KIND",
        help="such as output (may repeat; default: all)",
    )
    add("--rank", type=int, help="of this rank alone (default: all together)")
    add("--start", type=int, metavar="STEP", help="readings from this step on (default: all)")
    add("--stop", type=int, metavar="STEP", help="readings before this step (default: all)")
    add("--flushed-percent", type=float, help="most percent that may become zero (default: 15)")
    add("--saturated-percent", type=float, help="most percent that may saturate (default: 2)")
    add("--sqnr-db", type=float, help="least signal over error, in dB (default: 15)")
    add("--json", action="store_true", help="print what the server says, as JSON")
    return made


def _show(options: argparse.Namespace) -> int:
    run = find_run(options.url, options.run)
    names = ("start", "stop", "rank", "flushed_percent", "saturated_percent", "sqnr_db")
    given = {name: getattr(options, name) for name in names if getattr(options, name) is not None}
    query = urlencode(given | {"kind": options.kind, "limit": 5000}, doseq=True)
    answer = get(options.url, f"/api/v1/runs/{run['id']}/whatif?{query}", WhatIf)
    of_format = next((each for each in answer["formats"] if each["name"] == options.format), None)
    if options.json:
        lines: Iterator[str] = iter([json.dumps(answer)])
    elif not answer["measured"]:
        lines = iter([f"run {run['name']}: {NOTHING}"])
    else:
        lines = _text(run["name"], answer, of_format)
    for line in lines:
        write_line(sys.stdout, line)
    if not answer["measured"]:
        return 1
    return int(of_format is not None and of_format["survive"] < len(answer["tensors"]))


def _text(run: str, answer: WhatIf, of_format: Format | None) -> Iterator[str]:
    limits, count = answer["limits"], len(answer["tensors"])
    steps = f"steps {answer['start']} to {answer['stop'] - 1}"
    yield f"run {run}, {steps}: {answer['measured']} of {answer['of']} tensors read"
    yield (
        f"A tensor survives where at most {100 * limits['flushed_fraction']:g} % of it becomes zero, at most "
        f"{100 * limits['saturated_fraction']:g} % saturates, and the signal is {limits['sqnr_db']:g} dB or more over "
        "the error."
    )
    yield ""
    if of_format is not None:
        yield from _one(answer, of_format)
        return
    yield f"{'format':<24} {'survive':>12}  {'least SQNR':>10}"
    for each in answer["formats"]:
        survive = f"{each['survive']} of {count}"
        yield f"{each['title']:<24} {survive:>12}  {_db(each['least_sqnr_db']):>10}"
    yield ""
    yield "--format NAME lists the tensors that do not survive, and what to keep."


def _one(answer: WhatIf, of_format: Format) -> Iterator[str]:
    name, count = of_format["name"], len(answer["tensors"])
    yield f"{of_format['title']}: {of_format['survive']} of {count} tensors survive"
    failing = [each for each in answer["tensors"] if not each["formats"][name]["survives"]]
    failing.sort(key=lambda each: each["formats"][name]["sqnr_db"] or 0.0)
    if not failing:
        return
    yield ""
    yield f"{'to zero':>8} {'saturated':>10} {'SQNR':>9} {'scales':>14}  tensor"
    for each in failing[:MOST_LINES]:
        value = each["formats"][name]
        scale, spread = value["scale_log2"], value["scale_spread_bits"]
        scales = "none" if scale is None or spread is None else f"2^{scale:.1f} +-{spread:.1f}"
        shares = f"{100 * value['flushed_fraction']:>6.2f} % {100 * value['saturated_fraction']:>8.3f} %"
        yield f"{shares} {_db(value['sqnr_db']):>9} {scales:>14}  {each['label']} ({each['dtype']})"
    if len(failing) > MOST_LINES:
        yield f"and {len(failing) - MOST_LINES} more; --json has all"
    yield ""
    yield f"Modules to keep in bfloat16: {of_format['module_count']}"
    yield from of_format["code"].splitlines()


def _db(value: float | None) -> str:
    return "no error" if value is None else f"{value:.1f} dB"
