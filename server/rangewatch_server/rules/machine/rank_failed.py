"""A rank ended by an exception."""

from __future__ import annotations

import re
from collections.abc import Iterator

from rangewatch.wire.events import Failed
from rangewatch_server.core.text import ranks_text
from rangewatch_server.query.events import StoredEvent
from rangewatch_server.rules.batch_rows import row_sentences
from rangewatch_server.rules.evidence import Evidence
from rangewatch_server.rules.machine.known_exceptions import known_remedy
from rangewatch_server.rules.phrases import place
from rangewatch_server.rules.rule import Finding, Remedy, Rule, Thresholds

MOST_TEXT = 500
"""Characters of an exception that are shown."""

SOON = 1
"""Steps by which ranks that lose a peer in a collective may seem to fail before it: they are at most one apart."""

_LOST_A_PEER = re.compile(
    r"connection (closed|reset) by peer|broken pipe|gloo[/\\]transport|DistBackendError|DistNetworkError"
    r"|ncclRemoteError|remote process exited|NCCL error|collective operation timeout"
    r"|Timed out waiting \d+ms for (recv|send)|TCPStore",
    re.IGNORECASE,
)
"""What gloo, NCCL and torch.distributed raise on the ranks that are left, when another one has gone."""


def check(evidence: Evidence, limits: Thresholds) -> Iterator[Finding]:
    """At most one finding: the first rank that failed, in order of steps; the others often follow it.

    One that lost its peer in a collective was not the first, whatever came in first.
    """
    newest = {rank.streams[-1].id for rank in evidence.run.ranks.values()}
    failed = [event for event in evidence.events(Failed.KIND) if event.stream_id in newest and _is_a_fault(event)]
    if failed:
        yield _finding(evidence, failed)


def _is_a_fault(event: StoredEvent) -> bool:
    """Whether it is neither Ctrl-C nor memory that ran out, which another rule reports."""
    details = event.read(Failed) or Failed()
    return not details.interrupted and not details.out_of_memory


def _finding(evidence: Evidence, failed: list[StoredEvent]) -> Finding:
    soon = [each for each in failed if each.step <= failed[0].step + SOON]
    own = [each for each in soon if not _LOST_A_PEER.search(each.message)]
    first = (own or failed)[0]
    text = " ".join(first.message.split())[:MOST_TEXT].rstrip(".")
    others = sorted({event.rank for event in failed} - {first.rank})
    step = first.step if first.step >= 0 else None
    known = known_remedy(first.message) if own else None
    where = place(first.step, first.rank) if step is not None else f"Rank {first.rank}"
    return Finding(
        rank=first.rank, step=step, subject="failed",
        summary=f"{where}: an exception ended it: {text or 'without a message'}.",
        evidence=(
            *([f"{ranks_text(others).capitalize()} failed too, in the same step or around it."] if others else []),
            *(_lost(failed, own)),
            *([WAITED_FOR] if _is_of_all(evidence, failed, own) else []),
            *row_sentences(evidence.run, (first.rank,), first.step),
            _KNOWN if known else "It is not known whether anything that was recorded led to it: see the other "
            "findings.",
        ),
        remedy=(_remedy(evidence, failed) if not own else _waited(first.rank) if _WAITED.search(first.message) else
                known or _READ_IT,),
        facts={
            "ranks": sorted({event.rank for event in failed}),
            "cause_class": "communication" if _is_of_all(evidence, failed, own) else "crash",
        },
    )  # fmt: skip


_KNOWN = (
    "Its text says what torch was given that it does not take. What led to that is among the other findings, if any."
)

_READ_IT = Remedy("Read the traceback of that rank: its last lines are the cause.", "", "an exception ended it")

_WAITED = re.compile(r"^(_?queue\.)?Empty\b|\bTimeout(Error|Expired)?\b|timed out", re.IGNORECASE)
"""What a wait within a process raises when it ends in vain."""


def _waited(rank: int) -> Remedy:
    return Remedy(
        f"Look at what rank {rank} waited for: the thread or worker that loads its data and should have filled the "
        "queue, "
        "and the lock, file or request that it stands in. The stacks of all threads of that process show where, while "
        "it "
        "waits.",
        "import faulthandler\nfaulthandler.dump_traceback_later(60, repeat=True)  # the stacks of all threads, to "
        "stderr",
        "the exception is that of a wait that ended without what it was for; a longer limit alone changes nothing",
    )


WAITED_FOR = (
    "Cause (likely): communication. Every rank of the run was there and lost or waited for another: as a rule they "
    "were in different collectives, such as a barrier or an all_reduce that stands under an if that is not taken on "
    "all of them, in a loop that ends sooner on one, or in another order. Against that: a network that failed looks "
    "the same."
)


def _is_of_all(evidence: Evidence, failed: list[StoredEvent], own: list[StoredEvent]) -> bool:
    """Whether all ranks said that they lost another, and none anything else: then none was gone before."""
    return not own and len(evidence.ranks) > 1 and {each.rank for each in failed} >= set(evidence.ranks)


def _lost(failed: list[StoredEvent], own: list[StoredEvent]) -> Iterator[str]:
    if not own:
        yield "By its text it lost its connection to another rank, or waited for one in vain: that is where it began."
    else:
        lost = sorted({each.rank for each in failed if _LOST_A_PEER.search(each.message)} - {own[0].rank})
        if lost:
            they = "it" if len(lost) == 1 else "they"
            yield f"{ranks_text(lost).capitalize()} lost the connection to it, by what {they} raised."


def _remedy(evidence: Evidence, failed: list[StoredEvent]) -> Remedy:
    if _is_of_all(evidence, failed, []):
        return Remedy(
            "Have every rank call the same collectives in the same order: look at the traceback of each, and move what "
            "one calls alone out of its if or loop. A monitored barrier names the rank that is not there.",
            "if torch.distributed.get_rank() == 0:\n    ...  # save, log: no collective in here\n"
            "torch.distributed.barrier()  # on all ranks",
            "all ranks were there, and each waited for another",
        )  # fmt: skip
    silent = sorted(set(evidence.ranks) - {each.rank for each in failed})
    who = f" of {ranks_text(silent)}" if silent else " of the other ranks"
    return Remedy(
        f"Read what the processes{who} wrote last, and whether their hosts are there.", "",
        "all that failed lost a peer, and none says why",
    )  # fmt: skip


RULE = Rule(
    name="rank_failed",
    title="A rank failed",
    severity="critical",
    explanation="An exception ended the training of a rank. The others wait for it in their next collective, or fail "
    "with it. Ctrl-C is not counted, and memory that ran out is a rule of its own.",
    check=check,
    explains=("hang", "straggler"),
)
