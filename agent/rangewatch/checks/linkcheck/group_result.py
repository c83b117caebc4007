"""What became of one group of ranks that was tested together, and how that reads.

Which ranks are tested together: rounds of disjoint pairs, and ever smaller groups. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from rangewatch.checks.linkcheck.tasks import PHASES, Outcome, Pair


def rounds(ranks: Sequence[int]) -> list[list[Pair]]:
    """Every pair once, in as few rounds of disjoint pairs as can be: n-1 for an even number of ranks, else n.

    The circle method of tournaments: the first stands still and the others go round.
    """
    circle: list[int | None] = list(ranks) + ([None] if len(ranks) % 2 else [])
    all_rounds = []
    for _ in range(len(circle) - 1):
        facing = zip(circle[: len(circle) // 2], reversed(circle), strict=False)
        all_rounds.append(sorted((min(a, b), max(a, b)) for a, b in facing if a is not None and b is not None))
        circle = [circle[0], circle[-1], *circle[1:-1]]
    return all_rounds


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


ABORTED = "by SIGABRT"
"""How torch's watchdog ends a process whose NCCL communicator has lost a peer."""


class GroupResult(msgspec.Struct, frozen=True):
    """What became of one group: an outcome for each of its ranks."""

    outcomes: Mapping[int, Outcome]

    @property
    def ranks(self) -> tuple[int, ...]:
        """The group."""
        return tuple(sorted(self.outcomes))

    @property
    def is_ok(self) -> bool:
        """Whether all went well."""
        return all(each.state == "ok" for each in self.outcomes.values())

    @property
    def latency_s(self) -> float | None:
        """Of the small all_reduce; the slowest rank's."""
        return _slowest(each.latency_s for each in self.outcomes.values())

    @property
    def large_s(self) -> float | None:
        """Of the large all_reduce; the slowest rank's."""
        return _slowest(each.large_s for each in self.outcomes.values())

    def suspects(self) -> tuple[int, ...]:
        """The ranks that this group's failure points at; none where all look the same."""
        states = self._by_state()
        if gone := self._dead() or states.get("missing"):
            return tuple(gone)
        if "wrong" in states and (sources := {source for each in self.outcomes.values() for source in each.sources}):
            return tuple(sorted(sources))
        late = self._late()
        return late if len(late) < len(self.outcomes) else ()

    def error(self) -> str:
        """Why it did not go well, in one line; "" when it did."""
        states = self._by_state()
        if gone := self._dead() or states.get("missing"):
            return "; ".join(self._of_one(rank) for rank in gone)
        if wrong := states.get("wrong"):
            return min((self.outcomes[rank].error for rank in wrong), key=lambda text: "from rank" not in text)
        return self._of_unfinished() if not self.is_ok else ""

    def log(self) -> str:
        """What the first suspect's worker printed at its end, a Python stack for one."""
        order = [*self.suspects(), *self.outcomes]
        return next((log for rank in order if rank in self.outcomes and (log := self.outcomes[rank].log)), "")

    def _by_state(self) -> dict[str, list[int]]:
        by_state: dict[str, list[int]] = {}
        for rank, outcome in sorted(self.outcomes.items()):
            by_state.setdefault(outcome.state, []).append(rank)
        return by_state

    def _dead(self) -> list[int]:
        """The ranks that died, less those that NCCL's watchdog aborted since another had."""
        dead = self._by_state().get("died", [])
        return [rank for rank in dead if self.outcomes[rank].error != ABORTED] or dead

    def _late(self) -> tuple[int, ...]:
        """The ranks that came least far."""
        progress = {rank: PHASES.index(each.phase or PHASES[0]) for rank, each in self.outcomes.items()}
        return tuple(rank for rank, place in sorted(progress.items()) if place == min(progress.values()))

    def _of_one(self, rank: int) -> str:
        outcome = self.outcomes[rank]
        if outcome.state == "missing":
            return f"the process of rank {rank} does not answer"
        return f"rank {rank} died {outcome.error} in {outcome.phase}"

    def _of_unfinished(self) -> str:
        late = self._late()
        raised = [each for each in self.outcomes.values() if each.state == "error"]
        first = min(raised, key=lambda each: (each.rank not in late, each.seconds_s), default=None)
        if first is not None and (first.rank in late or len(late) == len(self.outcomes)):
            return f"rank {first.rank} in {first.phase}: {first.error}"
        if len(late) == len(self.outcomes):
            return f"{ranges(late)} all hang in {self.outcomes[late[0]].phase}"
        others = [rank for rank in self.outcomes if rank not in late]
        ahead = min(PHASES.index(self.outcomes[rank].phase) for rank in others)
        place = self.outcomes[late[0]].phase
        return f"{ranges(late)} hung in {place} and never came to {PHASES[ahead]}, where {ranges(others)} waited"


def _slowest(values: Iterable[float | None]) -> float | None:
    return max((value for value in values if value is not None), default=None)
