"""What must hold along a mesh beside equal parameters: batches, dropout, gradient norms, tied weights, step counts."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from rangewatch.wire import events
from rangewatch.wire.events import Details, Dropouts, NotReduced, Placement, Placements, TiedWeight
from rangewatch_server.rules import Finding, Rule
from rangewatch_server.rules.mesh import (
    batch,
    dropout,
    gradient_norm,
    not_reduced,
    tied_weights,
    unequal_settings,
    values,
)
from rangewatch_server.rules.updates import unchanged_weights
from tests.server.rules.conftest import Recording, tensor
from tests.server.rules.test_axis_replicas import LONG, SQUARE, Sizes, mesh

STEPS = 60
GRADS = [tensor(name, "grad", place, "float32") for place, name in enumerate(("a.weight", "norm.weight"))]
AT = np.arange(STEPS)
Place = Mapping[str, int]
Of = Callable[[int, Place], Any]
"""Rank and its place -> values of a series, (STEPS,)."""


def place_of(sizes: Sizes, rank: int) -> dict[str, int]:
    return {axis.name: axis.index for axis in mesh(sizes, rank).axes}


def number(*parts: int) -> np.ndarray:
    """(STEPS,) another one at each step, and for other parts."""
    return 1.0 + AT * 7919.0 + 104_729.0 * sum(31**at * each for at, each in enumerate(parts))


def write(
    recording: Recording, sizes: Sizes, said: Callable[[int], Sequence[Details]] = lambda rank: (), *, every: int = 0,
    columns: Callable[[int], Any] = lambda rank: None, **series: Of,
) -> None:  # fmt: skip
    """`a.weight` is sharded along "tp", both are replicated along "dp". `every`: three steps of so many have a series;
    0: all have."""
    count = int(np.prod(list(sizes.values())))
    kinds = {"dp": "replicate", "tp": "shard(0)", "cp": "replicate"}
    sharded = {name: kinds[name] for name in sizes if name in kinds}
    replicated = dict.fromkeys(sharded, "replicate")
    placements = Placements(
        (Placement(sharded, ("dp",)), Placement(replicated, tuple(replicated))), {"a.weight": 0, "norm.weight": 1}, 2
    )
    for rank in range(count):
        mine = {name: np.broadcast_to(of(rank, place_of(sizes, rank)), (STEPS,)) for name, of in series.items()}
        reported = [events.event(each, 1, 0) for each in (mesh(sizes, rank), placements, *said(rank))]
        bounds = [0, *(at for at in range(1, STEPS) if every and at % every in (0, 3)), STEPS]
        for sequence, (low, high) in enumerate(itertools.pairwise(bounds)):
            given = {name: each[low:high] for name, each in mine.items()} if not every or low % every < 3 else {}
            cells = {name: np.asarray(each)[..., low:high] for name, each in (columns(rank) or {}).items()}
            recording.write(
                GRADS, high - low, cells, rank=rank, world_size=count, series=given, first=low, sequence=sequence,
                events=reported if not low else (),
            )  # fmt: skip


def found(recording: Recording, rule: Rule) -> tuple[Finding, ...]:
    return recording.diagnose(rule).findings


def one(recording: Recording, rule: Rule) -> Finding:
    (finding,) = found(recording, rule)
    return finding


def reader(rank: int, place: Place) -> np.ndarray:
    """What a healthy loader gives."""
    return number(place.get("dp", 0), 1)


@pytest.mark.parametrize("sizes", [SQUARE, LONG, {"dp": 4}])
def test_a_healthy_loader_is_silent(recording: Recording, sizes: Sizes) -> None:
    write(recording, sizes, token_checksum=reader, rows_checksum=reader)
    assert found(recording, batch.RULE) == ()


def test_data_parallel_ranks_that_share_their_rows(recording: Recording) -> None:
    write(recording, {"dp": 4}, token_checksum=lambda rank, place: np.where(AT < 30, number(rank), number(rank // 2)))
    finding = one(recording, batch.RULE)
    assert (finding.severity, finding.step, finding.facts["axes"]) == ("warning", 30, ("dp",))
    assert finding.facts["groups"] == [[0, 1], [2, 3]] and finding.facts["last_right_step"] == 29
    assert finding.summary.startswith("Step 30, along dp: ranks 0 and 1 both train on the same rows")


def test_a_batch_that_never_changes_is_no_ones(recording: Recording) -> None:
    """As where a loop measures its speed, or overfits one batch."""
    write(recording, {"dp": 4}, token_checksum=lambda rank, place: np.full(STEPS, 5.0))
    assert found(recording, batch.RULE) == ()


def test_rows_that_are_shared_once_are_the_padding_of_a_sampler(recording: Recording) -> None:
    last = lambda rank, place: np.where(AT == STEPS - 1, number(0), number(rank))  # noqa: E731
    write(recording, {"dp": 4}, token_checksum=last)
    assert found(recording, batch.RULE) == ()


@pytest.mark.parametrize(
    ("series", "since", "severity"),
    [("token_checksum", 0, "critical"), ("token_checksum", 20, "critical"), ("rows_checksum", 0, "critical"),
     ("input_checksum", 20, "critical"), ("input_checksum", 0, "info")],
)  # fmt: skip
def test_ranks_of_one_model_with_other_batches(recording: Recording, series: str, since: int, severity: str) -> None:
    """Floating inputs that never were alike may be parts of a sequence."""

    def own(rank: int, place: Place) -> np.ndarray:
        return np.where(since > AT, number(place["dp"]), number(rank, 7))

    write(recording, SQUARE, **{series: own})
    finding = one(recording, batch.RULE)
    assert (finding.severity, finding.step, finding.facts["axes"]) == (severity, since, ("tp",))
    assert finding.facts["groups"] == [[0, 1], [2, 3]] and "get different batches" in finding.summary


def test_the_same_part_of_a_sequence(recording: Recording) -> None:
    sizes = {"dp": 2, "cp": 2}
    own = lambda rank, place: np.where(AT < 10, number(rank), number(place["dp"], 3))  # noqa: E731
    write(recording, sizes, token_checksum=own, rows_checksum=reader)
    finding = one(recording, batch.RULE)
    assert (finding.step, finding.facts["axes"]) == (10, ("cp",)) and "part of the sequence" in finding.summary


def test_later_stages_are_given_other_things(recording: Recording) -> None:
    write(recording, LONG, token_checksum=lambda rank, place: number(place["dp"]) if not place["pp"] else number(0))
    assert found(recording, batch.RULE) == ()


def test_between_readings_the_step_is_a_span(recording: Recording) -> None:
    own = lambda rank, place: np.where(AT < 27, number(rank), number(0))  # noqa: E731
    write(recording, {"dp": 4}, every=20, token_checksum=own)
    finding = one(recording, batch.RULE)
    assert finding.step == 40 and finding.facts["last_right_step"] == 22
    assert any("in one of the steps 23 to 40" in each for each in finding.evidence)


DROPOUTS = Dropouts(("blocks.0.dropout", "blocks.1.dropout"), 1)


def masks(since: int) -> dict[str, Of]:
    return {
        "dropout_input_checksum": lambda rank, place: number(place["dp"]),
        "dropout_output_checksum": lambda rank, place: np.where(since > AT, number(place["dp"], 2), number(rank, 2)),
        "generator_checksum": lambda rank, place: number(rank),
    }


def test_masks_that_differ_where_inputs_do_not(recording: Recording) -> None:
    write(recording, SQUARE, lambda rank: [DROPOUTS], **masks(13))
    finding = one(recording, dropout.RULE)
    assert (finding.severity, finding.step, finding.tensor) == ("critical", 13, "blocks.1.dropout")
    assert finding.facts["axes"] == ("tp",) and finding.facts["groups"] == [[0, 1], [2, 3]]


def test_masks_of_other_inputs_may_differ(recording: Recording) -> None:
    """Sequence parallelism: each rank has its own part there."""
    given = {"dropout_input_checksum": lambda rank, place: number(rank)}
    write(recording, SQUARE, lambda rank: [DROPOUTS], **(masks(0) | given))
    assert found(recording, dropout.RULE) == ()


def test_alike_generators_of_other_data_are_worth_knowing(recording: Recording) -> None:
    alike = {"generator_checksum": lambda rank, place: number(0)}
    write(recording, {"dp": 4, "tp": 1}, lambda rank: [DROPOUTS], **(masks(STEPS) | alike))
    assert [each.severity for each in found(recording, dropout.RULE)] == ["info"]


SHARDS, REPLICA = (3.0, 4.0), 2.0
"""Sums of squares: of the shard of each rank along tp, and of what tp replicates; they grow."""
GROWTH = 1 + AT / 50


def sums(norm: Of, name: str = "clipped_norm") -> dict[str, Of]:
    """Of a model on SQUARE whose gradients are the same on both data-parallel ranks."""
    return {
        "grad_sum_sq": lambda rank, place: (SHARDS[place["tp"]] + REPLICA / 2) / 2 * GROWTH,
        "grad_local_sum_sq": lambda rank, place: (SHARDS[place["tp"]] + REPLICA) * GROWTH,
        name: norm,
    }


def right_norm(rank: int, place: Place) -> np.ndarray:
    return np.sqrt((sum(SHARDS) + REPLICA) * GROWTH)


def twice(rank: int, place: Place) -> np.ndarray:
    return np.where(AT < 25, right_norm(rank, place), np.sqrt((sum(SHARDS) + 2 * REPLICA) * GROWTH))


def alone(rank: int, place: Place) -> np.ndarray:
    return np.where(AT < 25, right_norm(rank, place), np.sqrt((SHARDS[place["tp"]] + REPLICA) * GROWTH))


@pytest.mark.parametrize("name", ["clipped_norm", "grad_norm"])
def test_a_right_norm_is_silent(recording: Recording, name: str) -> None:
    write(recording, SQUARE, **sums(lambda rank, place: 1.001 * right_norm(rank, place), name))
    assert found(recording, gradient_norm.RULE) == ()


@pytest.mark.parametrize("name", ["clipped_norm", "grad_norm"])
@pytest.mark.parametrize(("norm", "kind"), [(twice, "twice"), (alone, "missing")])
def test_a_wrong_norm_says_along_which_axis(recording: Recording, name: str, norm: Of, kind: str) -> None:
    write(recording, SQUARE, **sums(norm, name))
    finding = one(recording, gradient_norm.RULE)
    assert (finding.step, finding.facts[kind]) == (25, ("tp",)), finding
    assert finding.facts["whole"] == pytest.approx(right_norm(0, {})[25])
    assert ("counts more than once" if kind == "twice" else "is left out") in finding.summary


def test_a_norm_that_leaves_out_one_axis_of_two_is_known_by_what_ranks_hold(recording: Recording) -> None:
    """Along tp 1 and 3 of the squares are shards, and 2 are on both. Each rank's norm is right but for the sum over tp:
    it is that of all that no set of ranks holds."""
    sizes = {"pp": 2, "dp": 2, "tp": 2}
    shard, both = {0: 1.0, 1: 3.0}, 2.0
    local = lambda rank, place: shard[place["tp"]] + both  # noqa: E731
    exact = lambda rank, place: shard[place["tp"]] / 2 + both / 4  # noqa: E731
    whole = 2 * (4.0 + both)
    said = lambda rank, place: np.sqrt(np.where(AT < 25, whole, 2 * (shard[place["tp"]] + both)))  # noqa: E731
    write(recording, sizes, grad_sum_sq=exact, grad_local_sum_sq=lambda rank, place: local(rank, place) + 0.7,
          clipped_norm=said)  # fmt: skip
    finding = one(recording, gradient_norm.RULE)
    assert (finding.step, finding.facts["missing"], finding.facts["twice"]) == (25, ("tp",), ())
    assert any("as far apart as what they hold" in each for each in finding.evidence)


def test_norms_of_replicas_whose_gradients_are_not_alike_are_right_of_what_each_holds(recording: Recording) -> None:
    """Nobody has reduced them, which is not the norm's fault."""
    squares = lambda rank, place: 4.0 + 0.2 * rank  # noqa: E731
    write(recording, {"dp": 2}, grad_sum_sq=lambda rank, place: squares(rank, place) / 2, grad_local_sum_sq=squares,
          clipped_norm=lambda rank, place: np.sqrt(squares(rank, place)))  # fmt: skip
    assert found(recording, gradient_norm.RULE) == ()


