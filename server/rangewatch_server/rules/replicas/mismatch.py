"""Ranks of a replicated model that no longer hold the same parameters, or get the same gradients from the reduction:
all of them, or those along an axis of the mesh.

Words for ranks and what they hold alike.

What to try when replicas differ, and on which evidence each rests.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import msgspec
import numpy as np

from rangewatch.wire.events import CommunicationHook, ReducedByHand, SampledWeights, WrapperBypassed
from rangewatch.wire.records import TensorEntry
from rangewatch_server.core.text import ranks_text
from rangewatch_server.machines.gpus import card_texts
from rangewatch_server.numerics.pyramid import SERIES_PART
from rangewatch_server.rules.evidence import Evidence
from rangewatch_server.rules.replicas.along_axes import AxisReplicas, mesh_of
from rangewatch_server.rules.replicas.search import Difference, Replicas, differences, incarnations
from rangewatch_server.rules.rule import Finding, Remedy, Rule, Thresholds


def copies(entry: TensorEntry) -> str:
    """Such as "the parameter blocks.3.ff.weight"."""
    what = "the parameter" if entry.kind == "grad" else "the reduced gradient of"
    return f"{what} {entry.fqn}"


FEW = 0.25
"""Share of the tensors: a fault of one device is in one or some of them, a missing reduction in all."""


def remedies(evidence: Evidence, diff: Difference, others: tuple[list[int], int]) -> Iterator[Remedy]:
    """The likeliest first."""
    differing, compared = others
    is_few = len(differing) <= max(1, FEW * compared)
    if diff.axes and (diff.is_everywhere or diff.alike is None or not is_few):
        yield _of_the_code(evidence, diff, len(differing), compared)
        yield _not_replicas(diff)
        return
    past = bypassed(evidence, diff)
    if past is not None:
        yield _through_wrapper(past)
        return
    is_by_hand = is_reduced_by_hand(evidence) and not diff.axes
    if diff.alike is not None and is_few:
        if diff.majority:
            yield _test_device(evidence, diff, len(differing), compared)
        if is_by_hand:
            yield _keep_alike(len(differing), compared, is_by_hand=True)
        yield _go_back(diff)
        return
    hook = own_hook(evidence)
    if hook and (diff.alike is None or diff.alike <= evidence.start + 1):
        yield _reduce_in(hook, len(differing), compared)
        yield _not_replicas(diff)
        return
    if diff.alike is None:
        yield _start_alike(len(differing), compared, is_by_hand=is_by_hand)
    yield _keep_alike(len(differing), compared, is_by_hand=is_by_hand)
    yield _not_replicas(diff, is_by_hand=is_by_hand)


def suspect_of(diff: Difference, others: tuple[list[int], int]) -> str:
    """What is likely wrong: "gpu", where one rank of three or more differs in a few tensors that were the same before;
    "code", where all along an axis differ, or most tensors do; "" where neither can be said."""
    differing, compared = others
    is_few = len(differing) <= max(1, FEW * compared)
    if diff.alike is not None and is_few and len(diff.odd) == 1 and not diff.is_everywhere:
        return "gpu"
    return "code" if diff.is_everywhere or diff.alike is None or not is_few else ""


class Bypassed(msgspec.Struct, frozen=True):
    """The forward of a module of class `name` has been called past its wrapper, since step `since`, on `rank`."""

    name: str
    since: int
    rank: int


def bypassed(evidence: Evidence, diff: Difference) -> Bypassed | None:
    """What was called past DistributedDataParallel before the ranks came to differ."""
    for event, known in evidence.details(WrapperBypassed):
        since = event.step - known.steps + 1
        if known.steps and since <= diff.step and not diff.axes:
            return Bypassed(known.name, since, event.rank)
    return None


def _through_wrapper(past: Bypassed) -> Remedy:
    return Remedy(
        "Call the wrapped model in training, model(x), and not what unwrap_model() or model.module gives: keep that "
        "under another name, for saving and sampling alone. Then make all ranks identical, or go back to a checkpoint "
        f"from before step {past.since}.",
        "def inner(model):  # for saving and sampling alone: training calls the wrapped one\n"
        "    return getattr(model, 'module', model)",
        f"the forward of {past.name} has been called past DistributedDataParallel since step {past.since}, and only "
        "its "
        "own forward prepares the reduction",
    )


def _test_device(evidence: Evidence, diff: Difference, differing: int, compared: int) -> Remedy:
    hosts = ", ".join(dict.fromkeys(evidence.info(rank).host for rank in diff.odd[:8]))
    return Remedy(
        f"Test the GPU of {ranks_text(diff.odd)} (on {hosts}), its memory first, and leave it out until it has passed.",
        "nvidia-smi -q -d ECC,ROW_REMAPPER\n"
        "dcgmi diag -r 3                        # on that machine, with no job on it\n"
        "torchrun --nproc-per-node=8 -m rangewatch linkcheck  # tries and measures every pair of ranks",
        f"{differing} of {compared} tensors differ, and the other {len(diff.majority)} ranks agree: a fault of one "
        "device, not of the program.",
    )


def _go_back(diff: Difference) -> Remedy:
    if diff.axes:
        return Remedy(
            f"Go back to a checkpoint of step {diff.alike} or before.",
            "",
            "What differs trains on." if diff.majority else "Which of them is right is not known.",
        )
    if diff.majority and 0 in diff.majority:
        text = "Go on from rank 0's checkpoint, or make all ranks identical now: rank 0 holds what most ranks hold."
        source = 0
    elif diff.majority:
        since = diff.step if diff.alike is None else diff.alike + 1
        text = f"Do not use checkpoints that rank 0 has saved since step {since}: they may have the copy that differs."
        source = diff.majority[0]
    else:
        back = diff.alike - diff.per + 1 if diff.alike is not None else diff.step
        return Remedy(
            f"Go back to a checkpoint of step {back} or before.",
            "",
            f"Groups {' and '.join(ranks_text(group) for group in diff.groups[:4])} differ and none is the majority: "
            "which one is right is not known.",
        )
    return Remedy(
        text,
        "with torch.no_grad():\n"
        "    for parameter in model.parameters():\n"
        f"        torch.distributed.broadcast(parameter, src={source})\n"
        "# the optimizer's state may differ as well: load it from a checkpoint",
        f"{ranks_text(diff.majority).capitalize()} hold the same bits.",
    )


def _start_alike(differing: int, compared: int, *, is_by_hand: bool) -> Remedy:
    sent = (
        "the loop reduces gradients itself, and nobody sends rank 0's parameters to the others, so that another seed "
        "on each rank is another model. Send them once."
        if is_by_hand
        else "DistributedDataParallel sends rank 0's to all when it is made, so load checkpoints before that, and do "
        "not write to parameters afterwards on one rank alone."
    )
    return Remedy(
        f"See whether all ranks begin with the same parameters: {sent}",
        "for each in model.parameters():  # right before the first step\n"
        "    torch.distributed.broadcast(each.data, src=0)",
        f"{differing} of {compared} tensors differ, at the first step at which they were compared.",
    )


def _keep_alike(differing: int, compared: int, *, is_by_hand: bool) -> Remedy:
    if is_by_hand:
        return Remedy(
            "Let every rank reduce the same gradients in the same order, and all of them: the n-th all_reduce of one "
            "rank is summed with the n-th of the others, whatever it was given, and reduce gives the sum to one rank "
            "alone. One that is None on some ranks is to be reduced as zeros. And let nothing of this rank's own come "
            "between that and the update (clipping, noise, a loss scale, a learning rate, a skipped update).",
            "for each in model.parameters():\n"
            "    if each.requires_grad:\n"
            "        if each.grad is None:\n"
            "            each.grad = torch.zeros_like(each)\n"
            "        torch.distributed.all_reduce(each.grad)",
            f"{differing} of {compared} tensors differ, and the loop reduces their gradients itself.",
        )
    return Remedy(
        "Look for what lets one rank update otherwise than the others: a backward inside no_sync() before the update, "
        "a forward by model.module, which DDP does not see, gradients or parameters that are changed by hand after the "
        "reduction (noise, or clipping by a norm of this rank's own), a loss scaler or learning rate that "
        "differs, an update that one rank skips, or parameters without a gradient on some ranks.",
        "model = torch.nn.parallel.DistributedDataParallel(model, find_unused_parameters=True)",
        f"{differing} of {compared} tensors differ: that is the program's doing rather than a device's.",
    )


SYNCHRONISED = {
    "grad": "for each in model.parameters():  # those that are replicated along it, right before the first step\n"
    "    torch.distributed.broadcast(each.data, src=torch.distributed.get_global_rank(group, 0), group=group)",
    "reduced_grad": "for each in model.parameters():  # those that are replicated along it, before the update\n"
    "    if each.grad is not None:\n"
    "        torch.distributed.all_reduce(each.grad, group=group)",
}


def _of_the_code(evidence: Evidence, diff: Difference, differing: int, compared: int) -> Remedy:
    along = " and ".join(diff.axes)
    kind = evidence.tensors.entries[diff.tensor].kind
    if kind == "reduced_grad":
        text = (
            f"Look for the reduction along {along} that is missing or is made over another group: what is replicated "
            "beside sharded layers (norms, biases after a row-parallel layer, routers) gets a part of its gradient on "
            "each rank, and somebody has to add the parts up."
        )
    else:
        text = (
            f"Look for what lets ranks along {along} initialise or train otherwise: another seed when the parameter "
            "is made, a checkpoint loaded on some ranks, a gradient that is not reduced along this axis (record "
            "reduced_grad to see it), or an optimizer that is set otherwise."
        )
    return Remedy(
        text,
        f"group = torch.distributed.group.WORLD  # here that of the ranks along {along}: mesh.get_group(...)\n"
        + SYNCHRONISED[kind],
        f"{differing} of {compared} tensors differ, in {diff.odd_lines} of {diff.lines} groups of ranks along "
        f"{along}: that is the program's doing rather than a device's.",
    )


def own_hook(evidence: Evidence) -> str:
    """The communication hook of the user's by which DistributedDataParallel reduces; "" where none is known."""
    return next((known.name for _, known in reversed(evidence.details(CommunicationHook))), "")


