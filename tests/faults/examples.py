"""One run made by hand for each kind of fault, of values that are the same at each writing: docs/diagnosis.md shows
what is said of them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np

from rangewatch.statistics import experts, in_use
from rangewatch.statistics.scales import AGE, HIGH, LOW, PEAK
from rangewatch.wire.events import (
    BatchRows,
    Clipping,
    EvaluatedInTrain,
    EvaluationMode,
    FormatOf,
    FormatsInUse,
    FrozenInTrain,
    LossBroadcast,
    LossFunction,
    NotReduced,
    Optimizers,
    OwnSteps,
    RepeatedOrder,
    RepeatedRandom,
    Router,
    Routers,
    RowLoss,
    SampledWeights,
    ScaledOperand,
    ScaledOperands,
    SequenceAxes,
    UnscaledLoss,
    UntiedWeights,
    event,
)
from rangewatch.wire.records import Event, TensorEntry
from tests.faults.families.resumes import cosine, replayed
from tests.server.routes import test_collectives_api as ranks
from tests.server.rules import test_along_mesh as along
from tests.server.rules import test_axis_replicas as on_mesh
from tests.server.rules import test_joined_causes as joined
from tests.server.rules import test_repeated_layers as stages
from tests.server.rules.conftest import FROM_TABLES, Recording, tensor
from tests.server.rules.loss_scales import GRAD_A, GRAD_B, LAYERS, bad, scaled

STEPS, BAD = 90, 80
MODEL = [
    tensor("blocks.2.ff.up", call_index=0), tensor("blocks.2.ff.gate", call_index=1, module="Gate"),
    tensor("blocks.2.ff.down", call_index=2), tensor("blocks.2.ff.down", "grad_output", 3),
    tensor("blocks.2.ff.down.weight", "grad", 4), tensor("blocks.2.ff.gate", "grad_output", 5),
    tensor("blocks.2.ff.up.weight", "grad", 6),
]  # fmt: skip
UP, GATE, DOWN, DOWN_GRADIENT, _, GATE_GRADIENT, _ = range(7)
ATTENTION = [
    tensor("attn.q"),
    tensor("attn.softmax", call_index=1, module="Softmax"),
    tensor("attn.q.weight", "grad", 2),
]
WEIGHTS = [tensor(f"layers.{at}.weight", "grad", at, "float32") for at in range(6)]


@dataclasses.dataclass(frozen=True)
class Example:
    """`title` is its heading under its rule; "" where the rule has but one."""

    rule: str
    title: str
    write: Callable[[Recording], None]

    @property
    def name(self) -> str:
        return f"{self.rule} {self.title}".strip()

    @property
    def is_stored(self) -> bool:
        """Whether only a run in a store can have it."""
        return self.rule in FROM_TABLES


def wave(steps: int, size: float = 0.3, rows: int = 1) -> Any:
    """(rows, steps): what goes up and down without order, and is no random number."""
    at = np.arange(rows)[:, None] * 7 + np.arange(steps) + 1.0
    return size * np.modf(at * 0.6180339887 + at**2 * 0.7548776662)[0] * 2 - size


def facts(name: str, amax: float = 1.0, nan: int = 0, inf: int = 0, **more: Any) -> dict[str, Any]:
    counts = {"nan_count": nan, "inf_count": inf, "zero_count": 0, "negative_count": 0}
    return {"name": name, "dtype": "float16", "shape": [4, 8], "numel": 32, "amax": amax} | counts | more


def nonfinite(recording: Recording, at: int, model: Any = MODEL, what: str = "nan_count", **more: Any) -> None:
    """Tensor `at` and all after it are bad from step `BAD` on; `more` is what the agent told of the first."""
    counts = np.zeros((len(model), STEPS))
    counts[at:, BAD:] = 1
    columns = {what: counts} | more.pop("columns", {})
    first = model[at]
    reported = {"fqn": first.fqn, "kind": first.kind, "index": 0, "inputs": [facts("input[0]")], "weights": []}
    reported |= {"model_inputs": [facts("x")]} | more.pop("reported", {})
    events = [Event("nonfinite", 1, BAD, "", reported)]
    recording.write(model, STEPS, columns, events=events, **more)


def overflow(recording: Recording) -> None:
    amax = np.ones((len(MODEL), STEPS))
    amax[UP, : BAD + 1] = 6.27e4 / 2.0 ** (0.4 * np.arange(BAD, -1, -1.0).clip(max=20))
    nonfinite(
        recording, GATE, what="inf_count", columns={"amax": amax},
        reported={"inputs": [facts("input[0]", 6.27e4)]},
    )  # fmt: skip


def batch(recording: Recording) -> None:
    spoiled = facts("x", nan=3)
    nonfinite(recording, UP, reported={"inputs": [spoiled | {"name": "input[0]"}], "model_inputs": [spoiled]})


def adam(recording: Recording) -> None:
    state = [facts("exp_avg_sq", 1e-4, zero_count=5)]
    optimizer = {"class": "Adam", "parameter": "blocks.2.ff.up.weight", "lr": 1e-3, "eps": 1e-8, "state": state}
    nonfinite(recording, UP, reported={"weights": [facts("blocks.2.ff.up.weight", nan=5)], "optimizer": optimizer})


def loaded(recording: Recording) -> None:
    reported = {"weights": [facts("blocks.2.ff.up.weight", nan=1)]}
    nonfinite(recording, UP, reported=reported)


def masked(recording: Recording) -> None:
    row = facts("input[0]", inf=9, negative_inf_count=9, masked_rows=1)
    nonfinite(recording, 1, ATTENTION, reported={"inputs": [row]})


def zero(recording: Recording) -> None:
    nonfinite(recording, GATE, what="inf_count", reported={"inputs": [facts("input[0]", zero_count=1)]})


def between(recording: Recording) -> None:
    nonfinite(recording, DOWN, reported={"inputs": [facts("input[0]", nan=2)]})


def backward(recording: Recording) -> None:
    nonfinite(recording, GATE_GRADIENT, series={"loss": np.ones(STEPS)})


def loss(recording: Recording) -> None:
    nonfinite(recording, DOWN_GRADIENT, series={"loss": np.where(np.arange(STEPS) >= BAD, np.nan, 1.0)})


def scales(recording: Recording, series: dict[str, Any], *rows: int, amax: Any = 16.0, **columns: Any) -> None:
    given = {"inf_count": bad(series, *rows), "amax": amax} | columns
    recording.write(LAYERS, len(series["skipped_step"]), given, series=series, loss_scaled=True)


def collapse(recording: Recording) -> None:
    scales(recording, scaled(200, range(170, 200)), GRAD_B, GRAD_A)


def standing(recording: Recording) -> None:
    scales(recording, scaled(6_200, (), first=64.0, interval=10**9))


def falling(recording: Recording) -> None:
    scales(recording, scaled(400, range(145, 400, 30), first=2.0**18, interval=40), GRAD_B, GRAD_A)


def past_use(recording: Recording) -> None:
    wide = [tensor(each.fqn, each.kind, each.call_index, "bfloat16") for each in LAYERS]
    recording.write(wide, 60, series=scaled(60, (), interval=20), loss_scaled=True)


def underflow(recording: Recording) -> None:
    at = np.zeros((2, 450))
    at[:, ::100] = 1_000
    share, rms = np.array([[0.9], [0.8]]), 1e-6
    columns = {"full_numel": at, "subnormal_count": at * share, "zero_count": 0 * at, "sum_sq": at * rms**2}
    layers = [tensor("blocks.0", "grad_output", 1), tensor("embed", "grad_output", 2)]
    recording.write(
        layers, 450, columns | {"numel": 1_000.0, "amax": 1e-5}, series=scaled(450, (), first=8.0), loss_scaled=True
    )


def replica(recording: Recording) -> None:
    grads = [tensor(name, "grad", place) for place, name in enumerate(("a.weight", "a.bias", "b.weight", "b.bias"))]
    usual = 1.0 + np.arange(200) * 7919.0 + np.arange(4)[:, None]
    for rank in range(4):
        values = usual.copy()
        values[2, 150:] += rank == 2
        recording.write(grads, 200, {"checksum_max": values, "checksum_min": values}, rank=rank, world_size=4)


def along_axis(recording: Recording) -> None:
    odd = [rank for rank in range(16) if rank % 2]
    on_mesh.write(recording, on_mesh.LONG, ["tp"], on_mesh.odd(odd, 1, 60))


def settings(recording: Recording) -> None:
    on_mesh.write(recording, on_mesh.LONG, ["dp"], lr=lambda rank: on_mesh.rate(rank, [6], 30))


def contradiction(recording: Recording) -> None:
    for rank in range(4):
        sizes = {"tp": 2, "dp": 2} if rank == 3 else {"dp": 2, "tp": 2}
        recording.write(on_mesh.GRADS, 5, rank=rank, world_size=4, events=on_mesh.said(sizes, rank, ["tp"]))


def same_rows(recording: Recording) -> None:
    def tokens(rank: int, place: along.Place) -> Any:
        return np.where(along.AT < 30, along.number(rank), along.number(rank // 2))

    along.write(recording, {"dp": 4}, token_checksum=tokens)


def other_rows(recording: Recording) -> None:
    def rows(rank: int, place: along.Place) -> Any:
        return np.where(along.AT < 20, along.number(place["dp"]), along.number(rank, 7))

    along.write(recording, along.SQUARE, rows_checksum=rows)


def dropouts(recording: Recording) -> None:
    along.write(recording, along.SQUARE, lambda rank: [along.DROPOUTS], **along.masks(13))


def norm(recording: Recording) -> None:
    along.write(recording, along.SQUARE, **along.sums(along.twice))


def tied(recording: Recording) -> None:
    along.write(recording, {"pp": 2, "dp": 4, "tp": 2}, **along.tied(5, is_marked=True))


def repeated(recording: Recording) -> None:
    stages.write(recording, lambda layer, part: stages.drawn(layer % 2, part))


def not_reduced(recording: Recording) -> None:
    spell = NotReduced("the update is made inside no_sync()", "a.weight", 12, 4, ("dp",))
    along.write(recording, along.SQUARE, lambda rank: [spell])


def own_steps(recording: Recording) -> None:
    def columns(rank: int) -> Any:
        held = np.where(along.AT < 1, along.number(3), along.number(rank, 5))
        return {"axis_checksum": np.stack([held, held]), "axis_balance": np.zeros((2, len(held)))}

    said = [OwnSteps(128, 0, "a.weight")]
    along.write(recording, {"trial": 2}, lambda rank: said, columns=columns, lr=lambda rank, place: 0.1)


def same_order(recording: Recording) -> None:
    events = [event(RepeatedOrder("DistributedSampler", 1, 20), 1, 23)]
    recording.write(WEIGHTS, STEPS, series={"loss": 1.0}, events=events)


def same_random(recording: Recording) -> None:
    at = np.arange(STEPS)
    events = [event(RepeatedRandom(12, 12), 1, 15)]
    recording.write(WEIGHTS, STEPS, series={"loss": 1.0, "input_rms": 1 + at % 12 / 100}, events=events)


def few_batches(recording: Recording) -> None:
    recording.write(WEIGHTS, STEPS, series={"loss": 1.0, "input_rms": 1 + np.arange(STEPS) % 6 / 100})


def one_class(recording: Recording) -> None:
    at = np.arange(STEPS)
    share = np.where(at % 8 == 0, np.where(at < 20, 0.2, 1.0), np.nan)
    recording.write(
        WEIGHTS, STEPS, series={"loss": 1.0, "target_share": share, "target_class": at // 8 % 30 + 0 * share}
    )


def padding_read(recording: Recording) -> None:
    share = 0.6 + 0.1 * np.sin(np.arange(STEPS))
    recording.write(WEIGHTS, STEPS, series={"loss": 0.69, "token_share": share, "attention_share": 1 - share})


def step_counts(recording: Recording) -> None:
    def counts(rank: int, place: along.Place) -> Any:
        return along.AT + 1.0 - 10.0 * ((along.AT >= 41) & (rank == 3))

    along.write(recording, along.SQUARE, optimizer_steps=counts)


def same_bits(recording: Recording) -> None:
    along.write(recording, along.SQUARE, columns=along.bits((), 20), lr=lambda rank, place: 0.1)


def died(recording: Recording) -> None:
    recording.write(joined.LAYERS, 200, world_size=2)
    recording.write(joined.LAYERS, 150, rank=1, world_size=2)
    recording.send(joined._more(1, joined.died(1, joined.SEGFAULT)))


def memory(recording: Recording) -> None:
    devices = {"0": {"allocated_peak_bytes": 70 << 30, "reserved_bytes": 75 << 30, "total_bytes": 80 << 30}}
    recording.write(joined.LAYERS, 200)
    said = Event("failed", 1, 199, "OutOfMemoryError: CUDA out of memory", {"out_of_memory": True, "devices": devices})
    recording.send(joined._more(0, said))


def hang(recording: Recording) -> None:
    joined.send(recording, late=None)
    waits = {"op": "all_reduce", "sequence": 80, "bytes": 4096, "dtype": "float32", "waited_s": 9.0}
    for rank in range(ranks.RANKS):
        event = ranks.hung(rank, 79) if rank == 2 else ranks.hung(rank, 80, waits)
        recording.send(ranks.batch(ranks.KNOWN, 1, [], rank=rank, events=(event,)))


def gpu(recording: Recording) -> None:
    joined.send(recording, rank2=(joined.throttled(2), ranks.host()))


def straggler(recording: Recording) -> None:
    joined.send(recording)


def data(recording: Recording) -> None:
    recording.write(joined.LAYERS, 200, series=joined.PHASES)


def headroom(recording: Recording) -> None:
    bits = np.r_[np.full(60, 8.0), 8.0 + 0.2 * np.arange(1, 26)] + wave(85, 0.05)[0]
    amax = np.stack([np.ones(85), 2.0**bits, np.ones(85)])
    recording.write([tensor(f"blocks.{at}.ff", call_index=at) for at in range(3)], 85, {"amax": amax})


def rising(recording: Recording) -> None:
    at = np.arange(1_000)
    measured = (at % 100 == 0) * 1_000.0
    full = {
        "full_numel": measured, "zero_count": measured / 2, "amax": 2.0**-8,
        "subnormal_count": measured / 2 * np.maximum(0.0, (at - 500) / 1_000),
        "sum_sq": measured * 4.0 ** -(10 + at / 200),
    }  # fmt: skip
    recording.write([tensor("blocks.3.ff", "grad_output")], 1_000, full, loss_scaled=True, series={"loss": 1.0})


def gradients(recording: Recording, row: int, since: int, factor: float, steps: int) -> None:
    amax = 2.0 ** wave(steps, 0.5, len(WEIGHTS))
    amax[row, since:] *= factor
    recording.write(WEIGHTS, steps, {"amax": amax})


def exploding(recording: Recording) -> None:
    gradients(recording, 2, 145, 2_000.0, 150)


def vanishing(recording: Recording) -> None:
    gradients(recording, 1, 150, 2.0**-20, 200)


def updates(recording: Recording) -> None:
    read = (np.arange(350) % 100 == 0) * 1.0
    layers = [tensor("head.weight", "weight", 0, "float32"), tensor("head.weight", "update", 1, "float32")]
    sizes = np.stack([read, 2.0 * read])
    columns = {"call_count": read, "numel": 32 * read, "amax": sizes, "full_numel": 32 * read, "sum_sq": 32 * sizes**2}
    recording.write(layers, 350, columns)


def read_around_updates(steps: int, value: Any) -> Any:
    """(steps,) the value where an update is compared with its weight: at the steps 1, 2, 4, 8, 16 and each 32nd."""
    at = np.arange(steps)
    is_read = (at > 0) & ((at % 32 == 0) | ((at < 32) & (at & (at - 1) == 0)))
    return np.where(is_read, value, np.nan)


def moved_seldom(recording: Recording) -> None:
    rates, steps = 2.5e-6 * (1 + np.arange(240) // 60), 240
    series = {"loss": 2.3 + wave(steps, 0.02)[0], "lr": rates, "update_fraction": read_around_updates(steps, 1e-4)}
    recording.write(WEIGHTS, steps, series=series, events=[event(Optimizers(("AdamW",), initial_lr=1e-3), 1, 2)])


def strong_decay(recording: Recording) -> None:
    part = read_around_updates(240, np.where(np.arange(240) < 20, 0.1, 0.0))
    series = {"loss": 3.18 + wave(240, 0.02)[0], "lr": 2e-3, "decay_fraction": part}
    recording.write(WEIGHTS, 240, series=series, events=[event(Optimizers(("AdamW",), weight_decay=0.1), 1, 2)])


def unchanged(recording: Recording) -> None:
    read = (np.arange(350) % 100 == 0) * 1.0
    layers = [tensor("embed.weight", "weight", 0, "float32"), tensor("embed.weight", "grad", 1, "float32")]
    calls, full = np.stack([read, np.ones(350)]), np.stack([32 * read, 0 * read])
    columns = {"call_count": calls, "numel": 32 * calls, "amax": calls, "full_numel": full, "sum_sq": full / 100}
    recording.write(layers, 350, columns, series={"lr": 0.0})


def dead(recording: Recording) -> None:
    amax = np.ones((2, 100))
    amax[1, 50:] = 0
    recording.write([tensor("blocks.0.up"), tensor("blocks.0.act", call_index=1, module="ReLU")], 100, {"amax": amax})


def saturated(recording: Recording) -> None:
    full = (np.arange(350) % 100 == 0) * 32.0
    recording.write([tensor("blocks.0.gate", module="Tanh")], 350, {"full_numel": full, "sum_sq": 0.999 * full})


def moments(recording: Recording) -> None:
    layers = [tensor(f"blocks.{place}.up.weight", "exp_avg_sq", place, "float32") for place in range(2)]
    read = (np.arange(350) % 100 == 0).astype(float)
    counts = {"call_count": read, "numel": 32 * read, "full_numel": 32 * read, "moved_count": 32 * read}
    below = 32 * read * np.array([[0.0], [0.875]])
    recording.write(layers, 350, counts | {"amax": 4e-20 * read, "eps_count": below})


def logits(recording: Recording) -> None:
    grows = 2.0 ** (4 + 0.03 * np.arange(200) + wave(200, 0.2)[0])
    recording.write([tensor("blocks.0.attn.softmax", "input", module="Softmax")], 200, {"amax": grows})


EXPERTS = [tensor("blocks.2.moe.router", module="TopKRouter")]


def routing(recording: Recording, share: Any, count: int = 16, top_k: int = 2) -> None:
    """A router gives 4,096 tokens a step to its experts, (experts, STEPS) of `share` each."""
    tokens = np.round(4096 * top_k * np.asarray(share) / np.sum(share, axis=0))
    columns = {experts.ROUTED: 4096.0} | {experts.column(at): tokens[at][None] for at in range(count)}
    routers = Routers((Router(EXPERTS[0].fqn, count, top_k, 0, EXPERTS[0].fqn),))
    recording.write(EXPERTS, STEPS, columns, events=[event(routers, 1, 0)])


def uneven(count: int = 16) -> Any:
    """(experts, STEPS) of shares as healthy routers have them."""
    return 1 + wave(STEPS, 0.3, count)


def idle_experts(recording: Recording) -> None:
    model = [
        tensor("moe.router.weight", "grad", 0, "bfloat16"),
        *(tensor(f"moe.experts.{at}.up.weight", "grad", 1 + at, "bfloat16") for at in range(4)),
    ]
    amax = 0.1 + wave(200, 0.02, len(model))
    amax[2, 40:] = 0.0
    recording.write(model, 200, {"amax": amax, "call_count": amax > 0})


def operands(recording: Recording, bits: Any, *, age: Any = 0, history: int = 0, rank: int = 0, ranks: int = 1) -> None:
    """An input and a gradient in FP8, both read at each of the STEPS; the input's peak is 2^`bits`, (STEPS,)."""
    cast = [tensor("blocks.2.up", "scaled_input", 0, "bfloat16"), tensor("blocks.2.up", "scaled_grad_output", 1)]
    peaks = np.stack([2.0 ** np.broadcast_to(np.asarray(bits, float), STEPS), np.ones(STEPS)])
    ages = np.stack([np.broadcast_to(np.asarray(age, float), STEPS), np.zeros(STEPS)])
    columns = {PEAK: peaks, HIGH: 250.0, LOW: 262.0, AGE: ages}
    source, recipe = ("TransformerEngine", "DelayedScaling") if history else ("torchao float8", "dynamic, tensorwise")
    known = ScaledOperands((
        ScaledOperand("blocks.2.up", "scaled_input", 0, "E4M3", "tensor", "float32", source, recipe, history),
        ScaledOperand("blocks.2.up", "scaled_grad_output", 0, "E5M2", "tensor", "float32", "torchao float8"),
    ))  # fmt: skip
    recording.write(cast, STEPS, columns, events=[event(known, 1, 0)], rank=rank, world_size=ranks)


