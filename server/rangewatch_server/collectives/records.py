"""One rank's chunks as one table in order of time, with names numbered alike on all ranks.

What the kinds of collectives mean: which end together, which have no fixed size, how busbw is counted.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Protocol

import msgspec
import numpy as np
from numpy.typing import NDArray

POINT_TO_POINT = frozenset({"send", "recv", "isend", "irecv", "recv_any_source", "batch_isend_irecv"})
"""Between two ranks of a group: the others have no such record, and the two have different ones."""

SYMMETRIC = frozenset({"all_reduce", "all_gather", "reduce_scatter", "barrier"})
"""No rank is done before all have come; of an all_to_all some ranks may get nothing from the last one. Used where a
record does not say it itself."""

UNEVEN = frozenset({"all_to_all", "gather", "scatter"})
"""Ranks may have different sizes: that is no mismatch."""

_KINDS = (
    ("allreduce", "all_reduce"),
    ("reducescatter", "reduce_scatter"),
    ("allgather", "all_gather"),
    ("alltoall", "all_to_all"),
    ("barrier", "barrier"),
    ("broadcast", "broadcast"),
    ("reduce", "reduce"),
    ("gather", "gather"),
    ("scatter", "scatter"),
)  # in this order: "reduce" is in "all_reduce" and in "reduce_scatter"


def kind_of(op: str) -> str:
    """`all_gather` of `_allgather_base`, `all_gather_into_tensor_coalesced`, `nccl:all_gather`; else `op` in small."""
    plain = op.rsplit(":", 1)[-1].lower()
    letters = plain.replace("_", "").replace(" ", "")
    return next((kind for part, kind in _KINDS if part in letters), plain)


def is_point_to_point(op: str) -> bool:
    """Whether only two ranks take part: `send`, `recv 3<-1`, ..."""
    words = op.rsplit(":", 1)[-1].lower().split()
    return bool(words) and words[0] in POINT_TO_POINT


def busbw_factor(op: str, group_size: int) -> float:
    """busbw / algbw by nccl-tests' definitions, with `group_size` ranks; NaN for what moves no data."""
    kind = kind_of(op)
    if kind == "barrier" or group_size < 1:
        return float("nan")
    if kind == "all_reduce":
        return 2 * (group_size - 1) / group_size
    if kind in {"all_gather", "reduce_scatter", "all_to_all", "gather", "scatter"}:
        return (group_size - 1) / group_size
    return 1.0


def parts_of_size(op: str, group_size: int) -> int:
    """How many times its record's `bytes` the S of nccl-tests is: a rank of a gather or scatter has its own part."""
    return max(group_size, 1) if kind_of(op) in {"gather", "scatter"} else 1


Array = NDArray[Any]

UNKNOWN = -1
GroupKey = tuple[str, str, str, str]
"""(hash, name, backend, instance), which a group's ranks agree on. The hash is of the members alone: several groups may
have the same ones, and one may be made again."""

_BUCKET = re.compile("[0-9]{1,9}")
_LARGEST = float(1 << 53)  # past it a float64 column skips whole numbers


class Chunk(Protocol):
    """What a rank has sent at a time: rows of the source `collective`.

    `times_ns`: (n,) int64, when each was enqueued, by the rank's own clock. `columns`: (n,) float64 each. `step`,
    `group`, `op`, `dtype`, `bytes` (the S of nccl-tests: of an all_gather the whole output, of a reduce_scatter the
    whole input), `sequence`, `duration_s`, `bucket`, `is_symmetric`, `is_async`. `group`, `op` and `dtype` are places
    in the lists `groups` ({name, hash, ranks, desc, backend, instance}), `ops` and `dtypes` of `about`; `bucket` is
    DDP's number, whose parameters `buckets` may name (a list, or a dict by number).

    A chunk may have `incarnation`, which separates the rank's processes: a number that grows, or a name. Names are
    put in order by the processes' first records. Without it a restart shows by sequences that begin anew. A process
    whose records have not come yet is announced by a chunk without rows: else the records of the one before it would be
    compared with those of the other ranks' new ones.
    """

    @property
    def times_ns(self) -> NDArray[np.int64]: ...
    @property
    def columns(self) -> Mapping[str, NDArray[np.float64]]: ...
    @property
    def about(self) -> Mapping[str, Any]: ...


