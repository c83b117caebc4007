"""Words for ranks and what they hold alike."""

from __future__ import annotations

from collections.abc import Sequence

from rangewatch.records import TensorEntry

MOST_NAMED = 8


def copies(entry: TensorEntry) -> str:
    """Such as "the parameter blocks.3.ff.weight"."""
    what = "the parameter" if entry.kind == "grad" else "the reduced gradient of"
    return f"{what} {entry.fqn}"


def of_ranks(ranks: Sequence[int]) -> str:
    """Such as "rank 2" or "ranks 0, 1 and 3"."""
    return f"rank{'' if len(ranks) == 1 else 's'} {these(ranks)}"


def these(ranks: Sequence[int]) -> str:
    """Such as "0, 1 and 3", of many the first few; those that follow one another as "0 to 15"."""
    ordered = sorted(ranks)
    if len(ordered) > 2 and ordered[-1] - ordered[0] == len(ordered) - 1:
        return f"{ordered[0]} to {ordered[-1]}"
    shown, more = [str(rank) for rank in ordered[:MOST_NAMED]], len(ordered) - MOST_NAMED
    if more > 0:
        return f"{', '.join(shown)} and {more} more"
    return " and ".join([", ".join(shown[:-1]), shown[-1]] if len(shown) > 1 else shown)
