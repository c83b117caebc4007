"""Updates that are made for a while though nobody reduces the gradients over ranks that hold the same parameters: the
reduction is switched off, the wrapper reduces over a single rank, or there is none and the loop's own is not reached.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from rangewatch.wire.events import NotReduced, Optimizers, OwnSteps
from rangewatch_server.core.text import ranks_text
from rangewatch_server.rules.evidence import WINDOW, Evidence
from rangewatch_server.rules.mesh import values
from rangewatch_server.rules.mesh.wrapped_alone import Apart, apart
from rangewatch_server.rules.rule import Finding, Remedy, Rule, Thresholds


def check(evidence: Evidence, limits: Thresholds) -> Iterable[Finding]:
    """At most one finding of each of three."""
    newest = {event.rank: details for event, details in evidence.details(NotReduced)}
    every = {rank: details for rank, details in newest.items() if details.steps}
    alone = {rank: details for rank, details in every.items() if details.is_alone}
    going_on = {rank: details for rank, details in every.items() if not details.is_alone}
    if going_on:
        yield _of_switch(going_on)
    if len(alone) > 1:
        known = alone[min(alone)]
        found = apart(evidence, known)
        if found is not None and set(found.ranks) <= set(alone):
            yield _of_wrapper(evidence, known, found)
    yield from _of_own_steps(evidence)


def _of_switch(going_on: Mapping[int, NotReduced]) -> Finding:
    first = min(going_on, key=lambda rank: (going_on[rank].first, rank))
    found, ranks = going_on[first], tuple(sorted(going_on))
    along = f" along {' and '.join(found.axes)}" if found.axes else ""
    return Finding(
        rank=None if len(ranks) > 1 else first, step=found.first, tensor=found.parameter, kind="grad", subject="switch",
        summary=f"Step {found.first}: {ranks_text(ranks)} update parameters that they hold alike{along}, such as "
        f"{found.parameter}, and do not reduce their gradients: {found.reason}.",
        evidence=(
            "It has been so in each reading since, so that the ranks train different models. They are not compared "
            "meanwhile: some algorithms, such as local SGD, mean that.",
        ),
        remedy=(
            Remedy(
                "Switch the synchronisation on again for the last backward before each update.",
                "for module in model.modules():  # FSDP2; with DDP leave no_sync() before that backward\n"
                "    if hasattr(module, 'set_requires_gradient_sync'):\n"
                "        module.set_requires_gradient_sync(True)\n"
                "        module.set_requires_all_reduce(True)",
                "the wrapper's own switch was read right before the updates",
            ),
        ),
        facts={"axes": found.axes, "ranks": list(ranks), "since_step": found.first, "cause_class": "replicas"},
    )  # fmt: skip


OVER_ALL = {
    "fully_shard": "mesh = torch.distributed.device_mesh.init_device_mesh(  # on GPUs 'cuda'\n"
    "    'cpu', (torch.distributed.get_world_size(),), mesh_dim_names=('dp',))\n"
    "# torch.distributed.fsdp.fully_shard(layer, mesh=mesh) of each layer, then of the model; of a mesh of two\n"
    "# dimensions give it both, (replicate, shard), and not a dimension of one rank",
    "": "group = torch.distributed.group.WORLD  # what the wrapper is to get as process_group, or leave that out",
}


def _of_wrapper(evidence: Evidence, known: NotReduced, found: Apart) -> Finding:
    along = f" along {' and '.join(found.axes)}" if found.axes else ""
    who, is_sure = ranks_text(found.ranks), found.is_sure
    began = (
        f"At the first update {who} held the same bits of every parameter that was compared; at step {found.step} "
        f"{found.tensor} differed, and no parameter that differed was alike again."
        if found.began_alike
        else f"They did not begin with the same bits, and at step {found.step} {found.tensor} differed: models of "
        "their own, as those of an ensemble, look the same."
    )
    axes = (
        f"The mesh has {'the axis' if len(found.axes) == 1 else 'the axes'} {' and '.join(found.axes)}, along which no "
        "parameter lies and nothing is reduced."
        if found.axes
        else "No axis of a mesh is known along which they should be alike; but all have the same learning rates, as "
        "those of one training do, and of a sweep over something else, such as the folds of a cross validation."
        if is_sure
        else "No axis of a mesh is known along which they should be alike: runs of their own, as of a sweep that is "
        "started as one job, look the same."
    )
    written = "Code other than the optimizer has written to the weights: where it averages them over the ranks now "
    written += "and then, as local SGD does, this is meant."
    return Finding(
        severity="warning" if is_sure else "info", rank=None, step=known.first, tensor=None, kind="grad",
        subject="wrapper",
        summary=f"Step {known.first}: {who} train apart{along}: {known.reason} reduces gradients over one rank on each "
        f"of them, and what they hold differs, such as {found.tensor}.",
        evidence=(
            began, axes, *([written] if found.is_written else []),
            f"Cause ({'likely' if is_sure else 'possible'}): the mesh or process group that {known.reason} was given "
            "has this one rank. Against that: it may be meant, where each rank trains a model of its own, or their "
            "models are averaged every so many steps, as by local SGD or DiLoCo.",
        ),
        remedy=(
            Remedy(
                f"If the ranks are to train one model, give {known.reason} a mesh or process group that has all "
                "data-parallel ranks, so that it averages gradients over them; and make the ranks alike again, from "
                "one checkpoint.",
                OVER_ALL.get(known.reason, OVER_ALL[""]),
                f"the size of the group that {known.reason} reduces over, and the checksums of what the ranks hold",
            ),
        ),
        facts={"axes": found.axes, "ranks": list(found.ranks), "since_step": known.first, "apart_step": found.step,
               "began_alike": found.began_alike, "cause_class": "replicas"},
    )  # fmt: skip


ELEMENTS, OTHER_SIZE = "input_elements", 1.5
"""Series of the agent; and the ratio of two ranks' batches from which on they are a setting: texts differ less."""

