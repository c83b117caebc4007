"""Samples through a real writer: stored with their batch, read by time and by steps; what is refused or damaged."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from sqlalchemy import func, select, update

from rangewatch import wire
from rangewatch.wire import WireError
from rangewatch.wire.records import Batch, Samples
from rangewatch_server.core.errors import ApiError
from rangewatch_server.query.samples import Chunk, Latest, grown_details, newest, samples
from rangewatch_server.query.slices import Damage
from rangewatch_server.store import tables
from rangewatch_server.store.batch_checks import check_header
from rangewatch_server.store.samples import MAX_VALUES, SPAN_NS, Part, SamplesError, decode, encode
from tests.server.opened_store import Store
from tests.server.process import Server
from tests.server.records import batch, catalogue, opening

KNOWN = catalogue(1)
SECOND = 10**9
BEGAN = 1_790_000_000 * SECOND
NAN = float("nan")
ABOUT = {"name": "NVIDIA H200", "power_limit_w": 700.0}


def gpu(
    first_s: int, rows: int = 2, key: str = "GPU-a", source: str = "gpu", about: Any = None, **other: Any
) -> Samples:
    """A row a second: the power is the second, a step takes ten, and nobody knows the margin."""
    at = np.arange(first_s, first_s + rows)
    columns = {"power_w": at + 0.5, "margin_c": np.full(rows, NAN), "step": at // 10 * 1.0} | other
    return Samples(source, key, BEGAN + at * SECOND, columns, ABOUT if about is None else about)


def sampled(sequence: int, *found: Samples, steps: Any = (), **other: Any) -> Batch:
    return msgspec.structs.replace(batch(KNOWN, sequence, steps, **other), samples=found)


def read(store: Store, source: str = "gpu", **wanted: Any) -> list[Chunk]:
    with store.queries.read() as reader:
        return samples(reader.run(1), source, **wanted)


def latest(store: Store, source: str = "gpu") -> list[Latest]:
    with store.queries.read() as reader:
        return newest(reader.run(1), source)


def seconds(chunk: Chunk) -> list[int]:
    return ((chunk.times_ns - BEGAN) // SECOND).tolist()


def rows_in(store: Store) -> int:
    with store.engines.reader.connect() as connection:
        return int(connection.execute(select(func.count()).select_from(tables.samples)).scalar_one())


def test_what_was_sent_is_read_again(store: Store) -> None:
    store.send(opening(KNOWN))
    odd = np.array([-0.0, np.inf, 1e300, 5e-324])
    first = gpu(0, 4, odd=odd)
    host = Samples("host", "", first.times_ns[:1], {"cpu_percent": np.array([7.25])})
    store.send(sampled(0, first, host, gpu(0, 3, "GPU-b"), steps=range(10)))
    store.send(sampled(1, gpu(4, 2), gpu(3, 2, "GPU-b")))
    one, other = read(store)
    assert (one.rank, one.key, one.about, one.incarnation, other.key) == (0, "GPU-a", ABOUT, "a", "GPU-b")
    assert seconds(one) == [0, 1, 2, 3, 4, 5] and seconds(other) == [0, 1, 2, 3, 4]
    assert one.columns["power_w"].tolist() == [0.5, 1.5, 2.5, 3.5, 4.5, 5.5]
    assert np.isnan(one.columns["margin_c"]).all() and one.columns["margin_c"].dtype == np.float64
    assert one.columns["odd"].tobytes() == np.append(odd, [NAN, NAN]).tobytes()  # the second batch has no such column
    assert [each.columns["cpu_percent"].tolist() for each in read(store, "host")] == [[7.25]]
    assert read(store, "collective") == []


def test_a_batch_that_comes_again_brings_its_samples_once(store: Store) -> None:
    store.send(opening(KNOWN))
    message = sampled(0, gpu(0))
    assert not store.send(message).duplicate
    assert store.send(message).duplicate
    assert [seconds(each) for each in read(store)] == [[0, 1]]


def test_samples_need_no_order(store: Store, database_url: str, open_store: Callable[[str], Store]) -> None:
    store.send(opening(KNOWN))
    assert store.send(sampled(2, gpu(4))).contiguous == -1
    store.send(sampled(1, gpu(2)))
    assert [seconds(each) for each in read(store)] == [[2, 3, 4, 5]]
    store.close()  # another server goes on: it reads back what lies beyond the gap
    again = open_store(database_url)
    assert again.send(sampled(2, gpu(4))).duplicate
    assert again.send(sampled(0, gpu(0))).contiguous == 2
    assert [seconds(each) for each in read(again)] == [[0, 1, 2, 3, 4, 5]]


def test_any_time_and_any_steps_are_read_row_by_row(store: Store) -> None:
    for rank in range(3):
        store.send(opening(KNOWN, rank=rank, world_size=3))
        for sequence in range(6):
            store.send(sampled(sequence, gpu(sequence * 10, 10, f"GPU-{rank}"), rank=rank))
    whole = read(store)
    assert [(each.rank, each.key, len(each.times_ns)) for each in whole] == [(r, f"GPU-{r}", 60) for r in range(3)]
    part = read(store, ranks=[2, 0, 7], start_ns=BEGAN + 15 * SECOND, stop_ns=BEGAN + 31 * SECOND)
    assert [each.rank for each in part] == [0, 2]
    assert [seconds(each) for each in part] == [list(range(15, 31))] * 2
    assert [seconds(each) for each in read(store, keys=["GPU-1"], first_step=2, last_step=3)] == [list(range(20, 40))]
    assert [seconds(each) for each in read(store, ranks=[1], last_step=0)] == [list(range(10))]
    assert [seconds(each) for each in read(store, ranks=[1], first_step=5)] == [list(range(50, 60))]
    assert read(store, start_ns=BEGAN + 60 * SECOND) == read(store, first_step=6) == read(store, keys=["GPU"]) == []
    with pytest.raises(ApiError, match="too many samples"):
        read(store, limit_rows=179)
    assert len(read(store, limit_rows=180)) == 3


def test_rows_without_steps_are_found_by_time_only(store: Store) -> None:
    store.send(opening(KNOWN))
    plain = Samples("host", "", np.array([BEGAN]), {"load": np.array([1.0])})
    store.send(sampled(0, plain))
    assert len(read(store, "host", start_ns=BEGAN, stop_ns=BEGAN + 1)) == 1
    assert read(store, "host", first_step=0) == []


def test_a_clock_that_was_put_back_and_ties_keep_the_order_of_time(store: Store) -> None:
    store.send(opening(KNOWN))
    at = np.array([5, 5, 5]) * SECOND + BEGAN
    store.send(sampled(0, Samples("gpu", "", at, {"n": np.array([0.0, 1.0, 2.0])})))
    store.send(sampled(1, Samples("gpu", "", at - SECOND, {"n": np.array([3.0, 4.0, 5.0])})))
    store.send(sampled(2, Samples("gpu", "", at, {"n": np.array([6.0, 7.0, 8.0])})))
    (only,) = read(store)
    assert only.columns["n"].tolist() == [3, 4, 5, 0, 1, 2, 6, 7, 8]


def test_hours_between_two_rows_are_rows_of_the_table(store: Store) -> None:
    """A process that was stopped, or a clock that was set: a reader of one time looks only an hour past it."""
    store.send(opening(KNOWN))
    at = np.array([0, 1, 5 * SPAN_NS, 5 * SPAN_NS + 1, BEGAN])
    store.send(sampled(0, Samples("gpu", "", at, {"step": np.arange(5.0)}), gpu(0)))
    assert rows_in(store) == 4
    assert [each.times_ns.tolist() for each in read(store, keys=[""])] == [at.tolist()]
    assert [each.times_ns.tolist() for each in read(store, keys=[""], start_ns=1, stop_ns=SPAN_NS * 6)] == [
        at[1:4].tolist()
    ]


def test_facts_that_grow_are_one_chunk_and_facts_that_change_are_two(store: Store) -> None:
    store.send(opening(KNOWN))
    facts = [
        {"names": ["a"]},
        {"names": ["a", "b"], "x": {"y": 1}},
        {"names": ["a", "b"], "x": {"z": 2}},
        {"names": ["b"]},
    ]
    for sequence, about in enumerate(facts):
        store.send(sampled(sequence, gpu(sequence * 2, about=about)))
    grown, changed = read(store)
    assert (seconds(grown), seconds(changed)) == ([0, 1, 2, 3, 4, 5], [6, 7])
    assert (grown.about, changed.about) == ({"names": ["a", "b"], "x": {"y": 1, "z": 2}}, {"names": ["b"]})
    assert grown_details({"a": None}, {"a": 1}) is None
    assert grown_details({"a": None}, {"a": None, "b": [1]}) == {"a": None, "b": [1]}


def test_a_restarted_ranks_rows_stay_apart_by_process(store: Store) -> None:
    for incarnation, at in (("a", 0), ("b", 1)):
        store.send(opening(KNOWN, incarnation=incarnation))
        store.send(sampled(0, gpu(at), incarnation=incarnation))
    found = read(store)
    assert [(each.rank, each.incarnation, seconds(each)) for each in found] == [(0, "a", [0, 1]), (0, "b", [1, 2])]


def test_the_newest_row_of_each_rank_and_key(store: Store) -> None:
    for rank in range(3):
        store.send(opening(KNOWN, rank=rank, world_size=3))
        store.send(sampled(0, gpu(10, 5, "GPU-a"), gpu(3, 2, "GPU-b"), rank=rank))
        store.send(sampled(1, gpu(2, 3, "GPU-a"), gpu(5, 2, "GPU-b"), gpu(50, source="host"), rank=rank))
    found = latest(store)
    assert [(each.rank, each.key, (each.time_ns - BEGAN) // SECOND) for each in found] == [
        (rank, key, second) for rank in range(3) for key, second in (("GPU-a", 14), ("GPU-b", 6))
    ]
    assert found[0].columns["power_w"] == 14.5 and np.isnan(found[0].columns["margin_c"]) and found[0].about == ABOUT
    assert latest(store, "nothing") == []
    store.send(opening(KNOWN, incarnation="b"))  # a card that an older process had is not a card that vanished
    store.send(sampled(0, gpu(70, 1, "GPU-c"), incarnation="b"))
    assert [each.key for each in latest(store) if each.rank == 0] == ["GPU-c"]


def test_what_is_damaged_is_left_out_and_said(store: Store) -> None:
    store.send(opening(KNOWN))
    for sequence in range(3):
        store.send(sampled(sequence, gpu(sequence * 10, 10)))
    damage(store, 1)
    with store.queries.read() as reader:
        run = reader.run(1)
        (found,) = samples(run, "gpu")
        assert seconds(found) == [*range(10), *range(20, 30)]
        assert run.damage == {Damage(0, "samples gpu", 0, 1, 1, 2)}
    damage(store, 2)
    with store.queries.read() as reader:
        run = reader.run(1)
        assert newest(run, "gpu") == []
        assert {each.tile for each in run.damage} == {1, 2}


def damage(store: Store, sequence: int, source: str = "gpu") -> None:
    """Turn a bit of a stored payload."""
    mine = (tables.samples.c.sequence == sequence) & (tables.samples.c.source == source)
    with store.engines.writer.begin() as connection:
        payload = bytearray(connection.execute(select(tables.samples.c.payload).where(mine)).scalar_one())
        payload[len(payload) // 2] ^= 1
        connection.execute(update(tables.samples).where(mine).values(payload=bytes(payload)))


def spoilt(change: Callable[[bytearray], None]) -> bytes:
    payload = bytearray(encode([Part(np.arange(3), {"x": np.arange(3.0)}, b"{}")]))
    change(payload)
    return bytes(payload)


def test_no_payload_is_believed() -> None:
    good = [Part(np.arange(3), {"x": np.arange(3.0)}, b"{}")]
    assert len(decode(encode(good))) == 1
    for bad in (
        b"", b"RWS1", b"RWS1" + b"\0" * 20, encode(good)[:-1], encode(good) + b"x", encode([]),
        encode([Part(np.arange(0), {}, b"{}")]),
        encode([Part(np.arange(3), {"x": np.arange(4.0)}, b"{}")]),
        encode([Part(np.arange(MAX_VALUES // 2 + 1), {"x": np.broadcast_to(1.0, MAX_VALUES // 2 + 1)}, b"{}")]),
        *(spoilt(lambda payload, at=at: payload.__setitem__(at, payload[at] ^ 0x55)) for at in range(0, 40, 3)),
    ):  # fmt: skip
        with pytest.raises(SamplesError):
            decode(bad)


def bent(**values: Any) -> Samples:
    return msgspec.structs.replace(gpu(0), **values)


BAD = {
    "no source": bent(source=""),
    "long source": bent(source="s" * 101),
    "long key": bent(key="ü" * 257),
    "NUL": bent(key="a\0b"),
    "long column": bent(columns={"c" * 5_000: np.zeros(2)}),
    "NaN step": gpu(0, step=np.array([0.0, NAN])),
    "endless step": gpu(0, step=np.array([0.0, np.inf])),
    "half a step": gpu(0, step=np.array([0.0, 0.5])),
    "negative step": gpu(0, step=np.array([-2.0, 0.0])),
    "huge step": gpu(0, step=np.array([0.0, 1e13])),
    "large facts": bent(about={"a": "x" * (256 << 10)}),
    "no plain facts": bent(about={"a": msgspec.msgpack.Ext(5, b"")}),
    "far future": bent(times_ns=np.array([0, 2**62])),
    "overflowing times": bent(times_ns=np.array([5, -(2**63) + 5])),
    "many hours": Samples("gpu", "", np.arange(65) * 2 * SPAN_NS, {}),
    "many columns": bent(columns={str(n): np.zeros(2) for n in range(129)}),
}


@pytest.mark.parametrize("kind", BAD)
def test_what_cannot_be_is_refused(kind: str) -> None:
    body = wire.encode(sampled(0, BAD[kind]))
    with pytest.raises(WireError):
        check_header(wire.decode(body))  # type: ignore[arg-type]


def test_the_largest_that_may_be_is_taken(store: Store) -> None:
    store.send(opening(KNOWN))
    columns = {str(number): np.random.default_rng(number).random(64) for number in range(128)}
    most = Samples("s" * 100, "k" * 512, np.arange(64) * 2 * SPAN_NS, columns, {"a": "x" * 250_000})
    message = sampled(0, most, gpu(0, step=np.array([-1.0, 1e12])))
    check_header(wire.decode(wire.encode(message)))  # type: ignore[arg-type]
    store.send(message)
    (found,) = read(store, most.source)
    assert all((found.columns[name] == values).all() for name, values in most.columns.items())


def test_a_server_answers_and_keeps_them(start_server: Callable[..., Server], tmp_path: Path) -> None:
    server = start_server(db=str(tmp_path / "a.db"))
    assert server.post(opening(KNOWN)).status_code == 202
    refused = server.post(sampled(0, BAD["NaN step"]))
    assert (refused.status_code, refused.json()["code"]) == (422, "invalid_value")
    assert server.post(sampled(0, gpu(0), gpu(5))).json()["contiguous"] == 0
    server.kill()  # what was acknowledged is there
    with sqlite3.connect(tmp_path / "a.db") as connection:
        assert connection.execute("SELECT number, row_count FROM samples ORDER BY 1").fetchall() == [(0, 2), (1, 2)]
    connection.close()