def is_reduced_by_hand(evidence: Evidence) -> bool:
    """Whether the loop itself reduces the gradients of what is compared."""
    return any(known.parameters for _, known in evidence.details(ReducedByHand))


def _reduce_in(hook: str, differing: int, compared: int) -> Remedy:
    return Remedy(
        f"Let the communication hook {hook} give every rank the same mean: it has to reduce the bucket itself, since "
        "DistributedDataParallel then does not.",
        "def hook(state, bucket):\n"
        "    mean = bucket.buffer().div_(torch.distributed.get_world_size())\n"
        "    done = torch.distributed.all_reduce(mean, async_op=True).get_future()\n"
        "    return done.then(lambda each: each.value()[0])",
        f"{differing} of {compared} tensors differ, and it is what stands between the ranks' gradients.",
    )


def _not_replicas(diff: Difference, *, is_by_hand: bool = False) -> Remedy:
    if diff.axes:
        return Remedy(
            "If the ranks are meant to differ, let them not be compared.",
            "rangewatch.attach(model, optimizer, replica_every=0)",
            f"It is compared along {' and '.join(diff.axes)} because its placement, DistributedDataParallel or "
            "attach(replicated=...) says that it is replicated there.",
        )
    return Remedy(
        "If the ranks are meant to differ (local SGD, experts), let them not be compared.",
        "rangewatch.attach(model, optimizer, replica_every=0)",
        "Only that is compared whose gradients the loop reduces over all ranks in each update."
        if is_by_hand
        else "Only what DistributedDataParallel wraps, or attach(replicated=True) says so of, is compared.",
    )


