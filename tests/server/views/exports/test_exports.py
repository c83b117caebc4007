"""Exports read back by pyarrow: every value, names as they are, and clients that are slow, gone or too many."""

from __future__ import annotations

import io
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pyarrow as pa
import pytest
from pyarrow import csv, ipc, parquet
from sqlalchemy import create_engine, text

from rangewatch import statistics
from rangewatch.wire.records import Catalogue, TensorEntry
from rangewatch_server.routes.downloads import MAX_DOWNLOADS
from tests import forked
from tests.server.process import Run, Server
from tests.server.records import batch, catalogue, opening

RANKS, TENSORS, STEPS = 2, 8, 9_000  # over 65,536 cells a rank, so that a file is of several pieces
NAMES = ("=1+1", "+a", "-a", "@a", "'=a", 'a,"b"\nc', "\t=a", "Schicht.ü")
FORMATS: dict[str, Callable[[bytes], pa.Table]] = {
    "arrow": lambda body: ipc.open_stream(body).read_all(),
    "parquet": lambda body: parquet.read_table(io.BytesIO(body)),
    "csv": lambda body: csv.read_csv(io.BytesIO(body), parse_options=csv.ParseOptions(newlines_in_values=True)),
}


def columns(rank: int) -> dict[str, np.ndarray]:
    """(tensors, steps); nothing observed at a step in ten, and the full set at one in seven."""
    random, at = np.random.default_rng(rank), np.arange(STEPS)
    shape = (TENSORS, STEPS)
    seen, full = np.broadcast_to(at % 10 != 3, shape), np.broadcast_to(at % 7 == 0, shape)
    found = {
        "call_count": np.ones(shape), "numel": np.full(shape, 32.0), "amax": random.random(shape) * 60_000,
        "nan_count": random.integers(0, 2, shape) * 1.0, "inf_count": np.zeros(shape),
        "full_numel": np.full(shape, 32.0), "amin": random.random(shape), "sum_sq": random.random(shape) * 1e9,
    }  # fmt: skip
    identity = {each.name: each.identity for each in statistics.ALL}
    return {
        name: np.where(seen & full if name in ("full_numel", "amin", "sum_sq") else seen, values, identity[name])
        for name, values in found.items()
    }


def send(run: Run, ranks: int = RANKS) -> list[dict[str, np.ndarray]]:
    known = Catalogue(
        statistics.ALL, tuple(TensorEntry(n, "output", i, "float16", (4, 8), i, "M") for i, n in enumerate(NAMES))
    )
    sent = [columns(rank) for rank in range(ranks)]
    for rank in range(ranks):
        run.post(opening(known, rank=rank, world_size=ranks))
        for number, low in enumerate(range(0, STEPS, 3_000)):
            part = {name: values[:, low : low + 3_000] for name, values in sent[rank].items()}
            assert run.post(batch(known, number, range(low, low + 3_000), part, rank=rank)).status_code == 202
    return sent


@pytest.fixture(scope="module")
def sent(module_run: Run) -> tuple[Run, list[dict[str, np.ndarray]]]:
    return module_run, send(module_run)


def get(run: Run, query: str) -> bytes:
    answer = run.ask(f"/slice?{query}")
    assert answer.status_code == 200, answer.text
    return answer.content


@pytest.mark.parametrize("form", FORMATS)
def test_a_file_holds_what_was_sent(sent: tuple[Run, Any], form: str) -> None:
    run, values = sent
    table = FORMATS[form](get(run, f"axes=step,rank,tensor&statistic=*&format={form}"))
    step, rank, tensor = (table[name].to_numpy() for name in ("step", "rank", "tensor"))
    for each in range(RANKS):
        at = np.nonzero((values[each]["call_count"] > 0).T)
        mine = rank == each
        assert np.array_equal(step[mine], at[0])  # every observed cell once, in order of steps
        assert np.array_equal(tensor[mine], at[1])
        for name in values[each]:
            expected = values[each][name].T[at]
            unmeasured = name in ("amin", "sum_sq") and values[each]["full_numel"].T[at] == 0
            found = table[name].filter(pa.array(mine)).to_numpy()
            assert np.array_equal(found, np.where(unmeasured, np.nan, expected), equal_nan=True), name
    assert set(table["step_count"].to_pylist()) == {1}
    bad = table["nan_count"].to_numpy() > 0
    assert set(table["state"].filter(pa.array(bad)).to_pylist()) == {"nan"}