def test_a_norm_that_nobody_can_know_is_not_judged(recording: Recording) -> None:
    """One rank has no sum: of its parameters it is not known how they lie."""
    write(recording, SQUARE, **sums(twice))
    recording.write(GRADS, STEPS, rank=4, world_size=5)
    assert found(recording, gradient_norm.RULE) == ()


def test_a_mean_of_norms_is_no_other_norm(recording: Recording) -> None:
    wave = lambda rank, place: right_norm(rank, place) * (1 + 0.2 * np.where(AT % 2, 1, -1))  # noqa: E731
    write(recording, SQUARE, **sums(wave, "grad_norm"))
    assert found(recording, gradient_norm.RULE) == ()


def test_a_loop_that_clips_itself_logs_what_was_before(recording: Recording) -> None:
    sizes = {"dp": 4}
    logged = lambda rank, place: 2.0 + AT / 50  # noqa: E731
    write(recording, sizes, grad_sum_sq=lambda rank, place: 1.0 / 4, grad_local_sum_sq=lambda rank, place: 1.0,
          grad_norm=logged)  # fmt: skip
    assert found(recording, gradient_norm.RULE) == ()


def test_a_wrong_count_of_zeros(recording: Recording) -> None:
    counts = {"grad_zero_count": lambda rank, place: 8.0, "num_zeros": lambda rank, place: np.where(AT < 9, 32.0, 16.0)}
    write(recording, SQUARE, **(sums(right_norm) | counts))
    finding = one(recording, gradient_norm.RULE)
    assert finding.step == 9 and "count of zeros in the gradients that is logged as num_zeros is 16" in finding.summary


