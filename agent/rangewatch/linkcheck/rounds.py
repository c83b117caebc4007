"""Which ranks are tested together: rounds of disjoint pairs, and ever smaller groups. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from rangewatch.linkcheck.tasks import Pair


def rounds(ranks: Sequence[int]) -> list[list[Pair]]:
    """Every pair once, in as few rounds of disjoint pairs as can be: n-1 for an even number of ranks, else n.

    The circle method of tournaments: the first stands still and the others go round.
    """
    circle: list[int | None] = list(ranks) + ([None] if len(ranks) % 2 else [])
    found = []
    for _ in range(len(circle) - 1):
        facing = zip(circle[: len(circle) // 2], reversed(circle), strict=False)
        found.append(sorted((min(a, b), max(a, b)) for a, b in facing if a is not None and b is not None))
        circle = [circle[0], circle[-1], *circle[1:-1]]
    return found


def without_parts(ranks: Sequence[int], size: int) -> list[tuple[int, ...]]:
    """What stays when each stretch of `size` ranks is left out in its turn; parts of at least three ranks."""
    starts = range(0, len(ranks), size)
    rests = [(*ranks[:start], *ranks[start + size :]) for start in starts]
    return [rest for rest in rests if len(rest) > 2]


def ranges(ranks: Sequence[int]) -> str:
    """For reading: `rank 3`, `ranks 0-6, 9`."""
    spans: list[list[int]] = []
    for rank in sorted(ranks):
        if spans and rank == spans[-1][1] + 1:
            spans[-1][1] = rank
        else:
            spans.append([rank, rank])
    text = ", ".join(str(low) if low == high else f"{low}-{high}" for low, high in spans)
    return f"rank{'s' if len(ranks) != 1 else ''} {text}"
