"""What only the ranks along an axis hold alike: which axis, ranks, parameter and step; and settings of updates."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from rangewatch.statistics import balanced, weight_of
from rangewatch.wire import events
from rangewatch.wire.events import Mesh, MeshAxis, Optimizers, Placement, Placements
from rangewatch.wire.records import Event
from rangewatch_server.machines.mesh import joined_mesh
from rangewatch_server.rules import Finding, Rule
from rangewatch_server.rules.mesh import contradiction, unequal_settings
from rangewatch_server.rules.replicas import mismatch
from tests.server.rules.conftest import Recording, tensor

NAMES = ("a.weight", "norm.weight", "norm.bias")
GRADS = [tensor(name, "grad", place) for place, name in enumerate(NAMES)]
STEPS = 100
Sizes = Mapping[str, int]


def mesh(sizes: Sizes, rank: int) -> Mesh:
    """As an agent declares it: the outermost axis first."""
    axes, stride = [], int(np.prod(list(sizes.values())))
    for name, size in sizes.items():
        stride //= size
        index = rank // stride % size
        axes.append(MeshAxis(name, size, index, rank - index * stride, stride))
    return Mesh("declared", tuple(axes))


def said(sizes: Sizes, rank: int, alike: Sequence[str]) -> tuple[Event, ...]:
    """Of the first parameter all axes are sharded, of the others those `alike` are replicated."""
    sharded = dict.fromkeys(sizes, "shard(0)")
    replicated = sharded | dict.fromkeys(alike, "replicate")
    placements = Placements(
        (Placement(sharded), Placement(replicated, tuple(alike))), {name: int(name != NAMES[0]) for name in NAMES}, 3
    )
    return events.event(mesh(sizes, rank), 1, 0), events.event(placements, 1, 0)


def line(sizes: Sizes, rank: int, alike: Sequence[str]) -> tuple[int, int]:
    """Size and this rank's place among those that hold the same."""
    size, index = 1, 0
    for name in sorted(alike):
        axis = next(each for each in mesh(sizes, rank).axes if each.name == name)
        size, index = size * axis.size, index * axis.size + axis.index
    return size, index


def checksums(sizes: Sizes, rank: int, alike: Sequence[str]) -> np.ndarray:
    """(parameters, steps): another one at each step, and in each group of ranks that hold the same."""
    group = sum(31**at * each.index for at, each in enumerate(mesh(sizes, rank).axes) if each.name not in alike)
    values = 2.0**52 + np.arange(STEPS) * 7919.0 + np.arange(3)[:, np.newaxis] + 104_729.0 * group
    values[0] = 0.0  # what is alike on no other rank is not read
    return values


Change = Callable[[int, np.ndarray], np.ndarray]


def write(
    recording: Recording,
    sizes: Sizes,
    alike: Sequence[str],
    change: Change | None = None,
    **series: Callable[[int], Any],
) -> None:
    count = int(np.prod(list(sizes.values())))
    for rank in range(count):
        values = checksums(sizes, rank, alike)
        values = values if change is None else change(rank, values)
        weight = weight_of(*line(sizes, rank, alike))
        columns = {"axis_checksum": values, "axis_balance": balanced(values, weight)}
        recording.write(
            GRADS, STEPS, columns, rank=rank, world_size=count, events=said(sizes, rank, alike),
            series={name: of(rank) for name, of in series.items()},
        )  # fmt: skip


def odd(ranks: Sequence[int], row: int, step: int) -> Change:
    """These ranks hold something else from a step on."""

    def change(rank: int, values: np.ndarray) -> np.ndarray:
        changed = values.copy()
        changed[row, step:] += 1.0 * (rank in ranks)
        return changed

    return change


def found(recording: Recording, rule: Rule = mismatch.RULE) -> tuple[Finding, ...]:
    return recording.diagnose(rule).findings


SQUARE = {"dp": 2, "tp": 2}
LONG = {"pp": 2, "dp": 4, "tp": 2}


@pytest.mark.parametrize(("sizes", "alike"), [(SQUARE, ["tp"]), (SQUARE, ["dp"]), (LONG, ["dp"]), (LONG, ["dp", "tp"])])
def test_what_is_alike_along_its_axes_is_silent(recording: Recording, sizes: Sizes, alike: list[str]) -> None:
    write(recording, sizes, alike)
    assert found(recording) == ()