def small_scale(recording: Recording) -> None:
    """torchtitan#3109: with tensor parallelism each rank makes the scale of what it holds itself."""
    for rank in range(2):
        operands(recording, np.where((np.arange(STEPS) >= 50) & (rank == 1), 3.0, 0.0), rank=rank, ranks=2)


def lagging_scale(recording: Recording) -> None:
    operands(recording, np.maximum(0.05 * (np.arange(STEPS) - 50), 0), age=1, history=16)


def held_scale(recording: Recording) -> None:
    operands(
        recording, np.where(np.arange(STEPS) >= 50, -10.0, 0.0), age=np.maximum(np.arange(STEPS) - 48, 0), history=1024
    )


def dead_expert(recording: Recording) -> None:
    share = uneven()
    share[5, 50:] = 0
    routing(recording, share)


def overloaded_expert(recording: Recording) -> None:
    share = uneven()
    share[3, 50:] = 10.0
    routing(recording, share)


def rounded_too_far(recording: Recording) -> None:
    model = [
        tensor("blocks.0.norm.weight", "weight", 0, "float32"),
        tensor("blocks.1.norm.weight", "weight", 1, "float32"),
    ]
    columns = {f"in_use_{name}": np.zeros((2, 60)) for name in in_use.NAMES}
    of_reading = {
        "count": 64.0, "sum_sq": 57.8, "spread_sq": 0.006, "error_sq": 0.37, "saturated_count": 64.0,
        "relative_error": 5.1,
    }  # fmt: skip
    for name, value in of_reading.items():
        columns[f"in_use_{name}"][:, 20::10] = value
    formats = FormatsInUse((FormatOf("weight", "*.norm.*", "mxfp8_e4m3"),))
    recording.write(model, 60, columns, events=[event(formats, 1_000, 0)])


