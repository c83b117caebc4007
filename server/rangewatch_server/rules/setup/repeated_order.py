"""Each pass over the data has the same batches in the same order, though its sampler is there to shuffle."""

from __future__ import annotations

from collections.abc import Iterable

from rangewatch.wire.events import RepeatedOrder
from rangewatch_server.core.text import ranks_text
from rangewatch_server.rules.evidence import Evidence
from rangewatch_server.rules.rule import Finding, Remedy, Rule, Thresholds


def check(evidence: Evidence, limits: Thresholds) -> Iterable[Finding]:
    """At most one finding, of the first pass that repeated another one; it stays when the order changes later."""
    said = evidence.details(RepeatedOrder)
    every = [(event, known) for event, known in said if known.repeats == 1]
    if not every:
        return
    event, known = min(every, key=lambda each: (each[1].first, each[0].rank))
    ranks = sorted({other.rank for other, each in every if each.sampler == known.sampler})
    # Of several loaders of a process an end may be that of another one: it is over where each has ended.
    going_on: dict[int, tuple[int, int]] = {}
    for other, each in said:
        if each.sampler == known.sampler:
            stream, count = going_on.get(other.rank, (-1, 0))
            count = 0 if stream != other.stream_id else count
            going_on[other.rank] = other.stream_id, max(0, count + (1 if each.repeats else -1))
    is_over = not any(count for _, count in going_on.values())
    yield _finding(known, ranks, event.rank, is_one=len(evidence.ranks) == 1, is_over=is_over)


def _finding(known: RepeatedOrder, ranks: list[int], rank: int, *, is_one: bool, is_over: bool) -> Finding:
    is_shown = not known.batches or known.is_epoch_unused or known.is_seeded
    who = "" if is_one else f", {ranks_text(ranks)}"
    over = "; later passes have another order" if is_over else ""
    why = (
        f"{known.sampler} shuffles by its seed and its epoch, which only set_epoch() changes: its epoch was "
        f"{known.epoch} in both passes."
        if not known.batches
        else f"{known.sampler} was told another epoch before the pass, {known.epoch}, and the first {known.batches} "
        "batches of both passes had the same elements, as far as they were compared: its order does not depend on it."
        if known.is_epoch_unused
        else f"Torch's random numbers, by which {known.sampler} shuffles, were in the same state at the beginning of "
        f"both passes, whose first {known.batches} batches had the same elements."
        if known.is_seeded
        else f"The first {known.batches} batches of both passes had the same elements, as far as they were compared, "
        f"and {known.sampler} is there to shuffle."
    )
    cause = (
        "Cause (shown): nobody has called set_epoch() with another number between the two passes."
        if not known.batches
        else "Cause (shown): the code of the sampler, which passes over its epoch. It may be meant, where batches are "
        "to come in one order."
        if known.is_epoch_unused
        else "Cause (shown): the seed was set anew, to the same number, before the pass. It may be meant, as where a "
        "pass is repeated on purpose."
        if known.is_seeded
        else "Cause (likely): the seed that it shuffles by is the same in each pass. Against that: it may be meant, as "
        "where a pass is repeated on purpose."
    )
    return Finding(
        severity="info" if is_over or not is_shown else "", rank=rank if is_one else None, step=known.first,
        subject="order",
        summary=f"Step {known.first}{who}: a pass over the data begins, with the same batches in the same order as the "
        f"pass before{over}.",
        evidence=(why, "Steps were made in both passes.", cause),
        remedy=(_remedy(known),),
        facts={"sampler": known.sampler, "epoch": known.epoch, "batches": known.batches, "ranks": ranks,
               "is_over": is_over, "cause_class": "data"},
    )  # fmt: skip


def _remedy(known: RepeatedOrder) -> Remedy:
    because = (
        "what the first batches of both passes held" if known.batches else "the sampler's own epoch in both passes"
    )
    if known.is_epoch_unused:
        return Remedy(
            "Make the sampler's order depend on its epoch, as by a generator with the seed plus the epoch.",
            "def order(count, seed, epoch):  # of the sampler's own __iter__: self.seed and self.epoch\n"
            "    return torch.randperm(count, generator=torch.Generator().manual_seed(seed + epoch)).tolist()",
            because,
        )
    if known.sampler == "RandomSampler":
        return Remedy(
            "Do not set torch's seed, or that of the loader's generator, anew at the top of each pass: set it once, or "
            "by the number of the epoch.",
            "torch.manual_seed(7)  # once, before the first pass; or in each one: torch.manual_seed(7 + epoch)",
            because,
        )
    return Remedy(
        "Call set_epoch(epoch) of the sampler before each pass, with another number each time; the order is then "
        "another one, and still the same on all ranks.",
        "sampler = torch.utils.data.DistributedSampler(range(64), num_replicas=1, rank=0)  # of your data set\n"
        "for epoch in range(3):\n"
        "    sampler.set_epoch(epoch)  # before the loader's batches are gone through",
        because,
    )


RULE = Rule(
    name="repeated_order",
    title="Every epoch has the same order",
    severity="warning",
    explanation="A sampler that is there to shuffle gives each pass over the data the same batches in the same order. "
    "The loss falls as ever; but rows are only ever averaged with the same others, and the end of each pass is the "
    "same part of the data, so that less is learned than with another order each time. `DistributedSampler` shuffles "
    "by its seed and its epoch, and its epoch stays 0 unless the loop calls `set_epoch`: a warning. Of a "
    "`RandomSampler`, or another that has `set_epoch`, it is known by the first 8 batches of the two passes: a warning "
    "where torch's random numbers were in the same state at the beginning of both, or `set_epoch` was called with "
    "another number, and else info. Passes without a step, as of an evaluation, and such of fewer than 4 batches do "
    "not count. Not seen where the loader is made anew for each pass, or is no `torch.utils.data.DataLoader`.",
    check=check,
)
