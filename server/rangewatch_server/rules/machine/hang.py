"""Ranks wait for one that does not come."""

from __future__ import annotations

from collections.abc import Iterator

from rangewatch_server.collectives import hang_state
from rangewatch_server.collectives.hang_verdict import (
    ABSENT,
    COMMUNICATION,
    DATA_LOADER,
    ENDED,
    MISMATCH,
    ORDER,
    SILENT,
    UNDECIDED,
    HangFinding,
)
from rangewatch_server.core.text import ranks_text
from rangewatch_server.rules.evidence import Evidence
from rangewatch_server.rules.phrases import loader_with
from rangewatch_server.rules.rule import Finding, Remedy, Rule, Thresholds

MOST_NAMED = 8


def check(evidence: Evidence, limits: Thresholds) -> Iterator[Finding]:
    """At most one finding: the hang that goes on now, which none of an earlier step is."""
    hang = hang_state.finding(evidence.run) if evidence.is_newest else None
    if hang is None or not hang_state.is_alarm(hang):
        return
    step = min((each.last_step for each in hang.ranks if each.last_step >= 0), default=None)
    yield Finding(
        rank=hang.culprits[0] if len(hang.culprits) == 1 else None, step=step, subject=hang.cause,
        summary=_summary(hang, step), evidence=tuple(_evidence(hang)), remedy=tuple(_remedies(hang)),
        facts={"cause": hang.cause, "culprits": hang.culprits, "missing": hang.missing, "waiting": hang.waiting},
    )  # fmt: skip


def _summary(hang: HangFinding, step: int | None) -> str:
    """Without how long it has gone on: the page counts that. `step`: the last that all ranks have finished."""
    who = ranks_text(hang.culprits) if hang.culprits else ""
    sentence = {
        MISMATCH: f"Ranks call different collectives: {who} differs from the others" if who else
        "Ranks call different collectives at one place",
        SILENT: f"The run waits for {who}, which has gone silent",
        ENDED: f"The run waits for {who}, which has ended",
        DATA_LOADER: f"The run waits for {who}, which waits for its data loader",
        ABSENT: f"The run waits for {who}, which has not joined a collective",
        ORDER: "Ranks wait for one another in different process groups",
        COMMUNICATION: "All ranks wait in the same collective, and it does not end",
        UNDECIDED: "Ranks wait in a collective, and who has not joined it is not known: not all ranks have reported",
    }.get(hang.cause, f"The run waits for {who}")  # fmt: skip
    group = "" if hang.group is None else f" (group {hang.group.title})"
    after = "" if step is None else f", after step {step:,}"
    return f"{sentence}{group}{after}."


def _evidence(hang: HangFinding) -> Iterator[str]:
    call = hang.waited_for
    if call is not None and hang.waiting:
        yield f"{ranks_text(hang.waiting).capitalize()} wait{'s' if len(hang.waiting) == 1 else ''} in {call.op}."
    for side in hang.sides:
        yield f"{ranks_text(side.ranks).capitalize()} called {side.op} of {side.dtype or 'an unknown dtype'}."
    for each in hang.ranks:
        if each.rank in hang.culprits[:MOST_NAMED] and each.line is not None:
            yield f"Rank {each.rank} is at {each.line}."


def _remedies(hang: HangFinding) -> Iterator[Remedy]:
    if hang.cause in (MISMATCH, ORDER):
        yield Remedy(
            "Let every rank run the same collectives in the same order: look for a branch on the rank, or on data.",
            "", "ranks called different things at one sequence number",
        )  # fmt: skip
    elif hang.cause == DATA_LOADER:
        yield Remedy(
            "Look at that rank's data loader: a worker that died or a file system that does not answer. A time limit "
            "makes it an error.", loader_with("num_workers=loader.num_workers, timeout=60"),
            "the rank's stack is inside its data loader",
        )  # fmt: skip
    elif hang.cause == COMMUNICATION:
        yield Remedy(
            "Test the links between the ranks' GPUs.", "torchrun --nproc-per-node=8 -m rangewatch linkcheck",
            "nobody is missing, so it is the communication itself",
        )  # fmt: skip
    elif hang.cause in (SILENT, ENDED):
        yield Remedy(
            f"Look at {ranks_text(hang.culprits)} on its host: whether the process is there, and what its last "
            "lines say.", "", "it says nothing any more while the others do",
        )  # fmt: skip
    elif hang.cause == ABSENT:
        yield Remedy(
            f"Look at what {ranks_text(hang.culprits)} does instead: its stack is on the page Hang. A branch on the "
            "rank or on its data, or a loader of another length, makes it miss a collective.", "",
            "it goes on, and has not called what the others wait in",
        )  # fmt: skip


RULE = Rule(
    name="hang",
    title="The run hangs",
    severity="critical",
    explanation="No step ends any more because ranks wait for one that does not come, long before the process group's "
    "time limit would say so. Who is missing is known by what each rank has called, and by the stacks of its threads.",
    check=check,
    explains=("straggler", "data_bound"),
    links=lambda run_id, _: (("Hang", f"/runs/{run_id}/hang"),),
)
