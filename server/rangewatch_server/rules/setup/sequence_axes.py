"""A recurrent or attention module that runs along the rows of the batch: its sequence and batch axes are mixed up."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from rangewatch.wire.events import LossFunction, SequenceAxes
from rangewatch_server.rules.evidence import Evidence
from rangewatch_server.rules.loss.series import loss_name
from rangewatch_server.rules.phrases import place
from rangewatch_server.rules.recent import only_rank
from rangewatch_server.rules.rule import Finding, Remedy, Rule, Thresholds

RECURRENT = ("LSTM", "GRU", "RNN")

GUESS, GUESS_STEPS = 0.03, 96
"""How near the loss is to that of a model that knows nothing, as a part of it, and steps before that says anything."""


PLACES = 8
"""Places from which on a dimension is rather a sequence than agents, sensors or channels."""


def check(evidence: Evidence, limits: Thresholds) -> Iterable[Finding]:
    """At most one finding, of the first rank whose newest report stands."""
    every = evidence.details(SequenceAxes)
    newest = {event.rank: known for event, known in every}
    for event, known in every:
        last = newest[event.rank]
        if known.steps > 0 and last.steps > 0 and len(last.shape) == 3:
            yield _finding(evidence, last, event.step)
            return


def _finding(evidence: Evidence, known: SequenceAxes, step: int) -> Finding:
    rank, is_guess = only_rank(evidence), _is_guess(evidence)
    # Other attention modules of the model read along another axis: that this one reads along the rows may be meant.
    is_meant = known.right > 0 and known.name not in RECURRENT and not is_guess
    other = known.shape[0 if known.batch_first else 1]
    # Steps of a recording, each with a label, beside a few agents or channels.
    is_recording = other < PLACES and not is_guess
    more = f" So it is with {known.alike - 1} more of the kind." if known.alike > 1 else ""
    built = "was built with batch_first=True" if known.batch_first else "was built without batch_first=True"
    order = "(batch, sequence, features)" if known.batch_first else "(sequence, batch, features)"
    return Finding(
        severity="info" if is_meant or is_recording else "",
        rank=rank, step=step, tensor=known.fqn or None, subject="axes",
        summary=f"{place(step, rank)}: {known.fqn or 'the model'} ({known.name}) runs along the batch, not along the "
        f"sequence: it takes the {known.rows} rows for a sequence and its {other} places for the batch.",
        evidence=(
            f"It {built}, so its axes are {order}, and it gave {_shape(known.shape)}. The loss has {known.rows} rows, "
            f"and the model itself was given {_shape(known.given)}.{more}",
            f"So it was in {known.steps} steps, and batches of another size made that dimension another length, too."
            if known.is_varied else f"So it was in the first {known.steps} steps that show it.",
            "If so, what it gives for one row depends on the other rows of its batch, and each place of a sequence is "
            "seen apart from the other places. Nothing fails.",
            *(("The loss is still that of a guess.",) if is_guess else ()),
            _cause(known, is_meant=is_meant),
        ),
        remedy=(
            Remedy(
                "Give the module its axes in the order that it was built for: transpose what it is given and what it "
                "gives, or build it with batch_first=False."
                if known.batch_first else
                "Build the module with batch_first=True, or transpose what it is given and what it gives.",
                _code(known),
                "the shape that the module was given, and the rows of the loss",
            ),
        ),
        facts={
            "batch_first": known.batch_first, "shape": list(known.shape), "given": list(known.given),
            "rows": known.rows, "steps": known.steps, "is_varied": known.is_varied, "modules": known.alike,
            "is_at_guess": is_guess, "cause_class": "forward_arithmetic",
        },
    )  # fmt: skip


def _cause(known: SequenceAxes, *, is_meant: bool) -> str:
    if is_meant:
        return (
            f"Cause (possible): the order of the axes. Against that: {known.right} more of the kind in this model run "
            "along another axis, so that attention between the rows of a batch may be meant."
        )
    against = (
        "the rows may be steps of one recording, and what is joined for each are its channels"
        if known.name in RECURRENT
        else "attention between the rows of a batch may be meant"
    )
    return f"Cause (likely): the order of the axes. Against that: {against}."


def _is_guess(evidence: Evidence) -> bool:
    """Whether a classifier's loss is, over the last half of the run, what it is of one that knows nothing."""
    name = loss_name(evidence)
    known = next((each for _, each in evidence.details(LossFunction)), None)
    start, stop = evidence.start, evidence.whole_stop
    is_known = known is not None and known.op == "nll" and known.classes > 1 and not known.given
    if name is None or known is None or not is_known or known.is_negated or stop - start < GUESS_STEPS:
        return False
    loss = evidence.series(name, max((start + stop) // 2, stop - 8 * GUESS_STEPS), stop)
    loss, chance = loss[np.isfinite(loss)], float(np.log(known.classes))
    return bool(len(loss)) and abs(float(loss.mean()) - chance) <= GUESS * chance


def _code(known: SequenceAxes) -> str:
    order = "(sequence, batch, features)" if known.batch_first else "(batch, sequence, features)"
    if known.name in RECURRENT:
        call = "out, state = module(x.transpose(0, 1))"
    elif known.name == "MultiheadAttention":
        call = "y = x.transpose(0, 1)\n    out, _ = module(y, y, y)"
    else:
        call = "out = module(x.transpose(0, 1))"
    return f"def along_the_sequence(module, x):  # x: {order}\n    {call}\n    return out.transpose(0, 1)"


def _shape(sizes: tuple[int, ...]) -> str:
    return f"({', '.join(map(str, sizes))})"


RULE = Rule(
    name="sequence_axes",
    title="A module runs along the batch",
    severity="warning",
    explanation="A recurrent or attention module of torch's (`nn.LSTM`, `nn.GRU`, `nn.RNN`, `nn.MultiheadAttention`, "
    "the Transformer layers) takes the rows of the batch for its sequence, as where data of (batch, time, features) "
    "are given to one that was built without `batch_first=True`, or the other way round. Nothing fails: it runs from "
    "one sample to the next, and where the last place is taken, that is all that is left of a sequence. Known by "
    "shapes alone: the dimension along which it runs is as long as the model was given rows and the loss has rows, in "
    "each step, and the other one is not. Nothing is said of losses of each place, where no shape tells one axis from "
    "the other, of a batch of one, of two equal sizes, or in compiled code. Info where other attention in the model "
    "runs along another axis, or the other dimension is short, and the loss is not that of a "
    "guess: attention between rows may be meant, or rows be steps of a recording.",
    check=check,
    explains=("loss_plateau", "loss_stuck", "vanishing_gradient", "update_ratio"),
)