def tied(since: int, *, is_marked: bool) -> dict[str, Any]:
    def of(rank: int, place: Place) -> np.ndarray:
        return np.where(since > AT, number(0, 1), number(place["pp"], 1))

    def said(rank: int) -> list[TiedWeight]:
        return [TiedWeight("head.weight" if rank >= 8 else "embed.weight", is_marked)]

    return {"said": said, "tied_checksum": of}


@pytest.mark.parametrize(("since", "is_marked"), [(5, False), (5, True), (0, True)])
def test_tied_weights_that_part(recording: Recording, since: int, is_marked: bool) -> None:
    write(recording, LONG, **tied(since, is_marked=is_marked))
    finding = one(recording, tied_weights.RULE)
    assert (finding.severity, finding.step, finding.tensor) == ("critical", since, "embed.weight")
    assert finding.facts["ranks"] == list(range(16)) and finding.facts["names"] == ["embed.weight", "head.weight"]


@pytest.mark.parametrize(("since", "is_marked"), [(0, False), (STEPS, True)])
def test_what_never_was_the_same_is_not_tied(recording: Recording, since: int, is_marked: bool) -> None:
    write(recording, LONG, **tied(since, is_marked=is_marked))
    assert found(recording, tied_weights.RULE) == ()


def test_a_step_that_another_process_has_replayed_is_read_again(recording: Recording) -> None:
    write(recording, LONG, **tied(STEPS, is_marked=True))
    assert found(recording, tied_weights.RULE) == ()
    events_of = [events.event(each, 1, 40) for each in (mesh(LONG, 15), TiedWeight("head.weight", True))]
    replayed = {"tied_checksum": number(9)[40:]}
    recording.write(
        GRADS, STEPS - 40, {}, rank=15, world_size=16, series=replayed, first=40, incarnation="b", events=events_of
    )
    (finding,) = found(recording, tied_weights.RULE)
    assert (finding.step, finding.facts["ranks"]) == (40, [7, 15])