def expert_collapse(recording: Recording) -> None:
    share = uneven()
    share[:, 50:] = 0
    share[[3, 7], 50:] = 1
    routing(recording, share)


def losses(recording: Recording, values: Any) -> None:
    recording.write([tensor("blocks.0")], len(values), series={"loss": values})


def bad_loss(recording: Recording) -> None:
    losses(recording, np.where(np.arange(200) == 150, np.nan, 1.0))


def bad_evaluation(recording: Recording) -> None:
    series = {"loss": 1.0, "val_loss": np.where(np.arange(200) == 149, np.nan, 1.2)}
    recording.write([tensor("head")], 200, series=series)


def spike(recording: Recording) -> None:
    losses(recording, np.r_[np.full(192, 2.0), np.full(8, 6.0)] + wave(200, 0.1)[0])


def stuck(recording: Recording) -> None:
    layers = [tensor("blocks.0.weight", "grad"), tensor("blocks.1.weight", "grad", 1)]
    is_before = np.arange(300) < 240
    loss = np.where(is_before, 1.6, 1.9)
    recording.write(layers, 300, {"amax": np.where(is_before, 0.1, 0.0)}, series={"loss": loss})


def plateau(recording: Recording) -> None:
    losses(recording, 2.3 + wave(1_400, 0.05)[0])


