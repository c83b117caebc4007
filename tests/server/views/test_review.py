"""Faults that a review proved, each once: restarts, gaps, poison, names of files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np
import pytest

from rangewatch import wire
from rangewatch.wire.records import Batch, Event, RangeRows, SeriesRows, StreamHeader
from rangewatch_server.ingest.transaction import Refused, Transaction
from rangewatch_server.numerics.pyramid import RANGES
from tests import forked
from tests.server.opened_store import Store
from tests.server.process import Run, Server
from tests.server.records import batch, catalogue, opening

KNOWN = catalogue(3)


def inf_at(step: int, steps: range, tensor: int = 1) -> dict[str, np.ndarray]:
    bad = np.zeros((3, len(steps)))
    bad[tensor, step - steps.start] = 1
    return {"inf_count": bad}


def test_a_crash_stays_a_failure(run: Run) -> None:
    run.post(opening(KNOWN))
    said = (Event("failed", 1, 3, "RuntimeError: boom"), Event("finished", 2, 3))
    run.post(batch(KNOWN, 0, range(4), events=said))
    found = run.get()
    assert (found["state"], found["ranks"][0]["state"], found["ranks"][0]["failure"]) == (
        "failed",
        "failed",
        "RuntimeError: boom",
    )


def test_a_restart_keeps_what_it_did_not_overwrite(run: Run) -> None:
    """Inf and a skip at step 40, restart at 60: both still count; restart at 30: the new history stands instead."""
    run.post(opening(KNOWN))
    skipped = {"skipped_step": np.arange(100) == 41, "loss_scale": 1024.0}
    run.post(batch(KNOWN, 0, range(100), inf_at(40, range(100)), series=skipped))
    run.post(opening(KNOWN, incarnation="b"))
    before = run.get()
    assert (before["first_overflow"]["step"], before["verdict"]["level"], before["loss_scale"]) == (
        40,
        "critical",
        1024,
    )
    run.post(batch(KNOWN, 0, range(60, 70), incarnation="b"))
    kept = run.get()
    assert (kept["first_overflow"]["step"], kept["first_overflow"]["tensor"], kept["skipped_steps"]) == (40, 1, 1)
    run.post(opening(KNOWN, incarnation="c"))
    run.post(batch(KNOWN, 0, range(30, 36), {"amax": 2.0}, incarnation="c"))
    redone = run.get()
    assert (redone["first_overflow"], redone["skipped_steps"]) == (None, 0)
    assert (redone["least_headroom"]["bits"], redone["least_headroom"]["step"]) == (pytest.approx(15, abs=0.01), 30)
    assert len(redone["sparkline"]) == 36


def test_the_newest_incarnation_says_how_many_ranks(run: Run) -> None:
    for rank in range(4):
        run.post(opening(KNOWN, rank=rank, world_size=4))
        run.post(batch(KNOWN, 0, range(2), rank=rank, events=(Event("finished", 1, 1),)))
    for rank in range(2):
        run.post(opening(KNOWN, rank=rank, world_size=2, incarnation="b"))
    listed = run.server.get("/api/v1/runs")["runs"]
    line = next(each for each in listed if each["id"] == run.id)
    assert (line["world_size"], line["ranks_reporting"]) == (2, 2)


def test_only_zeros_is_not_nothing(run: Run) -> None:
    run.post(opening(KNOWN))
    run.post(batch(KNOWN, 0, range(4), {"amax": 0.0}))
    verdict = run.get()["verdict"]
    assert (verdict["level"], verdict["parts"][0][1]) == ("ok", "No overflow; nothing but zeros has been recorded.")


def test_locate_stays_in_the_rows_that_are_shown(run: Run) -> None:
    known = catalogue(9)  # kinds take turns: output, grad_output, grad
    run.post(opening(known))
    amax = np.full((9, 4), 2.0)
    amax[4] = 60_000.0  # a grad_output between two grads
    run.post(batch(known, 0, range(4), {"amax": amax}))
    assert run.get("/locate?tensor=2-8")["tensor"] == 4
    assert run.get("/locate?tensor=2-8&kind=grad")["tensor"] in (2, 5, 8)
    assert run.ask("/locate?tensor=2-8&q=nothing").status_code == 404


def test_call_index_is_a_place_whatever_gaps_the_agent_left(run: Run) -> None:
    entries = tuple(
        msgspec.structs.replace(entry, call_index=index)
        for entry, index in zip(KNOWN.tensors, (0, 2048, 1024), strict=True)
    )
    known = msgspec.structs.replace(KNOWN, tensors=entries)
    run.post(opening(known))
    run.post(batch(known, 0, range(2)))
    frames = run.get("/step?step=1")["frames"]
    assert [(frame["tensor"], frame["call_index"]) for frame in frames] == [(0, 0), (2, 1), (1, 2)]


def test_a_batch_beyond_a_gap_shows_when_the_gap_has_closed(run: Run) -> None:
    run.post(opening(KNOWN))
    run.post(batch(KNOWN, 0, range(4)))
    assert run.post(batch(KNOWN, 5, [10**12])).status_code == 202
    assert run.server.client.get("/api/v1/runs").status_code == 200
    for path in ("", "/figures/layers", "/figures/timeline"):
        assert run.ask(path).status_code == 200, path
    assert run.get()["last_step"] == 3
    run.post(msgspec.structs.replace(batch(KNOWN, 4, range(4, 8)), settled=4))
    assert run.get()["last_step"] == 10**12
    assert run.ask("/figures/layers").status_code == 200


def far_apart() -> Batch:
    return batch(KNOWN, 0, np.arange(1_000) * 64)


def many_steps() -> Batch:
    at = np.arange(5_000)
    return Batch("run", 0, "a", 0, wire.catalogue_digest(KNOWN), None, (SeriesRows("loss", at, np.ones(5_000)),))


def many_tensors() -> Batch:
    wide = np.arange(200_001)
    return Batch("run", 0, "a", 0, "x", RangeRows(np.arange(1), wide, {"amax": np.ones((200_001, 1))}))


def with_info(**changes: int) -> StreamHeader:
    good = opening(KNOWN)
    return msgspec.structs.replace(good, info=msgspec.structs.replace(good.info, **changes))


def with_tensor(**changes: int) -> StreamHeader:
    entry = msgspec.structs.replace(KNOWN.tensors[0], **changes)
    return opening(msgspec.structs.replace(KNOWN, tensors=(entry,)))


def with_details(data: dict[str, object]) -> Batch:
    return batch(KNOWN, 0, range(4), events=(Event("x", 1, 1, "", data),))


def test_numbers_out_of_bounds_are_refused_at_once(run: Run) -> None:
    run.post(opening(KNOWN))
    for message, status, code in (
        (far_apart(), 413, "too_large"),
        (many_steps(), 413, "too_large"),
        (many_tensors(), 413, "too_large"),
        (with_details({"a": msgspec.msgpack.Ext(1, b"x")}), 400, "bad_header"),
        (with_details({"a": "x" * 2_000_000}), 413, "too_large"),
        (with_info(started_ns=2**63), 400, "bad_header"),
        (with_info(world_size=2**31), 400, "bad_header"),
        (with_tensor(call_index=2**40), 400, "bad_header"),
        (with_tensor(index=2**40), 400, "bad_header"),
    ):
        answer = run.post(message)
        assert (answer.status_code, answer.json()["code"]) == (status, code), answer.text


def test_infinite_skips_are_refused_and_a_loss_scale_may_be_anything(run: Run) -> None:
    skips = batch(KNOWN, 0, range(2), series={"skipped_step": np.inf})
    assert run.post(opening(KNOWN), skips).json()["code"] == "invalid_value"
    assert run.post(batch(KNOWN, 0, range(2), series={"loss_scale": np.nan})).status_code == 202


def test_one_message_that_cannot_be_stored_costs_no_other(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    store.send(opening(KNOWN))
    original = Transaction._events

    def poisoned(self, stream, message) -> None:
        if message.sequence == 1:
            raise RuntimeError("boom")
        original(self, stream, message)

    monkeypatch.setattr(Transaction, "_events", poisoned)
    messages = [batch(KNOWN, n, range(n * 4, n * 4 + 4)) for n in range(3)]
    futures = [store.writer.submit(message, wire.encode(message)) for message in messages]
    assert futures[0].result(30).contiguous == 0
    with pytest.raises(Refused, match="cannot be stored"):
        futures[1].result(30)
    assert futures[2].result(30).contiguous == 0
    assert store.writer.is_alive


def test_a_page_that_cannot_be_told_does_not_end_the_writer(store: Store) -> None:
    store.writer.on_change = lambda _: 1 / 0
    store.send(opening(KNOWN))
    store.send(batch(KNOWN, 0, range(4)))
    assert store.writer.is_alive


def test_streams_of_the_same_group_are_not_forgotten(
    sqlite_url: str, open_store: Callable[[str], Store], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rangewatch_server.ingest.memory.CACHED_STREAMS", 1)
    store = open_store(sqlite_url)
    for rank in range(3):
        store.send(opening(KNOWN, rank=rank))
    messages = [batch(KNOWN, n, range(n * 4, n * 4 + 4), rank=rank) for n in range(5) for rank in range(3)]
    for future in [store.writer.submit(message, wire.encode(message)) for message in messages]:
        future.result(30)
    with store.queries.read() as reader:
        calls = reader.run(1).slice(RANGES, [0, 1, 2], 0, 0, 20, ["call_count"]).columns["call_count"]
        assert (calls == 3).all()


def test_a_refused_opening_leaves_no_run(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rangewatch_server.store.names.MAX_TENSORS", 2)
    with pytest.raises(wire.WireError, match="at most 2 tensors"):
        store.send(opening(KNOWN, run="huge"))
    store.send(opening(catalogue(2), run="small"))
    with store.queries.read() as reader:
        assert [reader.run(number).name for number in reader.run_ids()] == ["small"]


NAMES = ["run#3.db", "a?b.db", "100%41.db", "with space.db", "ünï.db"]


@pytest.mark.parametrize(
    "name", ["run#3?100%41 ünï.db", *(pytest.param(each, marks=pytest.mark.slow) for each in NAMES)]
)
def test_any_file_name_will_do(tmp_path: Path, name: str) -> None:
    server = Server(str(tmp_path / name))
    assert server.post(opening(KNOWN)).status_code == 202
    assert len(server.get("/api/v1/runs")["runs"]) == 1
    server.stop()
    assert (tmp_path / name).is_file()


def test_odd_headers_are_refused_not_failed(served: Server) -> None:
    assert served.client.get("/api/v1/runs", headers={"Host": "["}).status_code == 421
    assert served.post(opening(KNOWN), Origin="http://[").status_code == 403


def test_help_is_help() -> None:
    done = forked.server.run("-m", "rangewatch", "--help", timeout=30)
    assert done.returncode == 0
    assert all(command in done.stdout for command in ("serve", "demo", "report"))


def test_what_the_loss_scaler_skipped_is_no_overflow(run: Run) -> None:
    """Tensor 2 is a gradient. Every training with a loss scale overflows now and then: no alarm, but said."""
    run.post(opening(KNOWN))
    skipped = {"skipped_step": np.arange(100) == 40, "loss_scale": 1024.0}
    run.post(batch(KNOWN, 0, range(100), {"amax": 2.0} | inf_at(40, range(100), tensor=2), series=skipped))
    found = run.get()
    assert (found["first_overflow"], found["verdict"]["level"], found["skipped_steps"]) == (None, "ok", 1)
    assert (found["least_headroom"]["state"], found["least_headroom"]["bits"]) == ("value", pytest.approx(15, abs=0.01))
    words = "".join(text for _, text in found["verdict"]["parts"])
    assert words.startswith("No overflow in a step that was taken; least headroom 15.0 bits (")
    first = found["first_skipped"]
    assert (first["step"], first["rank"], first["tensor"], first["what"]) == (40, 0, 2, "inf")
    assert f"skipped a step: at step 40, rank 0, where the gradient of {first['fqn']} held Inf first." in words
    more = inf_at(110, range(100, 120), tensor=2) | {"amax": 2.0}
    run.post(batch(KNOWN, 1, range(100, 120), more, series={"skipped_step": 0.0}))
    later = run.get()
    assert (later["first_overflow"]["step"], later["verdict"]["level"]) == (110, "critical")
