"""The first difference of two runs: planted ones are found where they are, and equal pairs make no claim."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from rangewatch.wire.records import Catalogue, TensorEntry
from rangewatch_server.views.side_by_side.first_difference import Limits, find, unwrapped
from tests.server.opened_store import Store
from tests.server.process import Server
from tests.server.records import batch, catalogue, opening

STEPS = 60


class Runs:
    """A database of one test's runs."""

    def __init__(self, store: Store) -> None:
        self.store, self.count = store, 0

    def send(self, amax: Any, known: Catalogue | None = None, **more: Any) -> int:
        known, self.count = known or catalogue(6, "float32"), self.count + 1
        run = f"run {self.count}"
        columns = {"amax": amax} | more.pop("columns", {})
        self.store.send(opening(known, run=run, world_size=more.pop("world_size", 1)))
        self.store.send(batch(known, 0, range(STEPS), columns, run=run, **more))
        return self.count

    def first(self, one: int, two: int, *noise: int, **limits: float) -> dict[str, Any]:
        with self.store.queries.read() as reader:
            runs = [reader.run(each) for each in (one, two, *noise)]
            assert None not in runs
            return find(runs[0], runs[1], runs[2:], Limits(**limits))  # type: ignore[arg-type]


@pytest.fixture
def runs(sqlite_url: str, open_store: Callable[[str], Store]) -> Runs:
    return Runs(open_store(sqlite_url))


def values(seed: int = 0, noise: float = 0.0) -> Any:
    """(tensors, steps): the same for all, and noise of the seed's own that grows with the steps."""
    common = np.random.default_rng(1).uniform(0.5, 2.0, (6, STEPS))
    own = np.random.default_rng(seed).normal(size=(6, STEPS))
    return common * (1 + noise * own * (1 + np.arange(STEPS) / 20))


def test_one_bit_is_a_difference_where_nothing_is_noise(runs: Runs) -> None:
    one, other = values(), values()
    other[4, 31:] = np.nextafter(other[4, 31:], 9)
    other[2, 40:] *= 2
    found = runs.first(runs.send(one), runs.send(other))
    assert (found["step"], found["count"]) == (31, 1)
    assert found["tensors"][0]["label"] == "blocks.4.ff grad_output" and found["matched"] == 6
    assert 0 < found["tensors"][0]["difference_bits"] < 1e-14
    equal = runs.first(runs.send(one), runs.send(one))
    assert (equal["step"], equal["loss"], equal["is_whole"], equal["compared_stop"]) == (None, None, True, STEPS)


def test_the_first_of_a_step_is_the_first_that_was_called(runs: Runs) -> None:
    one, other = values(), values()
    other[2:, 17:] *= 1.5
    found = runs.first(runs.send(one), runs.send(other))
    assert (found["step"], found["count"]) == (17, 4)
    assert [each["tensor"] for each in found["tensors"]] == [2, 3, 4, 5]
    assert found["tensors"][0]["difference_bits"] == pytest.approx(np.log2(1.5))


def test_noise_of_repeated_runs_is_no_difference(runs: Runs) -> None:
    base = [runs.send(values(seed, 1e-5)) for seed in range(4)]
    other = values(9, 1e-5)
    assert runs.first(base[0], runs.send(other))["step"] == 0, "without knowing the noise"
    assert runs.first(base[0], runs.send(other), *base[1:])["step"] is None
    other[3, 25:] *= 1.01
    found = runs.first(base[0], runs.send(other), *base[1:])
    assert (found["step"], found["tensors"][0]["tensor"], found["count"]) == (25, 3, 1)
    assert 0 < found["tensors"][0]["allowed_bits"] < found["tensors"][0]["difference_bits"]


def test_a_tolerance_is_of_the_greater(runs: Runs) -> None:
    one, other = values(), values() * 1.001
    other[1, 8:] *= 1.1
    pair = runs.send(one), runs.send(other)
    assert runs.first(*pair)["step"] == 0
    found = runs.first(*pair, tolerance=0.01)
    assert (found["step"], found["tensors"][0]["tensor"]) == (8, 1)


