"""The collectives of c10d: what each is called, where its tensors are, and what its size is.

`bytes` is S of nccl-tests: the reduced buffer of all_reduce, all that was gathered for all_gather, all that is
scattered for reduce_scatter (for both the ranks' parts together), else what one rank puts in.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple


class Kind(NamedTuple):
    """One collective. `is_symmetric`: it ends at the same moment on all ranks, so durations tell who came last.

    `whole` says where the tensors are that the size is taken from: "input" or "output".
    """

    name: str
    is_symmetric: bool = False
    whole: str = "input"


ALL_REDUCE = Kind("all_reduce", is_symmetric=True)
ALL_GATHER = Kind("all_gather", is_symmetric=True, whole="output")
REDUCE_SCATTER = Kind("reduce_scatter", is_symmetric=True)
BARRIER = Kind("barrier", is_symmetric=True)
ALL_TO_ALL = Kind("all_to_all")
BROADCAST, REDUCE, SEND, RECV = Kind("broadcast"), Kind("reduce"), Kind("send"), Kind("recv", whole="output")
GATHER, SCATTER = Kind("gather"), Kind("scatter", whole="output")

POINT_TO_POINT = frozenset({"send", "recv"})
"""They have no place in the order that all ranks of a group share."""

OPERATORS: dict[str, Kind] = {
    "allreduce_": ALL_REDUCE,
    "allreduce_coalesced_": ALL_REDUCE,
    "allgather_": ALL_GATHER,
    "_allgather_base_": ALL_GATHER,
    "allgather_coalesced_": ALL_GATHER,
    "allgather_into_tensor_coalesced_": ALL_GATHER,
    "reduce_scatter_": REDUCE_SCATTER,
    "_reduce_scatter_base_": REDUCE_SCATTER,
    "reduce_scatter_tensor_coalesced_": REDUCE_SCATTER,
    "barrier": BARRIER,
    "alltoall_": ALL_TO_ALL,
    "alltoall_base_": ALL_TO_ALL,
    "broadcast_": BROADCAST,
    "reduce_": REDUCE,
    "gather_": GATHER,
    "scatter_": SCATTER,
    "send": SEND,
    "recv_": RECV,
    "recv_any_source_": RECV,
}
"""Operators of torch.ops.c10d."""

HOOKED: dict[str, Kind] = {
    "ALLREDUCE": ALL_REDUCE,
    "ALLREDUCE_COALESCED": ALL_REDUCE,
    "ALLGATHER": ALL_GATHER,
    "ALLGATHER_BASE": ALL_GATHER,
    "ALLGATHER_COALESCED": ALL_GATHER,
    "ALLGATHER_INTO_TENSOR_COALESCED": ALL_GATHER,
    "REDUCE_SCATTER": REDUCE_SCATTER,
    "REDUCE_SCATTER_BASE": REDUCE_SCATTER,
    "REDUCE_SCATTER_TENSOR_COALESCED": REDUCE_SCATTER,
    "BARRIER": BARRIER,
    "ALLTOALL": ALL_TO_ALL,
    "ALLTOALL_BASE": ALL_TO_ALL,
    "BROADCAST": BROADCAST,
    "REDUCE": REDUCE,
    "GATHER": GATHER,
    "SCATTER": SCATTER,
    "SEND": SEND,
    "RECV": RECV,
}
"""Names of HookOpName; what else there is (SPLIT, NEW_WINDOW) moves no tensors."""

RECORDED: dict[str, Kind] = {
    "all_reduce": ALL_REDUCE,
    "allreduce": ALL_REDUCE,
    "allreduce_coalesced": ALL_REDUCE,
    "all_reduce_barrier": BARRIER,
    "barrier": BARRIER,
    "all_gather": ALL_GATHER,
    "_all_gather_base": ALL_GATHER,
    "all_gather_into_tensor_coalesced": ALL_GATHER,
    "reduce_scatter": REDUCE_SCATTER,
    "_reduce_scatter_base": REDUCE_SCATTER,
    "reduce_scatter_tensor_coalesced": REDUCE_SCATTER,
    "all_to_all": ALL_TO_ALL,
    "alltoall": ALL_TO_ALL,
    "broadcast": BROADCAST,
    "reduce": REDUCE,
    "gather": GATHER,
    "scatter": SCATTER,
    "send": SEND,
    "recv": RECV,
}
"""Names in the flight recorder, without the backend before the colon."""


def flat(value: Any) -> list[Any]:
    """The tensors of an operator's argument: a tensor, a list of them, or a list of lists."""
    if value is None:
        return []
    if not isinstance(value, (list, tuple)):
        return [value]
    if value and isinstance(value[0], (list, tuple)):
        return [tensor for inner in value for tensor in inner]
    return list(value)


def size_bytes(kind: Kind, inputs: Sequence[Any], outputs: Sequence[Any]) -> int:
    """S of nccl-tests in bytes, see the head of this file."""
    if kind is BARRIER:
        return 0
    tensors = (outputs if kind.whole == "output" else inputs) or inputs or outputs
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)