def moment(recording: Recording) -> None:
    scales(recording, scaled(200, [150], first=4096.0), GRAD_B, GRAD_A)


def failed(recording: Recording) -> None:
    said = Event("failed", 1, 199, "ValueError: Expected more than 1 value per channel when training", {})
    recording.write(joined.LAYERS, 200, events=[said])


def outlier(recording: Recording) -> None:
    model = [
        tensor("stem", dtype="float32", module="Conv2d"), tensor("bn", call_index=1, module="BatchNorm2d"),
        tensor("fc", call_index=2), tensor("", call_index=3, module="ResNet"),
    ]  # fmt: skip
    amax = 2 + wave(STEPS, rows=len(model))
    amax[0, BAD] *= 1e8
    recording.write(model, STEPS, {"amax": amax}, series={"loss": 1 + wave(STEPS)[0]})


def moment_of_loss(recording: Recording) -> None:
    model = [tensor("embed", module="Embedding"), tensor("head", call_index=1), tensor("head.weight", "grad", 2)]
    amax, loss = 2 + wave(STEPS, rows=len(model)), 2 + wave(STEPS)[0]
    amax[2, BAD] *= 20
    loss[BAD] = 9.0
    rows = BatchRows((17, 203, 204, 511), 4, largest=(RowLoss(203, 30.0), RowLoss(17, 2.0)), median=2.0, loss_count=4)
    recording.write(model, STEPS, {"amax": amax}, series={"loss": loss}, events=[event(rows, 1, BAD)])


