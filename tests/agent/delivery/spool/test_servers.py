"""Servers in trouble: losses stay bit-equal, what is held stays bounded, and in the end nothing is missing."""

from __future__ import annotations

import contextlib
import gzip
import random
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import rangewatch
from rangewatch import wire
from rangewatch.core import limits, options
from rangewatch.core.options import Options
from rangewatch.delivery.spool import place
from rangewatch.delivery.spool.folder import Folder
from rangewatch.delivery.transport import Outcome, Reply, Transport
from rangewatch.recording.events import Drops
from tests.agent.delivery.spool.batches import INFO, encoded, opening
from tests.agent.delivery.test_delivery import STEPS, assert_complete, train
from tests.agent.doubles import sender_of
from tests.agent.ingest_double import IngestDouble

Trouble = Callable[[Any], Any]


@pytest.fixture(autouse=True)
def quick_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("BACKOFF_FIRST_S", "BACKOFF_LAST_S", "UNAUTHORIZED_RETRY_S"):
        monkeypatch.setattr(limits, name, 0.01)
    for name in ("READ_TIMEOUT_S", "REPLY_TIMEOUT_S"):
        monkeypatch.setattr(limits, name, 0.1)


def status(code: int, body: bytes = b"{}", **headers: str) -> Trouble:
    return lambda request: (code, headers, body)


def trickle(request: Any) -> None:
    """A byte at a time, for longer than anybody should wait."""
    for byte in b"HTTP/1.1 202 Accepted\r\nContent-Length: 2\r\n\r\n{}" * 10:
        request.wfile.write(bytes([byte]))
        time.sleep(0.02)


def garbage(request: Any) -> None:
    request.wfile.write(random.Random(1).randbytes(5000))


def closing(request: Any) -> None:
    request.wfile.write(b"HTTP/1.1 202 Acc")


def hanging_up(request: Any) -> None:
    return None


TROUBLES = {
    "slow": trickle, "500": status(500), "429": status(429, **{"Retry-After": "0"}), "garbage": garbage,
    "closing": closing, "hanging up": hanging_up, "401": status(401), "page": status(200, b"<html>"),
    "redirect": status(302, Location="http://127.0.0.1:1/"), "another's 202": status(202, b"<html>"),
    "huge": status(503, b"x" * 3_000_000, **{"Retry-After": "0"}),
}  # fmt: skip


@pytest.fixture(scope="module")
def plain() -> list[float]:
    return train(None)


@pytest.mark.parametrize("name", TROUBLES)
def test_trouble_and_then_none(ingest: IngestDouble, plain: list[float], spool_dir: Path, name: str) -> None:
    take, trouble, has_begun = ingest._take, TROUBLES[name], threading.Event()
    original = ingest._handle

    def troubled(request: Any) -> None:
        has_begun.set()
        ingest.script.append(trouble)
        original(request)

    ingest._handle = troubled

    def between(step: int) -> None:
        if step == STEPS - 2:
            assert has_begun.wait(20)
            ingest._handle = original
            ingest.script.clear()

    assert train(ingest.url, between=between, flush_timeout_s=30) == plain
    assert ingest._take == take
    assert_complete(ingest)
    assert list(place.spools(spool_dir)) == [], "all has arrived: nothing is left on disk"


def test_refused_for_good_is_dropped_counted_and_nothing_else_is_missing(
    ingest: IngestDouble, plain: list[float], spool_dir: Path
) -> None:
    take, refused = ingest._take, []

    def too_large(message: Any) -> Any:
        sequence = getattr(message, "sequence", -1)
        if sequence in (3, 5):
            refused.append(sequence)
            return 413, {}, b'{"error": "too large", "code": "too_large"}'
        return take(message)

    ingest._take = too_large
    assert train(ingest.url, flush_timeout_s=30) == plain
    assert refused == [3, 5], "each once"
    assert [batch.sequence for batch in ingest.batches] == [
        n for n in range(len(ingest.batches) + 2) if n not in (3, 5)
    ]
    assert ingest.events("dropped")[-1].data == {"server_rejected": 2}
    assert list(place.spools(spool_dir)) == []


