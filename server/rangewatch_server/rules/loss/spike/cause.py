"""What a loss that jumped and stayed finite speaks for: the batch, the learning rate, or a weight that moved too far.

Each is weighed by what was recorded: what rose first in call order, and in which step; the learning rate as logged; the
losses of the batch's rows; on which ranks. The best is named with how sure that is and what would decide.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import numpy as np

from rangewatch.wire.records import TensorEntry
from rangewatch_server.rules.activations.attention_logits import are_logits
from rangewatch_server.rules.batch_rows import row_sentences
from rangewatch_server.rules.evidence import Evidence
from rangewatch_server.rules.loss.learning_rate import HISTORY, Rate, ago_text, odd_rate
from rangewatch_server.rules.loss.series import NORMS, RATES, loss_name
from rangewatch_server.rules.loss.spike.advice import remedies, verdict
from rangewatch_server.rules.loss.spike.bands import SHORT, Riser, activations, first_ratio, name_of, ranks_of, risers
from rangewatch_server.rules.loss.spike.batch import given_moved, of_data, of_no_slope
from rangewatch_server.rules.loss.spike.calls import of_calls, of_mode
from rangewatch_server.rules.loss.spike.changed_loss import of_changed_loss
from rangewatch_server.rules.loss.spike.changed_mask import of_changed_mask
from rangewatch_server.rules.loss.spike.climb import of_climb
from rangewatch_server.rules.loss.spike.dead_units import dead_layer, idle_experts
from rangewatch_server.rules.loss.spike.multiplied import of_backward, of_factor, of_multiplied, of_rows
from rangewatch_server.rules.loss.spike.raised_term import POSSIBLE, raised_term
from rangewatch_server.rules.loss.spike.weights import (
    of_begun_anew,
    of_loaded,
    of_rate,
    of_restored,
    of_thawed,
    of_update,
    of_weight,
    of_written,
    thawed_before,
)
from rangewatch_server.rules.nonfinite.causes import SHOWN, Candidate
from rangewatch_server.rules.optimizers import sampled_weights
from rangewatch_server.rules.recent import MOST_RANKS, tensors_of
from rangewatch_server.rules.rule import Remedy

LASTING = 50
"""Steps for which no single batch keeps a loss high."""

LATER, HIGHER = 3, 10.0
"""Steps behind one in which a rate was raised, and how many times as far the loss must rise in them as in that one."""

ODD_RANK = 3.0
"""How many times as large as of the others the rise of the loss of one rank must be that is alone with it."""


class Explanation(msgspec.Struct, frozen=True):
    """Of a jump: sentences, advice, and what else a finding has. `rank`: the one that is alone with it."""

    cause: str
    sureness: str
    sentences: tuple[str, ...]
    remedies: tuple[Remedy, ...]
    tensor: str | None
    kind: str | None
    rank: int | None
    weights: dict[str, float]
    reason: str = ""
    """The first sentence that speaks for the cause."""

    def facts(self) -> dict[str, object]:
        """For the finding's; none where nothing speaks for any cause."""
        if not self.cause:
            return {}
        known: dict[str, object] = {"cause_class": self.cause, "sureness": self.sureness, "candidates": self.weights}
        return known if self.tensor is None else {**known, "where": self.tensor}