def by_design(recording: Recording) -> None:
    model = [tensor("attn.mask"), tensor("attn.scores", call_index=1), *ATTENTION[1:]]
    counts = np.zeros((len(model), 60))
    counts[:2] = 12
    recording.write(model, 60, {"inf_count": counts}, series={"loss": np.linspace(2, 1, 60)})


def kept_gradients(recording: Recording) -> None:
    told = {"classes": ["SGD"], "trainable_count": 6, "kept_gradient_steps": 32}
    recording.write(WEIGHTS, 200, {"amax": 1.0}, events=[Event("optimizers", 1, 131, "", told)])


def changed(recording: Recording) -> None:
    norm = np.append(3 + wave(STEPS)[0, :BAD], np.full(STEPS - BAD, 1e6))
    for rank in range(2):
        recording.write(WEIGHTS, STEPS, rank=rank, world_size=2, series={"clipped_norm": norm})


def clipped(recording: Recording) -> None:
    series = {"clipped_norm": 5e4, "loss_scale": 65536.0}
    events = [event(Clipping(1.0, True, 16), 1, 45)]
    recording.write(WEIGHTS, STEPS, series=series, events=events, loss_scaled=True)


def turned_round(recording: Recording) -> None:
    recording.write(WEIGHTS, STEPS, events=[event(Clipping(-0.02, False, 0), 1, 61)])


def clipped_early(recording: Recording) -> None:
    recording.write(WEIGHTS, STEPS, events=[event(Clipping(1.0, False, 0, 16), 1, 15)])