class Group(msgspec.Struct, frozen=True):
    """A process group. `ranks`: its members, global ranks in ascending order."""

    hash: str
    name: str
    ranks: tuple[int, ...]
    desc: str = ""

    @property
    def title(self) -> str:
        """For a person: its description, else its name."""
        return self.desc or self.name or self.hash


def group_key(fields: Mapping[str, Any]) -> GroupKey:
    """Of a group as a rank describes it."""
    return (
        str(fields.get("hash", "")),
        str(fields.get("name", "")),
        str(fields.get("backend", "")),
        str(fields.get("instance", "")),
    )


class Records(msgspec.Struct):
    """Columns of one length; numbers of groups, ops and dtypes are those of `Names`."""

    times_ns: Array
    incarnation: Array
    group: Array
    op: Array
    dtype: Array
    bucket: Array
    step: Array
    sequence: Array
    bytes: Array
    duration_s: Array
    is_symmetric: Array
    is_async: Array
    is_coalesced: Array

    def __len__(self) -> int:
        return len(self.times_ns)

    def take(self, index: Array | slice) -> Records:
        """The rows of `index`."""
        return Records(*(getattr(self, name)[index] for name in self.__struct_fields__))


class Names:
    """Numbers for the names that ranks have given, each in its own order."""

    def __init__(self) -> None:
        self.groups: list[Group] = []
        self.group_keys: list[GroupKey] = []
        self.ops: list[str] = []
        self.dtypes: list[str] = []
        self.buckets: dict[int, Any] = {}
        self.left_out: Counter[str] = Counter()
        self._numbers: dict[tuple[str, Any], int] = {}

    def of(self, about: Mapping[str, Any], name: str) -> Array:
        """(n + 1,) numbers of the names at each place of a list of `about`; the last is for places that are not."""
        known: Collection[Any] = about.get(name) or ()
        number = self._group if name == "groups" else lambda each: self._number(name, str(each), each)
        return np.array([*(number(each) for each in known), UNKNOWN], np.int32)

    def add_buckets(self, about: Mapping[str, Any]) -> None:
        """What `about` says of the parameters of DDP's buckets."""
        buckets = about.get("buckets") or {}
        items = buckets.items() if isinstance(buckets, Mapping) else enumerate(buckets)
        self.buckets.update((int(number), each) for number, each in items if _BUCKET.fullmatch(str(number)))

    def are(self, names: Collection[str]) -> Array:
        """(ops,) bool: those whose kind is one of `names`."""
        return np.array([kind_of(op) in names for op in self.ops], bool)

    def _group(self, fields: Mapping[str, Any]) -> int:
        group = group_key(fields)
        number = self._numbers.setdefault(("groups", group), len(self.groups))
        if number == len(self.groups):
            ranks = tuple(sorted({int(each) for each in fields.get("ranks") or ()}))
            self.groups.append(Group(group[0], group[1], ranks, str(fields.get("desc") or "")))
            self.group_keys.append(group)
        return number

    def _number(self, table: str, key: str, name: Any) -> int:
        names = getattr(self, table)
        number = self._numbers.setdefault((table, key), len(names))
        if number == len(names):
            names.append(name)
        return number


def rank_records(chunks: Sequence[Chunk], names: Names) -> Records:
    """The records of one rank in order of incarnation and time, whatever the order of `chunks`."""
    processes = _processes(chunks)
    chunks = [chunk for chunk in chunks if len(chunk.times_ns)]
    chunks.sort(key=lambda chunk: (processes[_incarnation(chunk)], int(chunk.times_ns[0]), int(chunk.times_ns[-1])))
    parts = [_part(chunk, processes[_incarnation(chunk)], names) for chunk in chunks]
    if not parts:
        return Records(*(np.zeros(0, np.int64) for _ in Records.__struct_fields__))
    fields = Records.__struct_fields__
    whole = parts[0] if len(parts) == 1 else Records(*(np.concatenate([getattr(p, f) for p in parts]) for f in fields))
    whole = _usable(whole, names)
    if not _is_ascending(whole):
        whole = whole.take(np.lexsort((whole.sequence, whole.times_ns, whole.incarnation)))
    return whole


