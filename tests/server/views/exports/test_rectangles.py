"""Rectangles: what is read for a statistic depends on what else is asked for; what is answered does not."""

from __future__ import annotations

import numpy as np

from rangewatch_server.figures.base import Grid
from rangewatch_server.numerics.pyramid import AMAX_STEP, NONFINITE_STEP
from rangewatch_server.views.exports import rectangles
from rangewatch_server.views.exports.rectangles import DERIVED, Rectangle
from tests.server.opened_store import Store
from tests.server.records import batch, catalogue, opening

TENSORS, STEPS = 6, 200
KNOWN = catalogue(TENSORS)
ALL = (*(each.name for each in KNOWN.statistics), AMAX_STEP, NONFINITE_STEP, *DERIVED)


def fill(store: Store) -> None:
    """Tensors that are empty, all NaN, without a full set, zero, or as usual."""
    generator = np.random.default_rng(1)
    columns = {
        name: generator.integers(1, 9, (TENSORS, STEPS)).astype(float) for name in ("zero_count", "subnormal_count")
    } | {name: generator.random((TENSORS, STEPS)) for name in ("amax", "amin", "sum_sq")}
    columns |= {name: np.full((TENSORS, STEPS), 32.0) for name in ("numel", "full_numel")}
    columns["nan_count"] = np.zeros((TENSORS, STEPS))
    columns["numel"][0] = columns["full_numel"][0] = columns["amax"][0] = 0
    columns["nan_count"][1], columns["amax"][1] = 32, 0
    columns["full_numel"][2] = 0
    columns["amax"][3] = 0
    store.send(opening(KNOWN))
    store.send(batch(KNOWN, 0, range(STEPS), columns))


def test_a_statistic_alone_is_what_it_is_among_all(store: Store) -> None:
    fill(store)
    for axes in (("step", "tensor"), ("rank", "tensor"), ("step", "rank")):
        each_alone_is_what_it_is_among_all(store, axes)


def each_alone_is_what_it_is_among_all(store: Store, axes: tuple[str, str]) -> None:
    cut = Grid(3, 197, 16, 1)
    tensors = np.arange(TENSORS) if "tensor" in axes else np.array([0])

    def read(statistics: tuple[str, ...]) -> rectangles.Part:
        asked = Rectangle(axes=frozenset(axes), groups=((0,),), order=tensors, cut=cut, statistics=statistics)
        with store.queries.read() as reader:
            run = reader.run(1)
            assert run is not None
            return rectangles.read(run, asked, 0, cut)

    together = read(ALL)
    known = {name for name in ALL if not np.isnan(together.columns[name]).all()}
    assert "tensor" not in axes or {"amax", "rms", "headroom_bits", "zero_fraction"} <= known
    for name in ALL:
        alone = read((name,))
        assert alone.columns[name].tobytes() == together.columns[name].tobytes(), name
        assert np.array_equal(alone.state, together.state), name
    if "tensor" in axes:  # empty and all NaN: no magnitude; without a full set: none of its statistics
        assert np.isnan(together.columns["amax"][:2]).all()
        assert np.isnan(together.columns["rms"][[0, 2]]).all()
        assert not np.isnan(together.columns["amax"][2:]).any()
