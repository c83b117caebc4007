"""Messages of coordinator and supervisors: tasks, and their outcome on each rank. JSON in the store."""

from __future__ import annotations

import msgspec

Pair = tuple[int, int]

PHASES = ("start", "device", "init", "all_reduce", "barrier", "allocate", "values", "latency", "busbw", "end")
"""What a worker goes through, in this order. A rank that is at an earlier one than its peers is waited for."""

GLOO, NCCL = "gloo", "nccl"


class Task(msgspec.Struct, frozen=True):
    """One test: each of `groups`, which share no rank, runs it by itself and all at once.

    `backend`: "" means whatever the rank finds. `timeout_s`: most seconds of one phase.
    """

    number: int
    groups: tuple[tuple[int, ...], ...] = ()
    backend: str = ""
    timeout_s: float = 15.0
    large_bytes: int = 0
    is_last: bool = False
    """No test: the supervisors may go."""


class Device(msgspec.Struct, frozen=True):
    """What a rank found. `identity` tells GPUs of one host apart; "" for a CPU."""

    name: str
    identity: str = ""
    backend: str = GLOO
    why: str = ""
    """Why the backend is not NCCL."""


class Member(msgspec.Struct, frozen=True):
    """A rank that has come."""

    rank: int
    local_rank: int
    host: str
    pid: int


class Note(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a worker tells its supervisor, one a line: the phase that it begins, and things it has found."""

    phase: str = ""
    device: Device | None = None
    latency_s: float | None = None
    large_s: float | None = None
    """Seconds of one all_reduce of the large message."""
    wrong: str = ""
    sources: tuple[int, ...] = ()
    """The ranks whose values came over wrong."""
    error: str = ""


class Outcome(msgspec.Struct, frozen=True, omit_defaults=True):
    """What became of a task on one rank.

    `state`: ok; wrong (values); error (an exception); died (by a signal, or without a word); hang (no end of `phase`
    in time); stopped (ended because others of its group had failed); missing (its supervisor does not answer).
    """

    rank: int
    state: str
    phase: str = ""
    error: str = ""
    seconds_s: float = 0.0
    device: Device | None = None
    latency_s: float | None = None
    large_s: float | None = None
    sources: tuple[int, ...] = ()
    log: str = ""
    """The end of what the worker wrote to its standard output and error."""