def decayed(recording: Recording) -> None:
    recording.write(WEIGHTS, 300, series={"loss": 1.0, "lr": 2e-3 * 0.9 ** np.arange(300)})


def begins_high(recording: Recording) -> None:
    at = np.arange(STEPS)
    rate = 1e-3 * np.maximum(1.0, 60 / (1 + at))
    loss = np.where(at < 5, 2.3 + at, 2.3)
    known = [event(Optimizers(("AdamW",), initial_lr=1e-3), 1, 2)]
    recording.write(WEIGHTS, STEPS, series={"loss": loss, "lr": rate}, events=known)


def divided_twice(recording: Recording) -> None:
    updates = np.r_[np.full(60, 1e-3), np.full(100, 1e-3 / 16384)]
    events = [event(Optimizers(("SGD",)), 1, 2), event(SampledWeights(("embed.weight",), True), 1, 2)]
    series = {"lr": 1e-2, "sampled_update": updates, "loss_scale": 16384.0}
    table = [tensor("embed.weight", "grad", 0, "float32")]
    recording.write(table, 160, {"amax": np.full((1, 160), 1638.4)}, series=series, events=events, loss_scaled=True)


def of_a_lambda(recording: Recording) -> None:
    rates, steps = 9e-6 * (1 + 3e-4 * np.arange(240)) ** -0.75, 240
    series = {"loss": 2.3 + wave(steps, 0.02)[0], "lr": rates}
    recording.write(WEIGHTS, steps, series=series, events=[event(Optimizers(("SGD",), initial_lr=3e-3), 1, 2)])


def softmax_twice(recording: Recording) -> None:
    recording.write(WEIGHTS, STEPS, series={"loss": 2.2}, events=[event(LossFunction("nll", 10, "Softmax"), 1, 0)])


def all_alike(recording: Recording) -> None:
    values = np.full(STEPS, np.nan)
    values[1] = 1.0
    recording.write(WEIGHTS, STEPS, series={"loss": 2.3, "alike_rows": values})


def rate_too_high(recording: Recording) -> None:
    series = {"loss": 2.3 + wave(STEPS, 0.02)[0], "lr": 0.5}
    recording.write(WEIGHTS, STEPS, series=series, events=[event(Optimizers(("Adam",)), 1, 2)])


def large_inputs(recording: Recording) -> None:
    series = {"loss": np.linspace(400, 5, STEPS), "input_rms": 5e3}
    recording.write(WEIGHTS, STEPS, series=series, events=[event(LossFunction("nll", 10), 1, 0)])


def large_targets(recording: Recording) -> None:
    series = {"loss": np.linspace(4.2e10, 4.0e10, 200)}
    recording.write(WEIGHTS, 200, series=series, events=[event(LossFunction("mse", target_rms=2e5), 1, 0)])


def through_depth(recording: Recording) -> None:
    layers = [tensor(f"blocks.{at}.weight", "grad", 12 - at, "float32") for at in range(12)]
    amax = np.broadcast_to(2.0 ** (-3.0 * np.arange(12)[::-1] - 4)[:, None], (12, 200))
    recording.write(layers, 200, {"amax": amax}, series={"loss": 2.3})


def clip_too_low(recording: Recording) -> None:
    events = [event(Optimizers(("SGD",)), 1, 2), event(Clipping(1e-4, far_steps=16), 1, 15)]
    recording.write(WEIGHTS, 240, series={"loss": 2.3 + wave(240, 0.02)[0], "lr": 0.1}, events=events)


def unscaled(recording: Recording) -> None:
    events = [event(UnscaledLoss(4, 12, True), 1, 15)]
    recording.write(WEIGHTS, STEPS, series={"loss_scale": 16384.0}, events=events, loss_scaled=True)


def gain(recording: Recording) -> None:
    model = [tensor(f"{at // 2}.{('norm', 'linear')[at % 2]}", "output", at, "float32", ("LayerNorm", "Linear")[at % 2])
             for at in range(8)]  # fmt: skip
    amax = np.ones((8, STEPS))
    amax[3] = 700.0
    recording.write(model, STEPS, {"amax": amax})


def in_eval(recording: Recording) -> None:
    events = [event(EvaluationMode(8, 3, 2, True), 1, 67)]
    recording.write(MODEL, STEPS, {"amax": 2 + wave(STEPS, rows=len(MODEL))}, events=events)


def teacher_in_train(recording: Recording) -> None:
    events = [event(FrozenInTrain(8, "blocks.2.ff", 1, 1, 2), 1, 67)]
    recording.write(MODEL, STEPS, {"amax": 2 + wave(STEPS, rows=len(MODEL))}, events=events)


def evaluated_in_train(recording: Recording) -> None:
    events = [event(EvaluatedInTrain(2, 61, 4, 3, 0, "train.py:41"), 1, 71)]
    recording.write(MODEL, STEPS, {"amax": 2 + wave(STEPS, rows=len(MODEL))}, events=events)


def large_logits(recording: Recording) -> None:
    model = [
        tensor("norm", dtype="float32", module="LayerNorm"),
        TensorEntry("head", "output", 0, "float32", (228, 400), 1, "Linear"),
        tensor("head.weight", "grad", 2, "float32"),
    ]  # fmt: skip
    amax = np.array([[3.6], [121.0], [0.4]])
    events = [event(LossFunction("nll", 400), 1, 0)]
    recording.write(model, STEPS, {"amax": amax}, series={"loss": np.linspace(89.0, 60.0, STEPS)}, events=events)


