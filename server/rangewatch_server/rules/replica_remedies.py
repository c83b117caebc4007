"""What to try when replicas differ, and on which evidence each rests."""

from __future__ import annotations

from collections.abc import Iterator

from rangewatch_server.rules.evidence import Evidence
from rangewatch_server.rules.replica_groups import Difference
from rangewatch_server.rules.replica_words import of_ranks, these
from rangewatch_server.rules.rule import Remedy

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