MOST_RANKS = 8
"""Of those that are named with their machines."""

GPU_EVENTS = ("xid", "gpu_lost", "gpu")


def check(evidence: Evidence, limits: Thresholds) -> Iterable[Finding]:
    """One for each set of ranks that differ from the others: where that began. What follows from a parameter that
    differed first, though its gradient was the same, is named with that."""
    for replicas in (Replicas(evidence), AxisReplicas(evidence)):
        first_steps, known = differences(replicas)
        root = next((each for each in known if _differed_in_gradient(replicas, each) is False), None)
        found: dict[tuple[Any, ...], Finding] = {}
        followed: dict[tuple[Any, ...], str] = {}
        for each in known:
            finding = _finding(evidence, replicas, each, _others(first_steps, replicas, each))
            if root is not None and each is not root and _follows(replicas, root, each):
                followed.setdefault(_whose(each), finding.summary)
            else:
                found.setdefault(_whose(each), finding)
        for of, finding in found.items():
            is_root = root is not None and of == _whose(root)
            yield msgspec.structs.replace(finding, consequences=tuple(followed.values())) if is_root else finding


def _whose(diff: Difference) -> tuple[Any, ...]:
    """Along which axes and on which ranks: a finding each."""
    return diff.axes, diff.odd or (diff.lines_of if diff.axes else ())


