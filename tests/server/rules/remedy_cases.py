"""Runs whose findings have the remedies that no example of `tests.faults.examples` has."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from rangewatch.wire.records import Event, Samples
from tests.faults import examples
from tests.faults.examples import GATE, MODEL, STEPS, UP, facts, nonfinite, scales
from tests.server.rules import test_axis_replicas as on_mesh
from tests.server.rules import test_joined_causes as joined
from tests.server.rules import test_quiet_causes as quiet
from tests.server.rules import test_setup as setup
from tests.server.rules.conftest import Recording, tensor
from tests.server.rules.loss_scales import GRAD_B, OUTPUT_B, bad, scaled

BAD = examples.BAD
GROWING = 2.0 ** np.arange(STEPS).clip(max=100)


def negative(recording: Recording) -> None:
    nonfinite(recording, GATE, reported={"inputs": [facts("input[0]", negative_count=4)]})


def between_masked(recording: Recording) -> None:
    nonfinite(recording, 2, reported={"inputs": [facts("input[0]", inf=9, nan=1, negative_inf_count=9, masked_rows=1)]})


def norm(recording: Recording) -> None:
    model = [tensor("norm", module="LayerNorm"), tensor("norm.weight", "grad", 1)]
    nonfinite(recording, 0, model, reported={"eps": 1e-12})


def at_first(recording: Recording) -> None:
    counts = np.ones((len(MODEL), 5))
    reported = {
        "fqn": MODEL[UP].fqn,
        "kind": "output",
        "index": 0,
        "inputs": [facts("input[0]", 6e4)],
        "model_inputs": [],
    }
    event = Event("nonfinite", 1, 0, "", reported | {"weights": [facts("blocks.2.ff.up.weight", 9.0)]})
    recording.write(MODEL, 5, {"inf_count": counts}, events=[event])


def large_batch(recording: Recording) -> None:
    large = facts("input[0]", 9e4)
    nonfinite(recording, UP, what="inf_count", reported={"inputs": [large], "model_inputs": [large]})


def growth(recording: Recording) -> None:
    reported = {"weights": [facts("blocks.2.ff.up.weight", nan=1)]}
    nonfinite(recording, UP, reported=reported, columns={"amax": np.tile(GROWING, (len(MODEL), 1))})


def reduction(recording: Recording) -> None:
    nonfinite(recording, len(MODEL), [*MODEL, tensor("blocks.2.ff.up.weight", "reduced_grad", 7)])


def first_step(recording: Recording) -> None:
    reported = {"fqn": MODEL[UP].fqn, "kind": "output", "index": 0, "inputs": [], "model_inputs": []}
    event = Event("nonfinite", 1, 0, "", reported | {"weights": [facts("blocks.2.ff.up.weight", nan=1)]})
    recording.write(MODEL, 5, {"nan_count": 1.0}, events=[event])


def restarted(recording: Recording) -> None:
    recording.write(MODEL, 40)
    reported = {"fqn": MODEL[UP].fqn, "kind": "output", "index": 0, "inputs": [], "model_inputs": []}
    event = Event("nonfinite", 1, 30, "", reported | {"weights": [facts("blocks.2.ff.up.weight", nan=1)]})
    recording.write(MODEL, 5, {"nan_count": 1.0}, events=[event], first=30, incarnation="b")


def rate(recording: Recording) -> None:
    reported = {"weights": [facts("blocks.2.ff.up.weight", nan=1)]}
    nonfinite(recording, UP, reported=reported, series={"lr": np.where(np.arange(STEPS) < BAD - 3, 1e-4, 1e-2)})


def contained(recording: Recording) -> None:
    counts = np.zeros((len(MODEL), STEPS))
    counts[GATE] = 1
    recording.write(MODEL, STEPS, {"inf_count": counts}, series={"loss": np.ones(STEPS)})


def always_nan(recording: Recording) -> None:
    series = scaled(200, range(170, 200))
    columns = {"nan_count": bad(series, OUTPUT_B, GRAD_B), "amax": 16.0}
    recording.write(examples.LAYERS, 200, columns, series=series, loss_scaled=True)


def driven(recording: Recording) -> None:
    scales(recording, scaled(400, lambda scale: scale > 2.0**16, interval=2), GRAD_B)


def no_gradient(recording: Recording) -> None:
    scales(recording, scaled(300, (), interval=20), amax=0.0)


def host_memory(recording: Recording) -> None:
    recording.write(joined.LAYERS, 200)
    recording.send(joined._more(0, joined.died(0, joined.SEGFAULT | {"signal": 9, "oom_kills": 1})))


def killed(recording: Recording) -> None:
    recording.write(joined.LAYERS, 200)
    recording.send(joined._more(0, joined.died(0, joined.SEGFAULT | {"signal": 9})))


def growing_memory(recording: Recording) -> None:
    said = Event("failed", 1, 199, "OutOfMemoryError: CUDA out of memory", {"out_of_memory": True})
    used = {"memory_used_bytes": np.linspace(10, 60, 60) * joined.GIB, "present": np.ones(60)}
    recording.write(joined.LAYERS, 200)
    times = 10**18 + np.arange(60) * joined.SECOND
    recording.send(joined._more(0, said, samples=(Samples("gpu", "GPU-0", times, used, {}),)))


def memory_in_pieces(recording: Recording) -> None:
    then = {"total_bytes": 80, "free_bytes": 1, "allocated_bytes": 40, "unallocated_bytes": 20, "others_bytes": 18}
    details = {"out_of_memory": True, "asked_bytes": 15, "at_failure": then}
    recording.write(joined.LAYERS, 200)
    recording.send(joined._more(0, Event("failed", 1, 199, "OutOfMemoryError: CUDA out of memory", details)))


def leaking_host(recording: Recording) -> None:
    details = {"out_of_memory": True, "on_host": True, "asked_bytes": 15}
    recording.write(joined.LAYERS, 200, series={"process_resident_bytes": np.linspace(1, 60, 200) * joined.GIB})
    recording.send(joined._more(0, Event("failed", 1, 199, "RuntimeError: alloc_cpu.cpp", details)))


def replicas(recording: Recording, ranks: int, odd: Callable[[Any, int], Any]) -> None:
    grads = [tensor(name, "grad", place) for place, name in enumerate(("a.weight", "a.bias", "b.weight", "b.bias"))]
    usual = 1.0 + np.arange(200) * 7919.0 + np.arange(4)[:, None]
    for rank in range(ranks):
        values = odd(usual.copy(), rank)
        recording.write(grads, 200, {"checksum_max": values, "checksum_min": values}, rank=rank, world_size=ranks)


def never_alike(recording: Recording) -> None:
    replicas(recording, 2, lambda values, rank: values + 1e6 * rank)


def decided_alone(recording: Recording) -> None:
    at = np.arange(on_mesh.STEPS)
    skipped, scale = 1.0 * (at == 40), np.where(at > 40, 512.0, 1024.0)
    on_mesh.write(
        recording, on_mesh.SQUARE, ["dp"],
        skipped_step=lambda rank: skipped * (rank == 2), loss_scale=lambda rank: scale if rank == 2 else 1024.0,
    )  # fmt: skip


def thawed(recording: Recording) -> None:
    calls = np.ones((4, quiet.STEPS))
    calls[2, : quiet.AT - 1] = 0
    quiet.jump(recording, calls=calls)


def not_restored(recording: Recording) -> None:
    quiet.restored(recording, quiet.AT - 6)


def masked_pool(recording: Recording) -> None:
    quiet.pooled(recording, 24, 24, [quiet.MASK])


def past_wrapper(recording: Recording) -> None:
    quiet.past_wrapper(recording, 8)


def flushed(recording: Recording) -> None:
    setup.half(recording)


ALL = (
    negative, between_masked, norm, at_first, large_batch, growth, reduction, first_step, restarted, rate, contained,
    always_nan, driven, no_gradient, host_memory, killed, growing_memory, never_alike,
    memory_in_pieces, leaking_host,
    decided_alone, thawed, not_restored, masked_pool, past_wrapper, flushed,
)  # fmt: skip

STORED = (host_memory, killed, growing_memory, memory_in_pieces, leaking_host)
"""Those that only a run in a store can have."""
