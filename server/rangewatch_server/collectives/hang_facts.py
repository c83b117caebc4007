"""What is known of each rank when a run does not advance: as its agent has told, and as its records show."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np

from rangewatch_server.collectives.records import (
    Chunk,
    Group,
    GroupKey,
    Names,
    group_key,
    newest_process,
    rank_records,
)

KEPT_CALLS = 16
"""Newest calls of a rank and group that are compared with what others wait for."""

_MOST_WHOLE = 1 << 53  # what a float64 column of records still counts by one
_MOST_S = 1e8  # three years: what is more is no time that a rank has waited

_DATA_LOADERS = (
    "torch/utils/data/dataloader.py", "torch/utils/data/_utils/fetch.py", "/torchdata/", "/webdataset/",
    "/nvidia/dali/", "/streaming/base/", "/datasets/iterable_dataset.py", "/datasets/arrow_dataset.py", "/ffcv/loader/",
)  # fmt: skip


class Call(msgspec.Struct, frozen=True):
    """One collective as a rank called it. `waited_s`: how long it had not ended when that was told."""

    sequence: int
    op: str
    bytes: float
    dtype: str
    waited_s: float = 0.0


class Progress(msgspec.Struct, frozen=True):
    """How far one rank is in one group. `waiting`: called and not ended, first one first. `completed` None: nobody
    tells that rank of ends, and what it says to wait in may be over."""

    key: GroupKey
    group: Group
    enqueued: int
    completed: int | None
    waiting: tuple[Call, ...] = ()


class Line(msgspec.Struct, frozen=True):
    """Where in its code a rank is."""

    file: str
    line: int
    function: str

    def __str__(self) -> str:
        return f"{self.file.replace(chr(92), '/').rsplit('/', 1)[-1]}:{self.line} in {self.function}"


class RankFacts(msgspec.Struct, frozen=True):
    """One rank. Times are of the server's clock.

    `last_seen_ns`: its last message came. `has_ended`: it has said that it ends. `hang`: data of its newest event of
    kind `hang`, None when there is none or it has gone on since; `hang_seen_ns`: when that came. `stacks`: newest text
    of its stacks, from itself or from another rank of its host. `calls`: see `recent_calls`.
    """

    rank: int
    last_seen_ns: int
    last_step: int = -1
    has_ended: bool = False
    hang: Mapping[str, Any] | None = None
    hang_seen_ns: int | None = None
    stacks: str = ""
    calls: Mapping[GroupKey, Sequence[Call]] = {}


def recent_calls(chunks: Sequence[Chunk]) -> dict[GroupKey, tuple[Call, ...]]:
    """The newest calls of one rank in each group, in order of time, from its records: those that have ended.

    Of its newest process only: in the one before it the same sequences were other calls.
    """
    names = Names()
    records = rank_records(chunks, names)
    records = records.take(records.incarnation == newest_process(chunks))
    found: dict[GroupKey, tuple[Call, ...]] = {}
    for number, key in enumerate(names.group_keys):
        newest = records.take(np.flatnonzero(records.group == number)[-KEPT_CALLS:])
        rows = zip(*(getattr(newest, name).tolist() for name in ("sequence", "op", "bytes", "dtype")), strict=True)
        found[key] = tuple(
            Call(sequence, names.ops[op], size, names.dtypes[dtype] if dtype >= 0 else "")
            for sequence, op, size, dtype in rows
        )
    return found


def progress_of(data: Mapping[str, Any] | None) -> Iterator[Progress]:
    """What an event of kind `hang` says of each group. What does not have the right form is left out."""
    groups = (data or {}).get("groups")
    for said in groups if isinstance(groups, list) else ():
        try:
            yield _progress(said)
        except (AttributeError, KeyError, OverflowError, TypeError, ValueError):
            continue


def line_of(data: Mapping[str, Any] | None) -> Line | None:
    """Where the training thread was, of an event of kind `hang`."""
    said = (data or {}).get("line") or (data or {}).get("where")
    if not isinstance(said, Mapping) or not said.get("file"):
        return None
    line = said.get("line")
    return Line(str(said["file"]), line if isinstance(line, int) else 0, str(said.get("function", "?")))


def is_in_data_loader(stacks: str) -> bool:
    """Whether the main thread, which faulthandler writes last, is inside a data loader."""
    main = stacks.replace("\\", "/").rsplit("hread 0x", 1)[-1]
    return any(part in main for part in _DATA_LOADERS)


def _progress(said: Mapping[str, Any]) -> Progress:
    key = group_key(said)
    ranks = tuple(sorted(_whole(rank) for rank in said.get("ranks") or ()))
    group = Group(key[0], key[1], ranks, str(said.get("desc") or ""))
    waiting = sorted((_call(each) for each in said.get("waiting") or ()), key=lambda call: call.sequence)
    completed = None if said["completed"] is None else _whole(said["completed"])
    return Progress(key, group, _whole(said["enqueued"]), completed, tuple(waiting))


def _call(said: Mapping[str, Any]) -> Call:
    size = said.get("bytes")
    return Call(
        sequence=_whole(said["sequence"]),
        op=str(said["op"]),
        bytes=float("nan") if size is None else float(size),
        dtype=str(said.get("dtype") or ""),
        waited_s=seconds_of(said.get("waited_s")),
    )


def _whole(said: Any) -> int:
    """Raises `ValueError` for what is no place in an order of calls."""
    number = int(said)
    if abs(number) >= _MOST_WHOLE:
        raise ValueError("too large for a sequence or a rank")
    return number


def seconds_of(said: Any) -> float:
    """A time that an agent tells; 0 for what cannot be one."""
    is_time = isinstance(said, (int, float)) and math.isfinite(said) and 0 <= said <= _MOST_S
    return float(said) if is_time else 0.0
