"""What was one parameter under several names is several since: the tying was lost in the middle of a training."""

from __future__ import annotations

from collections.abc import Iterable

from rangewatch.wire.events import UntiedWeights
from rangewatch_server.rules.evidence import Evidence
from rangewatch_server.rules.phrases import place
from rangewatch_server.rules.rule import Finding, Remedy, Rule, Thresholds


def check(evidence: Evidence, limits: Thresholds) -> Iterable[Finding]:
    """At most one finding, of the first rank that reported it."""
    for event, known in evidence.details(UntiedWeights):
        if len(known.names) > 1:
            yield _finding(known, event.rank if len(evidence.ranks) == 1 else None, event.step)
            return


def _finding(known: UntiedWeights, rank: int | None, step: int) -> Finding:
    names = f"{', '.join(known.names[:-1])} and {known.names[-1]}"
    return Finding(
        rank=rank, step=step, tensor=known.names[-1], kind="weight", subject="untied",
        summary=f"{place(step, rank)}: {names} were one parameter and are several since: they are no longer tied.",
        evidence=(
            "Under these names the model had the same parameter at first, and has several by the end of this step. "
            "Each is trained by itself from here on; what was made anew may begin with values that nobody has trained.",
            "Cause (shown): weights that were exchanged, as by a resize of an embedding, a layer that was made anew, "
            "to_empty(), or a wrapper that copies. Against that: the tying may be given up on purpose.",
            "What would decide: compare their values right after the exchange.",
        ),
        remedy=(
            Remedy(
                "Tie them again where they were exchanged, before the optimizer is made (Transformers: "
                "model.tie_weights()); and give the optimizer the parameter that is there now.",
                "for name, each in model.named_parameters(remove_duplicate=False):\n"
                "    print(name, id(each))  # tied ones have one id",
                "the parameters under these names are no longer the same object",
            ),
            Remedy(f"Go back to a checkpoint from before step {step}.", "", "what was trained is lost in one of them"),
        ),
        facts={"names": list(known.names), "cause_class": "weight"},
    )  # fmt: skip


RULE = Rule(
    name="untied_weights",
    title="Tied weights are no longer tied",
    severity="warning",
    explanation="A parameter that the model had under several names, such as an input and an output embedding, is "
    "several by now: a resize, a layer made anew, to_empty() or a copy has untied it. Nothing fails; the loss jumps "
    "where one of them begins anew, and two tables are trained from there on. Not known under FSDP1.",
    check=check,
    explains=("loss_spike", "short_spike", "learning_lost", "exploding_gradient", "unchanged_weights", "initial_gain"),
)
