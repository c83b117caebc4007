"""Ranks of a replicated model that no longer hold the same parameters, or get the same gradients from the reduction."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from rangewatch_server.rules.evidence import Evidence
from rangewatch_server.rules.replica_groups import Difference, incarnations
from rangewatch_server.rules.replica_remedies import remedies
from rangewatch_server.rules.replica_search import Replicas, differences
from rangewatch_server.rules.replica_words import copies, of_ranks, these
from rangewatch_server.rules.rule import Finding, Rule, Thresholds

MOST_RANKS = 8
"""Of those that are named with their machines."""

GPU_EVENTS = ("xid", "gpu_lost", "gpu")


def check(evidence: Evidence, limits: Thresholds) -> Iterable[Finding]:
    """One for each set of ranks that differ from the others: where that began."""
    replicas = Replicas(evidence)
    found, known = differences(replicas)
    told: set[tuple[int, ...]] = set()
    for each in known:
        if each.odd not in told:
            told.add(each.odd)
            yield _finding(evidence, replicas, each, _others(found, replicas, each))


def _others(found: dict[int, int], replicas: Replicas, first: Difference) -> tuple[list[int], int]:
    """Tensors of the same kind whose newest replicas differ, and how many have been compared."""
    kinds = replicas.kind_rows
    alike = [tensor for tensor in replicas.compared if kinds[tensor] == kinds[first.tensor]]
    return [tensor for tensor in sorted(found) if kinds[tensor] == kinds[first.tensor]], len(alike)


def _finding(evidence: Evidence, replicas: Replicas, found: Difference, others: tuple[list[int], int]) -> Finding:
    entry = evidence.tensors.entries[found.tensor]
    is_of_devices = _is_of_devices(evidence, found)
    return Finding(
        severity="warning" if is_of_devices else "critical",
        rank=found.odd[0] if len(found.odd) == 1 else None, step=found.step, tensor=entry.fqn, kind=entry.kind,
        subject=f"ranks {','.join(map(str, found.odd))}",
        summary=_summary(found, copies(entry)),
        evidence=tuple(_evidence(evidence, replicas, found, others, is_of_devices)),
        path=(),
        remedy=tuple(remedies(evidence, found, others)),
        facts={
            "odd_ranks": found.odd, "majority_ranks": found.majority, "last_equal_step": found.alike,
            "differing": len(others[0]), "compared": others[1],
        },
    )  # fmt: skip


def _summary(found: Difference, what: str) -> str:
    count = sum(map(len, found.groups))
    where = f"Step {found.step}"
    if not found.majority:
        if count == 2:
            return f"{where}: ranks {these(found.groups[0] + found.groups[1])} differ in {what}."
        return f"{where}: the ranks fall into {len(found.groups)} groups that differ in {what}, none the majority."
    owner = f"{where}, {of_ranks(found.odd)}: {what}"
    verb = "differs" if len(found.odd) == 1 else "differ"
    return f"{owner} {verb} from what the other {len(found.majority)} ranks hold alike."


def _evidence(
    evidence: Evidence, replicas: Replicas, found: Difference, others: tuple[list[int], int], is_of_devices: bool
) -> Iterator[str]:
    yield _when(evidence, replicas, found)
    yield from _who(evidence, found)
    yield _how_many(evidence, found, *others)
    yield from _reduction(evidence, replicas, found)
    if is_of_devices:
        yield "They are also the ranks with another device than the others, which may round otherwise."
    for event in evidence.events(*GPU_EVENTS):
        if event.rank in found.odd:
            yield f"Rank {event.rank}'s GPU told at step {event.step}: {event.message}"


def _when(evidence: Evidence, replicas: Replicas, found: Difference) -> str:
    if found.alike is None:
        if evidence.run.thinned(evidence.ranks, replicas.start, found.step) is not None:
            return f"At step {found.step} they differed already; of the steps before, single ones are no longer stored."
        restarted = any(each.ordinal > 1 for each in incarnations(evidence).values())
        since = f"since the restart at step {replicas.start}" if restarted else "since the run began"
        return f"They have differed {since}: step {found.step} is the first at which they were compared."
    if found.alike == found.step - 1 and found.per == 1:
        return (
            f"When the update of step {found.alike} began they were alike bit for bit on all ranks, and when that of "
            f"step {found.step} began they were not."
        )
    return (
        f"They were alike bit for bit at step {found.alike}, and at no step between was this compared: they came to "
        f"differ in one of the steps {found.alike - found.per + 1} to {found.step}. With replica_every=1 the very step "
        "is told."
    )


def _who(evidence: Evidence, found: Difference) -> Iterator[str]:
    if not found.majority:
        groups = [of_ranks(group) for group in found.groups[:4]]
        more = f" and {len(found.groups) - 4} more groups" if len(found.groups) > 4 else ""
        yield f"Alike among themselves are {'; '.join(groups)}{more}. Which of them is right is not known."
        return
    for rank in found.odd[:MOST_RANKS]:
        info = evidence.info(rank)
        yield f"Rank {rank} is on {info.host}, local rank {info.local_rank}, device {info.device or 'unknown'}."
    yield f"{of_ranks(found.majority).capitalize()} hold the same bits."


def _how_many(evidence: Evidence, found: Difference, differing: Sequence[int], compared: int) -> str:
    entry = evidence.tensors.entries[found.tensor]
    what = "parameters" if entry.kind == "grad" else "reduced gradients"
    rest = [evidence.tensors.entries[each].fqn for each in differing if each != found.tensor]
    if not rest:
        return f"It is the only one of {compared} {what} that differs."
    more = f" and {len(rest) - 4} more" if len(rest) > 4 else ""
    return f"Of {compared} {what}, {len(rest)} others differ by now: {', '.join(rest[:4])}{more}."


def _reduction(evidence: Evidence, replicas: Replicas, found: Difference) -> Iterator[str]:
    """What is known of the gradients from which the parameter was updated."""
    entry = evidence.tensors.entries[found.tensor]
    if entry.kind != "grad" or found.alike is None:
        return
    gradient = replicas.gradient_of(found.tensor)
    differs = None if gradient is None else replicas.differ_in(gradient, found.alike, found.step)
    if differs is None:
        yield "Whether its gradient was alike after the reduction is not known: the kind reduced_grad has it."
    elif differs:
        yield "Its gradient differed after the reduction, so the update that followed could not be alike."
    else:
        yield "Its gradient was alike on all ranks after the reduction, so it did not come by the network."


def _is_of_devices(evidence: Evidence, found: Difference) -> bool:
    """Whether exactly the odd ranks have other devices than the majority: they may round otherwise for good."""
    odd, most = ({evidence.info(rank).device for rank in ranks} for ranks in (found.odd, found.majority))
    return bool(odd and most) and odd.isdisjoint(most)


RULE = Rule(
    name="replica_mismatch",
    title="Replicas differ",
    severity="critical",
    explanation="In data-parallel training every rank holds the same parameters, bit for bit: they start alike and all "
    "get the same update. A rank that differs has computed or stored something wrong, or is not kept alike at all; "
    "from then on the ranks train different models, and which one is saved depends on the rank that saves it.",
    check=check,
    explains=("first_nonfinite", "loss_nonfinite", "loss_scale_collapse", "loss_spike", "exploding_gradient"),
)