def broadcast(recording: Recording) -> None:
    events = [event(LossBroadcast("MseLoss", (256, 1), (256,), (256, 256)), 1, 0)]
    recording.write(MODEL, STEPS, {"amax": 2 + wave(STEPS, rows=len(MODEL))}, events=events)


def mixed_axes(recording: Recording) -> None:
    known = SequenceAxes("lstm", "LSTM", False, (48, 40, 32), (48, 40, 2), 48, 4, False, 1, 0)
    recording.write(MODEL, STEPS, {"amax": 2 + wave(STEPS, rows=len(MODEL))}, events=[event(known, 1, 0)])


def untied(recording: Recording) -> None:
    events = [event(UntiedWeights(("words.weight", "head.weight")), 1, 60)]
    recording.write(MODEL, STEPS, {"amax": 2 + wave(STEPS, rows=len(MODEL))}, events=events)


def swapped_betas(recording: Recording) -> None:
    events = [event(Optimizers(("Adam",), momentum=0.999, second_beta=0.9), 1, 2)]
    recording.write(MODEL, STEPS, {"amax": 2 + wave(STEPS, rows=len(MODEL))}, events=events)


def momentum_past_one(recording: Recording) -> None:
    events = [event(Optimizers(("SGD",), momentum=1.002), 1, 61)]
    recording.write(MODEL, STEPS, {"amax": 2 + wave(STEPS, rows=len(MODEL))}, events=events)


def around_updates(
    recording: Recording, model: Any, pushed: Any, unmoved: Any, zero: Any, size: float = np.inf, rate: float = 3e-5,
    *events: Any,
) -> None:  # fmt: skip
    """At the steps 1, 2, 4, 8, 16 and each 32nd, of 4,096 elements each."""
    steps, given = 200, {"sampled_count": 4096, "pushed_count": pushed, "unmoved_count": unmoved}
    given["zero_weight_count"] = zero
    columns = {name: np.zeros((len(model), steps)) for name in given}
    columns |= {"unmoved_amin": np.full((len(model), steps), np.inf), "sampled_rate": np.zeros((len(model), steps))}
    for name, values in (given | {"unmoved_amin": size, "sampled_rate": rate}).items():
        columns[name][:, [1, 2, 4, 8, 16, *range(32, steps, 32)]] = np.reshape(values, (-1, 1))
    loss = 1.9 + wave(steps, 0.05)[0]
    recording.write(model, steps, columns, series={"loss": loss, "lr": rate}, events=events)


def far_from_zero(recording: Recording) -> None:
    known = event(Optimizers(("Adam",)), 1, 2)
    model = [tensor("beacons.weight", "grad", 0, "float32")]
    around_updates(recording, model, 4096, 4096, 0, 4.8e6, 0.05, known)


def rounded(recording: Recording) -> None:
    model = [tensor(f"layers.{at}.weight", "grad", at, "bfloat16") for at in range(3)]
    around_updates(recording, model, 4096, [[3900], [3800], [4000]], 0)


def at_zero(recording: Recording) -> None:
    model = [tensor("blocks.0.gain", "grad", 0, "float32"), tensor("stem.weight", "grad", 1, "float32")]
    around_updates(recording, model, [[0], [4096]], 0, [[4096], [0]])


def ignored(recording: Recording) -> None:
    model = [tensor(f"{name}.weight", "grad", at, "float32") for at, name in enumerate(("embed", "body", "head"))]
    recording.write(model, 100, {"amax": 0.0}, series={"loss": np.log(2.0)})


def summed(recording: Recording) -> None:
    calls = np.where(np.arange(STEPS) < BAD - 20, 1, 8)
    amax = (0.2 + wave(STEPS, 0.03, len(WEIGHTS))) * np.where(calls > 1, 4.1, 1.0)
    events = [event(Optimizers(("SGD",)), 1, 2)]
    series = {"loss": 2.1 + wave(STEPS, 0.05)[0], "lr": 0.04}
    recording.write(WEIGHTS, STEPS, {"call_count": calls, "amax": amax}, series=series, events=events)


def starts_over(recording: Recording) -> None:
    plan = replayed(cosine(20, 160), 60, 5)
    recording.write(WEIGHTS, STEPS, series={"loss": 1.0, "lr": 2e-3 * np.array([plan(at) for at in range(STEPS)])})


