"""`rangewatch diff A B`: where two runs part, and what they were set otherwise, for people and for CI."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from typing import Any, TypedDict
from urllib.parse import urlencode

from rangewatch.client.connection import ServerError, default_url
from rangewatch.client.server_api import find_run, get, write_line
from rangewatch.core.command_parser import ERROR, SERVER_ENVIRONMENT, CommandParser, command_parser

MOST_NOISE = 6
SHOWN_TENSORS, SHOWN_DIFFERENCES = 10, 20


class Side(TypedDict):
    """A run, as the answer names it."""

    id: int
    name: str


class Names(TypedDict):
    """Tensors that one run alone has."""

    count: int
    labels: list[str]


class Sketch(TypedDict):
    """How far it is from the other one's, over the greater norm: an estimate, and what 95 of 100 are between."""

    is_equal: bool
    distance: float
    low: float
    high: float
    allowed: float | None


class OfTensor(TypedDict, total=False):
    """What servers before sketches do not answer."""

    sketch: Sketch | None


class Place(TypedDict):
    """A tensor at a step, and how far it is from the other one's."""

    step: int
    label: str
    distance: float


class Sketched(TypedDict):
    """Tensors of which both runs have sketches, those of them that are equal in all bits wherever there is one, the
    first that is not, and the furthest."""

    tensors: int
    equal: int
    first_unequal: Place | None
    furthest: Place | None


class OfRuns(TypedDict, total=False):
    """What servers before sketches do not answer."""

    sketched: Sketched | None


class Tensor(OfTensor):
    """One that differs. `difference_bits`: log2 of the ratio of largest magnitudes or of root mean squares, whichever
    is more; None: one of the two is 0, NaN or Inf alone."""

    label: str
    dtype: str
    other_dtype: str
    amax: float | None
    other_amax: float | None
    nonfinite_count: float
    other_nonfinite_count: float
    difference_bits: float | None
    allowed_bits: float


class Loss(TypedDict):
    """Where the losses part."""

    step: int
    values: list[float | None]


class Setting(TypedDict):
    """A key whose values differ; None where a run has none."""

    key: str
    values: list[str | None]


class Difference(OfRuns):
    """What GET /api/v1/compare/first answers (docs/api.md has the rest)."""

    runs: list[Side]
    noise: list[Side]
    start: int
    stop: int
    compared_stop: int
    is_whole: bool
    steps_per_column: int
    matched: int
    only_here: Names
    only_there: Names
    floor_bits: float
    left_out: list[str]
    step: int | None
    count: int
    tensors: list[Tensor]
    loss: Loss | None
    differences: list[Setting]
    more: int


def main(argv: Sequence[str]) -> int:
    """Print where the runs part; 0 where they do not, 1 where they do, 2 for an error."""
    options = parser().parse_args(argv)
    try:
        return _diff(options)
    except ServerError as error:
        write_line(sys.stderr, f"rangewatch diff: {error}")
        return 2


def parser() -> CommandParser:
    """What the command takes."""
    made = command_parser(
        "diff",
        "Names the first step and tensor at which two runs part, in call order, and settings, versions and environment "
        "that are not equal. Tensors are compared by their largest magnitude, bit for bit, by their mean square where "
        "both have it, and by their sketches where both took them (attach(sketch_every=...)); names match without what "
        "DDP, FSDP and torch.compile put in. With --noise what runs that repeat the first one differ from it by is no "
        "difference. Wants a running server that has the runs.",
        examples={
            "rangewatch diff eager compiled --noise eager-again": "beyond what two eager runs differ by",
            "rangewatch diff main branch --tolerance 1e-5 --json": "for CI, which looks at the exit status",
        },
        statuses={
            0: "no difference in what was compared",
            1: "the runs part, or have nothing in common to compare",
        }
        | ERROR,
        environment=SERVER_ENVIRONMENT,
    )
    made.add_argument("run", help="name or number of the run that is compared with")
    made.add_argument("other", help="name or number of the other run")
    made.add_argument(
        "--noise", action="append", default=[], metavar="RUN",
        help=f"a run that repeats the first one (may repeat, up to {MOST_NOISE} times; default: none, and any "
        "difference counts)",
    )  # fmt: skip
    made.add_argument(
        "--margin", type=float, default=3.0, metavar="TIMES",
        help="times the noise that are noise still (default: %(default)g)",
    )  # fmt: skip
    made.add_argument(
        "--tolerance", type=float, default=0.0, metavar="FRACTION",
        help="times the greater value that are no difference: 0.01 is a percent (default: %(default)g; between two "
        "precisions or layouts 8 units in the last place of the coarsest dtype, unless the noise is that of two)",
    )  # fmt: skip
    made.add_argument("--ignore-settings", action="store_true", help="leave settings and environment out")
    made.add_argument("--json", action="store_true", help="print all of it as JSON")
    made.add_argument("--url", default=default_url(), help="server (default: %(default)s)")
    return made


def _diff(options: argparse.Namespace) -> int:
    if len(options.noise) > MOST_NOISE:
        raise ServerError(f"--noise: {len(options.noise)} runs are given; at most {MOST_NOISE}")
    one, two, *noise = (find_run(options.url, each)["id"] for each in (options.run, options.other, *options.noise))
    if one == two:
        raise ServerError(f"{options.run} and {options.other} are the same run")
    query = [("run", one), ("run", two), *(("noise", each) for each in noise)]
    query += [("tolerance", options.tolerance), ("margin", options.margin)]
    found = get(options.url, f"/api/v1/compare/first?{urlencode(query)}", Difference)
    if options.ignore_settings:
        found["differences"], found["more"] = [], 0
    lines = [json.dumps(found).replace("\x7f", "\\u007f")] if options.json else _text(found)
    for line in lines:
        write_line(sys.stdout, line)
    return int(_parts(found) or not _is_compared(found))