def _differed_in_gradient(replicas: Replicas, diff: Difference) -> bool | None:
    """Whether the gradient of a parameter that differs did so before it; None where that is not known, or is itself
    what differs."""
    gradient = replicas.gradient_of(diff.tensor)
    if diff.alike is None or gradient is None or gradient == diff.tensor:
        return None
    return replicas.differ_in(gradient, diff.alike, diff.step)


def _follows(replicas: Replicas, root: Difference, diff: Difference) -> bool:
    """A parameter that differs makes gradients differ from its step on, and those the parameters of later steps."""
    is_gradient = replicas.gradient_of(diff.tensor) == diff.tensor
    return diff.step >= root.step and (is_gradient or _differed_in_gradient(replicas, diff) is True)


def _others(first_steps: dict[int, int], replicas: Replicas, first: Difference) -> tuple[list[int], int]:
    """Tensors of the same kind whose newest replicas differ, and how many have been compared."""
    kinds = replicas.kind_rows
    alike = [tensor for tensor in replicas.compared if kinds[tensor] == kinds[first.tensor]]
    return [tensor for tensor in sorted(first_steps) if kinds[tensor] == kinds[first.tensor]], len(alike)


def _finding(evidence: Evidence, replicas: Replicas, diff: Difference, others: tuple[list[int], int]) -> Finding:
    entry = evidence.tensors.entries[diff.tensor]
    is_of_devices = _is_of_devices(evidence, diff)
    suspect = "" if is_of_devices else suspect_of(diff, others)
    deciding = () if diff.axes else mesh_of(evidence).deciding(diff.groups)
    return Finding(
        severity="warning" if is_of_devices or own_hook(evidence) else "critical",
        rank=diff.odd[0] if len(diff.odd) == 1 else None, step=began(evidence, replicas, diff, others[0]),
        tensor=entry.fqn, kind=entry.kind, subject=_subject(diff),
        summary=_summary(evidence, replicas, diff, copies(entry), others[0]),
        evidence=(
            *_suspect(suspect, diff), *_evidence(evidence, replicas, diff, others, is_of_devices), *_decided(deciding),
        ),
        path=(),
        remedy=tuple(remedies(evidence, diff, others)),
        facts={
            "odd_ranks": diff.odd, "majority_ranks": diff.majority, "last_equal_step": diff.alike,
            "compared_step": diff.step,
            "differing": len(others[0]), "compared": others[1], "axes": diff.axes or deciding,
            "groups": [list(diff.lines_of), *map(list, diff.also)] if diff.axes else [], "lines": diff.lines,
            "odd_lines": diff.odd_lines, "suspect": suspect,
            **({} if bypassed(evidence, diff) is None else {"cause_class": "replicas"}),
        },
    )  # fmt: skip


def _subject(diff: Difference) -> str:
    ranks = ",".join(map(str, diff.odd))
    if not diff.axes:
        return f"ranks {ranks}"
    return f"along {','.join(diff.axes)} ranks {ranks or ','.join(map(str, diff.lines_of))}"


