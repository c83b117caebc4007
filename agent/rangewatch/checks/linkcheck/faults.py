"""Faults that are planted with `--inject`, to see what the check makes of them. Nothing acts unless asked for."""

from __future__ import annotations

import argparse
import os
import resource
import signal
import time
from collections.abc import Sequence

import msgspec
import torch

KINDS = ("wrong", "slow", "hang", "die")
SLOW_S = 0.05
"""Added to every operation: far more than a link takes, and still short against the timeout of a phase."""


class Fault(msgspec.Struct, frozen=True):
    """Acts on the highest of `ranks`, in every group of several ranks that has all of them."""

    ranks: tuple[int, ...]
    kind: str

    def acts(self, rank: int, group: Sequence[int]) -> bool:
        """Whether `rank` misbehaves in `group`."""
        return rank == max(self.ranks) and len(group) > 1 and set(self.ranks) <= set(group)


def parse(text: str) -> Fault:
    """`7:hang` is rank 7, `2-5:die` the link of ranks 2 and 5, `1-2-3:hang` what only three together show.

    Raises `ArgumentTypeError`.
    """
    where, _, kind = text.partition(":")
    ranks = where.split("-")
    if kind not in KINDS or not all(each.isdecimal() for each in ranks) or len(set(ranks)) != len(ranks):
        raise argparse.ArgumentTypeError(f"{text!r} is not RANK:KIND or A-B:KIND with a kind of {', '.join(KINDS)}")
    return Fault(tuple(int(each) for each in ranks), kind)


class Planted:
    """The faults of one worker in one group."""

    def __init__(self, faults: Sequence[Fault], rank: int, group: Sequence[int]) -> None:
        self._kinds = {fault.kind for fault in faults if fault.acts(rank, group)}

    def before_first_collective(self) -> None:
        """Hang or die."""
        if "hang" in self._kinds:
            time.sleep(3600)
        if "die" in self._kinds:
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # the crash is meant: nobody wants its core file
            os.kill(os.getpid(), signal.SIGSEGV)

    def corrupt(self, values: torch.Tensor) -> None:
        """Flip one bit of what this rank sends."""
        if "wrong" in self._kinds:
            bits = values.view(torch.uint8)
            bits[bits.numel() // 3] ^= 1 << 4

    def delay(self) -> None:
        """Be slow, once for each operation."""
        if "slow" in self._kinds:
            time.sleep(SLOW_S)
