"""Whether a run hangs now: joins what its ranks last said, their newest records and their silence to the finding."""

from __future__ import annotations

import time
from typing import Any

import msgspec
import numpy as np

from rangewatch.wire.events import Hang, Stacks
from rangewatch_server.collectives.hang_evidence import RankEvidence, recent_calls
from rangewatch_server.collectives.hang_verdict import BUSY, SILENT_AFTER_S, UNDECIDED, HangFinding, HungRank, hang
from rangewatch_server.collectives.matching import match
from rangewatch_server.collectives.reader import Chunk, chunks, searched_range
from rangewatch_server.ingest.pace import MOST_S, REQUESTS_PER_S
from rangewatch_server.machines.deaths import ended
from rangewatch_server.machines.deaths import sentence as sentence_of_deaths
from rangewatch_server.machines.gpus import HOST, watched
from rangewatch_server.query import events
from rangewatch_server.query.events import StoredEvent
from rangewatch_server.query.reader import Rank, RunReader
from rangewatch_server.query.samples import Latest, newest
from rangewatch_server.store.batch_checks import MAX_STEP
from rangewatch_server.store.exit_state import DIED, FAILED, INTERRUPTED, TERMINATED

LATEST = (Hang.KIND, "hang_over", Stacks.KIND)
MOST_STACKS = 64 << 10  # characters of one rank's stacks that are shown
FAR_STEPS = 64  # from the first rank's step to the slowest one's: who is farther behind was left there long ago
UNDECIDED_S = 60.0  # after which most ranks have reported, so that it is known whom the others wait for
NEAR_STEPS = 2  # before the slowest rank's step: ranks are at most one apart


class Reports(msgspec.Struct):
    """The newest events of a rank, whose times are the agent's: that it hangs, that it goes on, and its stacks."""

    hang: StoredEvent | None = None
    hang_over: StoredEvent | None = None
    stacks: str | None = None

    @property
    def hung(self) -> StoredEvent | None:
        """That it hangs, where it has not gone on since."""
        over = self.hang is not None and self.hang_over is not None and self.hang_over.id >= self.hang.id
        return None if over else self.hang


def is_reported(run: RunReader) -> bool:
    """Whether any rank says that it hangs, or has gone silent while others speak or failed: cheap, for every look."""
    silent_ns = int(silent_after_s(len(run.ranks)) * 1e9)
    rows = [rank.row for rank in run.ranks.values()]
    is_silent = [run.now_ns - row.last_seen_ns > silent_ns for row in rows if row.state == "open"]
    # Of a silent one alone nothing is said while all others go on: it may have been left out of the run.
    others = any(row.state in (FAILED, DIED, INTERRUPTED, TERMINATED) for row in rows) or (
        not all(is_silent) and any(row.state != "open" for row in rows)
    )
    if any(is_silent) and others:
        return True
    return bool(run.events(Hang.KIND, 1)) and any(each.hung for each in _reports(run).values())


def _reports(run: RunReader) -> dict[int, Reports]:
    """Of each rank's newest process; stacks that a rank sends of another one are that one's."""
    reports = {rank: Reports() for rank in run.ranks}
    streams = [rank.streams[-1].id for rank in run.ranks.values()]
    for event in events.last(run.connection, streams, LATEST, each_message=True):
        if event.kind == Stacks.KIND:
            stacks = event.read(Stacks) or Stacks()
            reports[stacks.of_rank if stacks.of_rank in reports else event.rank].stacks = stacks.text
        elif event.kind == Hang.KIND:
            reports[event.rank].hang = event
        else:
            reports[event.rank].hang_over = event
    return reports


def finding(run: RunReader) -> HangFinding | None:
    """Who the run waits for now; None while it goes on, or when it cannot be said yet."""
    if not is_reported(run):
        return None
    reports, hosts = _reports(run), {each.rank: each for each in newest(run, HOST)}
    records = _records(run)
    ranks = [_evidence(rank, reports[number], hosts.get(number), records[number]) for number, rank in run.ranks.items()]
    hang_finding = hang(time.time_ns(), ranks, match(records).desyncs, silent_after_s(len(run.ranks)))
    return None if hang_finding is None else _with_deaths(hang_finding, run)


def _with_deaths(hang_finding: HangFinding, run: RunReader) -> HangFinding:
    """How those have ended that the others wait for, where their watcher saw it."""
    reported = sentence_of_deaths([each for each in ended(run) if each.rank in hang_finding.culprits])
    return (
        hang_finding
        if reported is None
        else msgspec.structs.replace(hang_finding, sentence=f"{hang_finding.sentence} {reported}")
    )