def test_step_counts_that_differ(recording: Recording) -> None:
    counts = lambda rank, place: AT + 1.0 - 10.0 * ((AT >= 41) & (rank == 3))  # noqa: E731
    write(recording, SQUARE, every=20, optimizer_steps=counts)
    finding = one(recording, unequal_settings.RULE)
    assert (finding.step, finding.rank, finding.subject) == (41, 3, "optimizer_steps")
    assert finding.facts["cause_class"] == "replicas"
    assert finding.facts["axes"] == ["dp", "tp"]


def test_stages_make_as_many_updates(recording: Recording) -> None:
    write(recording, LONG, optimizer_steps=lambda rank, place: AT + 1.0 - 1.0 * ((AT >= 7) & (place["pp"] == 1)))
    finding = one(recording, unequal_settings.RULE)
    assert (finding.step, finding.rank, finding.facts["axes"]) == (7, None, ["pp"])


def bits(changed: Sequence[int], since: int = 0) -> Callable[[int], Any]:
    """Checksums of norm.weight change at each step on these ranks, and on all before `since`."""

    def of(rank: int) -> dict[str, np.ndarray]:
        still = np.where(since > AT, number(rank), number(rank)[since])
        checksum = np.stack([number(rank, 2), number(rank) if rank in changed else still])
        return {"axis_checksum": checksum, "axis_balance": np.zeros((2, STEPS))}

    return of


