"""Openings: many small objects from few bytes, and statistics that mean something else than they are called."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
import zstandard

from rangewatch import statistics, wire
from rangewatch.wire import WireError, messages
from rangewatch.wire.records import Batch, Catalogue, Statistic, StreamHeader, TensorEntry
from rangewatch_server.ingest import memory
from rangewatch_server.routes import ingest
from rangewatch_server.store import batch_checks
from tests.security.conftest import Inside
from tests.server.opened_store import Store
from tests.server.process import Run
from tests.server.records import batch, catalogue, opening

KNOWN = catalogue(2)
MOST = 1 << 20


def with_shapes(count: int, dims: int) -> bytes:
    """An opening of tensors whose dimensions are 3 bytes each, and 40 as objects."""
    shape = tuple(range(1_000, 1_000 + dims))
    entries = (TensorEntry(str(number), "output", 0, "float16", shape, number) for number in range(count))
    return wire.encode(opening(Catalogue(statistics.ALL, tuple(entries))))


def test_shapes_are_looked_at_before_they_are_objects(weakened: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    body = with_shapes(8_000, 60)
    assert len(body) < 100 << 10
    monkeypatch.setattr(messages, "MAX_SHAPE_BYTES", 1 << 40 if weakened else MOST)
    tracemalloc.start()
    refused = ""
    try:
        wire.decode(body)
    except WireError as error:
        refused = f"{error.code}: {error}"
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert refused == ("" if weakened else f"too_large: shapes of tensors have more than {MOST} bytes together")
    assert (peak > 15 << 20) == weakened, peak


def test_a_large_model_is_well_below_the_bounds() -> None:
    """10,000 layers with three kinds each, as they are named in practice."""
    entries = (
        TensorEntry(f"model.decoder.layers.{n // 90}.mlp.experts.{n % 90}.gate_proj", kind, 0, "bfloat16",
                    (8, 2_048, 14_336), n * 1_024, "Linear")
        for n in range(10_000) for kind in ("output", "grad_output", "grad")
    )  # fmt: skip
    known = opening(Catalogue(statistics.ALL, tuple(entries)))
    assert len(msgspec.msgpack.encode(known)) < messages.MAX_OPENING_BYTES / 7
    assert len(msgspec.msgpack.encode([each.shape for each in known.catalogue.tensors])) < messages.MAX_SHAPE_BYTES / 20
    assert wire.decode(wire.encode(known)) == known


@pytest.mark.parametrize(("shape", "code"), [
    (3, "bad_header"), ([1.5], "bad_header"), (["x"], "bad_header"), ([[1]], "bad_header"), (None, "bad_header"),
    ([2**70], "bad_header"), ([1] * 65, "too_large"),
])  # fmt: skip
def test_a_shape_that_is_none(shape: Any, code: str) -> None:
    made = msgspec.to_builtins(opening(KNOWN))
    made["catalogue"]["tensors"][1]["shape"] = float(shape[0]) if shape == [2**70] else shape
    header = msgspec.msgpack.encode({"message": "opening", "opening": made})
    raw = messages.PREFIX.pack(messages.MAGIC, 1, len(header)) + header
    with pytest.raises(WireError) as refused:
        wire.decode(zstandard.compress(raw))
    assert refused.value.code == code


def test_an_opening_has_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(messages, "MAX_OPENING_BYTES", 100)
    with pytest.raises(WireError, match=r"an opening has \d+ bytes; at most 100") as refused:
        wire.decode(wire.encode(opening(KNOWN)))
    assert refused.value.code == "too_large"


def test_an_opening_holds_room_for_its_objects(
    inside: Callable[..., Inside], weakened: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until it is stored. Eight at once, of 3 MiB packed each, made a server 5 GiB larger."""
    if weakened:
        monkeypatch.setattr(ingest, "OPENING_OBJECTS", 0)
    server, body = inside(), with_shapes(2_000, 4)
    size = zstandard.get_frame_parameters(body).content_size
    server.app.state.room.left_bytes = len(body) + 5 * size
    answer = server.post(body)
    assert (answer.status_code, answer.json().get("code")) == ((202, None) if weakened else (429, "busy"))
    assert server.app.state.room.left_bytes == len(body) + 5 * size
    server.app.state.room.left_bytes = len(body) + 6 * size
    assert server.post(body).status_code == 202


