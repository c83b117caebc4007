"""How NaN or Inf went on from where it was first: through the rank's own step, the collectives, the weights.

Ordered by step and call order only. What is not recorded is not told.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from rangewatch_server.collectives.reader import bucket_names
from rangewatch_server.rules.evidence import BACKWARD
from rangewatch_server.rules.nonfinite.case import Bad, StepView
from rangewatch_server.rules.nonfinite.search import Spell, bad_ranks, is_skipped
from rangewatch_server.rules.nonfinite.tensor_phrases import name_of, ranks_words, several
from rangewatch_server.rules.phrases import the

MOST_RANKS = 64
"""Other ranks whose own gradients are looked at."""


def path_of(view: StepView, bad: Bad, spell: Spell, later: Sequence[Spell]) -> Iterator[str]:
    """The way from the first bad tensor on, a sentence a stage. `later`: spells that came after this one."""
    yield from _own_step(view, bad)
    skipped = is_skipped(view.evidence, bad.step)
    if skipped:
        yield f"The loss scaler skipped step {bad.step}: no weight was changed."
    elif view.evidence.is_loss_scaled:
        yield f"The loss scaler did not skip step {bad.step}."
    if len(view.evidence.ranks) > 1:
        yield from _other_ranks(view, bad, is_skipped=skipped)
    yield from _after(view, bad, spell, later)


def _own_step(view: StepView, bad: Bad) -> Iterator[str]:
    outputs = _following(view, bad, "output", "input")
    if outputs:
        yield f"In the same forward it reached {several(outputs)}."
    loss = view.loss()
    if loss is not None and not np.isfinite(loss):
        yield f"The loss of step {bad.step} was {'NaN' if np.isnan(loss) else 'Inf'}."
    through = _following(view, bad, "grad_output")
    if through:
        yield f"In the backward it reached the gradients of the outputs of {several(through)}."
    observed, is_bad = view.is_of("grad"), view.is_of("grad") & view.is_bad
    if is_bad.any():
        names = _names(view, is_bad)
        yield f"Of {int(observed.sum())} gradients of parameters {len(names)} held it: {several(names)}."
    elif observed.any() and view.entries[bad.tensor].kind not in ("reduced_grad", "update"):
        yield f"None of the {int(observed.sum())} recorded gradients of parameters held it."


def _following(view: StepView, bad: Bad, *kinds: str) -> list[str]:
    chosen = view.is_of(*kinds) & view.is_bad
    chosen[bad.tensor] = False
    own = view.entries[bad.tensor].fqn
    return [each for each in _names(view, chosen) if each != name_of(own)]


def _names(view: StepView, chosen: np.ndarray) -> list[str]:
    return list(dict.fromkeys(name_of(view.entries[each].fqn) for each in view.in_order(chosen)))


def _other_ranks(view: StepView, bad: Bad, *, is_skipped: bool) -> Iterator[str]:
    evidence = view.evidence
    at_once = [rank for rank in bad_ranks(evidence, bad.step) if rank != bad.rank]
    clean = [rank for rank in evidence.ranks if rank not in at_once and rank != bad.rank]
    if at_once:
        yield f"At step {bad.step} {ranks_words(at_once)} held NaN or Inf too."
    if clean:
        yield f"What {ranks_words(clean)} recorded at step {bad.step} was finite."
    next_ranks = set(bad_ranks(evidence, bad.step + 1))
    reached = [rank for rank in clean if rank in next_ranks]
    if not reached or is_skipped:
        return
    buckets = _buckets(view)
    if buckets:
        who = ranks_words(reached).capitalize()
        yield f"{who} got it through the all_reduce of {buckets} and the update of the weights."
    else:
        yield (
            f"{ranks_words(reached).capitalize()} had it at step {bad.step + 1}: through what ranks exchange after the "
            "backward, and the update of the weights."
        )


def _buckets(view: StepView) -> str:
    """DDP's buckets with gradients that were bad, such as "buckets 0 (head.weight and 1 more) and 2 (...)"."""
    names = {view.entries[each].fqn for each in view.in_order(view.is_of(*BACKWARD) & view.is_bad)}
    reported = bucket_names(view.evidence.run, "collective", view.step)
    items = reported.items() if isinstance(reported, dict) else enumerate(reported)
    found = {
        str(number): [each for each in parameters if each in names]
        for number, parameters in items
        if isinstance(parameters, Sequence) and not isinstance(parameters, str)
    }
    shown = [f"{number} ({several(inside, 2)})" for number, inside in found.items() if inside]
    return f"{'bucket' if len(shown) == 1 else 'buckets'} {several(shown)}" if shown else ""


def _after(view: StepView, bad: Bad, spell: Spell, later: Sequence[Spell]) -> Iterator[str]:
    evidence, step = view.evidence, bad.step + 1
    ranks = bad_ranks(evidence, step)
    if ranks:
        first = StepView(evidence, ranks[0], step).first()
        where = "" if first is None else f", first {the(view.entries[first.tensor])}"
        where += f" on rank {ranks[0]}" if len(ranks) > 1 else ""
        is_whole = len(ranks) == len(evidence.ranks)
        who = "all ranks" if is_whole and len(ranks) > 1 else ranks_words(list(ranks))
        yield f"At step {step} {who} held NaN or Inf{where}."
    if spell.clean_step is not None and later:
        yield f"It was clean again at step {spell.clean_step}; NaN or Inf came back at step {later[0].step}."
    elif spell.clean_step is not None:
        yield f"It recovered at step {spell.clean_step}: nothing since then has held NaN or Inf that was not skipped."
    elif spell.last_step > bad.step:
        yield f"It lasts: step {spell.last_step}, the last that was told, held NaN or Inf."