@pytest.mark.parametrize("step", [0, 1, 63, 64, 99])
def test_two_ranks_of_which_either_may_be_wrong(recording: Recording, step: int) -> None:
    write(recording, SQUARE, ["tp"], odd([3], 1, step))
    (finding,) = found(recording)
    assert (finding.rank, finding.step, finding.tensor) == (None, step, "norm.weight")
    what = "ranks 2 (dp 1, tp 0) and 3 (dp 1, tp 1) differ in the parameter norm.weight."
    assert finding.summary == f"Step {step}, along tp: {what}"
    assert (finding.facts["axes"], finding.facts["groups"]) == (("tp",), [[2, 3]])
    assert any("only one of 2 groups of 2 ranks along tp" in each for each in finding.evidence)


def test_one_of_several_is_named_with_its_place(recording: Recording) -> None:
    write(recording, LONG, ["dp"], odd([13], 2, 50))
    (finding,) = found(recording)
    assert (finding.rank, finding.step, finding.tensor) == (13, 50, "norm.bias")
    who = "rank 13 (pp 1, dp 2, tp 1)"
    assert (
        finding.summary == f"Step 50, {who}: the parameter norm.bias differs from what the other 3 ranks along dp hold."
    )
    assert finding.facts["last_equal_step"] == 49 and "Test the GPU of rank 13" in finding.remedy[0].text


def test_all_lines_of_an_axis_are_the_code(recording: Recording) -> None:
    write(recording, LONG, ["tp"], odd([rank for rank in range(16) if rank % 2], 1, 20))
    (finding,) = found(recording)
    assert finding.summary == "Step 20, along tp: in all 8 groups of 2 ranks they differ in the parameter norm.weight."
    assert finding.rank is None and "the program's doing" in finding.remedy[0].because
    assert "ranks along tp" in finding.remedy[0].code


def test_of_many_lines_all_are_counted(recording: Recording) -> None:
    write(recording, {"dp": 32, "tp": 2}, ["tp"], odd([rank for rank in range(64) if rank % 2], 1, 20))
    (finding,) = found(recording)
    assert "in all 32 groups of 2 ranks" in finding.summary and len(finding.facts["groups"]) < 32
    assert any("and 27 more groups" in each for each in finding.evidence)


def test_several_axes_at_once(recording: Recording) -> None:
    write(recording, LONG, ["dp", "tp"], odd([9], 1, 70))
    (finding,) = found(recording)
    assert (finding.rank, finding.step) == (9, 70) and "along dp and tp" in finding.summary


def write_with_gradients(recording: Recording, parameter_from: int, gradient_from: int) -> None:
    """All hold the same norms. Rank 2 holds another norm.bias, and from some step on two ranks get another gradient of
    norm.weight."""
    tensors = [*GRADS, *(tensor(name, "reduced_grad", 5 + at) for at, name in enumerate(NAMES))]
    alike = ("dp", "tp")
    for rank in range(4):
        values = np.vstack([checksums(SQUARE, rank, alike)] * 2)
        values[2, parameter_from:] += 1.0 * (rank == 2)
        values[4, gradient_from:] += 1.0 * (rank in (2, 3))
        columns = {"axis_checksum": values, "axis_balance": balanced(values, weight_of(*line(SQUARE, rank, alike)))}
        recording.write(tensors, STEPS, columns, rank=rank, world_size=4, events=said(SQUARE, rank, alike))


def test_gradients_that_differ_since_a_parameter_does_follow_from_it(recording: Recording) -> None:
    write_with_gradients(recording, 40, 40)
    (finding,) = found(recording)
    assert (finding.rank, finding.step, finding.tensor, finding.kind) == (2, 40, "norm.bias", "grad")
    (text,) = finding.consequences
    assert text.startswith("Step 40, along dp and tp: ranks 0-3 differ in the reduced gradient of norm.weight")


def test_gradients_that_differed_before_are_a_finding_of_their_own(recording: Recording) -> None:
    write_with_gradients(recording, 40, 30)
    assert sorted((each.step, each.kind) for each in found(recording)) == [(30, "reduced_grad"), (40, "grad")]


