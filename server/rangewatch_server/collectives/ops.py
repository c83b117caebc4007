"""What the kinds of collectives mean: which end together, which have no fixed size, how busbw is counted."""

from __future__ import annotations

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
    """How many times its record's `bytes` the S of nccl-tests is: of a gather or scatter a rank tells its own part."""
    return max(group_size, 1) if kind_of(op) in {"gather", "scatter"} else 1