def _along_axes(evidence: Evidence, diff: Difference, what: str) -> str:
    """Of ranks along axes of the mesh."""
    along, size = " and ".join(diff.axes), len(diff.lines_of)
    where = f"Step {diff.step}"
    if diff.odd_lines > 1:
        count = f"all {diff.lines}" if diff.is_everywhere else f"{diff.odd_lines} of {diff.lines}"
        return f"{where}, along {along}: in {count} groups of {size} ranks they differ in {what}."
    if not diff.odd:
        return f"{where}, along {along}: {_placed(evidence, diff.lines_of)} differ in {what}."
    verb = "differs" if len(diff.odd) == 1 else "differ"
    return (
        f"{where}, {_placed(evidence, diff.odd)}: {what} {verb} from what the other {len(diff.majority)} ranks along "
        f"{along} hold."
    )


def _placed(evidence: Evidence, ranks: Sequence[int]) -> str:
    """Such as "rank 13 (pp 0, dp 1, tp 1)"."""
    known = mesh_of(evidence)
    if len(ranks) > 2:
        return ranks_text(ranks)
    texts = [f"{rank} ({place})" if (place := known.place_text(rank)) else str(rank) for rank in ranks]
    return f"rank{'s' if len(ranks) > 1 else ''} {' and '.join(texts)}"


def _summary(evidence: Evidence, replicas: Replicas, diff: Difference, what: str, differing: Sequence[int]) -> str:
    if diff.axes:
        return _along_axes(evidence, diff, what)
    count = sum(map(len, diff.groups))
    where = f"Step {began(evidence, replicas, diff, differing)}"
    if not diff.majority:
        if count == 2:
            return f"{where}: {ranks_text(diff.groups[0] + diff.groups[1])} differ in {what}."
        return f"{where}: the ranks fall into {len(diff.groups)} groups that differ in {what}, none the majority."
    owner = f"{where}, {ranks_text(diff.odd)}: {what}"
    verb = "differs" if len(diff.odd) == 1 else "differ"
    return f"{owner} {verb} from what the other {len(diff.majority)} ranks hold."


def _evidence(
    evidence: Evidence, replicas: Replicas, diff: Difference, others: tuple[list[int], int], is_of_devices: bool
) -> Iterator[str]:
    yield _when(evidence, replicas, diff, others[0])
    yield from _who(evidence, diff)
    yield from _which_lines(diff)
    yield _how_many(evidence, diff, *others)
    yield from _reduction(evidence, replicas, diff)
    if (past := bypassed(evidence, diff)) is not None:
        yield (
            f"Since step {past.since} the forward of {past.name} is called itself, past DistributedDataParallel, as by "
            "model.module(x) or after unwrap_model(): then nothing reduces the gradients over ranks, and each trains "
            "by "
            "its own."
        )
    elif hook := own_hook(evidence):
        yield (
            f"Gradients are reduced by a communication hook that is not torch's, {hook}. Whether it gives all ranks "
            "gradients alike is not known: that they differ speaks against it, unless it is meant to let ranks go "
            "their own ways for some steps. What would decide: train some steps without the hook, and compare."
        )
    elif is_reduced_by_hand(evidence) and not diff.axes:
        yield (
            "That ranks are to hold the same is known by the loop's own reduction of these gradients over all ranks, "
            "before each update that was looked at."
        )
    if is_of_devices:
        yield "They are also the ranks with another device than the others, which may round otherwise."
    for event in evidence.events(*GPU_EVENTS):
        if event.rank in diff.odd:
            yield f"Rank {event.rank}'s GPU reported at step {event.step}: {event.message}"


def _suspect(suspect: str, diff: Difference) -> Iterator[str]:
    if suspect == "gpu":
        yield (
            f"This GPU (likely): rank {diff.odd[0]} alone differs, {len(diff.majority)} ranks agree, and at step "
            f"{diff.alike} all held the same bits."
        )
    elif suspect == "code" and diff.is_everywhere:
        yield "This code (likely): every group of ranks along the axis differs, which no single device does."