def newest_process(chunks: Sequence[Chunk]) -> int:
    """Number of a rank's newest process in the records' `incarnation`, be it one without records yet; -1 for none."""
    return len(_processes(chunks)) - 1


def _part(chunk: Chunk, process: int, names: Names) -> Records:
    count, columns, about = len(chunk.times_ns), chunk.columns, chunk.about

    def column(name: str) -> Array:
        return columns[name] if name in columns else np.full(count, np.nan)

    names.add_buckets(about)
    op = _numbered(column("op"), names.of(about, "ops"))
    return Records(
        times_ns=np.asarray(chunk.times_ns, np.int64),
        incarnation=np.full(count, process, np.int32),
        group=_numbered(column("group"), names.of(about, "groups")),
        op=op,
        dtype=_numbered(column("dtype"), names.of(about, "dtypes")),
        bucket=_whole(column("bucket"), np.int32),
        step=_whole(column("step")),
        sequence=_whole(column("sequence")),
        bytes=column("bytes"),
        duration_s=_durations(column("duration_s")),
        is_symmetric=_symmetric(column("is_symmetric"), op, names),
        is_async=_whole(column("is_async"), np.int8),
        is_coalesced=np.zeros(count, bool),
    )


def _symmetric(flags: Array, op: Array, names: Names) -> Array:
    is_unknown = np.isnan(flags)
    if not is_unknown.any():
        return flags > 0
    return np.where(is_unknown, np.append(names.are(SYMMETRIC), False)[op], flags > 0)


def _durations(durations: Array) -> Array:
    if np.fmin.reduce(durations, initial=0.0) >= 0:
        return durations
    return np.where(durations >= 0, durations, np.nan)


def _numbered(places: Array, numbers: Array) -> Array:
    index = _whole(places, np.int32)
    if index.max(initial=UNKNOWN) >= len(numbers) - 1:
        index[index >= len(numbers) - 1] = UNKNOWN
    return numbers[index]  # UNKNOWN is -1: the last one


def _whole(values: Array, kind: type[np.signedinteger[Any]] = np.int64) -> Array:
    """Whole numbers; `UNKNOWN` for NaN, infinities, what is negative and what is too large to be exact."""
    most = min(_LARGEST, float(np.iinfo(kind).max))
    if not (values.min(initial=0) >= 0 and values.max(initial=0) <= most):  # false with a NaN too
        values = np.where((values >= 0) & (values <= most), values, UNKNOWN)
    return values.astype(kind)


def _usable(records: Records, names: Names) -> Records:
    between_two = np.append(np.array([is_point_to_point(op) for op in names.ops], bool), False)[records.op]
    is_whole = (records.group >= 0) & (records.op >= 0) & (records.sequence >= 0)
    usable = is_whole & ~between_two
    if usable.all():
        return records
    names.left_out["malformed"] += int((~is_whole & ~between_two).sum())
    names.left_out["point_to_point"] += int(between_two.sum())
    return records.take(usable)


def _is_ascending(records: Records) -> bool:
    later = np.diff(records.times_ns)
    if not records.incarnation[:1].size or records.incarnation[0] == records.incarnation[-1]:
        return bool((later > 0).all())
    return bool(((later > 0) | (np.diff(records.incarnation) > 0)).all())


def _incarnation(chunk: Chunk) -> str | int:
    incarnation = getattr(chunk, "incarnation", 0)
    return incarnation if isinstance(incarnation, int) else str(incarnation)


def _processes(chunks: Sequence[Chunk]) -> dict[str | int, int]:
    """Number of each process of a rank, in the order in which they ran; one without records is a newer one."""
    first_ns: dict[str | int, float] = {}
    for chunk in chunks:
        key, time_ns = _incarnation(chunk), int(chunk.times_ns[0]) if len(chunk.times_ns) else math.inf
        first_ns[key] = min(first_ns.get(key, time_ns), time_ns)
    ordered = sorted(first_ns, key=lambda key: (key if isinstance(key, int) else 0, first_ns[key], str(key)))
    return {key: number for number, key in enumerate(ordered)}


def uneven_ops(names: Names) -> Array:
    """(ops + 1,) bool: those in which ranks may have different sizes."""
    return np.append(names.are(UNEVEN), False)