@pytest.mark.parametrize("form", FORMATS)
def test_merged_columns_in_a_file_are_those_of_json(sent: tuple[Run, Any], form: str) -> None:
    run, _ = sent
    query = "columns=50&start=17&stop=8000&statistic=amax&statistic=nan_count"
    table = FORMATS[form](get(run, f"{query}&format={form}"))
    shown = run.get(f"/slice?{query}")
    assert table.num_rows == TENSORS * len(shown["columns"]["steps"])
    assert table["rank"].null_count == table.num_rows
    assert sum(table["step_count"].to_pylist()) == TENSORS * (8_000 - 17)
    for name in ("amax", "nan_count", "amax_step"):
        assert np.array_equal(table[name].to_numpy().reshape(-1, TENSORS).T, np.array(shown["values"][name]))


@pytest.mark.parametrize("axes", ["step,rank", "rank,tensor"])
def test_other_axes_in_a_file_are_those_of_json(sent: tuple[Run, Any], axes: str) -> None:
    run, _ = sent
    query = f"axes={axes}&start=100&stop=300&statistic=amax&statistic=rms"
    shown = run.get(f"/slice?{query}")
    table = FORMATS["arrow"](get(run, f"{query}&format=arrow"))
    for name in ("amax", "rms"):
        known = [value for row, states in zip(shown["values"][name], shown["states"], strict=True)
                 for value, state in zip(row, states, strict=True) if state != 5]  # fmt: skip
        assert table[name].to_pylist() == known
    assert table["fqn"].null_count == (table.num_rows if axes == "step,rank" else 0)
    one = FORMATS["arrow"](get(run, "axes=step,rank&tensor=3&stop=5&format=arrow"))
    assert set(one["fqn"].to_pylist()) == {NAMES[3]}


def test_names_are_text_and_no_formula(sent: tuple[Run, Any]) -> None:
    run, _ = sent
    for form in ("arrow", "parquet"):
        table = FORMATS[form](get(run, f"rank=0&stop=1&format={form}"))
        assert table["fqn"].to_pylist() == list(NAMES)
    table = FORMATS["csv"](get(run, "rank=0&stop=1&format=csv"))
    assert table["fqn"].to_pylist() == [name if name[0] in "aS" else "'" + name for name in NAMES]


def test_a_file_says_what_it_is(sent: tuple[Run, Any]) -> None:
    run, _ = sent
    kinds = {}
    for form in FORMATS:
        answer = run.ask(f"/slice?start=5&stop=20&rank=0&format={form}")
        assert (
            answer.headers["content-disposition"] == f'attachment; filename="rangewatch-run-{run.id}-steps-5-20.{form}"'
        )
        kinds[form] = answer.headers["content-type"]
    assert kinds["csv"] == "text/csv; charset=utf-8"
    metadata = ipc.open_stream(get(run, "start=5&stop=20&rank=0&format=arrow")).schema.metadata
    assert (metadata[b"rangewatch.run"], metadata[b"rangewatch.start"]) == (run.name.encode(), b"5")


@pytest.mark.parametrize("form", FORMATS)
def test_an_export_of_nothing_is_a_file_without_rows(sent: tuple[Run, Any], form: str) -> None:
    run, _ = sent
    for query in ("q=no-such-name", "start=10000", "start=3&stop=4"):
        table = FORMATS[form](get(run, f"{query}&format={form}"))
        assert table.num_rows == 0
        assert table.column_names[:3] == ["step", "step_count", "rank"]
        assert table.column_names[-1] == "amax"


def test_a_gap_of_a_trillion_steps_is_passed_over(run: Run) -> None:
    known = catalogue(3)
    run.post(opening(known))
    for number, first in enumerate((0, 10**6, 10**12 - 50)):
        run.post(batch(known, number, range(first, first + 50)))
    table = FORMATS["arrow"](get(run, "format=arrow"))
    expected = [first + i for first in (0, 10**6, 10**12 - 50) for i in range(50) for _ in range(3)]
    assert table["step"].to_pylist() == expected


