"""What a figure is compared with: another step, rank or run, looked up in the store. No reads of values."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import msgspec

from rangewatch_server.errors import ApiError

if TYPE_CHECKING:
    from rangewatch_server.figures.base import Params
    from rangewatch_server.queries import RunReader

PATTERN = re.compile(r"(step|rank|run):(\d{1,15})", re.ASCII)


class Against(msgspec.Struct, frozen=True):
    """The other side of a comparison."""

    kind: str
    number: int
    run: RunReader
    """That of the other side: the same one, but for `run:N`."""
    ranks: tuple[int, ...]
    step: int | None = None
    """The one step that all columns are compared with; None: each with its own."""

    def facts(self) -> dict[str, Any]:
        """As `meta.against` of docs/api.md."""
        return {
            "kind": self.kind, "number": self.number, "run": self.run.name, "ranks": len(self.ranks),
            "first_step": self.run.first_step, "last_step": self.run.last_step,
        }  # fmt: skip


def resolve(run: RunReader, params: Params) -> Against | None:
    """The other side, or None where none is asked for. Raises `ApiError` for what cannot be, or is not there."""
    if not params.against:
        return None
    found = PATTERN.fullmatch(params.against)
    if found is None:
        raise ApiError(422, "bad_parameter", "against must be step:N, rank:N or run:N")
    return {"step": _step, "rank": _rank, "run": _run}[found[1]](run, params, int(found[2]))


def _step(run: RunReader, params: Params, step: int) -> Against:
    first, last = run.first_step, run.last_step
    if first is None or last is None or not first <= step <= last:
        raise ApiError(404, "unknown_step", f"run {run.id} has no step {step}")
    return Against("step", step, run, params.ranks, step)


def _rank(run: RunReader, params: Params, rank: int) -> Against:
    if rank not in run.ranks:
        raise ApiError(404, "unknown_rank", f"run {run.id} has no rank {rank}")
    return Against("rank", rank, run, (rank,))


def _run(run: RunReader, params: Params, number: int) -> Against:
    """All ranks with all ranks, and one with the same one."""
    other = run.reader.run(number)
    if other is None:
        raise ApiError(404, "unknown_run", f"there is no run {number}")
    if params.all_ranks:
        return Against("run", number, other, tuple(sorted(other.ranks)))
    for rank in params.ranks:
        if rank not in other.ranks:
            raise ApiError(404, "unknown_rank", f"run {number} has no rank {rank}")
    return Against("run", number, other, params.ranks)