def explained(
    evidence: Evidence, name: str | None, step: int, usual: float = 0.0, back: int | None = None
) -> Explanation:
    """Of the series `name`, which left `usual` at `step` and was low again at `back`; None: of the gradients alone."""
    is_short = back is not None and back - step <= SHORT
    is_lasting = _is_lasting(evidence, step, back)
    rank, whose = _odd_rank(evidence, name, step, usual)
    outputs = risers(evidence, activations(evidence), step)
    gradients = risers(evidence, tensors_of(evidence, "grad"), step)
    ratio = first_ratio(evidence, step)
    moved = given_moved(evidence, rank, step)
    stays = moved is not None and moved.stays
    is_of_all_since = (is_lasting and not outputs) or stays
    logits = [each for each in outputs if are_logits(evidence.tensors.entries[each.tensor])]
    rate = odd_rate(evidence, step) or _rate_of_this_step(evidence, name, step, usual)
    written, thawed = of_written(evidence, step), thawed_before(evidence, step)
    # A loss is computed before the update of its own step: what is trained since that very step has not moved yet.
    thawed = None if thawed is not None and thawed.step >= step else thawed
    anew = of_begun_anew(evidence, name, step, usual)
    restored, calls = [] if anew else of_restored(evidence, step), of_calls(evidence, name, step, gradients, outputs)
    # Where a weight was changed outputs rise, and gradients before it.
    term = None if outputs else raised_term(evidence, step, HISTORY)
    idle, dead = idle_experts(evidence, step), dead_layer(evidence, step)
    logged = loss_name(evidence)
    inside = None if outputs or logged is None else of_backward(evidence, logged, step, rank)
    is_other = (term is not None and term.candidate.weight > POSSIBLE) or (rate is not None and rate.weight >= SHOWN)
    other = of_changed_loss(evidence, step, rank)
    climbed = list(of_climb(evidence, name, step, has_rate=rate is not None))
    every = [
        *of_mode(evidence, step), *anew, *written, *restored, *calls, *(() if other is None else (other.candidate,)),
        *(each.candidate for each in (term, idle, dead, inside) if each is not None),
        *of_update(evidence, step, gradients, has_rate=rate is not None),
        *climbed,
        *of_rate(rate), *of_loaded(evidence, step), *of_thawed(evidence, thawed), *of_changed_mask(evidence, step),
        *of_data(
            evidence, name, rank, step, outputs, gradients,
            is_other=is_other, is_short=is_short, is_lasting=is_lasting,
        ),
        *(() if is_short else of_weight(evidence, step, outputs, ratio, gradients)),
        *(() if outputs or name is None else of_factor(evidence, name, step, rank)),
        *(() if outputs or name is None else of_rows(evidence, name, step, rank)),
        *(() if outputs or logged is None else of_multiplied(evidence, logged, step, rank)),
        *(() if outputs or name is None else of_no_slope(evidence, name, step)),
    ]  # fmt: skip
    best: dict[str, Candidate] = {}
    for each in sorted(every, key=lambda each: -each.weight):
        known = best.get(each.cause, msgspec.structs.replace(each, supports=(), against=()))
        best[each.cause] = Candidate(
            each.cause, known.weight, known.supports + each.supports, known.against or each.against
        )
    order = sorted(best.values(), key=lambda each: (-each.weight, each.cause))
    first = order[0] if order else Candidate("", 0.0)
    changed = other if other is not None and first.supports[:1] == other.candidate.supports else None
    climbs = bool(climbed) and first.supports[:1] == climbed[0].supports
    is_of_calls = bool(calls) and first.supports[:1] == calls[0].supports
    place = _written_place(evidence, outputs) if written else _place(evidence, first.cause, outputs, ratio, rate)
    if place is None and first.cause == "learning_rate" and thawed is not None:
        place = _gradient(evidence, thawed.fqn)  # of a rate for what is trained since
    for each in (term, dead, idle, inside):
        place = each.entry if each is not None and first.cause == each.candidate.cause else place
    sentences = [
        *verdict(
            order, are_written=bool(written), is_of_all_since=is_of_all_since, is_of_calls=is_of_calls, climbs=climbs,
            changed=changed,
        ),
        *([whose] if whose else []),
        *(f"Attention logits left their band with it: {name_of(evidence, each)}." for each in logits[:1]),
        *_settings(evidence, step), *row_sentences(evidence.run, ranks_of(evidence, rank), step),
    ]  # fmt: skip
    return Explanation(
        first.cause, first.sureness if order else "", tuple(sentences),
        tuple(
            remedies(
                order, step, rate, place, is_lasting=is_lasting or stays, is_of_all_since=is_of_all_since,
                are_written=bool(written or restored),
                thawed=thawed,
                is_of_calls=is_of_calls,
                climbs=climbs,
                changed=changed,
            )
        ),
        None if place is None else place.fqn, None if place is None else place.kind, rank,
        {each.cause: each.weight for each in order}, next(iter(first.supports), ""),
    )  # fmt: skip


