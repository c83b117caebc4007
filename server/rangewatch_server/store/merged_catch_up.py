"""Merged ranks catch up with streams that memory does not hold: after a start, or when a first rank gets company.

Far behind, the tile at the frontier is made of all streams, over as many transactions as it takes; near it, one stream
after another is read into memory.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from sqlalchemy import Connection

from rangewatch_server.store import merged_rows
from rangewatch_server.store.accumulators import Accumulators
from rangewatch_server.store.merged_rows import Sibling, reaches
from rangewatch_server.store.rows import Raw
from rangewatch_server.store.tiles import WIDTH

if TYPE_CHECKING:
    from rangewatch_server.store.merged_ranks import MergedRun

NEAR = 4 * WIDTH  # steps: streams with no more than these to read are caught up with in one go
HOLD_S = 20.0  # after a rank has gone back: the other ranks will do so too

ReadRows = Callable[[Sibling, int, int], list[Raw]]
"""(stream, start, stop) -> its counted rows of these steps, from tiles and from batches that are not in tiles yet."""


class CatchUp:
    """Of one run, in the writer's thread."""

    def __init__(self, run: MergedRun) -> None:
        self.run = run
        self._hold_until_s = 0.0
        self._begun: tuple[int, Accumulators, list[int]] | None = None
        """The frontier after the tile that is being made, what it has so far, and the streams still to be read."""

    def hold(self) -> None:
        """A rank has gone back."""
        self._hold_until_s = time.monotonic() + HOLD_S

    def interrupt(self, first: int = 0) -> None:
        """Rows from step `first` on have come or gone: a tile that may be without them is made anew."""
        if self._begun is not None and first < self._begun[0]:
            self._begun = None

    def go_on(
        self, connection: Connection, deadline_s: float, read: ReadRows, local: Callable[[int], bool]
    ) -> bool:  # fmt: skip
        """As much as time (`time.perf_counter`) allows, one thing at least; whether there is more to do.

        `local`: whether a stream is sent to this server.
        """
        run = self.run
        if merged_rows.thin_step(connection, run.run_id) > run.frontier:
            run.give_up(connection)
            return False
        if time.monotonic() < self._hold_until_s:
            return True
        while unfed := run.unfed():
            near = [each for each in unfed if local(each.id) and self._is_near(each)]
            behind = run.ripe() - run.frontier
            if behind >= WIDTH and (behind > NEAR or not near):
                self._backfill(connection, deadline_s, read)
            elif near and run.is_moved:
                return True  # readers are at the frontier before this transaction: to be fed from this one on, it waits
            elif near:
                self._feed(connection, near[0], read)
            else:
                return False  # other servers', or far ahead of ranks that still speak: read one by one until then
            if time.perf_counter() >= deadline_s:
                break
        return bool(run.unfed())

    def _is_near(self, sibling: Sibling) -> bool:
        return min(sibling.last_step or 0, self.run.end(sibling)) - self.run.frontier <= 2 * NEAR

    def _feed(self, connection: Connection, sibling: Sibling, read: ReadRows) -> None:
        run = self.run
        raws = read(sibling, run.frontier, run.end(sibling))
        tensors = run.names.tensors(connection, run.run_id)
        with run.lock:
            run.accumulators.feed(sibling.rank, raws, tensors)
            run.now_fed(sibling)

    def _backfill(self, connection: Connection, deadline_s: float, read: ReadRows) -> None:
        run, target = self.run, self.run.frontier + WIDTH
        if self._begun is None or self._begun[0] != target:
            todo = [each.id for each in run.siblings.values() if reaches(each, run.frontier)]
            self._begun = (target, run.empty(connection), todo)
        _, accumulators, todo = self._begun
        tensors = run.names.tensors(connection, run.run_id)
        while todo:
            sibling = run.siblings[todo.pop()]
            raws = read(sibling, run.frontier, min(target, run.end(sibling)))
            accumulators.feed(sibling.rank, raws, tensors)
            if time.perf_counter() >= deadline_s:
                break
        if not todo:
            run.fold(connection, target, accumulators)
            self._begun = None