def turns(recording: Recording) -> None:
    plan = np.cos(np.pi * np.arange(STEPS) / (STEPS // 2))
    recording.write(WEIGHTS, STEPS, series={"loss": 1.0, "lr": 1e-3 * (1 + plan)})


def learning_lost(recording: Recording) -> None:
    loss = np.r_[np.linspace(2.3, 1.0, 60), np.linspace(1.0, 2.2, 20), np.full(60, 2.2)] + wave(140, 0.05)[0]
    rate = np.linspace(4e-4, 5e-2, 140)
    recording.write(WEIGHTS, 140, series={"loss": loss, "lr": rate})


ALL = (
    Example("first_nonfinite", "A value that is too large for its dtype", overflow),
    Example("first_nonfinite", "A function that is not finite at 0", zero),
    Example("first_nonfinite", "A row of an attention that is masked whole", masked),
    Example("first_nonfinite", "A batch that was bad", batch),
    Example("first_nonfinite", "A weight that something wrote", loaded),
    Example("first_nonfinite", "A weight that its optimizer made bad", adam),
    Example("first_nonfinite", "Code between the modules", between),
    Example("first_nonfinite", "A loss that is not finite", loss),
    Example("first_nonfinite", "A backward pass", backward),
    Example("loss_scale_collapse", "", collapse),
    Example("loss_scale_never_grows", "It stands still", standing),
    Example("loss_scale_never_grows", "It only falls", falling),
    Example("loss_scale_growing_past_use", "", past_use),
    Example("gradient_underflow", "", underflow),
    Example("replica_mismatch", "One rank of all", replica),
    Example("replica_mismatch", "All ranks along an axis of the mesh", along_axis),
    Example("unequal_settings", "A learning rate", settings),
    Example("unequal_settings", "The optimizer's step count", step_counts),
    Example("mesh_contradiction", "", contradiction),
    Example("gradients_not_reduced", "A switch that stays off", not_reduced),
    Example("gradients_not_reduced", "Nobody reduces anything", own_steps),
    Example("repeated_order", "", same_order),
    Example("repeated_random", "Torch's random numbers", same_random),
    Example("repeated_random", "A few batches, drawn by a generator of their own", few_batches),
    Example("sorted_classes", "", one_class),
    Example("padding_mask", "", padding_read),
    Example("schedule_restarted", "", starts_over),
    Example("schedule_turned", "", turns),
    Example("schedule_begins_high", "", begins_high),
    Example("schedule_over", "", decayed),
    Example("batch_along_mesh", "The same rows on several ranks", same_rows),
    Example("batch_along_mesh", "Ranks of one model with other rows", other_rows),
    Example("dropout_mismatch", "", dropouts),
    Example("gradient_norm_wrong", "", norm),
    Example("tied_weights_differ", "", tied),
    Example("repeated_layers", "", repeated),
    Example("rank_died", "", died),
    Example("out_of_memory", "", memory),
    Example("hang", "", hang),
    Example("gpu_health", "", gpu),
    Example("straggler", "", straggler),
    Example("data_bound", "", data),
    Example("headroom_trend", "", headroom),
    Example("underflow_rising", "", rising),
    Example("exploding_gradient", "", exploding),
    Example("gradients_changed", "A norm that grows", changed),
    Example("gradients_changed", "Updates that shrink", divided_twice),
    Example("clipped_scaled", "", clipped),
    Example("unscaled_loss", "", unscaled),
    Example("clip_limit", "A limit below 0", turned_round),
    Example("clip_limit", "A clip before the backward", clipped_early),
    Example("gradients_not_zeroed", "", kept_gradients),
    Example("vanishing_gradient", "One layer", vanishing),
    Example("vanishing_gradient", "Through the depth of a model", through_depth),
    Example("loss_input", "", softmax_twice),
    Example("alike_rows", "", all_alike),
    Example("update_ratio", "Updates as large as the weight", updates),
    Example("update_ratio", "A warm-up that is moved once an epoch", moved_seldom),
    Example("update_ratio", "A rate that is far too high", rate_too_high),
    Example("update_ratio", "A clip that leaves next to nothing", clip_too_low),
    Example("update_ratio", "A schedule's function that returns the rate", of_a_lambda),
    Example("update_ratio", "Weight decay that is not multiplied by the learning rate", strong_decay),
    Example("adam_moments", "", moments),
    Example("unchanged_weights", "Of one process", unchanged),
    Example("unchanged_weights", "On every rank", same_bits),
    Example("format_in_use", "", rounded_too_far),
    Example("dead_activation", "", dead),
    Example("saturated_activation", "", saturated),
    Example("attention_logits", "", logits),
    Example("scale_too_small", "", small_scale),
    Example("scale_stale", "Behind growth", lagging_scale),
    Example("scale_stale", "Held by an old amax", held_scale),
    Example("expert_collapse", "", expert_collapse),
    Example("dead_expert", "By counted tokens", dead_expert),
    Example("dead_expert", "By gradients", idle_experts),
    Example("overloaded_expert", "", overloaded_expert),
    Example("outlier_batch", "", outlier),
    Example("initial_gain", "", gain),
    Example("initial_loss", "Logits", large_logits),
    Example("initial_loss", "Inputs", large_inputs),
    Example("initial_loss", "Targets", large_targets),
    Example("target_broadcast", "", broadcast),
    Example("sequence_axes", "", mixed_axes),
    Example("untied_weights", "", untied),
    Example("optimizer_settings", "Betas in the wrong order", swapped_betas),
    Example("optimizer_settings", "A momentum of 1 or more", momentum_past_one),
    Example("evaluation_mode", "The whole model in eval()", in_eval),
    Example("evaluation_mode", "A frozen part in train()", teacher_in_train),
    Example("evaluation_mode", "Evaluated in train()", evaluated_in_train),
    Example("rounded_updates", "Weights in 16 bits", rounded),
    Example("rounded_updates", "Far from 0 in float32", far_from_zero),
    Example("held_at_zero", "", at_zero),
    Example("no_gradient", "", ignored),
    Example("summed_microbatches", "", summed),
    Example("loss_nonfinite", "", bad_loss),
    Example("evaluation_nonfinite", "", bad_evaluation),
    Example("loss_spike", "", spike),
    Example("learning_lost", "", learning_lost),
    Example("loss_stuck", "", stuck),
    Example("short_spike", "", moment_of_loss),
    Example("loss_plateau", "", plateau),
    Example("inf_by_design", "", by_design),
    Example("rank_failed", "", failed),
    Example("loss_scale_unexplained_skip", "", moment),
)