def _parts(found: Difference) -> bool:
    return found["step"] is not None or found["loss"] is not None


def _is_compared(found: Difference) -> bool:
    return found["stop"] > found["start"] and found["matched"] > 0


def _text(found: Difference) -> Iterator[str]:
    one, two = (each["name"] for each in found["runs"])
    step, loss = found["step"], found["loss"]
    steps = f"steps {found['start']} to {found['compared_stop'] - 1}"
    if not _is_compared(found):
        what = "no steps" if found["stop"] <= found["start"] else "no tensors"
        yield f"{one} and {two} have {what} in common: nothing was compared"
    elif step is not None:
        first = found["tensors"][0]["label"]
        more = f" and {found['count'] - 1} more" if found["count"] > 1 else ""
        yield f"{one} and {two} part at step {step}, first in {first}{more}"
    elif loss is None:
        yield f"{one} and {two} do not part: {found['matched']} tensors, {steps}"
    else:
        yield f"{one} and {two} part in their loss alone, at step {loss['step']}"
    yield from (f"  {line}" for line in _conditions(found))
    for each in found["tensors"][:SHOWN_TENSORS]:
        yield f"  {each['label']:<40} {_tensor(each)}"
    if found["count"] > SHOWN_TENSORS:
        yield f"  ... and {found['count'] - SHOWN_TENSORS} more tensors of that step"
    if loss is not None:
        yield f"loss: step {loss['step']}, {_number(loss['values'][0])} and {_number(loss['values'][1])}"
    yield from _settings(found)


def _conditions(found: Difference) -> Iterator[str]:
    if found["noise"]:
        yield f"noise: of {', '.join(each['name'] for each in found['noise'])}"
    if found["left_out"]:
        kinds = ", ".join(found["left_out"])
        yield f"two layouts: {kinds} and the loss are left out, which depend on how a batch is split"
    if sketched := found.get("sketched"):
        yield from _sketched(sketched, found["matched"])
    if found["floor_bits"]:
        yield f"no difference: up to {100 * (1 - 2 ** -found['floor_bits']):.3g} %"
    if found["steps_per_column"] > 1:
        yield f"{found['steps_per_column']} steps are one row: the step is the first of them"
    if not found["is_whole"]:
        yield f"compared up to step {found['compared_stop'] - 1} of {found['stop'] - 1}: there is more than fits"
    for names, which in ((found["only_here"], 0), (found["only_there"], 1)):
        if names["count"]:
            listed = ", ".join(names["labels"][:3])
            yield f"{names['count']} tensors of {found['runs'][which]['name']} alone: {listed}"


def _sketched(sketched: Sketched, matched: int) -> Iterator[str]:
    yield f"sketches: of {sketched['tensors']} of {matched} tensors, {sketched['equal']} of them equal in all bits"
    first, far = sketched["first_unequal"], sketched["furthest"]
    if first is not None and far is not None:
        yield (
            f"sketches: other bits first at step {first['step']}, in {first['label']}; "
            f"furthest at step {far['step']}, {far['label']}, {far['distance']:.2g} of its norm"
        )


def _tensor(each: Tensor) -> str:
    if bool(each["nonfinite_count"]) != bool(each["other_nonfinite_count"]):
        counts = (each["nonfinite_count"], each["other_nonfinite_count"])
        return f"{counts[0]:.0f} and {counts[1]:.0f} NaN or Inf"
    dtypes = each["dtype"] if each["dtype"] == each["other_dtype"] else f"{each['dtype']} and {each['other_dtype']}"
    bits = "one is all zero" if each["difference_bits"] is None else f"{each['difference_bits']:.3g} bits apart"
    allowed = f", {each['allowed_bits']:.2g} allowed" if each["allowed_bits"] else ""
    sketch = each.get("sketch")
    far = _far(sketch) if sketch else ""
    return f"amax {_number(each['amax'])} and {_number(each['other_amax'])}, {bits}{allowed} ({dtypes}){far}"


def _far(sketch: Sketch) -> str:
    if sketch["is_equal"]:
        return "; equal in all bits"
    allowed = f", {sketch['allowed']:.2g} allowed" if sketch["allowed"] else ""
    how = f"{sketch['distance']:.2g} of its norm apart ({sketch['low']:.2g} to {sketch['high']:.2g})"
    return f"; {how if sketch['distance'] > 1e-300 else 'other bits'}{allowed}"


def _number(value: Any) -> str:
    return "NaN or Inf" if value is None else f"{value:.9g}"


def _settings(found: Difference) -> Iterator[str]:
    differences = found["differences"]
    total = len(differences) + found["more"]
    if total:
        yield f"settings and environment: {total} not equal"
    for each in differences[:SHOWN_DIFFERENCES]:
        yield f"  {each['key']}: {' | '.join('none' if value is None else value for value in each['values'])}"
    if total > SHOWN_DIFFERENCES:
        yield f"  ... and {total - SHOWN_DIFFERENCES} more"
