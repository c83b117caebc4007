"""Sketches that ranks have added up: whether bits are equal, how far two tensors are apart, and what is claimed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from rangewatch.statistics import ALL, sketches
from rangewatch.statistics.sketches import HALF, HIGH, LOW, MINUS, NUMEL, PLUS, PROJECTIONS, SUM_SQ, WHOLE
from rangewatch.wire.records import Catalogue
from rangewatch_server.views.side_by_side import sketch_distance
from tests.server.opened_store import Store
from tests.server.records import batch, catalogue, opening
from tests.server.views import test_first_difference

TENSORS, STEPS, ELEMENTS = 4, 40, 64
Array = NDArray[Any]
SIGNS = np.random.default_rng(5).choice([-1.0, 1.0], (PROJECTIONS, ELEMENTS))
WORDS = np.random.default_rng(6).integers(0, 2**63, ELEMENTS, dtype=np.uint64) * np.uint64(2) + np.uint64(1)
KNOWN = Catalogue((*ALL, *sketches.ALL), catalogue(TENSORS, "float32", kinds=("weight",)).tensors)


def columns(values: Array, part: slice = slice(None)) -> dict[str, Array]:
    """Those of `values`, (tensors, steps, elements), of which a rank has a `part`: the agent's, but for the mixing."""
    mine = values[..., part]
    bits = np.ascontiguousarray(mine).view(np.uint64)
    hashes = (bits * WORDS[part] ^ bits >> np.uint64(7)).sum(-1, dtype=np.uint64)
    projected = mine @ SIGNS[:, part].T
    found = {
        "amax": np.abs(mine).max(-1), WHOLE: np.full(mine.shape[:2], float(ELEMENTS)),
        NUMEL: np.full(mine.shape[:2], float(mine.shape[-1])), SUM_SQ: np.square(mine).sum(-1),
        HIGH: (hashes // np.uint64(HALF)).astype(float), LOW: (hashes % np.uint64(HALF)).astype(float),
    }  # fmt: skip
    found |= {name: np.maximum(projected[..., at], 0.0) for at, name in enumerate(PLUS)}
    return found | {name: np.maximum(-projected[..., at], 0.0) for at, name in enumerate(MINUS)}


class Runs(test_first_difference.Runs):
    """Those of tensors that are given element by element."""

    def send_cut(self, values: Array, ranks: int = 1, every: int = 1, known: Catalogue = KNOWN) -> int:
        """Cut over so many ranks, and sketched at each `every`th step."""
        self.count += 1
        run = f"run {self.count}"
        for rank in range(ranks):
            part = slice(rank * ELEMENTS // ranks, (rank + 1) * ELEMENTS // ranks)
            sent = columns(values, part)
            is_due = np.arange(STEPS) % every == 0
            sent = {name: each if name == "amax" else np.where(is_due, each, 0.0) for name, each in sent.items()}
            sent = {name: each for name, each in sent.items() if name in {e.name for e in known.statistics}}
            self.store.send(opening(known, run=run, world_size=ranks, rank=rank))
            self.store.send(batch(known, 0, range(STEPS), sent, run=run, rank=rank))
        return self.count


@pytest.fixture
def runs(sqlite_url: str, open_store: Callable[[str], Store]) -> Runs:
    return Runs(open_store(sqlite_url))


def values(seed: int = 0, noise: float = 0.0) -> Array:
    common = np.random.default_rng(1).normal(size=(TENSORS, STEPS, ELEMENTS))
    own = np.random.default_rng(seed).normal(size=common.shape)
    return common * (1 + noise * own)


def test_a_swap_that_statistics_do_not_see_parts_them(runs: Runs) -> None:
    one, other = values(), values()
    other[2, 17:] = np.roll(other[2, 17:], 5, axis=-1)
    found = runs.first(runs.send_cut(one), runs.send_cut(other))
    assert (found["step"], found["count"], found["tensors"][0]["tensor"]) == (17, 1, 2)
    first = found["tensors"][0]
    truth = np.linalg.norm(one[2, 17] - other[2, 17]) / np.linalg.norm(one[2, 17])
    assert (first["difference_bits"], first["sketch"]["is_equal"], first["sketch"]["allowed"]) == (0.0, False, 0.0)
    assert first["sketch"]["low"] < truth < first["sketch"]["high"]
    assert found["sketched"] == {
        "tensors": 4, "equal": 3,
        "first_unequal": {"step": 17, "label": "blocks.2.ff weight", "distance": first["sketch"]["distance"]},
        "furthest": found["sketched"]["furthest"],
    }  # fmt: skip


def test_any_cut_over_ranks_is_the_same(runs: Runs) -> None:
    one, other = values(), values()
    alone = runs.send_cut(one)
    for ranks in (2, 3, 5):
        found = runs.first(alone, runs.send_cut(one, ranks))
        assert (found["step"], found["sketched"]["equal"]) == (None, TENSORS), ranks
    other[1, 30:, [0, 63]] = other[1, 30:, [63, 0]]
    found = runs.first(alone, runs.send_cut(other, 4))
    assert (found["step"], found["tensors"][0]["tensor"]) == (30, 1)


def test_equal_bits_are_no_difference_whatever_sums_of_squares_say(runs: Runs) -> None:
    """They are added in another order where a tensor is cut otherwise."""
    one, full = values(), np.full((TENSORS, STEPS), 64.0)
    ids = []
    for factor in (1.0, 1.0 + 1e-12):
        runs.count += 1
        run = f"run {runs.count}"
        sent = columns(one) | {"full_numel": full, "sum_sq": full * factor, "amin": full}
        runs.store.send(opening(KNOWN, run=run))
        runs.store.send(batch(KNOWN, 0, range(STEPS), sent, run=run))
        ids.append(runs.count)
    assert runs.first(*ids)["step"] is None


def test_a_part_that_is_missing_is_unknown_and_no_difference(runs: Runs) -> None:
    one = values()
    short = columns(one, slice(0, 50)) | {"amax": np.abs(one).max(-1)}
    runs.count += 1
    runs.store.send(opening(KNOWN, run="run 1"))
    runs.store.send(batch(KNOWN, 0, range(STEPS), short, run="run 1"))
    found = runs.first(1, runs.send_cut(one))
    assert (found["step"], found["sketched"]["tensors"]) == (None, 0)


def test_two_that_lack_the_same_part_are_not_taken_for_whole() -> None:
    one, other = values(), values()
    other[2] = other[2, :, ::-1]
    cut = slice(0, 50)
    assert np.isnan(sketch_distance.distance(columns(one, cut), columns(other, cut))).all()


def test_without_sketches_on_one_side_nothing_is_said_of_them(runs: Runs) -> None:
    plain = Catalogue(ALL, KNOWN.tensors)
    found = runs.first(runs.send_cut(values()), runs.send_cut(values(), known=plain))
    assert (found["step"], found["sketched"]) == (None, None)


def test_noise_of_repeats_is_no_difference_and_a_swap_beyond_it_is_one(runs: Runs) -> None:
    base, *repeats = (runs.send_cut(values(seed, 1e-6), every=4) for seed in range(3))
    equal = values(7, 1e-6)
    found = runs.first(base, runs.send_cut(equal, every=4), *repeats, tolerance=1e-4)
    assert (found["step"], found["sketched"]["equal"]) == (None, 0)
    other = values(8, 1e-6)
    other[3, 18:, [1, 2]] = other[3, 18:, [2, 1]]
    found = runs.first(base, runs.send_cut(other, every=4), *repeats, tolerance=1e-4)
    assert (found["step"], found["tensors"][0]["tensor"]) == (20, 3), "the next step that has a sketch"
    assert 0 < found["tensors"][0]["sketch"]["allowed"] < found["tensors"][0]["sketch"]["low"]


def test_of_what_no_repeat_has_sketches_no_distance_is_a_difference(runs: Runs) -> None:
    plain = Catalogue(ALL, KNOWN.tensors)
    one, other = runs.send_cut(values()), values()
    other[1:3, :, [3, 40]] = other[1:3, :, [40, 3]]
    two, repeat = runs.send_cut(other), runs.send_cut(values(), known=plain)
    assert runs.first(one, two)["step"] == 0
    assert runs.first(one, two, repeat)["step"] is None


def test_steps_that_are_merged_are_compared_all_the_same(runs: Runs) -> None:
    """A step and the next have signs of their own, so that their sums are of both."""
    one, other = values(), values()
    other[2, 17, [3, 40]] = other[2, 17, [40, 3]]
    merged = [
        {name: each.reshape(TENSORS, -1, 8).sum(-1) for name, each in columns(pair).items() if name != WHOLE}
        | {WHOLE: np.full((TENSORS, STEPS // 8), float(ELEMENTS))}
        for pair in (one, other)
    ]
    distance = sketch_distance.distance(*merged)
    assert np.argwhere(distance > 0).tolist() == [[2, 2]]


def test_a_hash_is_of_64_bits_in_any_grouping() -> None:
    """Of a million ranks: halves add up to whole numbers that float64 holds."""
    random = np.random.default_rng(0)
    hashes = random.integers(0, 2**64, 1_000_000, dtype=np.uint64)
    base = {name: np.zeros((1, 1)) for name in sketch_distance.COLUMNS} | {
        WHOLE: np.full((1, 1), 1e6), NUMEL: np.full((1, 1), 1e6),
    }  # fmt: skip
    halves = [(hashes >> np.uint64(32)), hashes & np.uint64(HALF - 1)]
    summed = {name: np.full((1, 1), each.astype(float).sum()) for name, each in zip((HIGH, LOW), halves, strict=True)}
    total = int(hashes.sum(dtype=np.uint64))
    whole = {HIGH: np.full((1, 1), float(total >> 32)), LOW: np.full((1, 1), float(total % HALF))}
    assert sketch_distance.distance(base | summed, base | whole) == 0
    whole[LOW] += 1
    assert sketch_distance.distance(base | summed, base | whole) == sketch_distance.LEAST


def test_numbers_out_of_all_bounds() -> None:
    base = {name: np.full((1, 1), 1e308) for name in sketch_distance.COLUMNS} | {
        WHOLE: np.full((1, 1), 1.0), NUMEL: np.full((1, 1), 1.0), HIGH: np.zeros((1, 1)), LOW: np.zeros((1, 1)),
    }  # fmt: skip
    other = base | {SUM_SQ: np.zeros((1, 1)), LOW: np.ones((1, 1))} | {PLUS[0]: np.full((1, 1), np.inf)}
    for pair in ((base, other), (other, base), (other, other | {LOW: np.zeros((1, 1))})):
        found = sketch_distance.distance(*pair)
        assert found > 0 and np.isfinite(found)
        shown = sketch_distance.shown(found.item(), float("inf"))
        assert shown is not None and shown["allowed"] is None and all(np.isfinite([shown["low"], shown["high"]]))


@pytest.mark.parametrize("sent", [2.0**53 + 2, 1e300, float("inf")])
@pytest.mark.parametrize("half", [HIGH, LOW])
def test_a_hash_that_float64_no_longer_holds_says_nothing(half: str, sent: float) -> None:
    """It depends on the order in which parts were added, and an agent may send anything."""
    base = {name: np.full((1, 1), 1.0) for name in sketch_distance.COLUMNS}
    other = base | {half: np.full((1, 1), sent)}
    for pair in ((base, other), (other, base), (other, other)):
        assert np.isnan(sketch_distance.distance(*pair))