def test_a_gradient_that_differed_once_is_where_its_rank_came_to_differ(recording: Recording) -> None:
    """An update may be too small at first to be seen in the parameter."""
    values = [np.vstack([checksums(SQUARE, rank, ("dp", "tp"))] * 2) for rank in range(4)]
    values[2][2, 40:] += 1.0
    values[2][5, 36] += 1.0
    tensors = [*GRADS, *(tensor(name, "reduced_grad", 5 + at) for at, name in enumerate(NAMES))]
    for rank, each in enumerate(values):
        columns = {"axis_checksum": each, "axis_balance": balanced(each, weight_of(*line(SQUARE, rank, ("dp", "tp"))))}
        events_of = said(SQUARE, rank, ("dp", "tp"))
        recording.write(tensors, STEPS, columns, rank=rank, world_size=4, events=events_of)
    (finding,) = found(recording)
    assert (finding.rank, finding.step, finding.kind) == (2, 36, "reduced_grad")


def test_a_rank_that_did_not_read_accuses_nobody(recording: Recording) -> None:
    def change(rank: int, values: np.ndarray) -> np.ndarray:
        return np.where((np.arange(STEPS) % 3 == 0) & (rank == 1), 0.0, values)

    write(recording, SQUARE, ["tp"], change)
    assert found(recording) == ()


def test_where_nobody_says_how_parameters_lie_nobody_is_accused(recording: Recording) -> None:
    for rank in range(4):
        values = odd([3], 1, 5)(rank, checksums(SQUARE, rank, ["tp"]))
        columns = {"axis_checksum": values, "axis_balance": balanced(values, weight_of(2, rank % 2))}
        recording.write(GRADS, STEPS, columns, rank=rank, world_size=4)
    assert found(recording) == ()


def rate(rank: int, ranks: Sequence[int], step: int) -> np.ndarray:
    return np.where((np.arange(STEPS) >= step) & (rank in ranks), 0.5, 0.25)


def test_a_learning_rate_that_differs(recording: Recording) -> None:
    write(recording, LONG, ["dp"], lr=lambda rank: rate(rank, [6], 30))
    (finding,) = found(recording, unequal_settings.RULE)
    assert (finding.rank, finding.step, finding.subject) == (6, 30, "lr")
    assert finding.summary == (
        "Step 30, rank 6 (pp 0, dp 3, tp 0): the learning rate is 0.5, and 0.25 on the other 7 ranks of the update."
    )


def test_the_learning_rate_of_one_parameter_group_names_it(recording: Recording) -> None:
    """`lr` is that of the other group, the largest: there is nothing to see in it."""
    write(
        recording, SQUARE, ["dp"], lr=lambda rank: 1.0, lr_group_0=lambda rank: 1.0,
        lr_group_1=lambda rank: rate(rank, [2], 30),
    )  # fmt: skip
    recording.write(
        GRADS, 1, rank=0, world_size=4, first=STEPS,
        sequence=1, events=[events.event(Optimizers(groups=("decay", "norm.weight")), 1, STEPS)],
    )  # fmt: skip
    (finding,) = found(recording, unequal_settings.RULE)
    assert (finding.rank, finding.step, finding.subject) == (2, 30, "lr_group_1")
    assert finding.summary == (
        "Step 30, rank 2 (dp 1, tp 0): the learning rate of parameter group 1 (norm.weight) is 0.5, and 0.25 on the "
        "other 3 ranks of the update."
    )


def test_where_the_largest_rate_differs_its_group_is_named_beside(recording: Recording) -> None:
    write(
        recording, SQUARE, ["dp"], lr=lambda rank: rate(rank, [2], 30), lr_group_0=lambda rank: 0.125,
        lr_group_1=lambda rank: rate(rank, [2], 30),
    )  # fmt: skip
    (finding,) = found(recording, unequal_settings.RULE)
    assert (finding.rank, finding.step, finding.subject) == (2, 30, "lr")
    assert any("parameter group 1 is 0.5" in each for each in finding.evidence)


def test_groups_of_unlike_rates_that_all_ranks_have_are_silent(recording: Recording) -> None:
    write(
        recording, SQUARE, ["dp"], lr=lambda rank: 0.5, lr_group_0=lambda rank: 0.5,
        lr_group_1=lambda rank: rate(rank, range(4), 30),
    )  # fmt: skip
    assert found(recording, unequal_settings.RULE) == ()