def test_two_precisions_may_differ_by_the_coarser_ones(runs: Runs) -> None:
    one, other = values(), values() * 1.01
    other[5, 12:] *= 1.5
    found = runs.first(runs.send(one), runs.send(other, catalogue(6, "bfloat16")))
    assert found["floor_bits"] == pytest.approx(-np.log2(1 - 8 / 128))
    assert (found["step"], found["tensors"][0]["tensor"]) == (12, 5)


def test_of_two_precisions_the_losses_may_differ_as_much(runs: Runs) -> None:
    """Any training in bfloat16 was said to part from the one in float32 at its first step."""
    loss = np.linspace(3, 2, STEPS)
    other = loss * 1.003
    half = catalogue(6, "bfloat16")
    pair = runs.send(values(), series={"loss": loss}), runs.send(values(), half, series={"loss": other})
    assert runs.first(*pair)["loss"] is None
    other[44:] *= 1.2
    far = runs.send(values(), half, series={"loss": other})
    assert runs.first(pair[0], far)["loss"]["step"] == 44
    repeat = runs.send(values(), half, series={"loss": loss * 1.0001})
    assert runs.first(*pair, repeat)["loss"]["step"] == 0, "the noise takes its place"


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_two_layouts_may_differ_by_their_precision(runs: Runs, dtype: str) -> None:
    """They add in another order: a bias near 0 of tensor parallelism in bfloat16 was 4 % apart after seven steps."""
    known, other = catalogue(6, dtype, kinds=("output", "weight")), values() * 1.03
    other[4, 21:] *= 1.5
    pair = runs.send(values(), known), runs.send(other, known, world_size=2)
    found = runs.first(*pair)
    assert (found["step"], found["tensors"][0]["tensor"]) == ((21, 4) if dtype == "bfloat16" else (0, 0))
    repeat = runs.send(values() * 1.001, known, world_size=2)
    assert runs.first(*pair, repeat)["step"] == 0, "the noise takes its place"


@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "float8_e5m2"])
def test_of_formats_of_eight_bits_what_is_far_apart_differs_all_the_same(runs: Runs, dtype: str) -> None:
    known, other = catalogue(6, dtype, kinds=("output", "weight")), values()
    other[4, 21:] *= 100
    found = runs.first(runs.send(values(), known), runs.send(other, known, world_size=2))
    assert (found["step"], found["tensors"][0]["tensor"], found["floor_bits"]) == (21, 4, 1.0)


def test_nan_on_one_side_alone_parts_them(runs: Runs) -> None:
    bad = np.zeros((6, STEPS))
    bad[3, 20:] = 2
    one = runs.send(values())
    found = runs.first(one, runs.send(values(), columns={"nan_count": bad}))
    assert (found["step"], found["tensors"][0]["tensor"]) == (20, 3)
    assert found["tensors"][0]["other_nonfinite_count"] == 2
    both = [runs.send(values(), columns={"nan_count": bad}) for _ in range(2)]
    assert runs.first(*both)["step"] is None


def test_a_mean_square_shows_what_the_largest_does_not(runs: Runs) -> None:
    squares = np.full((6, STEPS), 8.0)
    other = squares.copy()
    other[2, 33:] = 10.0
    full = np.full((6, STEPS), 32.0)
    pair = [runs.send(values(), columns={"full_numel": full, "sum_sq": each, "amin": 0.1}) for each in (squares, other)]
    found = runs.first(*pair)
    assert (found["step"], found["tensors"][0]["tensor"]) == (33, 2)
    assert found["tensors"][0]["difference_bits"] == pytest.approx(np.log2(10 / 8) / 2)


def test_names_match_without_what_wrappers_put_in(runs: Runs) -> None:
    plain = catalogue(6, "float32")
    entries = tuple(
        TensorEntry(f"module._orig_mod.{each.fqn}", each.kind, each.index, each.dtype, each.shape, each.call_index)
        for each in plain.tensors
    )
    other = values()
    other[1, 5:] *= 2
    found = runs.first(runs.send(values()), runs.send(other, Catalogue(plain.statistics, entries)))
    assert (found["step"], found["matched"], found["only_here"]["count"]) == (5, 6, 0)
    assert unwrapped("_fsdp_wrapped_module.blocks.0._checkpoint_wrapped_module.ff") == "blocks.0.ff"


