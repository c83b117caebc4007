"""Where a seed has its bug."""

from __future__ import annotations

import random


def planted(seed: int, ranks: int) -> tuple[int, int]:
    """The step from which it shows, and the rank on which it does where it is of one."""
    chance = random.Random(seed)
    return chance.randrange(4, 10), chance.randrange(ranks)