def _rate_of_this_step(evidence: Evidence, name: str | None, step: int, usual: float) -> Rate | None:
    """A learning rate that was raised in the very step, behind whose update the loss rose far higher than it had by
    chance, or by another batch, right before it."""
    if name is None:
        return None
    values = evidence.series(name, step, min(step + 1 + LATER, evidence.whole_stop))
    high = values[1:][np.isfinite(values[1:])]
    if not len(high) or not high.max() - usual >= HIGHER * max(float(values[0]) - usual, 0.0):
        return None
    rate = odd_rate(evidence, step + 1)
    if rate is None or rate.step != step:
        return None
    text = rate.text.replace(ago_text(step, step + 1), "and the loss rose far higher once its update was made")
    return msgspec.structs.replace(rate, text=text)


def _is_lasting(evidence: Evidence, step: int, back: int | None) -> bool:
    """Whether it stayed for longer than one batch does."""
    return (evidence.whole_stop if back is None else back) - step >= LASTING


def _odd_rank(evidence: Evidence, name: str | None, step: int, usual: float) -> tuple[int | None, str]:
    """The rank that is alone with it, and a sentence."""
    if len(evidence.ranks) == 1:
        return evidence.ranks[0], ""
    if name is None:
        return None, ""
    values = {rank: float(evidence.series(name, step, step + 1, rank)[0]) for rank in evidence.ranks[:MOST_RANKS]}
    known = sorted(((value, rank) for rank, value in values.items() if np.isfinite(value)), reverse=True)
    if len(known) < 2:
        return None, ""
    (highest, rank), (second, _) = known[:2]
    if highest - usual >= ODD_RANK * max(second - usual, 0.0) and highest > usual:
        return rank, f"Rank {rank} alone is so high: {highest:.4g}; of the others the highest is {second:.4g}."
    return None, f"It is so on several ranks, from {known[-1][0]:.4g} to {highest:.4g} at step {step}."


def _place(
    evidence: Evidence, cause: str, outputs: list[Riser], ratio: Riser | None, rate: Rate | None
) -> TensorEntry | None:
    if cause == "learning_rate" and rate is not None and rate.group is not None:
        return _gradient(evidence, rate.first)
    if cause != "weight":
        return None
    riser = ratio or next(iter(outputs), None)
    return None if riser is None else evidence.tensors.entries[riser.tensor]


def _gradient(evidence: Evidence, fqn: str | None) -> TensorEntry | None:
    entries = evidence.tensors.entries
    return next((each for each in map(entries.__getitem__, tensors_of(evidence, "grad")) if each.fqn == fqn), None)


def _written_place(evidence: Evidence, outputs: list[Riser]) -> TensorEntry | None:
    """The first output that rose, if a weight of its module is among those that are compared."""
    names = known.names if (known := sampled_weights(evidence)) is not None else ()
    first = evidence.tensors.entries[outputs[0].tensor] if outputs else None
    return first if first and any(each.rpartition(".")[0] == first.fqn for each in names) else None


def _settings(evidence: Evidence, step: int) -> Iterator[str]:
    """What was logged of the learning rate and the norm of the gradients at that step."""
    texts = []
    for names, text in ((RATES, "learning rate"), (NORMS, "norm of the gradients")):
        name = next((each for each in names if evidence.has_series(each)), None)
        if name is None:
            continue
        values = evidence.series(name, max(evidence.start, step - HISTORY), step + 1)
        before = values[:-1][np.isfinite(values[:-1])]
        if np.isfinite(values[-1]):
            usual = f" (median of the steps before: {np.median(before):.3g})" if len(before) else ""
            texts.append(f"the {text} {values[-1]:.3g}{usual}")
    if texts:
        yield f"Logged at that step: {', '.join(texts)}."