def test_what_comes_while_a_server_keeps_us_waiting_is_on_disk(
    ingest: IngestDouble, spool_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rank that is killed while its request hangs has lost nothing that it had shipped."""
    answer, asked = threading.Event(), threading.Event()
    take = ingest._take

    def waiting(message: Any) -> Any:
        asked.set()
        answer.wait(30)
        return take(message)

    ingest._take = waiting
    for name in ("READ_TIMEOUT_S", "REPLY_TIMEOUT_S"):
        monkeypatch.setattr(limits, name, 30.0)

    def between(step: int) -> None:
        if step != STEPS - 1:
            return
        assert asked.wait(20)
        while True:
            (path,) = place.spools(spool_dir)
            if len(list(Folder(path).batches())) >= STEPS:
                break
            time.sleep(0.01)  # the test's own time limit ends this
        answer.set()

    train(ingest.url, between=between, flush_timeout_s=30)
    assert_complete(ingest)


@pytest.fixture
def trickling() -> Iterator[tuple[str, list[int]]]:
    """A server of its own: how many bytes of its reply each connection took, and whose reader then went."""
    taken: list[int] = []
    server = socket.create_server(("127.0.0.1", 0))

    def answer(connection: socket.socket) -> None:
        connection.recv(65536)
        reply = b"HTTP/1.1 202 Accepted\r\nX-Long: " + b"x" * 100_000
        for count, byte in enumerate(reply):
            try:
                connection.sendall(bytes([byte]))
            except OSError:
                taken.append(count)
                return
            time.sleep(0.01)

    def serve() -> None:
        while True:
            try:
                connection, _ = server.accept()
            except OSError:
                return
            threading.Thread(target=answer, args=(connection,), daemon=True).start()

    threading.Thread(target=serve, daemon=True).start()
    yield f"http://127.0.0.1:{server.getsockname()[1]}", taken
    server.close()


def test_a_header_that_trickles_in_is_not_waited_for(trickling: tuple[str, list[int]]) -> None:
    """Each byte comes in time, the whole never would: pytest's own limit would end this test."""
    url, _ = trickling
    transport = Transport(url, None)
    assert transport.post(b"x").outcome is Outcome.RETRY
    transport.close()


def test_a_reply_that_trickles_in_and_is_never_whole_is_not_believed(ingest: IngestDouble) -> None:
    def trickling_body(request: Any) -> None:
        request.wfile.write(b'HTTP/1.1 202 Accepted\r\nContent-Length: 100000\r\n\r\n{"contiguous": 0,')
        for _ in range(100):
            request.wfile.write(b" ")
            time.sleep(0.02)

    ingest.script.append(trickling_body)
    transport = Transport(ingest.url, None)
    assert transport.post(b"x").outcome is Outcome.RETRY, "sent again it is a duplicate, which harms nobody"
    transport.close()


@pytest.mark.parametrize("reply", [b"HTTP/1.1 202 Acc", b"HTTP/1.1 202 Accepted\r\nServer: x\r\n\r\n", b"HTTP/1.1 202"])
def test_a_reply_cut_off_after_its_status_is_no_word_of_what_is_stored(ingest: IngestDouble, reply: bytes) -> None:
    """Such a line ends with the connection as well as with a newline: a batch let go of then is lost."""
    ingest.script.append(lambda request: request.wfile.write(reply) and None)
    transport = Transport(ingest.url, None)
    assert transport.post(b"x").outcome is Outcome.RETRY
    transport.close()


@pytest.mark.parametrize(
    ("trouble", "said"),
    [(garbage, "its answer is no HTTP"), (lambda request: None, "Remote end closed connection without response")],
)
def test_a_log_line_has_no_garbage_in_it(
    ingest: IngestDouble, trouble: Trouble, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "READ_TIMEOUT_S", 20.0)  # beside other work the server may not have closed in 0.1 s
    monkeypatch.setattr(limits, "REPLY_TIMEOUT_S", 20.0)
    ingest.script.append(trouble)
    transport = Transport(ingest.url, None)
    assert transport.post(b"x").detail == said
    transport.close()


def test_a_slow_line_has_longer_for_a_large_body_than_for_connecting(monkeypatch: pytest.MonkeyPatch) -> None:
    """2 s for 16 MiB would be 8 MB/s: a slower line would get it again and again, and never through."""
    monkeypatch.setattr(limits, "CONNECT_TIMEOUT_S", 0.05)
    monkeypatch.setattr(limits, "REPLY_TIMEOUT_S", 20.0)
    monkeypatch.setattr(limits, "READ_TIMEOUT_S", 20.0)
    server = socket.create_server(("127.0.0.1", 0))
    size = 16 << 20

    def slowly() -> None:
        connection, _ = server.accept()
        time.sleep(0.1)  # longer than connecting may take; more than the kernel's buffers is still to come
        seen = 0
        while seen < size:
            seen += len(connection.recv(1 << 20))
        connection.sendall(b'HTTP/1.1 202 Accepted\r\nContent-Length: 16\r\n\r\n{"contiguous":0}')
        connection.close()

    thread = threading.Thread(target=slowly, daemon=True)
    thread.start()
    transport = Transport(f"http://127.0.0.1:{server.getsockname()[1]}", None)
    assert transport.post(bytes(size)).outcome is Outcome.STORED
    thread.join()
    transport.close()
    server.close()


def bytes_in(folder: Path) -> int:
    total = 0
    for each in folder.rglob("*"):
        with contextlib.suppress(FileNotFoundError):  # dropped in between
            total += each.stat().st_size if each.is_file() else 0
    return total


@pytest.mark.parametrize(("layers", "count"), [(24, 60), pytest.param(24, 240, marks=pytest.mark.slow)])
def test_a_long_absence_keeps_the_newest_and_counts_the_rest(
    ingest: IngestDouble, spool_dir: Path, monkeypatch: pytest.MonkeyPatch, layers: int, count: int
) -> None:
    monkeypatch.setattr(options.OPTIONS["spool_bytes"], "check", lambda value: True)  # of a bound below 1 MiB
    bound = layers * 60 * 72
    ingest.stop()
    model = nn.Sequential(*[nn.Linear(8, 8) for _ in range(layers)])
    given: dict[str, Any] = {"collect": (), "ship_interval_s": 0, "full_every": 1, "budget_percent": 100}
    handle = rangewatch.attach(model, url=ingest.url, spool_bytes=bound, flush_timeout_s=30, **given)
    for _ in range(count):
        model(torch.randn(4, 8)).sum().backward()
        model.zero_grad()
        handle.step()
        assert bytes_in(spool_dir) <= bound
    ingest.start()
    sender = handle._agent._sender
    while sender.is_behind:  # the test's own time limit ends this
        time.sleep(0.01)
    handle.detach()
    cells = ingest.tensors()["0", "output", 0]
    calls = sum(cell["call_count"] for cell in cells.values())
    dropped = ingest.events("dropped")[-1].data["spool_full"]
    assert calls == len(cells) == count - dropped > count // 20, "what was dropped is counted, and nothing else is gone"
    assert count - 1 in cells, "the newest are kept"


def test_without_a_disk_of_this_machine_it_says_so_in_the_run(
    ingest: IngestDouble, spool_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(place, "file_system", lambda path: "lustre")
    losses = train(ingest.url)
    assert len(losses) == STEPS and not spool_dir.exists()
    assert_complete(ingest)
    (said,) = ingest.events("spool")
    assert "network file system (lustre)" in said.message and "in memory only" in said.message


def test_the_end_of_a_run_is_in_its_spool_when_the_server_is_away(ingest: IngestDouble, spool_dir: Path) -> None:
    """So that whoever sends it later does not take it for a death."""
    ingest.stop()
    train(ingest.url, flush_timeout_s=0.1)
    (path,) = place.spools(spool_dir)
    batches = [wire.decode(each.body) for each in Folder(path).batches()]
    assert [event.kind for event in batches[-1].events][-1:] == ["finished"]
    assert not Folder(path).is_in_use()


def test_a_reply_that_unpacks_to_more_is_not_unpacked(ingest: IngestDouble) -> None:
    text = b'{"contiguous": 0, "commands": []}'
    ingest.script.append(lambda request: (202, {"Content-Encoding": "gzip"}, gzip.compress(text)))
    transport = Transport(ingest.url, None)
    assert transport.post(b"x").outcome is Outcome.RETRY
    transport.close()


def test_a_halved_batch_that_is_refused_counts_as_all_that_it_was_made_of(tmp_path: Path) -> None:
    drops = Drops()
    sender = sender_of(Options(spool_dir=str(tmp_path)), INFO, drops)
    batch = encoded(3, range(8))._replace(batches=4)
    sender._queue.put(batch, opening)
    sender._act_on(Reply(Outcome.REJECTED, "HTTP 413"), batch)
    assert drops.counts == {"server_rejected": 4} and not sender.is_behind
