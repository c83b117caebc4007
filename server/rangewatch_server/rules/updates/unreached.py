"""Parameters that an optimizer has and that no backward has reached since the run began."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from rangewatch.wire.events import Optimizers
from rangewatch_server.query.events import StoredEvent
from rangewatch_server.rules.evidence import Evidence
from rangewatch_server.rules.phrases import few_of, place
from rangewatch_server.rules.recent import tensors_of
from rangewatch_server.rules.rule import Finding, Remedy


def not_reached(evidence: Evidence, event: StoredEvent, optimizers: Optimizers) -> Finding:
    """A warning where it is most of what the optimizers have, or a third of it whose modules are called before all that
    are reached, or what a module begins with that ends with reached ones, or a module cuts the graph behind them: a few
    belong to layers that are not in use, and a head may be called for nothing."""
    are_called = _are_before_others(evidence, optimizers.unreached)
    cut_in = next((each for each in optimizers.cut_in if not _is_copied(evidence, each, optimizers.unreached)), "")
    cut = None if cut_in else _cut_off_inside(evidence, optimizers.unreached)
    count = optimizers.unreached_count
    inside = (each for each in optimizers.unreached if cut_in and each.startswith(f"{cut_in}."))
    first = next(inside, optimizers.unreached[0] if cut is None else cut.first)
    held = optimizers.trainable_count - optimizers.left_out_count
    which = f"parameters {first} and {count - 1} more" if count > 1 else f"parameter {first}"
    return Finding(
        severity="warning" if cut_in or cut is not None or (3 if are_called else 2) * count >= held else "info",
        rank=event.rank, step=event.step, tensor=first, kind="weight", subject="no_gradient",
        summary=f"{place(event.step, event.rank)}: no backward has reached the {which}, which the optimizer "
        "has.",
        evidence=(
            f"Of {held} parameters that the optimizers ({', '.join(optimizers.classes)}) train {count} have had no "
            f"gradient since the run began: {few_of(optimizers.unreached, count)}.",
            *(
                [
                    "Their modules are called, and all that are reached come after them: what they give is detached, "
                    "or goes into no loss."
                ]
                * are_called
            ),
            *(
                [
                    f"The graph is cut in the forward of {cut_in}: in the first one what a module in it gave had a "
                    "graph, and its own output had none, as after detach(), .data, .item(), numpy() or a tensor made "
                    "anew of numbers."
                ]
                if cut_in
                else []
            ),
            *(
                []
                if cut is None or are_called
                else [
                    f"In {cut.inside} their modules are called before {cut.reached}, which a gradient reaches, as it "
                    f"reaches what comes before {cut.inside}: what they give is not used, or cut off in there, "
                    "as by detach(), .data, no_grad or an argmax."
                ]
            ),
        ),
        remedy=(
            Remedy(
                f"Keep the forward of {cut_in} in torch from its parameters to its output, without detach() or numpy; "
                "or freeze these parameters, if it is meant."
                if cut_in
                else "See whether its module is called, and whether its output is detached, unused or made under "
                "no_grad.",
                f"print(dict(model.named_parameters())[{first!r}].grad)  # after loss.backward()",
                "the hook on its gradient has not run once",
            ),
        ),
        facts={"parameters": count, "of": held, "cause_class": "no_gradient"},
    )  # fmt: skip


class _Cut(msgspec.Struct, frozen=True):
    """`inside` a module the parameter `first` and others get no gradient; `reached`, called after them, does."""

    inside: str
    first: str
    reached: str


def _cut_off_inside(evidence: Evidence, names: Sequence[str]) -> _Cut | None:
    """The innermost module, in the middle of the model, all of which gets no gradient up to a module that does."""
    entries, position = evidence.tensors.entries, evidence.tensors.position
    calls = {each.fqn: int(position[at]) for at, each in enumerate(entries) if each.kind == "output"}
    reached = {entries[int(each)].fqn.rpartition(".")[0] for each in tensors_of(evidence, "grad")} & set(calls)
    unreached = {name.rpartition(".")[0]: name for name in reversed(names)}
    around = {module[:at] for module in unreached for at, letter in enumerate(module) if letter == "."}
    for inside in sorted(around, key=len, reverse=True):
        inner = sorted(
            (each for each in {*reached, *unreached} & set(calls) if each.startswith(f"{inside}.")),
            key=calls.__getitem__,
        )
        cut = next((at for at, each in enumerate(inner) if each in reached), 0)
        is_in_the_middle = any(calls[each] < calls[inner[0]] for each in reached) if cut else False
        if is_in_the_middle and not _are_copies(inside, inner[:cut], inner[cut:]):
            return _Cut(inside, unreached[inner[0]], inner[cut])
    return None


def _are_copies(inside: str, cut_off: Iterable[str], others: Iterable[str]) -> bool:
    """Whether these modules are a part of `inside` whose like is among the others: a target, or a teacher, is a moving
    average of what is trained, and runs under no_grad."""
    like: dict[str, set[str]] = {}
    for each in others:
        child, _, path = each[len(inside) + 1 :].partition(".")
        like.setdefault(child, set()).add(path)
    paths = {each[len(inside) + 1 :].partition(".")[2] for each in cut_off}
    return "" not in paths and any(paths <= known for known in like.values())


def _is_copied(evidence: Evidence, inside: str, names: Sequence[str]) -> bool:
    """Whether another module has parameters of the same names as those of `inside`, and these have gradients: what is a
    moving average of it is cut off on purpose."""
    suffixes = [each[len(inside) :] for each in names if each.startswith(f"{inside}.")]
    reached = {evidence.tensors.entries[int(each)].fqn for each in tensors_of(evidence, "grad")}
    like = (each.removesuffix(suffixes[0]) for each in reached if suffixes and each.endswith(suffixes[0]))
    return any(all(f"{other}{suffix}" in reached for suffix in suffixes) for other in like)


def _are_before_others(evidence: Evidence, names: Sequence[str]) -> bool:
    """Whether all modules of these parameters are called, and before each that has a parameter with a gradient."""
    entries, position = evidence.tensors.entries, evidence.tensors.position
    calls = {each.fqn: int(position[at]) for at, each in enumerate(entries) if each.kind == "output"}
    own = [calls.get(name.rpartition(".")[0]) for name in names]
    known = [each for each in own if each is not None]
    reached = [calls.get(entries[int(each)].fqn.rpartition(".")[0]) for each in tensors_of(evidence, "grad")]
    after = [each for each in reached if each is not None]
    return bool(known) and len(known) == len(own) and bool(after) and min(after) > max(known)
