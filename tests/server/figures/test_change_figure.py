"""How magnitudes change, at every zoom: against medians worked out here one by one; and which runs are shown by it."""

from __future__ import annotations

import numpy as np
import pytest

from rangewatch import statistics
from rangewatch.wire.records import Catalogue, TensorEntry
from rangewatch_server.figures.heatmaps.change import BEFORE, RENEWED, medians
from rangewatch_server.figures.heatmaps.heatmap import FOLD, folded, values_of
from rangewatch_server.figures.quantities import CHANGE
from rangewatch_server.numerics.headroom import State
from tests.server.plots import array
from tests.server.process import Run
from tests.server.records import batch, opening

STEPS = 600
EXPLODES, VANISHES, SPIKES, DIES = 1, 2, 3, 4
SPIKE_AT, NAN_FROM = 333, 590
NAMES = ("net.0", "net.1", "net.2", "net.3", "net.4")


def known() -> Catalogue:
    entries = [TensorEntry(name, "output", 0, "bfloat16", (8,), at, "Linear") for at, name in enumerate(NAMES)]
    entries += [TensorEntry("net.0.w", kind, 0, "float32", (8,), 9 + at, "") for at, kind in enumerate(KINDS)]
    return Catalogue(statistics.ALL, tuple(entries))


KINDS = ("weight", "grad", "update")


def log2_amax() -> np.ndarray:
    """(tensors, steps): noise, and from step 400 on one that grows by 0.1 bits a step and one that shrinks so."""
    noise = np.random.default_rng(3).normal(0, 0.2, (len(NAMES) + len(KINDS), STEPS))
    since = np.maximum(np.arange(STEPS) - 400, 0) / 10
    noise[EXPLODES] += since
    noise[VANISHES] -= since
    noise[SPIKES, SPIKE_AT] += 7
    return noise


@pytest.fixture(scope="module")
def wide(module_run: Run) -> Run:
    full = np.full((len(NAMES) + len(KINDS), STEPS), 8.0)
    nan = np.zeros_like(full)
    nan[DIES, NAN_FROM:] = 1
    of_kind = np.array([1.0] * len(NAMES) + [2.0**-2, 2.0**-4, 2.0**-12])[:, None]
    measured = {
        "amax": 2 ** log2_amax(),
        "nan_count": nan,
        "numel": full,
        "full_numel": full,
        "sum_sq": 8 * of_kind**2 * np.ones_like(full),
    }
    assert module_run.post(opening(known())).status_code == 202
    assert module_run.post(batch(known(), 0, range(STEPS), measured)).status_code == 202
    return module_run


def cells(run: Run, query: str, name: str = "layers") -> tuple[np.ndarray, np.ndarray, dict]:
    found = run.get(f"/figures/{name}?{query}")
    return array(found["figure"]["data"][0]["z"]), array(found["meta"]["states"]), found["meta"]


def wanted(per: int) -> np.ndarray:
    """One column at a time, of all steps, `per` to a column."""
    amax = np.where(
        np.arange(STEPS) < NAN_FROM, 1, np.where(np.arange(len(NAMES) + len(KINDS))[:, None] == DIES, np.nan, 1)
    )
    starts = np.arange(0, STEPS, per)
    has_nan = np.add.reduceat(np.isnan(amax), starts, axis=1) > 0
    columns = np.where(has_nan, np.nan, np.maximum.reduceat(np.nan_to_num(amax * log2_amax(), nan=-99), starts, axis=1))
    answer = np.full(columns.shape, np.nan)
    for column in range(1, columns.shape[1]):
        end = column if column < RENEWED else column // RENEWED * RENEWED
        answer[:, column] = columns[:, column] - np.nanmedian(columns[:, max(0, end - BEFORE) : end], axis=1)
    return answer


