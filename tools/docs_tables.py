"""`python -m tools.docs_tables` writes the pages of docs/ that are made from the shelves and the commands. A test holds
the files to what this gives: who adds a statistic or an option runs it once more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

from tools.docs_cli import cli_page
from tools.docs_events import EVENT_WORDS
from tools.docs_text import table

from rangewatch import statistics
from rangewatch.collectors import ALL as COLLECTORS
from rangewatch.core.options import OBSERVED_KINDS, OPTIONS, SECTIONS
from rangewatch.statistics import exponents, sketches
from rangewatch.statistics.dtype_limits import LIMITS
from rangewatch.wire.records import KINDS, Statistic
from rangewatch_server.figures import ALL as FIGURES

DOCS = Path(__file__).parents[1] / "docs"

STATISTICS = """\
# Statistics

What is kept of a tensor at a step. Each statistic merges exactly (by max, min, sum or last), so that any grouping of
microbatches, steps and ranks gives the same answer as the whole; a record that was never written holds the merge's
neutral element. `call_count` 0 is "not observed", `full_numel` 0 "not measured": neither is ever a zero that could be
taken for a value. Where a statistic has its cadence, see `full_every` in [options.md](options.md).

This page is made from `rangewatch.statistics` by `python -m tools.docs_tables`.
"""
SKETCHES = """\
With `sketch_every` a tensor has these at the steps asked for, for `rangewatch diff` ([diff.md](diff.md#sketches)). They
are keyed by the element's place in the whole tensor, so that those of shards add up to that of the whole.
"""
DERIVED = """\
## Derived
Made from the statistics when they are read, never stored.
"""
COLLECTORS_HEAD = """\
# Collectors and events

Beside the tensors each rank runs collectors: sources that are read once a second on a thread of their own, never
on the training thread. They give **samples**, rows keyed by time, and **events**. `collect=` of [attach](options.md)
chooses them; `collect=()` turns all of them off. NaN in a sample is "unknown" or "not supported", and never drawn as 0.

This page is made from the shelf of collectors by `python -m tools.docs_tables`.
"""

OPTIONS_HEAD = """\
# Options of `attach`

Each is an argument of `rangewatch.attach`, or an environment variable `RANGEWATCH_<NAME>`, or its default. What the
script says wins. Several values of one option are separated by commas in the environment. A value that cannot be raises
`ValueError` with the option's name.

This page is made from `rangewatch.core.options` by `python -m tools.docs_tables`.
"""
KIND_HELP = {
    "output": "a module's output; each tensor in it, by its position among the values",
    "grad_output": "the gradient of that output",
    "grad": (
        "a parameter's gradient as it accumulates on this rank: before DDP's reduction, still multiplied by "
        "the loss scale. With FSDP2 it is the reduced shard"
    ),
    "input": "a module's arguments, before it runs",
    "weight": "a parameter as the step's forward uses it; this rank's part of it",
    "reduced_grad": (
        "a parameter's gradient as the optimizer gets it: after reduction, unscaling (which a `fused=True` "
        "optimizer does itself: there it is still scaled) and clipping"
    ),
    "update": "what the optimizer added to the parameter; needs a copy of the parameters while it steps",
    "exp_avg": (
        "Adam's first moment of a parameter's gradients, right after the optimizer's step; this rank's part of it. "
        "State in 8 bits is not read, and that is said"
    ),
    "exp_avg_sq": "Adam's second moment, with how much of the parameter eps decides ([statistics.md](statistics.md))",
    "momentum_buffer": "what SGD keeps, with momentum",
}
OPTIONS_TAIL = """\
These two exceptions are the only ones of ours that reach a training loop. The other ranks of a distributed run wait
for the one that raised until their own time limit; a launcher such as torchrun ends them.
"""


def main() -> None:
    """Write them all."""
    for name, make in PAGES.items():
        (DOCS / name).write_text(make())


def statistics_page() -> str:
    """The shelf, the series, the optional histogram, the kinds' limits."""
    histogram = (
        f"With `histograms=True` the full set has {len(exponents.ALL)} more, `{exponents.ALL[0].name}` to "
        f"`{exponents.ALL[-1].name}`, one a power of two, all merged by sum: on a CPU and on CUDA.\n"
    )
    parts = [
        STATISTICS, "## Of a tensor", _statistics(statistics.ALL), "## Exponents", histogram,
        "## Sketches", SKETCHES, _statistics(sketches.ALL), DERIVED, _derived(),
        "## Of a series", "A series (loss, loss scale, step time, what you log) keeps these of each step or column.\n",
        _statistics(statistics.SERIES), "## Limits of the dtypes", _limits(),
    ]  # fmt: skip
    return "\n".join(parts)


def _derived() -> str:
    made = (each for each in statistics.DERIVED if each.source != f"`{each.name}`")
    rows = ((f"`{each.name}`", each.unit, each.source) for each in made)
    return table(("name", "unit", "from"), rows)


def collectors_page() -> str:
    """The shelf of collectors, and every kind of event."""
    rows = ((f"`{c.name}`", c.help, f"[{c.docs}]({c.docs})" if c.docs else "") for c in COLLECTORS)
    collected = table(("name", "what", "more"), rows)
    reported = table(("kind", "when"), ((f"`{kind}`", words) for kind, words in EVENT_WORDS.items()))
    shelf = ((f"`{f.name}`", f.title, f.help, f.data, f.unit) for f in FIGURES)
    figures = table(("name", "title", "what it shows", "`data`, in order", "unit"), shelf)
    names = ", ".join(f"`{kind}`" for kind in KINDS)
    kinds = f"Kinds of tensors: {names}; see [options.md](options.md#what-is-recorded).\n"
    parts = [
        COLLECTORS_HEAD, "## Collectors", collected,
        "## Events", "Each has its time, its step, a message and details.\n", reported,
        "## Figures", "What is drawn, by the names of `GET /api/v1/runs/{id}/figures/{name}` ([api.md](api.md)).\n",
        figures, kinds,
    ]  # fmt: skip
    return "\n".join(parts)


def options_page() -> str:
    """The options of `attach` by section, and the kinds of tensors."""
    sections: dict[str, list[tuple[str, str, str]]] = {}
    title = ""
    for name, option in OPTIONS.items():
        title = SECTIONS.get(name, title)
        sections.setdefault(title, []).append((f"`{name}`", option.shown, option.help))
    tables = {title: f"## {title}\n{table(('option', 'default', ''), rows)}" for title, rows in sections.items()}
    tables["What is recorded"] += "\n" + table(
        ("kind", ""), ((f"`{kind}`", KIND_HELP[kind]) for kind in OBSERVED_KINDS)
    )
    return "\n".join([OPTIONS_HEAD, *tables.values(), OPTIONS_TAIL])


def _statistics(shelf: Iterable[Statistic]) -> str:
    rows = ((f"`{s.name}`", s.unit, s.merge, f"{s.identity:g}", s.help) for s in shelf)
    return table(("name", "unit", "merge", "neutral", "what it is"), rows)


def _limits() -> str:
    return table(("dtype", "largest finite", "smallest normal", "smallest subnormal"), _limit_rows())


def _limit_rows() -> Iterator[tuple[str, ...]]:
    for name, at in LIMITS.items():
        yield f"`{name}`", f"{at.max_finite:.5g}", f"{at.smallest_normal:.5g}", f"{at.smallest_subnormal:.5g}"


PAGES: Mapping[str, Callable[[], str]] = {
    "statistics.md": statistics_page,
    "collectors.md": collectors_page,
    "options.md": options_page,
    "cli.md": cli_page,
}

if __name__ == "__main__":
    main()