def _when(evidence: Evidence, replicas: Replicas, diff: Difference, differing: Sequence[int]) -> str:
    if diff.alike is None:
        if evidence.run.thinned(evidence.ranks, replicas.start, diff.step) is not None:
            return f"At step {diff.step} they differed already; of the steps before, single ones are no longer stored."
        restarted = any(each.ordinal > 1 for each in incarnations(evidence).values())
        since = f", after the restart at step {replicas.start}" if restarted else ""
        return (
            f"They came to differ at step {diff.step} or before: it is the first at which they were compared{since}. "
            "Whether they began identical is not known."
        )
    if diff.alike == diff.step - 1 and diff.per == 1:
        return (
            f"When the update of step {diff.alike} began they were identical {_everywhere(diff)}, and when that of "
            f"step {diff.step} began they were not."
        )
    between = (
        f"They were identical at step {diff.alike}, and at no step between was this compared: they came to "
        f"differ in one of the steps {diff.alike - diff.per + 1} to {diff.step}."
    )
    if (parting := _parting(evidence, replicas, diff, differing)) is None:
        return f"{between} With replica_every=1 the very step is known."
    return (
        f"{between} {_SAMPLED[parting.name]} is recorded at each step: it was the same on all ranks at the "
        f"{parting.same} steps before, and differed between ranks at step {parting.step}."
    )


_SAMPLED = {
    "sampled_update": "The largest change of one small parameter by the optimizer",
    "sampled_gradient": "The largest gradient of one small parameter, as the optimizer is given it,",
    "weights_written": "The largest change of one small parameter between two updates",
}
"""Series of the agent that replicas have alike in each step."""

_FEWEST_SAME = 8
"""Steps before, in which a series must be there and the same on all ranks, for one in which it is not to say when."""


class _Parting(msgspec.Struct, frozen=True):
    """At `step` the series `name` first differed, after `same` steps in which it did not."""

    step: int
    name: str
    same: int


def _parting(evidence: Evidence, replicas: Replicas, diff: Difference, differing: Sequence[int]) -> _Parting | None:
    """Between the two steps at which replicas were compared, the first at which they parted, where that is known: by
    series of a small parameter, which is not known to be alike since."""
    if diff.axes or diff.alike is None or diff.alike >= diff.step - 1:
        return None
    names, low = evidence.run.names().series, max(evidence.start, diff.alike - _FEWEST_SAME)
    key = "parting", diff.alike, diff.step
    known = evidence.once(key, lambda: [_of_series(evidence, each, low, diff) for each in _SAMPLED if each in names])
    first = min((each for each in known if each is not None), key=lambda each: each.step, default=None)
    if first is None:
        return None
    sampled = {name for _, event in evidence.details(SampledWeights)[-1:] for name in event.names}
    read = evidence.once("newest checksums", replicas.newest_steps)
    entries = evidence.tensors.entries
    is_alike = any(
        step > first.step and tensor not in differing and entries[tensor].fqn in sampled
        for tensor, step in read.items()
    )
    return None if is_alike else first


def _of_series(evidence: Evidence, name: str, low: int, diff: Difference) -> _Parting | None:
    row, ranks = np.array([evidence.run.names().series[name]]), list(evidence.ranks)
    columns = ("count", "nonfinite_count", "min", "max")
    block = evidence.run.slice(SERIES_PART, ranks, 0, low, diff.step + 1, columns, row)
    count, odd, least, most = (np.asarray(block.columns[each][0], np.float64) for each in columns)
    there = np.flatnonzero((count == len(ranks)) & (odd == 0))
    is_apart = least[there] != most[there]
    if not is_apart.any():
        return None
    first = int(is_apart.argmax())
    if low + there[first] < (diff.alike or 0) or first < _FEWEST_SAME:
        return None
    return _Parting(low + int(there[first]), name, first)


def began(evidence: Evidence, replicas: Replicas, diff: Difference, differing: Sequence[int]) -> int:
    """The step at which they parted, where it is known, or from which on nothing reduced their gradients; else the
    first at which they were compared and differed."""
    if (parting := _parting(evidence, replicas, diff, differing)) is not None:
        return parting.step
    past = bypassed(evidence, diff)
    return past.since if past is not None and past.since >= (diff.alike or 0) else diff.step


def _decided(axes: Sequence[str]) -> Iterator[str]:
    if axes:
        along = " and ".join(axes)
        yield f"Which of them a rank holds is decided by its place along {along}: that speaks for the code."