def test_a_parameter_that_no_rank_changes(recording: Recording) -> None:
    write(recording, SQUARE, columns=bits((), 20), lr=lambda rank, place: 0.1)
    finding = one(recording, unchanged_weights.RULE)
    assert (finding.step, finding.tensor, finding.facts["ranks"]) == (20, "norm.weight", [0, 1, 2, 3])


@pytest.mark.parametrize("what", ["one changes it", "no rate", "no gradient", "skipped"])
def test_a_parameter_that_may_stay(recording: Recording, what: str) -> None:
    changed = (3,) if what == "one changes it" else ()
    usual = bits(changed)
    amax = np.array([[1.0], [0.0 if what == "no gradient" else 1.0]])
    write(
        recording, SQUARE, columns=lambda rank: usual(rank) | {"amax": np.broadcast_to(amax, (2, STEPS))},
        lr=lambda rank, place: 0.0 if what == "no rate" else 0.1,
        skipped_step=lambda rank, place: 1.0 * (what == "skipped"),
    )  # fmt: skip
    assert [each.subject for each in found(recording, unchanged_weights.RULE)] == []


def test_a_switch_that_is_left_off(recording: Recording) -> None:
    spell = NotReduced("the update is made inside no_sync()", "a.weight", 12, 4, ("dp",))
    write(recording, SQUARE, lambda rank: [spell])
    finding = one(recording, not_reduced.RULE)
    assert (finding.step, finding.tensor, finding.facts["axes"]) == (12, "a.weight", ("dp",))


def test_a_switch_that_is_on_again(recording: Recording) -> None:
    write(recording, SQUARE, lambda rank: [NotReduced()])
    assert found(recording, not_reduced.RULE) == ()


def apart(recording: Recording, alike: np.ndarray, axes: tuple[str, ...], **more: Any) -> tuple[Finding, ...]:
    """Ranks that are wrapped each for itself; `alike`: (STEPS,) whether the ranks along dp hold the same."""
    spell = NotReduced("fully_shard", "a.weight", 0, 4, axes, is_alone=True)

    def columns(rank: int) -> dict[str, np.ndarray]:
        held = np.where(alike, number(place_of(SQUARE, rank)["tp"]), number(rank, 5))
        return {"axis_checksum": np.stack([held, held]), "axis_balance": np.zeros((2, STEPS))}

    write(recording, SQUARE, lambda rank: [spell], columns=columns, **more)
    return found(recording, not_reduced.RULE)


@pytest.mark.parametrize(
    ("alike", "axes", "severity"),
    [(AT < 9, ("dp",), "warning"), (AT < 0, ("dp",), "info"), (AT < STEPS, ("dp",), ""), (AT % 20 < 9, ("dp",), ""),
     (AT < 9, ("pp",), ""), (AT < 9, ("trial",), "")],
)  # fmt: skip
def test_wrappers_over_one_rank(recording: Recording, alike: np.ndarray, axes: tuple[str, ...], severity: str) -> None:
    """They part, began unlike, are kept alike by other code, are made alike again, or need not be alike."""
    said = apart(recording, alike, axes)
    assert [each.severity for each in said] == [severity] * bool(severity)
    if severity == "warning":
        assert said[0].facts["ranks"] == [0, 2] and said[0].facts["apart_step"] == 9 and said[0].step == 0


def test_ranks_whose_weights_are_averaged_now_and_then(recording: Recording) -> None:
    (finding,) = apart(recording, AT < 9, ("dp",), weights_written=lambda rank, place: 1.0 * (AT % 20 == 19))
    assert finding.severity == "info" and any("local SGD" in each for each in finding.evidence)


@pytest.mark.parametrize(("at", "severity"), [(0, "warning"), (30, "info")], ids=["loaded at the start", "averaged"])
def test_ranks_whose_weights_are_averaged_seldom(recording: Recording, at: int, severity: str) -> None:
    """Once so far, as by DiLoCo every 500 steps, and no checksum was taken in the very next step."""
    (finding,) = apart(recording, AT < 9, ("dp",), weights_written=lambda rank, place: 1.0 * (at == AT))
    assert finding.severity == severity and "local SGD" in " ".join(finding.evidence)


@pytest.mark.parametrize(
    ("axis", "role"),
    [("dp_replicate", "data"), ("dp_shard", "data"), ("TP", "tensor"), ("cp", "sequence"), ("pp", "stages"),
     ("ep", ""), ("mesh_dim_0", "")],
)  # fmt: skip
def test_what_an_axis_is_for(axis: str, role: str) -> None:
    assert values.role(axis) == role
