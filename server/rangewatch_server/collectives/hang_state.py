"""Whether a run hangs now: joins what its ranks last said, their newest records and their silence to the finding."""

from __future__ import annotations

import time
from typing import Any

import msgspec
import numpy as np
from sqlalchemy import func, select

from rangewatch_server.collectives.hang_evidence import RankEvidence, recent_calls
from rangewatch_server.collectives.hang_verdict import SILENT_AFTER_S, HangFinding, HungRank, hang
from rangewatch_server.collectives.matching import match
from rangewatch_server.collectives.reader import Chunk, chunks, searched_range
from rangewatch_server.ingest.pace import MOST_S, REQUESTS_PER_S
from rangewatch_server.machines.deaths import ended
from rangewatch_server.machines.deaths import sentence as sentence_of_deaths
from rangewatch_server.machines.gpus import HOST, watched
from rangewatch_server.query.reader import Rank, RunReader
from rangewatch_server.query.samples import Latest, newest
from rangewatch_server.store import tables
from rangewatch_server.store.batch_checks import MAX_STEP
from rangewatch_server.store.exit_state import DIED, FAILED, TERMINATED

LATEST = ("hang", "hang_over", "stacks")
MOST_STACKS = 64 << 10  # characters of one rank's stacks that are shown
FAR_STEPS = 64  # from the first rank's step to the slowest one's: who is farther behind was left there long ago
NEAR_STEPS = 2  # before the slowest rank's step: ranks are at most one apart
_event = tables.events.c


class Said(msgspec.Struct, frozen=True):
    """The newest event of a kind: its time is the agent's."""

    id: int
    time_ns: int
    data: dict[str, Any]


def is_reported(run: RunReader) -> bool:
    """Whether any rank says that it hangs, or has gone silent while others speak or failed: cheap, for every look."""
    silent_ns = int(silent_after_s(len(run.ranks)) * 1e9)
    rows = [rank.row for rank in run.ranks.values()]
    is_silent = [run.now_ns - row.last_seen_ns > silent_ns for row in rows if row.state == "open"]
    # Of a silent one alone nothing is said while all others go on: it may have been left out of the run.
    others = any(row.state in (FAILED, DIED, TERMINATED) for row in rows) or (
        not all(is_silent) and any(row.state != "open" for row in rows)
    )
    return (any(is_silent) and others) or any(_hung(said) for said in _said(run).values())


def _hung(said: dict[str, Said]) -> Said | None:
    reported, over = said.get("hang"), said.get("hang_over")
    return reported if reported is not None and (over is None or over.id < reported.id) else None


def _said(run: RunReader) -> dict[int, dict[str, Said]]:
    """Of each rank's newest process the newest event of each kind; stacks that a rank tells of another one are its."""
    ranks = {rank.streams[-1].id: each for each, rank in run.ranks.items()}
    latest = (
        select(func.max(_event.id))
        .where(_event.stream_id.in_(ranks), _event.kind.in_(LATEST))
        .group_by(_event.stream_id, _event.kind, _event.message)
    )
    query = select(_event.id, _event.stream_id, _event.kind, _event.time_ns, _event.data)
    found: dict[int, dict[str, Said]] = {rank: {} for rank in run.ranks}
    for row in run.connection.execute(query.where(_event.id.in_(latest)).order_by(_event.id)):
        data = msgspec.json.decode(row.data)
        of_rank = data.get("of_rank")
        rank = of_rank if isinstance(of_rank, int) and of_rank in found else ranks[row.stream_id]
        found[rank][row.kind] = Said(row.id, row.time_ns, data)
    return found


def finding(run: RunReader) -> HangFinding | None:
    """Who the run waits for now; None while it goes on, or when it cannot be said yet."""
    if not is_reported(run):
        return None
    said, hosts = _said(run), {each.rank: each for each in newest(run, HOST)}
    records = _records(run)
    facts = [_facts(rank, said[number], hosts.get(number), records[number]) for number, rank in run.ranks.items()]
    found = hang(time.time_ns(), facts, match(records).desyncs, silent_after_s(len(run.ranks)))
    return None if found is None else _with_deaths(found, run)