def test_names_of_many_runs_are_not_all_remembered(
    sqlite_url: str, open_store: Callable[[str], Store], weakened: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A body of 40 KiB was 230 MiB for as long as the server lived, and each further run as much again."""
    one = memory.Names.size_of(len(KNOWN.tensors), len(KNOWN.statistics))
    most = 3 * one
    monkeypatch.setattr(memory, "NAMES_BYTES", 1 << 40 if weakened else most)
    store = open_store(sqlite_url)
    for number in range(8):
        store.send(opening(KNOWN, f"run {number}"))
    assert (store.writer.memory.names.nbytes > most + one) == weakened
    for number in range(8):
        assert store.send(batch(KNOWN, 0, range(4), run=f"run {number}")).contiguous == 0, "read back when it speaks"


def renamed(name: str, **changed: Any) -> StreamHeader:
    """With one statistic otherwise, or one more."""
    chosen = {each.name: each for each in statistics.ALL}
    chosen[name] = msgspec.structs.replace(chosen.get(name, Statistic(name, "apples", "sum", 0.0, "")), **changed)
    return opening(Catalogue(tuple(chosen.values()), KNOWN.tensors), rank=1)


@pytest.mark.parametrize(
    "changed", [{"merge": "sum"}, {"unit": "calls"}, {"identity": 1.0}, {"identity": float("nan")}]
)
def test_a_known_statistic_stays_what_it_is(
    own_run: Run, weakened: bool, monkeypatch: pytest.MonkeyPatch, changed: dict[str, Any]
) -> None:
    """Two ranks whose `amax` is merged by two rules would be one wrong number."""
    if weakened:
        monkeypatch.setattr(batch_checks, "KNOWN", {})
    assert own_run.post(opening(KNOWN)).status_code == 202
    answer = own_run.post(renamed("amax", **changed))
    assert (answer.status_code == 202) == weakened
    if not weakened:
        assert (answer.status_code, answer.json()["code"]) == (400, "wrong_statistic")
        assert answer.json()["error"].startswith("statistic 'amax': its ")
        assert own_run.post(renamed("amax", help="in other words")).status_code == 202


def test_ranks_agree_on_what_this_server_does_not_know(own_run: Run) -> None:
    """The first to name it says what it means: in a run, not in another one."""
    assert own_run.post(renamed("apple_count")).status_code == 202
    for changed in ({"merge": "max"}, {"unit": "pears"}, {"identity": 7.0}):
        answer = own_run.post(renamed("apple_count", **changed))
        assert (answer.status_code, answer.json()["code"]) == (400, "wrong_statistic")
    assert own_run.post(renamed("apple_count", help="round")).status_code == 202
    another = Run(own_run.server, f"not {own_run.name}")
    assert another.post(renamed("apple_count", merge="max")).status_code == 202


@pytest.mark.parametrize(
    "name", ["exponent_--5", "exponent_-", "exponent_\u0665", "exponent_007", f"exponent_{'9' * 4_000}"]
)
def test_a_name_like_a_bins_is_none(own_run: Run, name: str) -> None:
    """Its number was read from it: `int("--5")` was a 500 of every page of the run, from one opening."""
    made = renamed(name, unit="elements")
    for message in (made, rows_with(made, name)):
        assert own_run.post(message).status_code == 202
    for path in ("", "/figures/exponents?tensor=0", "/figures/layers", "/slice?statistic=*"):
        assert own_run.ask(path).status_code == 200, path


def rows_with(made: StreamHeader, name: str) -> Batch:
    """Rows of a rank with values of that statistic."""
    found = batch(KNOWN, 0, range(70), {name: 3.0}, rank=made.info.rank)
    return msgspec.structs.replace(found, catalogue=wire.catalogue_digest(made.catalogue))