def test_the_loss_alone_parts_them(runs: Runs) -> None:
    loss = np.linspace(3, 2, STEPS)
    other = loss.copy()
    other[44:] += 0.5
    found = runs.first(*(runs.send(values(), series={"loss": each}) for each in (loss, other)))
    assert found["step"] is None
    assert found["loss"] == {"step": 44, "values": [loss[44], other[44]]}


def test_runs_without_common_steps_or_tensors(runs: Runs) -> None:
    known = catalogue(2, "float32", kinds=("weight",))
    found = runs.first(runs.send(values()), runs.send(1.0, known))
    assert (found["matched"], found["step"], found["only_there"]["count"]) == (0, None, 2)


def test_the_route_takes_noise_and_refuses_what_cannot_be(served: Server) -> None:
    ids = []
    for seed in range(3):
        known, name = catalogue(6, "float32"), f"first difference {seed}"
        assert served.post(opening(known, run=name)).status_code == 202
        assert served.post(batch(known, 0, range(STEPS), {"amax": values(seed, 1e-5)}, run=name)).status_code == 202
        ids.append(next(each["id"] for each in served.get("/api/v1/runs")["runs"] if each["name"] == name))
    one, two, three = ids
    path = f"/api/v1/compare/first?run={one}&run={two}"
    assert served.get(path)["step"] == 0
    found = served.get(f"{path}&noise={three}&margin=100")
    assert (found["step"], [each["id"] for each in found["noise"]]) == (None, [three])
    for more in (f"&run={three}", "&margin=0", "&tolerance=nan", "&noise=99999999", "&noise=x"):
        assert served.client.get(path + more).status_code in (400, 404, 422), more


@pytest.mark.parametrize("seed", [0, *(pytest.param(each, marks=pytest.mark.slow) for each in range(1, 5))])
def test_planted_differences_and_equal_pairs(runs: Runs, seed: int) -> None:
    """Eight planted in each of five, and ten equal pairs: none is missed or made up."""
    random = np.random.default_rng(seed)
    base, *repeats = (runs.send(values(100 * seed + each, 1e-6)) for each in range(4))
    for place in range(8):
        tensor, step = int(random.integers(6)), int(random.integers(1, STEPS))
        other = values(100 * seed + 50 + place, 1e-6)
        other[tensor, step:] *= 1 + 10 ** random.uniform(-3, 0)
        found = runs.first(base, runs.send(other), *repeats)
        assert (found["step"], found["tensors"][0]["tensor"]) == (step, tensor)
    for place in range(10):
        equal = values(100 * seed + 70 + place, 1e-6)
        assert runs.first(base, runs.send(equal), *repeats)["step"] is None


def test_of_two_layouts_gradients_before_their_reduction_are_left_out(runs: Runs) -> None:
    """Of half the batch they are twice as large; and what the model itself gives is a stage's."""
    entries = [TensorEntry(fqn, kind, 0, "float32", (4,), place, "Linear") for place, (fqn, kind) in enumerate(
        [("a", "output"), ("", "output"), ("a", "grad_output"), ("a.weight", "grad"), ("a.weight", "weight")]
    )]  # fmt: skip
    known = Catalogue(catalogue(1).statistics, tuple(entries))
    one, halves = np.ones((5, STEPS)), np.ones((5, STEPS))
    halves[1:4] = 2.0
    loss = {"loss": np.ones(STEPS)}, {"loss": np.full(STEPS, 2.0)}
    alone, same = runs.send(one, known, series=loss[0]), runs.send(halves, known, series=loss[1])
    ranks = runs.send(halves, known, series=loss[1], world_size=2)
    found = runs.first(alone, ranks)
    assert (found["step"], found["loss"], found["matched"]) == (None, None, 2)
    assert found["left_out"] == ["grad_output", "grad", "scaled_grad_output"]
    found = runs.first(alone, same)
    assert (found["step"], found["count"], found["left_out"]) == (0, 3, []) and found["loss"]["step"] == 0
    halves[4, 7:] = 3.0
    assert runs.first(alone, runs.send(halves, known, world_size=2))["step"] == 7
