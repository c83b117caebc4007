"""At which steps ranks say what only some of their steps have: what must be the same, or another, along the mesh.

By the step's number alone, so that all ranks do so at the same ones though one of them was started anew. Some in a row:
what lasts is told from what happens once, and a batch that never changes from one that two ranks share.
"""

from __future__ import annotations

from typing import NamedTuple

IN_A_ROW = 3


class Schedule(NamedTuple):
    """`IN_A_ROW` steps of each `every`."""

    every: int

    def is_due(self, step: int) -> bool:
        """Whether this step is one of them."""
        return step % self.every < IN_A_ROW

    def turn(self, step: int) -> int:
        """Which of the times this is."""
        return step // self.every
