"""The last lines of a rank's stderr, where the training was told to send them, and what cannot be in them."""

from __future__ import annotations

from typing import Any

from rangewatch.wire.events import Stderr
from rangewatch_server.core.text import ranks_text
from rangewatch_server.machines import deaths
from rangewatch_server.query import events
from rangewatch_server.query.events import StoredEvent
from rangewatch_server.query.reader import Rank, RunReader
from rangewatch_server.store.exit_state import FAILED

MOST_LINES, MOST_CHARACTERS = 500, 1_000
"""That are shown, and of one: an agent sends fewer, but anybody with a token may send."""

HOW_TO_RECORD = "attach(stderr_tail=True), or RANGEWATCH_STDERR_TAIL=1"
NOT_RECORDED = f"Not recorded: turn on with {HOW_TO_RECORD}."


def default_rank(run: RunReader) -> int:
    """Whose lines are asked for first: of a rank that died, then of one that failed."""
    died = deaths.ended(run)
    failed = (rank for rank, each in sorted(run.ranks.items()) if each.row.state == FAILED)
    return died[0].rank if died else next(failed, min(run.ranks))


def tail(run: RunReader, rank: int) -> dict[str, Any]:
    """As GET /api/v1/runs/{id}/stderr answers."""
    of = run.ranks[rank]
    row = next(iter(_newest(run, [of])), None)
    details = None if row is None else _bounded(row.read(Stderr) or Stderr())
    shared = [] if details is None else _sharing(run, of, details)
    known = details or Stderr()
    return {
        "rank": rank, "ranks": sorted(run.ranks), "host": of.info.host, "is_recorded": details is not None,
        "lines": known.lines, "source": known.source, "path": known.path, "is_cut": known.is_cut, "shared_with": shared,
        "step": None if row is None or row.step < 0 else row.step, "time_ns": None if row is None else row.time_ns,
        "note": NOT_RECORDED if details is None else note(details, of.info.host, rank, shared),
    }  # fmt: skip


def _bounded(details: Stderr) -> Stderr:
    """What is shown of what anybody may have sent."""
    return Stderr(
        tuple(line[:MOST_CHARACTERS] for line in details.lines[-MOST_LINES:]),
        details.source[:MOST_CHARACTERS], details.path[:MOST_CHARACTERS], details.stream[:MOST_CHARACTERS],
        details.why_not[:MOST_CHARACTERS], details.is_cut or len(details.lines) > MOST_LINES, details.dropped_count,
    )  # fmt: skip


def note(details: Stderr, host: str, rank: int, shared_with: list[int]) -> str:
    """Where the lines are from, and what is not among them."""
    parts = []
    if details.why_not:
        parts.append(f"Not known: {details.why_not}.")
    elif not details.lines:
        parts.append("Nothing has been written to it.")
    if details.source == "file":
        parts.append(f"The end of {details.path} on {host}.")
    elif details.source == "python":
        parts.append(
            f"stderr is {details.stream}: these are the lines that Python wrote. What C++, CUDA and NCCL wrote is not "
            "among them; with stderr in a file (torchrun --redirects 2) it is."
        )
    if shared_with:
        ranks = ranks_text([rank, *shared_with]).capitalize()
        parts.append(f"{ranks} write to the same file: the lines are of all of them.")
    if details.dropped_count > 0:
        times = "once" if details.dropped_count == 1 else f"{details.dropped_count} times"
        parts.append(f"Text is missing among them, {times}: a long write, or several at once.")
    return " ".join(parts)


def _sharing(run: RunReader, of: Rank, details: Stderr) -> list[int]:
    """Ranks of the same host whose stderr is the same file."""
    if details.source != "file":
        return []
    others = {
        each.streams[-1].id: each.rank
        for each in run.ranks.values()
        if each.info.host == of.info.host and each.rank != of.rank
    }
    rows = events.last(run.connection, others, [Stderr.KIND]) if others else []
    known = ((others[row.stream_id], row.read(Stderr)) for row in rows)
    return sorted(rank for rank, each in known if each is not None and each.path[:MOST_CHARACTERS] == details.path)


def _newest(run: RunReader, ranks: list[Rank]) -> list[StoredEvent]:
    return events.last(run.connection, [each.streams[-1].id for each in ranks], [Stderr.KIND])
