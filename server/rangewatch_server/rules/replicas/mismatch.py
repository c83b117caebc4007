"""Ranks of a replicated model that no longer hold the same parameters, or get the same gradients from the reduction.

Words for ranks and what they hold alike.

What to try when replicas differ, and on which evidence each rests.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from rangewatch.wire.records import TensorEntry
from rangewatch_server.rules.evidence import Evidence
from rangewatch_server.rules.replicas.groups import Difference, incarnations
from rangewatch_server.rules.replicas.search import Replicas, differences
from rangewatch_server.rules.rule import Finding, Remedy, Rule, Thresholds

MOST_NAMED = 8


def copies(entry: TensorEntry) -> str:
    """Such as "the parameter blocks.3.ff.weight"."""
    what = "the parameter" if entry.kind == "grad" else "the reduced gradient of"
    return f"{what} {entry.fqn}"


def of_ranks(ranks: Sequence[int]) -> str:
    """Such as "rank 2" or "ranks 0, 1 and 3"."""
    return f"rank{'' if len(ranks) == 1 else 's'} {these(ranks)}"


def these(ranks: Sequence[int]) -> str:
    """Such as "0, 1 and 3", of many the first few; those that follow one another as "0 to 15"."""
    ordered = sorted(ranks)
    if len(ordered) > 2 and ordered[-1] - ordered[0] == len(ordered) - 1:
        return f"{ordered[0]} to {ordered[-1]}"
    shown, more = [str(rank) for rank in ordered[:MOST_NAMED]], len(ordered) - MOST_NAMED
    if more > 0:
        return f"{', '.join(shown)} and {more} more"
    return " and ".join([", ".join(shown[:-1]), shown[-1]] if len(shown) > 1 else shown)


FEW = 0.25
"""Share of the tensors: a fault of one device is in one or some of them, a missing reduction in all."""


def remedies(evidence: Evidence, found: Difference, others: tuple[list[int], int]) -> Iterator[Remedy]:
    """The likeliest first."""
    differing, compared = others
    is_few = len(differing) <= max(1, FEW * compared)
    if found.alike is not None and is_few:
        if found.majority:
            yield _test_device(evidence, found, len(differing), compared)
        yield _go_back(found)
        return
    if found.alike is None:
        yield _start_alike(len(differing), compared)
    yield _keep_alike(len(differing), compared)
    yield _not_replicas()


def _test_device(evidence: Evidence, found: Difference, differing: int, compared: int) -> Remedy:
    hosts = ", ".join(dict.fromkeys(evidence.info(rank).host for rank in found.odd[:8]))
    return Remedy(
        f"Test the GPU of {of_ranks(found.odd)} (on {hosts}), its memory first, and leave it out until it has passed.",
        "nvidia-smi -q -d ECC,ROW_REMAPPER\n"
        "dcgmi diag -r 3                        # on that machine, with no job on it\n"
        "rangewatch linkcheck --help            # tries and measures every pair of ranks",
        f"{differing} of {compared} tensors differ, and the other {len(found.majority)} ranks agree: a fault of one "
        "device, not of the program.",
    )


def _go_back(found: Difference) -> Remedy:
    if found.majority and 0 in found.majority:
        text = "Go on from rank 0's checkpoint, or make all ranks alike now: rank 0 holds what most ranks hold."
        source = 0
    elif found.majority:
        text = f"Do not use checkpoints that rank 0 has saved since step {found.step}: they have the copy that differs."
        source = found.majority[0]
    else:
        back = found.alike - found.per + 1 if found.alike is not None else found.step
        return Remedy(
            f"Go back to a checkpoint of step {back} or before.",
            "",
            f"Groups {' and '.join(of_ranks(group) for group in found.groups[:4])} differ and none is the majority: "
            "which one is right cannot be told.",
        )
    return Remedy(
        text,
        "with torch.no_grad():\n"
        "    for parameter in model.parameters():\n"
        f"        torch.distributed.broadcast(parameter, src={source})\n"
        "# the optimizer's state may differ as well: load it from a checkpoint",
        f"Ranks {these(found.majority)} hold the same bits.",
    )


def _start_alike(differing: int, compared: int) -> Remedy:
    return Remedy(
        "Let all ranks begin with the same parameters: wrap the model in DistributedDataParallel, which sends rank 0's "
        "to all, after any checkpoint has been loaded, and do not write to them afterwards on one rank alone.",
        "model = torch.nn.parallel.DistributedDataParallel(model)",
        f"{differing} of {compared} tensors differ, at the first step at which they were compared.",
    )


def _keep_alike(differing: int, compared: int) -> Remedy:
    return Remedy(
        "Look for what lets one rank update otherwise than the others: a backward inside no_sync() before the update, "
        "a forward by model.module, which DDP does not see, gradients or parameters that are changed by hand after the "
        "reduction (noise, or clipping by a norm of this rank's own), a loss scaler or learning rate that "
        "differs, an update that one rank skips, or parameters without a gradient on some ranks.",
        "model = torch.nn.parallel.DistributedDataParallel(model, find_unused_parameters=True)",
        f"{differing} of {compared} tensors differ: that is the program's doing rather than a device's.",
    )


def _not_replicas() -> Remedy:
    return Remedy(
        "If the ranks are meant to differ (local SGD, experts), let them not be compared.",
        "rangewatch.attach(model, optimizer, replica_every=0)",
        "Only what DistributedDataParallel wraps, or attach(replicated=True) says so of, is compared.",
    )


MOST_RANKS = 8
"""Of those that are named with their machines."""

GPU_EVENTS = ("xid", "gpu_lost", "gpu")


def check(evidence: Evidence, limits: Thresholds) -> Iterable[Finding]:
    """One for each set of ranks that differ from the others: where that began."""
    replicas = Replicas(evidence)
    found, known = differences(replicas)
    reported: set[tuple[int, ...]] = set()
    for each in known:
        if each.odd not in reported:
            reported.add(each.odd)
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
