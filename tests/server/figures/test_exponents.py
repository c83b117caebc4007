"""Exponent histograms in a real store and a real server: stored, merged at every zoom, drawn."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from rangewatch import statistics
from rangewatch.statistics import exponents
from rangewatch.wire.records import Catalogue
from rangewatch_server.figures.base import Grid
from rangewatch_server.figures.exponents import column_edges, quantile_exponents, shares_log10
from rangewatch_server.numerics.pyramid import RANGES, Block, merge_blocks
from tests.server.opened_store import Store
from tests.server.plots import array, valid
from tests.server.process import Run
from tests.server.records import batch, catalogue, opening

KNOWN = Catalogue(statistics.ALL + exponents.ALL, catalogue(3).tensors)
BINS = (-24, -15, -14, 0, 7)


def columns(steps: range, every: int, seed: int) -> dict[str, Any]:
    """Of three tensors the full set and bins at every `every`th step; the second has none in its first half."""
    generator = np.random.default_rng(seed)
    is_full = np.array([step % every == 0 for step in steps])
    counts = generator.integers(0, 1000, (len(BINS), 3, len(steps))) * is_full
    counts[:, 1, : len(steps) // 2] = 0
    zeros = np.where(is_full, 5, 0) * np.ones((3, 1))
    bins = {exponents.column_name(each): counts[i] for i, each in enumerate(BINS)}
    return bins | {"zero_count": zeros, "full_numel": counts.sum(axis=0) + zeros}


def send(post: Callable[[Any], Any], steps: range, every: int, cuts: tuple[int, ...], rank: int = 0) -> dict[str, Any]:
    """The steps in batches cut at `cuts`; what was sent."""
    sent = columns(steps, every, rank)
    post(opening(KNOWN, rank=rank, world_size=2))
    ends = [steps.start, *cuts, steps.stop]
    for sequence, (low, high) in enumerate(itertools.pairwise(ends)):
        part = {name: values[:, low - steps.start : high - steps.start] for name, values in sent.items()}
        # As an agent does: what is its identity everywhere is not sent.
        post(batch(KNOWN, sequence, range(low, high), {n: v for n, v in part.items() if v.any()}, rank=rank))
    return sent


@pytest.mark.parametrize("cuts", [(), (64, 100, 333, 512), (7, 8, 9, 600)])
def test_every_level_holds_the_sums(sqlite_url: str, open_store: Callable[[str], Store], cuts: tuple[int, ...]) -> None:
    store = open_store(sqlite_url)
    sent = send(store.send, range(700), 10, cuts)
    names = [exponents.column_name(each) for each in (*BINS, 3)]
    with store.queries.read() as reader:
        run = reader.run(1)
        assert run is not None
        for level, size in ((0, 1), (1, 8), (2, 64)):
            block = run.slice(RANGES, [0], level, 0, 700, names)
            assert not block.columns[names[-1]].any(), "nothing was sent of it"
            for name in names[:-1]:
                wanted = np.add.reduceat(sent[name], np.arange(0, 700, size), axis=1)
                assert (block.columns[name] == wanted).all()


def test_a_run_that_begins_at_any_step_and_has_gaps(sqlite_url: str, open_store: Callable[[str], Store]) -> None:
    store = open_store(sqlite_url)
    sent = columns(range(1000, 1400), 7, 0)
    store.send(opening(KNOWN))
    for sequence, (low, high) in enumerate([(0, 30), (33, 200), (260, 400)]):
        part = {name: values[:, low:high] for name, values in sent.items()}
        store.send(batch(KNOWN, sequence, range(1000 + low, 1000 + high), part))
    wanted = sent["exponent_0"].copy()
    wanted[:, 30:33] = wanted[:, 200:260] = 0
    with store.queries.read() as reader:
        run = reader.run(1)
        assert run is not None
        block = run.slice(RANGES, [0], 1, 1000, 1400, ["exponent_0"])
        assert (block.columns["exponent_0"] == wanted.reshape(3, -1, 8).sum(axis=2)).all()


def test_rows_that_come_late_bring_new_bins(sqlite_url: str, open_store: Callable[[str], Store]) -> None:
    store = open_store(sqlite_url)
    store.send(opening(KNOWN))
    store.send(batch(KNOWN, 0, range(700), {"exponent_1": np.arange(700) % 2}))
    store.send(batch(KNOWN, 1, np.array([5, 70]), {"exponent_1": 10.0, "exponent_2": 3.0}))
    for level, size in ((0, 1), (1, 8), (2, 64)):
        with store.queries.read() as reader:
            run = reader.run(1)
            assert run is not None
            block = run.slice(RANGES, [0], level, 0, 700, ["exponent_1", "exponent_2"])
        starts = np.arange(0, 700, size)
        late = np.isin(np.arange(700), [5, 70])
        assert (block.columns["exponent_1"] == np.add.reduceat(np.arange(700) % 2 + 10 * late, starts)).all()
        assert (block.columns["exponent_2"] == np.add.reduceat(3 * late, starts)).all()


def test_blocks_of_which_one_lacks_a_bin() -> None:
    amax, bins = np.ones((1, 2)), np.array([[1.0, 2.0]])
    blocks = [
        Block(0, 0, np.arange(1), columns) for columns in ({"amax": amax}, {"amax": 2 * amax, "exponent_1": bins})
    ]
    merged = merge_blocks(blocks, {"amax": "max", "exponent_1": "sum"})
    assert merged.columns["exponent_1"].tolist() == [[1.0, 2.0]] and (merged.columns["amax"] == 2).all()


@pytest.fixture(scope="module")
def drawn(module_run: Run) -> Any:
    return module_run, [send(module_run.post, range(700), 10, (64, 333), rank) for rank in (0, 1)]


def figure(run: Run, query: str) -> tuple[Any, Any]:
    found = run.get(f"/figures/exponents?{query}")
    return valid(found["figure"]), found["meta"]


class TestFigure:
    def test_shares_of_each_full_set(self, drawn: Any) -> None:
        run, sent = drawn
        found, meta = figure(run, "tensor=0&rank=0")
        z, steps = array(found["data"][0]["z"]), array(meta["measured"]["steps"])
        assert steps.tolist() == list(range(0, 700, 10)) and meta["empty"] == ""
        counts = np.stack([sent[0][exponents.column_name(each)][0, ::10] for each in BINS])
        rows = np.array(BINS) - BINS[0]
        assert z.shape == (BINS[-1] - BINS[0] + 1, 70) and found["data"][0]["y0"] == BINS[0] + 0.5
        assert z[rows] == pytest.approx(shares_log10(counts), nan_ok=True)
        assert np.isnan(np.delete(z, rows, axis=0)).all()
        assert array(found["data"][0]["x"]).tolist() == [step - 0.5 for step in range(0, 701, 10)]
        zero = array(meta["measured"]["zero_fraction"])
        assert zero == pytest.approx(5 / sent[0]["full_numel"][0, ::10])
        limits = [meta["limits"][name] for name in ("max_finite", "smallest_normal", "smallest_subnormal")]
        assert np.log2(limits) == pytest.approx([np.log2(65504), -14, -24])

    def test_ranks_add_up(self, drawn: Any) -> None:
        run, sent = drawn
        _, meta = figure(run, "tensor=2")
        counts = sum(np.stack([one[exponents.column_name(each)][2, ::10] for each in BINS]) for one in sent)
        wanted = [BINS[int(at)] for at in (np.cumsum(counts, axis=0) >= counts.sum(axis=0) / 2).argmax(axis=0)]
        assert array(meta["measured"]["median"]).tolist() == wanted

    @pytest.mark.parametrize("columns", [1, 7, 100])
    def test_coarse_columns_hold_every_element(self, drawn: Any, columns: int) -> None:
        run, sent = drawn
        found, meta = figure(run, f"tensor=0&rank=1&columns={columns}")
        steps, per = array(meta["measured"]["steps"]), meta["steps_per_column"]
        assert len(steps) == len(array(found["data"][0]["x"])) - 1
        counts = np.stack([sent[1][exponents.column_name(each)][0] for each in BINS])
        shares = shares_log10(np.add.reduceat(counts, steps.astype(int), axis=1))
        assert per > 1 and array(found["data"][0]["z"])[np.array(BINS) - BINS[0]] == pytest.approx(shares, nan_ok=True)

    def test_all_zero_is_measured_and_has_no_bin(self, drawn: Any) -> None:
        _, meta = figure(drawn[0], "tensor=1&rank=0&stop=300")
        assert set(array(meta["measured"]["zero_fraction"])) == {1.0}
        assert np.isnan(array(meta["measured"]["median"])).all()

    @pytest.mark.parametrize("query", ["tensor=0&start=1&stop=9", "tensor=0&start=5000"])
    def test_nothing_in_these_steps(self, drawn: Any, query: str) -> None:
        found, meta = figure(drawn[0], query)
        assert found["data"] == [] and "full set" in meta["empty"]

    def test_the_frames_of_a_step_are_as_without(self, drawn: Any) -> None:
        frames = drawn[0].get("/step?step=10&rank=0")["frames"]
        assert len(frames) == 3 and all(frame["full"] for frame in frames)
        assert not any(key.startswith("exponent_") for frame in frames for key in frame)


def test_without_histograms_the_figure_says_how(run: Run) -> None:
    known = catalogue(2)
    run.post(opening(known), batch(known, 0, range(10)))
    found, meta = figure(run, "tensor=0")
    assert found["data"] == [] and "attach(histograms=True)" in meta["empty"]


@pytest.mark.slow
def test_an_attached_model_is_drawn(run: Run) -> None:
    import torch
    from torch import nn

    import rangewatch

    torch.manual_seed(0)
    model = nn.Linear(16, 8).half()
    kept = []
    with rangewatch.attach(model, url=run.server.url, run=run.name, histograms=True, full_every=4) as handle:
        for step in range(9):
            output = model(torch.randn(32, 16).half() * 2.0 ** (-step))
            kept.append(output.detach().double().numpy())
            handle.step()
    found, meta = figure(run, "tensor=0&rank=0")
    assert array(meta["measured"]["steps"]).tolist() == [0, 4, 8]
    z, lowest = array(found["data"][0]["z"]), round(found["data"][0]["y0"] - 0.5)
    for column, step in enumerate((0, 4, 8)):
        powers, counts = np.unique(np.frexp(kept[step][kept[step] != 0])[1] - 1, return_counts=True)
        assert np.flatnonzero(np.isfinite(z[:, column])).tolist() == (powers - lowest).tolist()
        assert z[powers - lowest, column] == pytest.approx(np.log10(counts / counts.sum()), abs=1e-5)


def test_columns_are_as_wide_as_their_cadence_and_no_wider() -> None:
    cut = Grid(0, 400, 1, 0)
    edges, source = column_edges(np.array([0, 100, 110, 200, 350]), cut)
    assert source.tolist() == [0, -1, 1, 2, 3, -1, 4], "the usual gap is 95 steps"
    assert edges.tolist() == [-0.5, 94.5, 99.5, 109.5, 199.5, 294.5, 349.5, 399.5]
    assert [part.tolist() for part in column_edges(np.array([7]), Grid(0, 400, 1, 0))] == [[6.5, 8.5], [0]]


def test_quantiles() -> None:
    counts = np.array([[1, 0, 0], [0, 0, 10], [99, 0, 990]])
    assert quantile_exponents(counts, -5, 0.01).tolist()[::2] == [-5, -4]
    assert quantile_exponents(counts, -5, 0.5).tolist()[::2] == [-3, -3]
    assert np.isnan(quantile_exponents(counts, -5, 0.5)[1])