REDUCED = (
    "# model = torch.nn.parallel.DistributedDataParallel(model), before the optimizer is made; or in the loop,\n"
    "# between loss.backward() and optimizer.step(), and after one broadcast of rank 0's parameters to all:\n"
    "for each in model.parameters():\n"
    "    if each.grad is not None:\n"
    "        torch.distributed.all_reduce(each.grad)\n"
    "        each.grad /= torch.distributed.get_world_size()"
)


def _of_own_steps(evidence: Evidence) -> Iterable[Finding]:
    """At most one. Members of an ensemble, runs of a sweep and agents of their own take such steps, too, and begin, as
    a rule, with other weights or other settings: of those nothing is said."""
    newest = {event.rank: details for event, details in evidence.details(OwnSteps)}
    going_on = {rank: details for rank, details in newest.items() if details.updates}
    if len(going_on) < 2:
        return
    known = going_on[min(going_on)]
    found = apart(evidence, known)
    if found is not None and set(found.ranks) <= set(going_on) and found.is_sure and _have_one_setting(evidence, found):
        yield _own_finding(known, found)


def _have_one_setting(evidence: Evidence, found: Apart) -> bool:
    """By what is known of their optimizers and their batches. Those of a sweep have not; and of ranks along an axis it
    is known what they are for."""
    newest = {event.rank: details for event, details in evidence.details(Optimizers)}
    settings = {
        (known.classes, known.initial_lr, known.weight_decay, known.momentum, known.second_beta, known.trainable_count)
        for rank in found.ranks
        if (known := newest.get(rank)) is not None
    }
    if len(settings) > 1 or not found.has_one_rate:
        return False
    if not evidence.has_series(ELEMENTS):
        return True
    start = values.started(evidence)
    stop = min(evidence.whole_stop, start + WINDOW)
    sizes = [float(np.nanmedian(each)) for rank in found.ranks if np.isfinite(each := evidence.series(
        ELEMENTS, start, stop, rank)).any()]  # fmt: skip
    return not sizes or max(sizes) < OTHER_SIZE * min(sizes)


def _own_finding(known: OwnSteps, found: Apart) -> Finding:
    who = ranks_text(found.ranks)
    along = f" along {' and '.join(found.axes)}" if found.axes else ""
    return Finding(
        severity="warning", rank=None, step=known.first, tensor=None, kind="grad", subject="own steps",
        summary=f"Step {known.first}: {who} train apart{along}: nobody reduces their gradients, and what they hold "
        f"differs, such as {found.tensor}.",
        evidence=(
            f"At the first update {who} held the same bits of every parameter that was compared; at step {found.step} "
            f"{found.tensor} differed, and no parameter that differed was alike again.",
            f"In {known.updates} updates from step {known.first} on, and since, no collective, send or receive of the "
            "parameters' size was called, and no wrapper such as DistributedDataParallel is around the model. Learning "
            "rates, and what else is known of the settings, are the same on all.",
            "Cause (likely): the model was not wrapped, or the loop's own reduction is not reached, as behind an `if`. "
            "Against that: it may be meant, as of members of an ensemble, folds or agents that begin with one seed, or "
            f"of local SGD, DiLoCo or federated rounds that average less often than every {known.updates} updates "
            "(once they do, this is over).",
        ),
        remedy=(
            Remedy(
                "If the ranks are to train one model, wrap it in DistributedDataParallel, or all_reduce the gradients "
                "before each update; and make the ranks alike again, from one checkpoint. If not, leave this be.",
                REDUCED,
                "the process's own calls of collectives, and the checksums of what the ranks hold",
            ),
        ),
        facts={"axes": found.axes, "ranks": list(found.ranks), "since_step": known.first, "apart_step": found.step,
               "updates": known.updates, "cause_class": "replicas"},
    )  # fmt: skip


RULE = Rule(
    name="gradients_not_reduced",
    title="Gradients are not reduced",
    severity="warning",
    explanation="Ranks that hold the same parameters must update them by the same gradients. DistributedDataParallel "
    "and FSDP2 have a switch that leaves out the reduction, for gradient accumulation; where it stays off when the "
    "optimizer steps, each rank trains a model of its own, and nothing fails. The same happens where the wrapper is "
    "given a mesh or a process group of one rank: that is reported once ranks that began with the same bits hold "
    "others, a warning where the mesh has a data-parallel axis beside it, and info else. And where there is no wrapper "
    "and no all_reduce at all, as when DDP was forgotten: reported of ranks that began with the same bits and the same "
    "settings, once 128 updates have been made and nothing of the parameters' size has gone from one to another.",
    check=check,
    explains=("replica_mismatch",),
)