@pytest.mark.parametrize("per", [1, 8, 24, 64])
def test_a_column_is_its_largest_against_the_median_of_those_before(wide: Run, per: int) -> None:
    z, states, meta = cells(wide, f"columns={-(-STEPS // per)}")
    assert meta["steps_per_column"] == per and meta["statistic"]["name"] == "amax_change"
    expected = wanted(per)
    np.testing.assert_allclose(z, expected, atol=1e-3)
    assert states[DIES, -1] == State.NAN and (states[:DIES] == State.VALUE).all()
    assert z[SPIKES, SPIKE_AT // per] == pytest.approx(7, abs=1)


def test_a_part_of_the_steps_is_as_in_the_whole(wide: Run) -> None:
    whole, *_ = cells(wide, "columns=600")
    for start, stop in ((100, 200), (203, 290), (5, 50), (402, 600)):
        part, _, meta = cells(wide, f"start={start}&stop={stop}&columns=600")
        assert meta["steps_per_column"] == 1
        np.testing.assert_allclose(part, whole[:, start:stop], atol=1e-6)


def test_up_and_down_are_seen_in_rows_that_stand_for_several(wide: Run) -> None:
    z, _, meta = cells(wide, "columns=600&closed=net&tree=9")
    assert [row["label"] for row in meta["rows"]] == ["net.*"]
    assert np.nanmax(np.abs(z[0])) == pytest.approx(np.nanmax(np.abs(wanted(1)[:, :NAN_FROM])), abs=0.01)
    worst = {module["path"]: module["worst"] for module in meta["modules"]}
    assert worst["net.1"] > 3 and worst["net.2"] < -3
    root = next(module for module in meta["modules"] if module["path"] == "net")
    assert root["began"] == [NAN_FROM, NAN_FROM] and root["is_first"]


def test_headroom_can_be_had_and_is_not_cut_off(wide: Run) -> None:
    z, _, meta = cells(wide, "columns=600&statistic=headroom_bits&tree=9")
    assert meta["statistic"]["name"] == "headroom_bits"
    assert np.nanmin(z) == pytest.approx(min(module["worst"] for module in meta["modules"]))
    assert np.nanmin(z) > 90
    assert wide.get("")["default_statistic"] == "amax_change"


def test_the_figure_of_its_own_name_is_the_same(wide: Run) -> None:
    np.testing.assert_array_equal(cells(wide, "columns=75", "change")[0], cells(wide, "columns=75")[0])


@pytest.mark.parametrize(
    ("statistic", "rows", "value"), [("gradient_norm", "grad", -4 + 1.5), ("update_ratio", "update", -10)]
)
def test_gradients_and_updates(wide: Run, statistic: str, rows: str, value: float) -> None:
    z, _, meta = cells(wide, f"statistic={statistic}&columns=75")
    assert [row["label"] for row in meta["rows"]] == [f"net.0.w {rows}"]
    np.testing.assert_allclose(z, value, atol=1e-3)
    assert statistic in [each["name"] for each in wide.get("")["derived"]]


@pytest.mark.parametrize("figure", ["timeline", "ranks"])
def test_ranks_too(wide: Run, figure: str) -> None:
    z, _, meta = cells(wide, f"statistic=amax_change&columns=600&start={SPIKE_AT}&stop={SPIKE_AT + 1}", figure)
    assert meta["statistic"]["name"] == "amax_change"
    assert np.nanmax(z) == pytest.approx(7, abs=1)


def test_a_run_near_its_limits_is_shown_by_headroom(run: Run) -> None:
    catalogue = Catalogue(statistics.ALL, (TensorEntry("a", "output", 0, "float16", (8,), 0, "Linear"),))
    assert run.post(opening(catalogue)).status_code == 202
    assert run.post(batch(catalogue, 0, range(8), {"amax": np.full((1, 8), 4.0)})).status_code == 202
    assert cells(run, "")[2]["statistic"]["name"] == "headroom_bits"
    assert run.get("")["default_statistic"] == "headroom_bits"


def test_scores_keep_what_is_furthest_from_0_and_its_direction() -> None:
    change = np.array([0.0, 3.25, -3.25, -130.5, 1 / FOLD, np.nan], np.float32)
    np.testing.assert_array_equal(values_of(folded(change), CHANGE), change)
    assert values_of(np.fmin.reduce(folded(change)), CHANGE) == -130.5


def test_medians_skip_what_is_not_known() -> None:
    values = np.array([[1.0, np.nan, 3.0, 100.0], [np.nan] * 4])
    np.testing.assert_array_equal(medians(values, 0, 0), [[np.nan, 1, 1, 2], [np.nan] * 4])