def silent_after_s(ranks: int) -> float:
    """Of many ranks each is asked to send seldom: twice that is no silence yet."""
    return max(SILENT_AFTER_S, 2.5 * min(ranks / REQUESTS_PER_S, MOST_S))


def is_alarm(hang_finding: HangFinding) -> bool:
    """Whether somebody should be woken: not for what is as likely an evaluation or a compilation (the page
    Hang says so), nor at once where it is not known whom the others wait for.
    """
    if hang_finding.cause == BUSY:
        return bool(hang_finding.culprits)
    return hang_finding.cause != UNDECIDED or hang_finding.since_s >= UNDECIDED_S


def _records(run: RunReader) -> dict[int, list[Chunk]]:
    """Records from a little before where the slowest rank is."""
    steps = [int(rank.row.last_step) for rank in run.ranks.values() if rank.row.last_step is not None]
    if not steps:
        return {rank: [] for rank in run.ranks}
    # To the newest: a step that does not end is past what the training thread has shipped.
    start, stop = searched_range(run, max(min(steps) - NEAR_STEPS, max(steps) - FAR_STEPS, 0), MAX_STEP)
    return chunks(run, start, stop - 1) if start < stop else {rank: [] for rank in run.ranks}


def _evidence(rank: Rank, reports: Reports, host: Latest | None, records: list[Chunk]) -> RankEvidence:
    row, reported = rank.row, reports.hung
    # An event has its own host's time. The newest sample came with about the last message: that is the difference.
    ahead_ns = row.last_seen_ns - host.time_ns if host is not None else 0
    reported_ns = None if reported is None else min(reported.time_ns + ahead_ns, row.last_seen_ns)
    return RankEvidence(
        rank.rank, row.last_seen_ns, -1 if row.last_step is None else row.last_step, row.state != "open",
        None if reported is None else reported.read(Hang) or Hang(), reported_ns, reports.stacks or "",
        recent_calls(records),
    )  # fmt: skip


def answer(run: RunReader) -> dict[str, Any]:
    """The answer of docs/api.md."""
    hang_finding = finding(run)
    now_ns = time.time_ns()
    if hang_finding is None:
        return {"hang": None, "checked_ns": now_ns}
    cards = {each.rank: each for each in watched(run)}
    reports = _reports(run)
    shown = {
        "text": hang_finding.sentence, "kind": hang_finding.cause, "class": hang_finding.kind,
        "since_ns": now_ns - int(hang_finding.since_s * 1e9),
        "step": min((each.last_step for each in hang_finding.ranks if each.last_step >= 0), default=None),
        "culprits": hang_finding.culprits, "missing": hang_finding.missing, "silent": hang_finding.silent,
        "waiting": hang_finding.waiting,
        "groups": [_group(hang_finding)] if hang_finding.group is not None else [],
        "mismatch": [msgspec.to_builtins(side) for side in hang_finding.sides],
        "ranks": [_rank(each, reports[each.rank], cards.get(each.rank)) for each in hang_finding.ranks],
    }  # fmt: skip
    return {"hang": shown, "checked_ns": now_ns}


def _group(hang_finding: HangFinding) -> dict[str, Any]:
    group, call = hang_finding.group, hang_finding.waited_for
    assert group is not None
    return {
        "group": group.title, "ranks": group.ranks, "sequence": hang_finding.sequence, "missing": hang_finding.missing,
        "op": call.op if call else None, "bytes": call.bytes if call else None, "dtype": call.dtype if call else None,
        "last_enqueued": {str(each.rank): each.enqueued for each in hang_finding.ranks if each.rank in group.ranks},
        "last_completed": {str(each.rank): each.completed for each in hang_finding.ranks if each.rank in group.ranks},
    }  # fmt: skip


def _rank(each: HungRank, reports: Reports, card: Latest | None) -> dict[str, Any]:
    values = None
    if card is not None:
        values = {name: float(value) if np.isfinite(value) else None for name, value in card.columns.items()}
    return {
        "rank": each.rank, "role": each.role, "is_silent": each.is_silent, "has_ended": each.has_ended,
        "silent_s": each.silent_s, "last_step": each.last_step, "is_in_data_loader": each.is_in_data_loader,
        "where": msgspec.to_builtins(each.line) if each.line is not None else None,
        "waits_for": msgspec.to_builtins(each.waits_for) if each.waits_for is not None else None,
        "stacks": None if reports.stacks is None else reports.stacks[:MOST_STACKS], "gpu": values,
    }  # fmt: skip
