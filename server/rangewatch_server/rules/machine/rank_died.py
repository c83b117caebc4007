"""A rank ended without a goodbye."""

from __future__ import annotations

from collections.abc import Iterator

from rangewatch_server.machines.deaths import deaths, ended
from rangewatch_server.rules.evidence import Evidence
from rangewatch_server.rules.phrases import loader_with
from rangewatch_server.rules.rule import Finding, Remedy, Rule, Thresholds
from rangewatch_server.store.exit_state import DIED

SIGKILL, SIGSEGV, SIGBUS = 9, 11, 7
MOST = 8
"""Ranks of which it is said one by one: a thousand that died together say the same."""


def check(evidence: Evidence, limits: Thresholds) -> Iterator[Finding]:
    """One finding a rank; none of ranks that somebody stopped from outside."""
    died = sorted((each for each in ended(evidence.run) if each.state == DIED), key=lambda each: each.rank)
    known = deaths(evidence.run, died)
    dead = [each for each in known if evidence.is_newest or _at(each) < evidence.stop]
    also = len(died) - MOST if evidence.is_newest else len(dead) - MOST
    for each in dead[:MOST]:
        yield Finding(
            rank=each["rank"], step=each["step"], tensor=each["module"] or None, subject="died",
            summary=f"Rank {each['rank']}{each['text'].removeprefix('rank ' + str(each['rank']))}.",
            evidence=tuple(_evidence(each, also)), remedy=tuple(_remedies(each)),
        )  # fmt: skip


def _at(death: dict[str, object]) -> int:
    step = death["step"]
    return step if isinstance(step, int) else -1


def _evidence(death: dict[str, object], also: int) -> Iterator[str]:
    oom = death.get("oom_kills")
    if isinstance(oom, int) and oom > 0:
        yield f"The kernel killed {oom} process{'es' if oom > 1 else ''} of its control group for want of memory."
    if death["stack"]:
        yield "Its Python stacks are on the run's Overview."
    if also > 0:
        yield f"{also} more ranks died."


def _remedies(death: dict[str, object]) -> Iterator[Remedy]:
    oom, number = death.get("oom_kills"), death.get("signal")
    if isinstance(oom, int) and oom > 0:
        yield Remedy(
            "Give the job more memory, or load less at once: fewer or smaller data loader workers.",
            loader_with("num_workers=2, prefetch_factor=2, persistent_workers=True"),
            "its control group ran out of memory",
        )
    elif number in (SIGSEGV, SIGBUS):
        yield Remedy(
            "Look at the stack it died in; run the step again with blocking launches to see the call itself.",
            "export CUDA_LAUNCH_BLOCKING=1 TORCH_SHOW_CPP_STACKTRACES=1  # then start the job as before",
            "it touched memory that is not its own",
        )
    elif number == SIGKILL:
        yield Remedy(
            "Ask who killed it: the kernel's log, the scheduler's, and the limits of the container.",
            "dmesg --ctime | grep -i -E 'killed process|out of memory'",
            "SIGKILL comes from outside, and the process cannot say why",
        )


RULE = Rule(
    name="rank_died",
    title="A rank died",
    severity="critical",
    explanation="A process of the run ended without saying so: by a signal, by the kernel for want of memory, or by an "
    "exit in the middle of a step. The other ranks wait for it in their next collective until their time limit. What "
    "is known of it comes from the watcher on its node, and from memory that outlives the process.",
    check=check,
    explains=("hang", "straggler"),
)