def _everywhere(diff: Difference) -> str:
    return f"along {' and '.join(diff.axes)}" if diff.axes else "on all ranks"


def _who(evidence: Evidence, diff: Difference) -> Iterator[str]:
    if not diff.majority:
        groups = [ranks_text(group) for group in diff.groups[:4]]
        more = f" and {len(diff.groups) - 4} more groups" if len(diff.groups) > 4 else ""
        yield f"Identical among themselves are {'; '.join(groups)}{more}. Which of them is right is not known."
        return
    cards = _cards(evidence, diff.odd[:MOST_RANKS])
    for rank in diff.odd[:MOST_RANKS]:
        info = evidence.info(rank)
        card = f" ({cards[rank]})" if rank in cards else ""
        yield f"Rank {rank} is on {info.host}, local rank {info.local_rank}, device {info.device or 'unknown'}{card}."
    yield f"{ranks_text(diff.majority).capitalize()} hold the same bits."


def _cards(evidence: Evidence, ranks: Sequence[int]) -> dict[int, str]:
    """Which card each of them uses: ranks on a CPU have none to be asked for."""
    on_cards = [rank for rank in ranks if evidence.info(rank).device not in ("", "cpu")]
    return card_texts(evidence.run, on_cards) if on_cards else {}


def _which_lines(diff: Difference) -> Iterator[str]:
    if not diff.axes or diff.lines < 2:
        return
    along, size = " and ".join(diff.axes), len(diff.lines_of)
    if diff.odd_lines < 2:
        yield f"It is the only one of {diff.lines} groups of {size} ranks along {along} in which they differ."
        return
    shown = "; ".join(ranks_text(line) for line in diff.also[:4])
    more = diff.odd_lines - 1 - len(diff.also[:4])
    yield f"So do {shown}{f' and {more} more groups' if more else ''}, each along {along}."


def _how_many(evidence: Evidence, diff: Difference, differing: Sequence[int], compared: int) -> str:
    entry = evidence.tensors.entries[diff.tensor]
    what = "parameters" if entry.kind == "grad" else "reduced gradients"
    rest = [evidence.tensors.entries[each].fqn for each in differing if each != diff.tensor]
    if not rest:
        return f"It is the only one of {compared} {what} that differs."
    more = f" and {len(rest) - 4} more" if len(rest) > 4 else ""
    return f"Of {compared} {what}, {len(rest)} others differ by now: {', '.join(rest[:4])}{more}."


def _reduction(evidence: Evidence, replicas: Replicas, diff: Difference) -> Iterator[str]:
    """What is known of the gradients from which the parameter was updated."""
    entry = evidence.tensors.entries[diff.tensor]
    if entry.kind != "grad" or diff.alike is None:
        return
    differs = _differed_in_gradient(replicas, diff)
    if differs is None:
        yield "Whether its gradient was identical after the reduction is not known: the kind reduced_grad has it."
    elif differs:
        yield "Its gradient differed after the reduction, so the update that followed could not be identical."
    else:
        yield f"Its gradient was identical {_everywhere(diff)} after the reduction, so it did not come by the network."


def _is_of_devices(evidence: Evidence, diff: Difference) -> bool:
    """Whether exactly the odd ranks have other devices than the majority: they may round otherwise for good."""
    odd, most = ({evidence.info(rank).device for rank in ranks} for ranks in (diff.odd, diff.majority))
    return bool(odd and most) and odd.isdisjoint(most)


RULE = Rule(
    name="replica_mismatch",
    title="Replicas differ",
    severity="critical",
    explanation="In data-parallel training every rank holds the same parameters, bit for bit: they start identical and "
    "all get the same update. Beside tensor parallelism, and in HSDP, the same holds along an axis of the mesh. A rank "
    "that differs has computed or stored something wrong, or is not kept identical at all; from then on the ranks "
    "train different models, and which one is saved depends on the rank that saves it.",
    check=check,
    explains=("first_nonfinite", "loss_nonfinite", "loss_scale_collapse", "loss_spike", "exploding_gradient"),
)
