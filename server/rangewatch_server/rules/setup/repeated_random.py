"""Torch's random numbers are the same again every so many steps: a seed that is set anew at the top of each epoch; or
batches are, whose random numbers are not torch's own: those of a generator that is made anew with one seed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from rangewatch.wire.events import RepeatedOrder, RepeatedRandom, StateLoaded
from rangewatch_server.rules.evidence import Evidence
from rangewatch_server.rules.inputs import INPUTS
from rangewatch_server.rules.phrases import place
from rangewatch_server.rules.recent import only_rank
from rangewatch_server.rules.rule import Finding, Remedy, Rule, Thresholds

MOST_COMPARED, FEWEST = 64, 2
"""Steps of which the sizes of inputs are compared with those a period before, and how many there must be."""

SHORTEST, LONGEST, PASSES, STEPS = 4, 64, 8, 64
"""Batches that come again, so many at the least and at most, all of another size; passes over them in a row, and steps
of these, in which they must: a few rows that are learned by heart to see whether a model can are seen more rarely."""

LOOKED_AT = 1_024
"""First steps of the run that are compared."""


def check(evidence: Evidence, limits: Thresholds) -> Iterable[Finding]:
    """At most one finding: where it was first seen."""
    if not evidence.details(RepeatedRandom):
        yield from _few_batches(evidence)
        return
    said = [(event, known) for event, known in evidence.details(RepeatedRandom) if known.period > 0]
    if not said:
        return
    event, known = min(said, key=lambda each: (each[1].first, each[0].rank))
    began = known.first - known.period
    # A training that goes back to a checkpoint has the random numbers of then again, as it should.
    if any(began < loaded.step <= known.first for loaded, _ in evidence.details(StateLoaded)):
        return
    yield _finding(known, only_rank(evidence), _are_inputs_same(evidence, known, event.rank))


def _are_inputs_same(evidence: Evidence, known: RepeatedRandom, rank: int) -> bool | None:
    """Whether the model was given the same batches as a period before; None where that is not known."""
    if known.are_inputs_same is not None:
        return known.are_inputs_same
    stop = min(evidence.whole_stop, known.first + min(known.period, MOST_COMPARED))
    pairs = same = 0
    do_differ = False
    for name in INPUTS:
        if evidence.has_series(name):
            now = evidence.series(name, known.first, stop, rank)
            before = evidence.series(name, known.first - known.period, stop - known.period, rank)
            both = np.isfinite(now) & np.isfinite(before)
            pairs, same = pairs + int(both.sum()), same + int((now[both] == before[both]).sum())
            do_differ = do_differ or len(np.unique(now[both])) > 1
    if pairs == same and not do_differ:  # all of the data in each step: no batch is drawn again
        return None
    return None if pairs < FEWEST else pairs == same


def _few_batches(evidence: Evidence) -> Iterator[Finding]:
    """The same few batches in the same order from some step on, by the sizes of a sample of each input."""
    stop = min(evidence.whole_stop, evidence.start + LOOKED_AT)
    names = [each for each in INPUTS if evidence.has_series(each)]
    is_said = bool(evidence.details(RepeatedOrder))  # by `repeated_order`
    if not names or is_said or stop - evidence.start < STEPS or evidence.details(StateLoaded):
        return
    every = [evidence.series(name, evidence.start, stop, evidence.ranks[0]) for name in names]
    for period in range(SHORTEST, LONGEST + 1):
        since = max(_since(values, period) for values in every)
        if len(every[0]) - since < max(STEPS, PASSES * period):
            continue
        if any(len(np.unique(values[since : since + period])) == period for values in every):
            yield _of_few(evidence.start + since, period, evidence.ranks[0], evidence.start + len(every[0]))
            return


def _since(values: np.ndarray, period: int) -> int:
    """Place from which on each value is that of a period before, to the bit; where one is missing that says nothing,
    and then all of them are: the length."""
    now, before = values[period:], values[:-period]
    if not (np.isfinite(now) & np.isfinite(before)).all():
        return len(values)
    other = np.flatnonzero(now != before)
    return period + (int(other[-1]) + 1 if len(other) else 0)


def _of_few(step: int, period: int, rank: int, end: int) -> Finding:
    return Finding(
        severity="info", rank=rank, step=step, subject="batches",
        summary=f"{place(step, rank)}: the model is given the same {period} batches again and again, in one order.",
        evidence=(
            f"From step {step} to step {end - 1} what it was given was as large as {period} steps before, to the last "
            f"bit, and the {period} differ from one another.",
            "Cause (possible): what draws the batches is made anew with the same seed before each pass, such as a "
            f"generator or a sampler: of all data only these {period} batches are ever learned, by heart. Against "
            "that: there may be no more data, and no order that is drawn.",
            "What would decide: count the rows that the loop has been given, beside those that there are.",
        ),
        remedy=(
            Remedy(
                "If there is more data than that: make the generator of the sampler once, before the first pass, or "
                "seed it by the number of the pass. If there is not: shuffle it anew in each pass, and watch the loss "
                "of held-out rows.",
                "generator = torch.Generator().manual_seed(7)  # once, before the first pass\n"
                "for epoch in range(3):\n"
                "    order = torch.randperm(64, generator=generator)",
                "the sizes of what the model was given",
            ),
        ),
        facts={"period": period, "are_inputs_same": True, "cause_class": "data"},
    )  # fmt: skip


def _finding(known: RepeatedRandom, rank: int | None, are_inputs_same: bool | None) -> Finding:
    what = (
        "batches and all that is drawn at random are the same again"
        if are_inputs_same
        else "dropout, noise and all else that is drawn at random is the same again"
    )
    batches = (
        "The model was given the same batches again, as far as they were compared: less is learned of them each time, "
        "and they are learned by heart."
        if are_inputs_same
        else "The batches were others than those before."
        if are_inputs_same is False
        else "Whether the batches were the same as well is not known."
    )
    return Finding(
        severity="" if are_inputs_same else "info", rank=rank, step=known.first, subject="random",
        summary=f"{place(known.first, rank)}: {what} as {known.period} steps before: torch's random numbers are in the "
        "same state.",
        evidence=(
            f"Before the first forward of step {known.first} and of those after it the state of torch's generator on "
            f"the host was that of {known.period} steps before, and it was another one between.",
            batches,
            "Cause (shown): the seed was set anew to the same number, or a state of the generator was put back. It may "
            "be meant, as for a test that is to be repeated.",
        ),
        remedy=(
            Remedy(
                "Set the seed once, before the first step, or by the number of the epoch; for an evaluation that is to "
                "be the same each time take a generator of its own, or torch.random.fork_rng().",
                "for epoch in range(3):\n"
                "    torch.manual_seed(7 + epoch)  # in place of the same number in each epoch\n"
                "with torch.random.fork_rng():  # around an evaluation: what the training draws goes on behind it\n"
                "    torch.manual_seed(0)",
                "the state of torch's generator was read before each of these forwards",
            ),
        ),
        facts={"period": known.period, "are_inputs_same": are_inputs_same, "cause_class": "data"},
    )  # fmt: skip


RULE = Rule(
    name="repeated_random",
    title="Random numbers or batches repeat",
    severity="warning",
    explanation="Torch's generator on the host is, at four looks in a row or more, in the state in which it was a "
    "number of steps before: the seed is set to the same number again and again, such as at the top of each epoch, or "
    "before each evaluation. What is drawn from it repeats: dropout, noise, augmentation, the order of rows, and "
    "batches that are made as they are needed. A warning where the batches are the same too, and else info. The state "
    "is looked at before each step's first forward, after 1,024 steps of each fourth; generators of an accelerator, of "
    "one's own, of Python and of NumPy are not: what is drawn by these shows where the same 4 to 64 batches of floats "
    "are given again in one order, for 8 passes and 64 of the first 1,024 steps (info). Steps that are made "
    "again after a checkpoint was loaded do not count.",
    check=check,
    explains=("repeated_order",),
)
