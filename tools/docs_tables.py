"""`python -m tools.docs_tables` writes the pages of docs/ that are made from the shelves. A test holds the files to
what this gives: who adds a statistic runs it once more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

from tools.docs_events import COLLECTOR_WORDS, EVENT_WORDS
from tools.docs_text import table

from rangewatch import statistics
from rangewatch.collectors import ALL as COLLECTORS
from rangewatch.statistics import exponents
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
DERIVED = """\
## Derived
Made from the statistics when they are read, never stored.

| name | unit | from |
|---|---|---|
| headroom | bits | `log2(largest number the dtype holds / amax)`; each bit less is twice the magnitude, 0 the limit |
| floor room | bits | `log2(amin / smallest normal number of the dtype)`; below 0 the smallest are subnormal |
| `rms` | magnitude | the square root of `sum_sq / full_numel` |
| `zero_fraction`, `subnormal_fraction` | fraction | `zero_count` and `subnormal_count` over `full_numel` |
"""
COLLECTORS_HEAD = """\
# Collectors and events

Beside the tensors each rank runs collectors: sources that are looked at once a second on a thread of their own, never
on the training thread. They give **samples**, rows keyed by time, and **events**. `collect=` of [attach](options.md)
chooses them; `collect=()` turns all of them off. NaN in a sample is "unknown" or "not supported", and never drawn as 0.

This page is made from the shelf of collectors by `python -m tools.docs_tables`.
"""


def main() -> None:
    """Write them all."""
    for name, make in PAGES.items():
        (DOCS / name).write_text(make())


def statistics_page() -> str:
    """The shelf, the series, the optional histogram, the kinds' limits."""
    histogram = (
        f"With `histograms=True` the full set has {len(exponents.ALL)} more, `{exponents.ALL[0].name}` to "
        f"`{exponents.ALL[-1].name}`, one a power of two, all merged by sum. They are taken on a CPU only.\n"
    )
    parts = [
        STATISTICS, "## Of a tensor", _statistics(statistics.ALL), "## Exponents", histogram, DERIVED,
        "## Of a series", "A series (loss, loss scale, step time, what you log) keeps these of each step or column.\n",
        _statistics(statistics.SERIES), "## Limits of the dtypes", _limits(),
    ]  # fmt: skip
    return "\n".join(parts)


def collectors_page() -> str:
    """The shelf of collectors, and every kind of event."""
    if set(COLLECTOR_WORDS) != set(COLLECTORS):
        raise ValueError("tools/docs_events.py must have the words of each collector")
    collected = table(("name", "what", "more"), ((f"`{n}`", *COLLECTOR_WORDS[n]) for n in COLLECTORS))
    reported = table(("kind", "when"), ((f"`{kind}`", words) for kind, words in EVENT_WORDS.items()))
    figures = table(("name", "title", "what it shows"), ((f"`{f.name}`", f.title, f.help) for f in FIGURES))
    names = ", ".join(f"`{kind}`" for kind in KINDS)
    kinds = f"Kinds of tensors: {names}; see [options.md](options.md#what-is-recorded).\n"
    parts = [
        COLLECTORS_HEAD, "## Collectors", collected,
        "## Events", "Each has its time, its step, a message and details.\n", reported,
        "## Figures", "What is drawn, by the names of `GET /api/v1/runs/{id}/figures/{name}` ([api.md](api.md)).\n",
        figures, kinds,
    ]  # fmt: skip
    return "\n".join(parts)


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
}

if __name__ == "__main__":
    main()
