"""A cross entropy that is given what it does not take: probabilities in place of logits, or the other way round; or
that is maximised, by its sign or by the optimizer. And a loss of any kind that falls below 0 without bound.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

import numpy as np

from rangewatch.wire.events import LossFunction
from rangewatch_server.rules.evidence import Evidence
from rangewatch_server.rules.loss.series import first_and_last, loss_name
from rangewatch_server.rules.optimizers import newest_optimizers
from rangewatch_server.rules.phrases import place
from rangewatch_server.rules.recent import only_rank
from rangewatch_server.rules.rule import Finding, Remedy, Rule, Thresholds

NAMES = {"nll": "cross_entropy", "bce": "binary_cross_entropy_with_logits"}
FUNCTIONS = {"Softmax": "a softmax", "Sigmoid": "a sigmoid", "Relu": "a ReLU"}

FEW, FALLEN = 32, 0.5
"""Steps whose median is taken; and the part of the first loss below which a training learns all the same."""


def check(evidence: Evidence, limits: Thresholds) -> Iterable[Finding]:
    """At most one finding, of the first rank that reported it."""
    for event, known in evidence.details(LossFunction):
        is_maximised = newest_optimizers(evidence, event.rank).maximizes
        if known.is_negated and is_maximised:
            return  # minus it is made large, as is meant
        if known.is_negated or is_maximised:
            yield (_negated if known.is_negated else _maximised)(event.rank, event.step, known)
            return
        if known.given:
            yield _given(evidence, event.rank, event.step, known)
            return
    yield from _unbounded(evidence)


UNBOUNDED, GROWING = 1e4, 2.0
"""How many times as far below 0 as it was from 0 at first, or as 1 is, a loss is that has no bound: densities of
thousands of numbers end within it; and by how much it must have grown in the last quarter."""

LONG = 4 * FEW
"""Steps of a run whose last quarter says so: of a shorter one it is that of a reward which is about to be learned."""


def _unbounded(evidence: Evidence) -> Iterator[Finding]:
    """A loss that falls further and further below 0: its sign is another than is meant, or it has no lower bound."""
    name, medians = loss_name(evidence), first_and_last(evidence, FEW)
    start, stop = evidence.start, evidence.whole_stop
    if (
        name is None
        or medians is None
        or stop - start < LONG
        or not medians[1] < -UNBOUNDED * max(1.0, abs(medians[0]))
    ):
        return
    quarter = evidence.series(name, stop - FEW - (stop - start) // 4, stop - (stop - start) // 4)
    quarter = quarter[np.isfinite(quarter)]
    if not len(quarter) or not medians[1] < GROWING * min(0.0, float(np.median(quarter))):
        return
    rank = only_rank(evidence)
    yield Finding(
        rank=rank, step=start, subject="unbounded",
        summary=f"{place(start, rank)}: the loss falls below 0 without bound: it was {medians[0]:.4g} at first, and is "
        f"{medians[1]:.4g} by now.",
        evidence=(
            f"A quarter of the run ago it was {np.median(quarter):.4g}, and it goes on falling. A loss that measures "
            "how wrong something is has a least value.",
            "Cause (likely): the sign of the loss, or of one of its terms: what is minimised is what is to be made "
            "large, as log_prob() without a minus, a reward or a score; or a term without a lower bound, as the log "
            "of a width that nothing keeps from 0. Against that: a critic's score may be so, with what bounds it.",
        ),
        remedy=(
            Remedy(
                "Look at the sign of each term of the loss: a log-probability, a likelihood, a similarity or a reward "
                "is to be made large, so that the loss is minus it.",
                "distribution, target = torch.distributions.Normal(0.0, 1.0), torch.zeros(4)  # of the loop\n"
                "loss = -distribution.log_prob(target).mean()",
                f"the loss is {medians[1]:.3g} and goes on falling",
            ),
        ),
        facts={"loss": medians[1], "first": medians[0], "cause_class": "forward_arithmetic"},
    )  # fmt: skip


def _negated(rank: int, step: int, known: LossFunction) -> Finding:
    return Finding(
        severity="info" if known.op == "bce" else "warning", rank=rank, step=step, subject="negated",
        summary=f"{place(step, rank)}: the loss is minus a cross entropy: each update makes the model worse.",
        evidence=(
            f"By its graph the loss is that of {NAMES[known.op]} times a number below 0. A cross entropy is to be made "
            "small; minus it has no lower bound.",
            "Cause (shown): the sign of the loss. Against that: a part of a model may be trained to unlearn something, "
            "or to deceive another, as a generator is.",
        ),
        remedy=(
            Remedy(
                "Take the cross entropy itself as the loss.",
                "loss = torch.nn.functional.cross_entropy(logits, target)",
                "the graph of the loss",
            ),
        ),
        facts={"op": known.op, "given": known.given, "cause_class": "forward_arithmetic"},
    )  # fmt: skip


def _maximised(rank: int, step: int, known: LossFunction) -> Finding:
    return Finding(
        severity="warning", rank=rank, step=step, subject="maximised",
        summary=f"{place(step, rank)}: the optimizer has maximize=True, and the loss is one that is to be made small: "
        "each update makes the model worse.",
        evidence=(
            f"By its graph the loss is {_LOSSES.get(known.op, 'one of torch')}, and the parameter groups of the "
            "optimizer step along its gradient, not against it.",
            "Cause (shown): the optimizer's settings. Against that: a part of a model may be trained to deceive "
            "another, or to unlearn something.",
        ),
        remedy=(
            Remedy(
                "Leave maximize out where the optimizer is made; it is for a reward, or a likelihood without minus.",
                "for group in optimizer.param_groups:\n    group['maximize'] = False",
                "the optimizer's own parameter groups, and the graph of the loss",
            ),
        ),
        facts={"op": known.op, "cause_class": "optimizer"},
    )  # fmt: skip


_LOSSES = {"nll": "a cross entropy", "bce": "a binary cross entropy", "kl": "a divergence", "ctc": "ctc_loss"}


def _given(evidence: Evidence, rank: int, step: int, known: LossFunction) -> Finding:
    taken = "logits: what the last layer gives, without a softmax, sigmoid or ReLU behind it"
    code = "loss = torch.nn.functional.cross_entropy(logits, target)"
    if known.op == "kl":
        taken = "log-probabilities: what log_softmax makes of the logits"
        code = "loss = torch.nn.functional.kl_div(logits.log_softmax(-1), target)"
        does = (
            "kl_div is given probabilities, and not their logarithm",
            "kl_div takes log-probabilities as its first argument and probabilities as its second. Of probabilities it "
            "is no divergence: its gradient is as large wherever a target is, whatever the model gives.",
        )
    elif known.op == "ctc":
        taken = "log-probabilities: what log_softmax makes of the logits, over the classes"
        code = "loss = torch.nn.functional.ctc_loss(logits.log_softmax(-1), targets, input_lengths, target_lengths)"
        what = "a layer's own output" if known.given == "Raw" else "probabilities"
        does = (
            f"ctc_loss is given {what}, and not log-probabilities",
            "ctc_loss adds up exp() of what it is given along every way to spell a target. Of anything but "
            "log-probabilities the sum is no probability: the loss falls below 0, and little is learned.",
        )
    elif known.given in ("Raw", "Probabilities"):
        taken = "log-probabilities, as log_softmax makes them; or logits to cross_entropy, which makes them itself"
        what = "a layer's own output" if known.given == "Raw" else "probabilities"
        does = (
            f"nll_loss is given {what}, and not their logarithm",
            "nll_loss takes log-probabilities and adds up minus those of the targets. Of anything else it is no cross "
            "entropy: it falls without bound as outputs grow."
            if known.given == "Raw" else
            "nll_loss takes log-probabilities and adds up minus those of the targets. Of probabilities it ends at -1, "
            "and its gradient is next to nothing where a target has little probability.",
        )  # fmt: skip
    else:
        function, least = FUNCTIONS[known.given], 0.0
        if known.given == "Softmax" and known.op == "nll" and known.classes > 1:
            least = math.log(1 + (known.classes - 1) * math.exp(-1))
        bound = f" The loss cannot fall below {least:.3g}, which is that of certainty." * (least > 0)
        does = (
            f"{NAMES[known.op]} is given what {function} made, and not logits",
            f"It applies its own {'log_softmax' if known.op == 'nll' else 'sigmoid'}. "
            + (
                "Of a ReLU's outputs no class can have a logit below 0, and one that is 0 everywhere gets no gradient."
                if known.given == "Relu"
                else f"Outputs between 0 and 1 are squeezed a second time: gradients are small.{bound}"
            ),
        )
        code = (
            "def forward(self, x):\n    return self.net(x)  # without its last softmax, sigmoid or ReLU\n\n"
            f"# loss = torch.nn.functional.{NAMES[known.op]}(model(x), target)"
        )
    medians = first_and_last(evidence, FEW)
    learns = medians is not None and 0 < medians[1] < FALLEN * medians[0]
    is_info = known.given == "Relu" or (
        learns and known.op not in ("kl", "ctc") and known.given not in ("Raw", "Probabilities")
    )
    return Finding(
        severity="info" if is_info else "warning", rank=rank, step=step, subject="given",
        summary=f"{place(step, rank)}: {does[0]}.",
        evidence=(
            does[1],
            "Cause (shown): the loss function and what it is given do not go together, by its graph."
            + (" Against that: the loss has more than halved all the same." if learns else ""),
        ),
        remedy=(Remedy(f"Give it {taken}.", code, "the operations in the graph of the loss"),),
        facts={"op": known.op, "given": known.given, "cause_class": "forward_arithmetic"},
    )  # fmt: skip


RULE = Rule(
    name="loss_input",
    title="The loss is given what it does not take",
    severity="warning",
    explanation="A cross entropy of logits is given what a softmax or a sigmoid made, nll_loss, kl_div or ctc_loss "
    "what is no log-probability, or the loss is minus a cross entropy, or an optimizer maximises it; or a loss of any "
    "kind falls below 0 without bound. All is finite, and the training learns little, or nothing, or the opposite. "
    "Read from the graph of the first losses, where they are torch's own functions with a mean over all targets. Info: "
    "a ReLU before it, a loss that has more than halved all the same, and minus a binary cross entropy, as generators "
    "have.",
    check=check,
    explains=(
        "loss_plateau", "vanishing_gradient", "exploding_gradient", "loss_spike", "initial_loss", "headroom_trend",
        "learning_lost", "saturated_activation", "dead_activation",
    ),
    leads_to=("first_nonfinite", "loss_nonfinite"),
)  # fmt: skip