class Slow:
    """A client that asks for a whole file and reads only its beginning."""

    def __init__(self, run: Run) -> None:
        host, port = run.server.url.removeprefix("http://").split(":")
        self.socket = socket.socket()
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)  # before connecting: the kernel's is MiB
        self.socket.settimeout(30)
        self.socket.connect((host, int(port)))
        path = run.path("/slice?axes=step,rank,tensor&statistic=*&format=csv")
        self.socket.sendall(f"GET {path} HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
        self.beginning = self.socket.recv(1_000)

    def close(self) -> None:
        self.socket.close()


def wait_for(check: Callable[[], bool]) -> None:
    while not check():  # the test's own time limit ends it
        time.sleep(0.01)


def no_reader(url: str) -> bool:
    """Whether nobody holds a read transaction: SQLite's log can be emptied, PostgreSQL lists none."""
    engine = create_engine(url)
    try:
        with engine.connect() as connection:
            if engine.dialect.name == "sqlite":
                busy, log, done = connection.execute(text("PRAGMA wal_checkpoint(TRUNCATE)")).one()
                return (busy, log) == (0, done)
            query = (
                "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND xact_start IS NOT NULL"
            )
            return connection.execute(text(f"{query} AND pid <> pg_backend_pid()")).scalar() == 0
    finally:
        engine.dispose()


@pytest.mark.slow
@pytest.mark.parametrize("database_url", ["sqlite", "postgres"], indirect=True)
def test_a_slow_client_holds_no_transaction(start_server: Callable[..., Server], database_url: str) -> None:
    run = Run(start_server(db=database_url), "slow")
    send(run, 1)
    client = Slow(run)
    assert client.beginning.startswith(b"HTTP/1.1 200")
    # Something to check the log against: a reader that began before this would keep it from being emptied.
    run.server.post(opening(catalogue(2), run="other"))
    wait_for(lambda: no_reader(database_url))
    client.close()


def test_too_many_exports_wait_and_a_client_that_goes_makes_room(sent: tuple[Run, Any]) -> None:
    run, _ = sent
    clients = [Slow(run) for _ in range(MAX_DOWNLOADS)]
    answer = run.ask("/slice?format=arrow")
    assert (answer.status_code, answer.json()["code"]) == (503, "too_many_exports")
    assert answer.headers["retry-after"] == "10"
    assert run.ask("/slice?stop=5").status_code == 200  # JSON is answered all the while
    for client in clients:
        client.close()
    wait_for(lambda: run.ask("/slice?stop=5&format=arrow").status_code == 200)


@pytest.mark.slow
def test_an_export_that_fails_is_broken_off_not_cut_short(run: Run) -> None:
    """A run that is deleted meanwhile is no fault of the server's: its log has a line, and no traceback."""
    send(run)  # more than connections hold of it
    logged = len(run.server.log.text())
    path = run.path("/slice?axes=step,rank,tensor&statistic=*&format=csv")
    with pytest.raises(httpx.RemoteProtocolError), run.server.client.stream("GET", path) as answer:
        body = answer.iter_bytes(1_000)
        next(body)
        deleted = httpx.delete(run.server.url + run.path())
        assert deleted.status_code == 200
        for _ in body:
            pass
    wait_for(lambda: "export" in run.server.log.text()[logged:])
    said = run.server.log.text()[logged:]
    assert f"a download was broken off: run {run.id} was deleted during an export" in said
    assert "Traceback" not in said and "RuntimeError" not in said


def anonymous_mib(server: Server) -> float:
    """Memory that is no file's: SQLite maps the database, and what it has read of that counts as resident."""
    status = Path(f"/proc/{server.process.pid}/status").read_text()
    return int(status.partition("RssAnon:")[2].split()[0]) / 1_024


@pytest.mark.soak
@pytest.mark.timeout(600)
@pytest.mark.parametrize("form", FORMATS)
def test_memory_does_not_grow_with_files(start_server: Callable[..., Server], form: str) -> None:
    server, known = start_server(), catalogue(300)
    server.post(opening(known))
    amax = np.random.default_rng(0).random((300, 4_000))
    for number in range(5):
        server.post(batch(known, number, range(number * 4_000, (number + 1) * 4_000), {"amax": amax}))
    most, before = [], anonymous_mib(server)
    for _ in range(3):
        with server.client.stream("GET", f"/api/v1/runs/1/slice?statistic=*&format={form}") as answer:
            most.append(max(anonymous_mib(server) for _ in answer.iter_bytes(4 << 20)))
    assert most[0] < before + 300, (before, most)  # 6 million rows are 900 MiB
    assert most[2] < most[0] + 40, (before, most)


def test_only_an_export_loads_pyarrow() -> None:
    """The program is forked from a process that has imported what a server imports."""
    code = "import sys; print('rangewatch_server.http.serve' in sys.modules, 'pyarrow' in sys.modules)"
    assert forked.server.run("-c", code).stdout.split() == ["True", "False"]