def test_stages_of_a_pipeline_may_have_rates_of_their_own(recording: Recording) -> None:
    write(recording, LONG, ["dp"], lr=lambda rank: rate(rank, range(8), 0))
    assert found(recording, unequal_settings.RULE) == ()


def test_a_skipped_update_and_a_loss_scale(recording: Recording) -> None:
    at = np.arange(STEPS)
    write(
        recording, SQUARE, ["dp"],
        skipped_step=lambda rank: 1.0 * (at == 40) * (rank == 2),
        loss_scale=lambda rank: np.where((at > 40) & (rank == 2), 512.0, 1024.0),
    )  # fmt: skip
    scale, skip = sorted(found(recording, unequal_settings.RULE), key=lambda each: each.subject)
    assert (scale.step, scale.rank, skip.step, skip.rank) == (41, 2, 40, 2)
    assert skip.summary == "Step 40: rank 2 skipped the update that ranks 0, 1 and 3 made."


def test_equal_settings_are_silent(recording: Recording) -> None:
    write(recording, SQUARE, ["dp"], lr=lambda rank: rate(rank, range(4), 30), loss_scale=lambda rank: 1024.0)
    assert found(recording, unequal_settings.RULE) == ()


def test_ranks_that_contradict_one_another(recording: Recording) -> None:
    for rank in range(4):
        sizes = {"dp": 2, "tp": 2} if rank != 3 else {"tp": 2, "dp": 2}
        recording.write(GRADS, 5, rank=rank, world_size=4, events=said(sizes, rank, ["tp"]))
    (finding,) = found(recording, contradiction.RULE)
    assert finding.severity == "warning" and 3 in finding.facts["ranks"]
    texts = [finding.summary, *finding.evidence]
    assert any("Along tp, rank 2 has ranks 2, 3, and rank 3 of these has ranks 1, 3." in each for each in texts)


def test_a_healthy_mesh_is_silent(recording: Recording) -> None:
    write(recording, LONG, ["dp"])
    assert found(recording, contradiction.RULE) == ()


def test_an_elastic_restart_leaves_the_old_world_behind(recording: Recording) -> None:
    """Four ranks, and then two of them with a mesh of their own."""
    write(recording, SQUARE, ["tp"])
    for rank in range(2):
        sizes = {"dp": 1, "tp": 2}
        recording.write(
            GRADS, 5, rank=rank, world_size=2, first=STEPS, incarnation="b", events=said(sizes, rank, ["tp"])
        )
    assert found(recording, contradiction.RULE) == () and found(recording, unequal_settings.RULE) == ()


def test_joined_axes_are_no_coordinates() -> None:
    """As torchtitan flattens two dimensions into one."""
    sizes = {"pp": 2, "dp": 2, "cp": 2}

    def both(rank: int) -> Mesh:
        own = mesh(sizes, rank)
        return Mesh(own.source, (*own.axes, MeshAxis("dp_cp", 4, rank % 4, rank // 4 * 4, 1)))

    known = joined_mesh({rank: both(rank) for rank in range(8)})
    assert known.joined == {"dp_cp"} and known.problems == ()
    assert known.place_text(5) == "pp 1, dp 0, cp 1"
    assert known.groups_along(["dp_cp"], range(8)) == [(0, 1, 2, 3), (4, 5, 6, 7)]
    assert known.groups_along(["pp", "cp"], [0, 1, 4, 5, 6]) == [(0, 1, 4, 5), (6,)]


@pytest.mark.parametrize(
    "axis",
    [MeshAxis("tp", 2, 1, 0), MeshAxis("tp", 2, 5, 0), MeshAxis("tp", 3, 0, ranks=(0, 1)), MeshAxis("tp", 2, 0, 7)],
)
def test_a_rank_that_is_not_where_it_says_has_no_place(axis: MeshAxis) -> None:
    known = joined_mesh({0: Mesh("declared", (axis,)), 1: mesh({"tp": 2}, 1)})
    assert known.coordinates(0) == {} and known.coordinates(1) == {"tp": 1}
    assert [each.ranks for each in known.problems] == [(0,)]
