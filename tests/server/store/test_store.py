"""The writer and the slices against plain numpy over the same numbers, on both databases."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np
import pytest
from sqlalchemy import func, select

from rangewatch.wire import WireError
from rangewatch.wire.records import Event
from rangewatch_server.ingest.transaction import Refused
from rangewatch_server.numerics.pyramid import NO_STEP, RANGES, SERIES_PART, SUMMARY
from rangewatch_server.store import names, tables
from tests.server.opened_store import Store
from tests.server.records import batch, catalogue, opening

ON_BOTH = pytest.mark.parametrize("database_url", ["sqlite", "postgres"], indirect=True)
STEPS = 1_500
TENSORS = 5
WANTED = ["call_count", "numel", "amax", "nan_count", "amax_step", "nonfinite_step"]


@pytest.fixture(scope="module")
def truth() -> dict[str, np.ndarray]:
    random = np.random.default_rng(7)
    return {
        "amax": np.exp2(random.normal(0, 4, (2, TENSORS, STEPS)).clip(-14, 15)).astype(np.float16).astype(float),
        "nan_count": (random.random((2, TENSORS, STEPS)) < 0.002) * 3.0,
        "loss": random.normal(size=(2, STEPS)),
    }


def fill(store: Store, truth: dict[str, np.ndarray], shuffled: bool, seed: int = 0) -> None:
    random = np.random.default_rng(seed)
    known = catalogue(TENSORS)
    for rank in range(2):
        store.send(opening(known, rank=rank, world_size=2))
        cuts = [0, *sorted(random.choice(np.arange(1, STEPS), 30, replace=False).tolist()), STEPS]
        messages = [
            batch(
                known, sequence, range(low, high), rank=rank, series={"loss": truth["loss"][rank, low:high]},
                columns={name: truth[name][rank][:, low:high] for name in ("amax", "nan_count")},
            )
            for sequence, (low, high) in enumerate(itertools.pairwise(cuts))
        ]  # fmt: skip
        order = list(range(len(messages)))
        if shuffled:
            random.shuffle(order)
            order += order[::3]
        for each in order:
            store.send(messages[each])
        assert store.send(messages[0]).duplicate
        assert store.send(messages[0]).contiguous == len(messages) - 1


@pytest.mark.parametrize(
    "shuffled",
    [pytest.param(False, id="in order", marks=pytest.mark.slow), pytest.param(True, id="shuffled and repeated")],
)
def test_slices_equal_numpy_at_every_level(store: Store, truth: dict[str, np.ndarray], shuffled: bool) -> None:
    fill(store, truth, shuffled)
    with store.queries.read() as reader:
        run = reader.run(1)
        assert run is not None
        assert (run.first_step, run.last_step) == (0, STEPS - 1)
        for level in range(5):
            for start, stop in ((0, STEPS), (3, STEPS - 5), (100, 333), (777, 778), (STEPS - 3, STEPS)):
                for ranks in ([0], [1], [0, 1]):
                    compare_ranges(run.slice(RANGES, ranks, level, start, stop, WANTED), truth, ranks, start, stop)
                compare_loss(
                    run.slice(SERIES_PART, [1], level, start, stop, ["count", "sum", "last", "max"]), truth, start, stop
                )
                summary = run.slice(SUMMARY, [0, 1], level, start, stop, ["bits", "nan_count"])
                for column, (low, high) in enumerate(spans(summary, start, stop)):
                    bits = np.log2(65504 / truth["amax"][:, :, low:high]).min()
                    assert summary.columns["bits"][:, column].min() == pytest.approx(max(bits, 0), abs=1e-3)


def spans(block, start: int, stop: int) -> list[tuple[int, int]]:
    size = 8**block.level
    return [(max(start, c * size), min(stop, (c + 1) * size)) for c in range(block.first, block.first + block.width)]


def compare_ranges(block, truth, ranks: list[int], start: int, stop: int) -> None:
    for column, (low, high) in enumerate(spans(block, start, stop)):
        amax, nans = (truth[name][ranks][:, :, low:high] for name in ("amax", "nan_count"))
        found = {name: values[:, column] for name, values in block.columns.items()}
        assert (found["amax"] == amax.max(axis=(0, 2))).all()
        assert (found["amax_step"] == low + amax.max(axis=0).argmax(axis=1)).all()
        assert (found["nan_count"] == nans.sum(axis=(0, 2))).all()
        assert (found["call_count"] == len(ranks) * (high - low)).all()
        assert (found["numel"] == 32 * len(ranks) * (high - low)).all()
        first = np.where(nans.max(axis=0) > 0, np.arange(low, high), NO_STEP).min(axis=1)
        assert (found["nonfinite_step"] == first).all()


def compare_loss(block, truth, start: int, stop: int) -> None:
    for column, (low, high) in enumerate(spans(block, start, stop)):
        loss = truth["loss"][1, low:high]
        assert block.columns["sum"][0, column] == pytest.approx(loss.sum())
        assert block.columns["last"][0, column] == loss[-1]
        assert block.columns["max"][0, column] == loss.max()


@pytest.mark.slow
def test_any_order_ends_in_the_same_bytes(tmp_path: Path, open_store: Callable[[str], Store], truth) -> None:
    slices = []
    for number, shuffled in enumerate((False, True, True)):
        store = open_store(f"sqlite:///{tmp_path}/{number}.db")
        fill(store, truth, shuffled, seed=0 if number < 2 else 1)  # the third cuts its batches elsewhere too
        with store.queries.read() as reader:
            run = reader.run(1)
            assert run is not None
            blocks = [run.slice(RANGES, [0, 1], level, 0, STEPS, WANTED) for level in range(5)]
        slices.append([values.astype(float).tobytes() for block in blocks for values in block.columns.values()])
    assert slices[0] == slices[1] == slices[2]


@ON_BOTH
def test_late_rows_change_their_tiles_and_all_above(store: Store) -> None:
    """A client that goes back: steps 0..639 first, then step 5 again with a NaN, in a later sequence."""
    known = catalogue(2)
    store.send(opening(known))
    store.send(batch(known, 0, range(10, 640)))
    with store.queries.read() as reader:  # so that a reader has the old tiles cached
        assert reader.run(1).slice(RANGES, [0], 2, 0, 640, ["nan_count"]).columns["nan_count"].sum() == 0
    store.send(batch(known, 1, range(3, 6), {"nan_count": 1.0}))
    with store.queries.read() as reader:
        run = reader.run(1)
        for level in range(4):
            block = run.slice(RANGES, [0], level, 0, 640, ["nan_count", "call_count", "nonfinite_step"])
            assert block.columns["nan_count"].sum() == 6
            assert block.columns["call_count"].sum() == 2 * 633
            assert block.columns["nonfinite_step"].min() == 3


def test_a_restart_shows_the_newer_history_and_keeps_the_older(store: Store) -> None:
    known = catalogue(2)
    store.send(opening(known))
    store.send(batch(known, 0, range(300), {"amax": 2.0}))
    store.send(opening(known, incarnation="b"))
    store.send(batch(known, 0, range(200, 250), {"amax": 4.0}, incarnation="b"))
    with store.queries.read() as reader:
        run = reader.run(1)
        assert [stream.ordinal for stream in run.ranks[0].streams] == [1, 2]
        assert run.last_step == 249
        amax = run.slice(RANGES, [0], 0, 0, 300, ["amax"]).columns["amax"][0]
        assert (amax[:200] == 2).all()
        assert (amax[200:250] == 4).all()
        assert (amax[250:] == 0).all(), "steps the newer incarnation has not reached again are its own to report"


def test_everything_survives_a_new_writer(database_url: str, open_store: Callable[[str], Store], truth) -> None:
    known = catalogue(TENSORS)
    first = open_store(database_url)
    first.send(opening(known))
    for sequence in range(0, 10):
        span = slice(sequence * 30, sequence * 30 + 30)
        first.send(batch(known, sequence, range(span.start, span.stop), {"amax": truth["amax"][0][:, span]}))
    second = open_store(database_url)
    assert second.send(batch(known, 9, range(270, 300))).duplicate
    for sequence in range(10, 50):
        span = slice(sequence * 30, sequence * 30 + 30)
        second.send(batch(known, sequence, range(span.start, span.stop), {"amax": truth["amax"][0][:, span]}))
    with second.queries.read() as reader:
        run = reader.run(1)
        for level in range(4):
            block = run.slice(RANGES, [0], level, 0, STEPS, ["amax", "call_count"])
            edges = np.arange(0, STEPS, 8**level)
            assert (block.columns["amax"] == np.maximum.reduceat(truth["amax"][0], edges, axis=1)).all()
            assert block.columns["call_count"].sum() == TENSORS * STEPS


@ON_BOTH
def test_a_jump_far_ahead_is_cheap_and_exact(store: Store) -> None:
    known = catalogue(2)
    store.send(opening(known))
    store.send(batch(known, 0, range(100), {"amax": 3.0}))
    store.send(batch(known, 1, [10**11], {"amax": 5.0}))
    store.send(batch(known, 2, [10**11 + 500], {"amax": 7.0}))
    with store.queries.read() as reader:
        run = reader.run(1)
        block = run.slice(RANGES, [0], 11, 0, 10**11 + 501, ["amax", "amax_step"])
        assert block.columns["amax"][0].max() == 7
        assert block.columns["amax_step"][0][block.columns["amax"][0].argmax()] == 10**11 + 500
        assert run.slice(RANGES, [0], 0, 90, 110, ["call_count"]).columns["call_count"][0].sum() == 10


def test_tensors_found_later_and_another_dtype(store: Store) -> None:
    small, large = catalogue(2), catalogue(4)
    wide = catalogue(1, dtype="float32")
    store.send(opening(small))
    store.send(batch(small, 0, range(64), {"amax": 2.0}))
    store.send(opening(large))
    store.send(batch(large, 1, range(64, 200), {"amax": 3.0}))
    store.send(opening(wide))
    store.send(batch(wide, 2, range(200, 600), {"amax": 4.0}))
    with store.queries.read() as reader:
        run = reader.run(1)
        assert [entry.dtype for entry in run.names().tensors.entries] == ["float16"] * 4 + ["float32"]
        block = run.slice(RANGES, [0], 0, 0, 600, ["amax", "call_count"], np.arange(5))
        assert (block.columns["call_count"].sum(axis=1) == [200, 200, 136, 136, 400]).all()
        assert (block.columns["amax"].max(axis=1) == [3, 3, 3, 3, 4]).all()


def test_unknown_names_are_refused(store: Store) -> None:
    known = catalogue(2)
    with pytest.raises(Refused, match="has not been opened") as refused:
        store.send(batch(known, 0, range(3)))
    assert refused.value.code == "unknown_run"
    store.send(opening(known))
    with pytest.raises(WireError) as refused:
        store.send(batch(catalogue(3), 0, range(3)))
    assert refused.value.code == "unknown_catalogue"


@ON_BOTH
def test_events_are_stored_once(store: Store) -> None:
    known = catalogue(1)
    store.send(opening(known))
    said = batch(known, 0, range(2), events=(Event("finished", 5, 1, "done"),))
    store.send(said)
    store.send(said)
    with store.queries.read() as reader:
        assert reader.connection.execute(select(func.count()).select_from(tables.events)).scalar() == 1
        assert reader.run(1).ranks[0].row.state == "finished"


def test_a_dropped_sequence_holds_up_nothing(store: Store) -> None:
    """The agent dropped sequence 1 for good and says so: what follows is folded. If 1 comes after all, it is taken."""
    known = catalogue(2)
    store.send(opening(known))
    store.send(batch(known, 0, range(64)))
    later = [batch(known, n, range(n * 64, n * 64 + 64)) for n in (1, 2, 3)]
    assert store.send(later[2]).contiguous == 0
    assert store.send(msgspec.structs.replace(later[1], settled=2)).contiguous == 3
    assert missing(store) == list(range(64, 128)), "missing is not observed, never zero"
    assert [store.send(later[0]).duplicate for _ in range(2)] == [False, True]
    assert missing(store) == []


def missing(store: Store) -> list[int]:
    """Of the first 256 steps."""
    with store.queries.read() as reader:
        run = reader.run(1)
        assert run.ranks[0].row.frontier == 192
        calls = run.slice(RANGES, [0], 0, 0, 256, ["call_count"]).columns["call_count"][0]
    return np.flatnonzero(calls == 0).tolist()


@ON_BOTH
def test_a_sequence_that_another_sender_jumped_to_makes_no_later_one_a_duplicate(
    store: Store, open_store: Callable[[str], Store], database_url: str
) -> None:
    known = catalogue(2)
    store.send(opening(known))
    assert store.send(batch(known, 0, range(64))).contiguous == 0
    last = 2**62 - 1
    assert not store.send(msgspec.structs.replace(batch(known, last, []), settled=last)).duplicate
    first, *later = (
        msgspec.structs.replace(batch(known, number, range(number * 64, number * 64 + 64)), settled=number)
        for number in (1, 2, 3)
    )
    answer = store.send(first)
    assert (answer.duplicate, answer.contiguous) == (False, 1), "what an agent is answered is of its own numbers"
    assert store.send(first).duplicate and store.send(opening(known)).contiguous == 1
    store.close()
    again = open_store(database_url)  # what was passed is stored
    assert [(each.duplicate, each.contiguous) for each in again.send_all(later)] == [(False, 2), (False, 3)]
    assert missing(again) == []


@ON_BOTH
def test_names_of_several_catalogues_are_those_of_the_first_that_has_each(store: Store) -> None:
    """Ranks of a pipeline have tensors of their own, in an order of their own."""
    first, second = catalogue(4), catalogue(7)
    moved = tuple(msgspec.structs.replace(each, call_index=90 - at) for at, each in enumerate(second.tensors[::-1]))
    store.send(opening(msgspec.structs.replace(first, tensors=first.tensors[::-1])))
    store.send(opening(msgspec.structs.replace(second, tensors=moved), rank=1, world_size=2))
    with store.queries.read() as reader:
        found, arrays = names.load_tensors(reader.connection, 1), names.load_arrays(reader.connection, 1)
        own = [names.load_tensor(reader.connection, 1, ordinal) for ordinal in range(7)]
        assert found.entries == own and [each.fqn[7] for each in own] == list("3210654")
        assert len(arrays) == 7 and arrays.call_index.tolist() == [each.call_index for each in own]
        for name in ("log2_max", "kind_rows", "call_index", "position"):
            assert getattr(arrays, name).tolist() == getattr(found, name).tolist()
    with store.engines.writer.begin() as connection:
        connection.execute(tables.catalogues.delete())
        assert names.load_tensors(connection, 1).entries == own, "as they stand in their own rows"


def test_a_column_left_out_holds_its_identity(store: Store) -> None:
    """Every tensor was NaN, so `amax` is 0 everywhere and the agent may leave it out."""
    known = catalogue(2)
    store.send(opening(known))
    whole = batch(known, 0, range(3), {"nan_count": 32.0})
    columns = {name: values for name, values in whole.ranges.columns.items() if name not in ("amax", "inf_count")}
    store.send(msgspec.structs.replace(whole, ranges=msgspec.structs.replace(whole.ranges, columns=columns)))
    with store.queries.read() as reader:
        block = reader.run(1).slice(RANGES, [0], 0, 0, 3, ["amax", "nan_count", "inf_count"])
        assert block.columns["amax"].max() == block.columns["inf_count"].max() == 0
        assert (block.columns["nan_count"] == 32).all()


def test_a_run_holds_so_many_logged_names_and_no_more(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(names, "MAX_SERIES", 3)
    known = catalogue(2)
    store.send(opening(known))
    store.send(batch(known, 0, [0], series={"a": 1.0, "b": 1.0, "c": 1.0}))
    with pytest.raises(WireError, match="at most 3 logged names"):
        store.send(batch(known, 1, [1], series={"d": 1.0}))
    store.send(batch(known, 1, [1], series={"a": 2.0}))