def _with_deaths(found: HangFinding, run: RunReader) -> HangFinding:
    """How those have ended that the others wait for, where their watcher saw it."""
    reported = sentence_of_deaths([each for each in ended(run) if each.rank in found.culprits])
    return found if reported is None else msgspec.structs.replace(found, sentence=f"{found.sentence} {reported}")


def silent_after_s(ranks: int) -> float:
    """Of many ranks each is asked to send seldom: twice that is no silence yet."""
    return max(SILENT_AFTER_S, 2.5 * min(ranks / REQUESTS_PER_S, MOST_S))


def sentence(run: RunReader) -> str | None:
    """For the head of a run's pages."""
    found = finding(run)
    return None if found is None else found.sentence


def _records(run: RunReader) -> dict[int, list[Chunk]]:
    """Records from a little before where the slowest rank is."""
    steps = [int(rank.row.last_step) for rank in run.ranks.values() if rank.row.last_step is not None]
    if not steps:
        return {rank: [] for rank in run.ranks}
    # To the newest: a step that does not end is past what the training thread has shipped.
    start, stop = searched_range(run, max(min(steps) - NEAR_STEPS, max(steps) - FAR_STEPS, 0), MAX_STEP)
    return chunks(run, start, stop - 1) if start < stop else {rank: [] for rank in run.ranks}


def _facts(rank: Rank, said: dict[str, Said], host: Latest | None, records: list[Chunk]) -> RankEvidence:
    row, reported = rank.row, _hung(said)
    # An event has its own host's time. The newest sample came with about the last message: that is the difference.
    ahead_ns = row.last_seen_ns - host.time_ns if host is not None else 0
    stacks = said.get("stacks")
    reported_ns = None if reported is None else min(reported.time_ns + ahead_ns, row.last_seen_ns)
    return RankEvidence(
        rank.rank, row.last_seen_ns, -1 if row.last_step is None else row.last_step, row.state != "open",
        None if reported is None else reported.data, reported_ns,
        str(stacks.data.get("text") or "") if stacks is not None else "", recent_calls(records),
    )  # fmt: skip


def answer(run: RunReader) -> dict[str, Any]:
    """The answer of docs/api.md."""
    found = finding(run)
    now_ns = time.time_ns()
    if found is None:
        return {"hang": None, "checked_ns": now_ns}
    cards = {each.rank: each for each in watched(run)}
    said = _said(run)
    shown = {
        "text": found.sentence, "kind": found.cause, "class": found.kind, "since_ns": now_ns - int(found.since_s * 1e9),
        "step": min((each.last_step for each in found.ranks if each.last_step >= 0), default=None),
        "culprits": found.culprits, "missing": found.missing, "silent": found.silent, "waiting": found.waiting,
        "groups": [_group(found)] if found.group is not None else [],
        "mismatch": [msgspec.to_builtins(side) for side in found.sides],
        "ranks": [_rank(each, said[each.rank], cards.get(each.rank)) for each in found.ranks],
    }  # fmt: skip
    return {"hang": shown, "checked_ns": now_ns}


def _group(found: HangFinding) -> dict[str, Any]:
    group, call = found.group, found.waited_for
    assert group is not None
    return {
        "group": group.title, "ranks": group.ranks, "sequence": found.sequence, "missing": found.missing,
        "op": call.op if call else None, "bytes": call.bytes if call else None, "dtype": call.dtype if call else None,
        "last_enqueued": {str(each.rank): each.enqueued for each in found.ranks if each.rank in group.ranks},
        "last_completed": {str(each.rank): each.completed for each in found.ranks if each.rank in group.ranks},
    }  # fmt: skip


def _rank(each: HungRank, said: dict[str, Said], card: Latest | None) -> dict[str, Any]:
    stacks = said.get("stacks")
    values = None
    if card is not None:
        values = {name: float(value) if np.isfinite(value) else None for name, value in card.columns.items()}
    return {
        "rank": each.rank, "role": each.role, "is_silent": each.is_silent, "has_ended": each.has_ended,
        "silent_s": each.silent_s, "last_step": each.last_step, "is_in_data_loader": each.is_in_data_loader,
        "where": msgspec.to_builtins(each.line) if each.line is not None else None,
        "waits_for": msgspec.to_builtins(each.waits_for) if each.waits_for is not None else None,
        "stacks": str(stacks.data.get("text") or "")[:MOST_STACKS] if stacks is not None else None, "gpu": values,
    }  # fmt: skip
