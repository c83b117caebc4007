"""Parameters that the loss depends on, that the model does not hold, and that nothing trains."""

from __future__ import annotations

from collections.abc import Iterator

from rangewatch.wire.events import Unregistered
from rangewatch_server.rules.evidence import Evidence
from rangewatch_server.rules.phrases import few_of, place
from rangewatch_server.rules.rule import Finding, Remedy

SERIES = "unregistered_moved"

FEW = 4
"""Parameters beside the model, on an accelerator, that are a head or those of a loss: whether they are as they were
drawn, which nobody means to stay, is known in host memory alone. More may be another network that is meant to stay,
such as one that images are compared by."""

_QUOTES = ("'", '"')


def unregistered(evidence: Evidence) -> Iterator[Finding]:
    """At most one finding, of the first rank that reported it."""
    for event, known in evidence.details(Unregistered):
        if known.count > 0 and not (known.is_on_device and _may_have_moved(evidence, event.step)):
            yield _finding(known, event.rank)
            return


def _may_have_moved(evidence: Evidence, step: int) -> bool:
    """`step`: of the event, which is the one after that of the reading, or the same."""
    if not evidence.has_series(SERIES):
        return True
    values = evidence.largest(SERIES, max(evidence.start, step - 1), step + 1)
    return not (values == 0).any() or bool((values > 0).any())


def _finding(known: Unregistered, rank: int) -> Finding:
    return _anew(known, rank) if known.is_anew else _inside(known, rank) if known.is_inside else _outside(known, rank)


def _inside(known: Unregistered, rank: int) -> Finding:
    first = known.names[0] if known.names else "a parameter"
    listed = first.partition("[")[0]
    attribute = listed.rpartition(".")[2]
    holds = "Parameter" if first.endswith("]") else "Module"
    container = f"nn.{holds}{'Dict' if first.partition('[')[2][:1] in _QUOTES else 'List'}"
    return _made(
        known, rank,
        is_odd=not known.is_alone or (known.is_serial and known.is_fresh),
        summary=f"{place(known.first, rank)}: the loss depends on {_count(known)} in a plain list, tuple or dict of "
        f"the model, such as {first}: model.parameters() does not have them, no optimizer trains them.",
        cause=f"Cause (shown): {listed} holds modules or parameters that torch does not register, since it is a plain "
        "Python container: they are not moved by to(), not saved, not trained. Against that: a network that is to stay "
        "may be hidden so.",
        remedy=Remedy(
            f"Register them: make {listed} an {container} instead, in each level where several lie in one another, and "
            "make the optimizer after it. What is to stay: requires_grad_(False).",
            f"self.{attribute} = {container}(self.{attribute})  # in __init__, before the optimizer is made",
            "the leaves of the loss's graph were compared with the parameters of the model and of all optimizers",
        ),
    )  # fmt: skip


def _outside(known: Unregistered, rank: int) -> Finding:
    first = known.names[0] if known.names else "a parameter"
    return _made(
        known, rank, is_odd=known.is_serial and (known.is_fresh or (known.is_on_device and known.count <= FEW)),
        summary=f"{place(known.first, rank)}: the loss depends on {_count(known)} beside the model, such as {first}: "
        "no optimizer has them, nothing trains them.",
        cause="Cause (likely): a head, an embedding or a loss with parameters of its own that was not given to the "
        "optimizer. Against that: another network that is to stay would look so too, if nobody froze it.",
        remedy=Remedy(
            "Register it as a part of the model before the optimizer is made, or give its parameters to the optimizer "
            "too. What is to stay: requires_grad_(False) and eval().",
            "optimizer.add_param_group({'params': list(head.parameters())})  # head: the module beside the model",
            "the leaves of the loss's graph were compared with the parameters of the model and of all optimizers",
        ),
    )  # fmt: skip


def _anew(known: Unregistered, rank: int) -> Finding:
    return _made(
        known, rank, is_odd=False,  # a head that inner steps adapt for each task looks the same
        summary=f"{place(known.first, rank)}: the loss depends on {_count(known)} that each forward makes anew: "
        "no optimizer ever trains them.",
        cause="Cause (likely): layers that were there in the graph of a loss were gone one step later, and others were "
        "in their place, with a gradient that nobody uses: a layer made in forward has other random weights each time. "
        "Against that: a head that is copied or made for each task, and adapted by inner steps, is meant to go.",
        remedy=Remedy(
            "Make the layer in __init__, where torch registers it (several in an nn.ModuleList), and the optimizer "
            "after it. Of a width that is known late: nn.LazyLinear.",
            "self.proj = nn.Linear(width, width)  # in __init__; forward calls self.proj(x) alone",
            "the leaves of five losses' graphs were compared",
        ),
    )  # fmt: skip


def _made(known: Unregistered, rank: int, *, is_odd: bool, summary: str, cause: str, remedy: Remedy) -> Finding:
    pairs = zip(known.names, known.shapes, strict=False)
    shapes = [f"{each} {_shape(size)}" for each, size in pairs] or [_shape(size) for size in known.shapes]
    listed = few_of(shapes, known.count)
    stayed = (
        "Their gradients are computed at each step, and nobody uses them: not registered is not trained."
        if known.is_anew
        else "In sixteen steps nothing has changed their values; their gradients add up, and nobody clears them."
    )
    return Finding(
        severity="warning" if is_odd else "info",
        rank=rank, step=known.first, subject="unregistered",
        summary=summary,
        evidence=(
            f"They have {known.elements} elements: {listed}.",
            stayed,
            cause,
        ),
        remedy=(remedy,),
        facts={"parameters": known.count, "elements": known.elements, "cause_class": "optimizer"},
    )  # fmt: skip


def _count(known: Unregistered) -> str:
    return "1 parameter" if known.count == 1 else f"{known.count} parameters"


def _shape(sizes: tuple[int, ...]) -> str:
    return f"({sizes[0]},)" if len(sizes) == 1 else f"({', '.join(map(str, sizes))})"
