"""Servers that are away, slow, refusing or wrong: training is the same to the bit, and what fits arrives in the end."""

from __future__ import annotations

import json
import logging
import random
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import rangewatch
from rangewatch import wire
from rangewatch.core import limits
from rangewatch.core.options import Options
from rangewatch.delivery.batcher import PendingBatch
from rangewatch.delivery.sender import Sender
from rangewatch.delivery.spool.queue import MemoryQueue
from rangewatch.delivery.spool.record import Encoded
from rangewatch.delivery.transport import Outcome, Transport, _meaning
from rangewatch.recording.events import Drops
from rangewatch.recording.rows.step_buffer import EMPTY_BLOCK, Block
from rangewatch.wire.records import Batch, Event, RankInfo, StreamHeader
from rangewatch_server.core.errors import STATUS_OF_CODE
from tests.agent import doubles
from tests.agent.ingest_double import IngestDouble

STEPS = 12


@pytest.fixture(autouse=True)
def quick_retries(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("RANGEWATCH_SPOOL_DIR", str(tmp_path))
    for name in ("BACKOFF_FIRST_S", "BACKOFF_LAST_S", "UNAUTHORIZED_RETRY_S"):
        monkeypatch.setattr(limits, name, 0.02)


@pytest.fixture
def senders(monkeypatch: pytest.MonkeyPatch) -> list[Sender]:
    """Those that the test has made."""
    made: list[Sender] = []

    def start(self: Sender, own: Callable[[Sender], None] = Sender.start) -> None:
        made.append(self)
        own(self)

    monkeypatch.setattr(Sender, "start", start)
    return made


def train(url: str | None, *, between: Callable[[int], None] = lambda step: None, **options: Any) -> list[float]:
    """Losses of a small deterministic run, with the agent or (url None) without it."""
    torch.manual_seed(7)
    model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.2), nn.GELU(), nn.Linear(8, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    handle = rangewatch.attach(model, optimizer, url=url, ship_interval_s=0, **options) if url else None
    losses = []
    for step in range(STEPS):
        loss = model(torch.randn(16, 4)).pow(2).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
        between(step)
    if handle:
        handle.detach()
    return losses


def test_a_loop_s_own_random_numbers_are_the_same() -> None:
    """The pauses between tries are random, too. Nobody listens at this address."""
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{unused.getsockname()[1]}"
        random.seed(3)
        np.random.seed(3)
        state, numbers = random.getstate(), np.random.get_state()[1].tolist()
        train(url, between=lambda step: time.sleep(0.05))
        assert random.getstate() == state
        assert np.random.get_state()[1].tolist() == numbers


def sender_of(drops: Drops) -> Sender:
    """One whose thread does not run."""
    return doubles.sender_of(Options(), RankInfo("r", 0, 1, 0, "h", "a", 1), drops)


def assert_complete(ingest: IngestDouble) -> None:
    for key, cells in ingest.tensors().items():
        assert sorted(cells) == list(range(STEPS)), key
    assert [batch.sequence for batch in ingest.batches] == list(range(len(ingest.batches)))
    assert len(ingest.events("finished")) == 1


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.message for record in caplog.records if record.levelno >= logging.WARNING]


@pytest.fixture
def plain() -> list[float]:
    return train(None)


class TestTrainingIsUnchanged:
    def test_with_a_server(self, ingest: IngestDouble, plain: list[float], caplog: pytest.LogCaptureFixture) -> None:
        assert train(ingest.url) == plain
        assert_complete(ingest)
        assert warnings(caplog) == []

    def test_without_any_server(
        self, plain: list[float], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(limits, "FLUSH_TIMEOUT_AWAY_S", 0.02)
        with socket.socket() as closed:
            closed.bind(("127.0.0.1", 0))
            url = f"http://127.0.0.1:{closed.getsockname()[1]}"
        # Were the whole flush timeout waited for, pytest's own limit would end this test.
        assert train(url, flush_timeout_s=3600) == plain
        assert len(warnings(caplog)) == 1 and "training goes on" in warnings(caplog)[0]

    @pytest.mark.parametrize(
        ("status", "code", "headers"),
        [(429, "slow_down", {"Retry_After": "0"}), (500, "oops", {}), (302, "", {"Location": "http://127.0.0.1:1/"})],
    )  # fmt: skip
    def test_refusals_that_pass(
        self, ingest: IngestDouble, plain: list[float], refuse: Any, caplog: pytest.LogCaptureFixture,
        status: int, code: str, headers: dict[str, str],
    ) -> None:  # fmt: skip
        ingest.script.extend([refuse(status, code, **headers)] * 4)
        assert train(ingest.url) == plain
        assert_complete(ingest)
        assert len(warnings(caplog)) == 1

    def test_garbage_and_closed_connections(self, ingest: IngestDouble, plain: list[float]) -> None:
        def garbage(request: Any) -> None:
            request.wfile.write(b"\x00\xffnot http at all\r\n\r\n")

        def cut_short(request: Any) -> None:
            request.wfile.write(b"HTTP/1.1 202 Accepted\r\nContent-Length: 1000\r\n\r\n{")

        def nothing(request: Any) -> None:
            return None

        ingest.script.extend([garbage, cut_short, nothing] * 2)
        assert train(ingest.url) == plain
        assert_complete(ingest)

    def test_silence(self, ingest: IngestDouble, plain: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(limits, "READ_TIMEOUT_S", 0.2)
        is_over = threading.Event()
        ingest.script.append(lambda request: is_over.wait() and None)
        try:
            assert train(ingest.url, flush_timeout_s=60) == plain
            assert_complete(ingest)
        finally:
            is_over.set()

    def test_a_huge_reply_is_not_read_to_its_end(
        self, ingest: IngestDouble, plain: list[float], monkeypatch: Any
    ) -> None:
        monkeypatch.setattr(limits, "REPLY_BYTES", 10_000)
        ingest.script.extend([lambda request: (202, {}, b"x" * 5_000_000)])
        assert train(ingest.url) == plain

    def test_stored_without_our_knowing_is_not_stored_twice(self, ingest: IngestDouble, plain: list[float]) -> None:
        """The server stores a batch and dies before its answer: it comes again with the same sequence."""

        original = ingest._take
        answers = iter([True, True, False, True, False])

        def take(message: Any) -> Any:
            reply = original(message)
            return reply if next(answers, True) else None

        ingest._take = take
        assert train(ingest.url) == plain
        assert_complete(ingest)
        assert ingest.duplicates >= 1


class TestRefusedForGood:
    def test_is_dropped_counted_and_never_sent_again(
        self, ingest: IngestDouble, plain: list[float], refuse: Any, caplog: pytest.LogCaptureFixture
    ) -> None:
        refusals = iter([None, None, refuse, refuse])
        original = ingest._take

        def take(message: Any) -> Any:
            refusal = next(refusals, None)
            return refusal(422, "invalid_value")(None) if refusal else original(message)

        ingest._take = take
        assert train(ingest.url) == plain
        assert len(warnings(caplog)) == 1 and "refused a batch for good" in warnings(caplog)[0]
        assert ingest.events("dropped")[-1].data == {"server_rejected": 2}
        assert len(ingest.events("finished")) == 1

    @pytest.mark.parametrize("code", ["unsupported_version", "unknown_run"])
    def test_everything(self, ingest: IngestDouble, refuse: Any, monkeypatch: pytest.MonkeyPatch, code: str) -> None:
        """An older server, or a proxy: the thread must not spin, and waits longer from time to time."""
        monkeypatch.setattr(limits, "HEARTBEAT_S", 0.01)
        monkeypatch.setattr(limits, "BACKOFF_FIRST_S", 0.01)
        monkeypatch.setattr(limits, "BACKOFF_LAST_S", 0.04)
        original, waited_for, is_due, senders = ingest._take, [], [], []

        def take(message: Any) -> Any:
            if code == "unknown_run":
                return original(message) if isinstance(message, StreamHeader) else refuse(409, code)(None)
            return refuse(400, code)(None)

        def back_off(self: Sender, delay_s: float, own: Any = Sender._back_off) -> None:
            waited_for.append(delay_s)
            senders.append(self)
            own(self, delay_s)

        def post(self: Transport, body: bytes, own: Any = Transport.post) -> Any:
            is_due.append(not senders or time.monotonic() >= senders[-1]._next_attempt_s)
            return own(self, body)

        ingest._take = take
        monkeypatch.setattr(Sender, "_back_off", back_off)
        monkeypatch.setattr(Transport, "post", post)
        with rangewatch.attach(nn.Linear(2, 1), url=ingest.url):
            while len(waited_for) < 4:  # it goes on, for the test's time limit ends this
                time.sleep(0.01)
        assert waited_for[:4] == [0.01, 0.02, 0.04, 0.04] and all(is_due)
        requests_an_attempt = 2 * (limits.OPENINGS_A_BATCH + 1) if code == "unknown_run" else 1
        assert len(ingest.requests) <= requests_an_attempt * (len(waited_for) + 1)

    def test_a_wrong_token_is_kept_and_explained(
        self, ingest: IngestDouble, refuse: Any, caplog: pytest.LogCaptureFixture, plain: list[float]
    ) -> None:
        ingest.script.extend([refuse(401, "unauthorized")] * 3)
        assert train(ingest.url) == plain
        assert_complete(ingest)
        assert len(warnings(caplog)) == 1 and "RANGEWATCH_TOKEN" in warnings(caplog)[0]


class TestGoneAndBack:
    def test_everything_arrives_in_order(self, ingest: IngestDouble, plain: list[float], caplog: Any) -> None:
        def between(step: int) -> None:
            if step == 3:
                ingest.stop()
            if step == 8:
                time.sleep(0.1)
                ingest.start()

        assert train(ingest.url, between=between) == plain
        assert_complete(ingest)
        assert len(warnings(caplog)) <= 1

    def test_a_server_with_a_fresh_database(self, ingest: IngestDouble, plain: list[float]) -> None:
        def between(step: int) -> None:
            if step == 5:
                time.sleep(0.05)
                ingest.forget()

        assert train(ingest.url, between=between) == plain
        assert_complete(ingest)
        assert len({opening.info.incarnation for opening in ingest.openings}) == 1

    def test_a_server_that_wants_openings_for_ever(self, ingest: IngestDouble, refuse: Any, plain: list[float]) -> None:
        original = ingest._take
        ingest._take = lambda m: refuse(409, "unknown_run")(None) if isinstance(m, Batch) else original(m)
        assert train(ingest.url) == plain
        assert ingest.batches == []
        sent = len(ingest.requests)
        assert sent <= (STEPS + 4) * (limits.OPENINGS_A_BATCH + 1) * 2, "it must not go on for ever"

    def test_the_queue_is_bounded_and_drops_the_oldest(self, ingest: IngestDouble, monkeypatch: Any) -> None:
        def between(step: int) -> None:
            if step == 1:
                time.sleep(0.1)
                ingest.stop()
            if step == STEPS - 1:
                time.sleep(0.1)
                ingest.start()

        original = MemoryQueue.__init__

        def small(self: MemoryQueue, max_bytes: int, drops: Any) -> None:
            original(self, 3000, drops)

        monkeypatch.setattr(MemoryQueue, "__init__", small)
        train(ingest.url, between=between, collect=(), spool_bytes=0)
        steps = sorted(ingest.tensors()["", "output", 0])
        lost = sorted(set(range(STEPS)) - set(steps))
        assert lost and lost == list(range(lost[0], lost[-1] + 1)), "the oldest go, the first may be on its way"
        assert steps[-1] == STEPS - 1
        assert ingest.events("dropped")[-1].data == {"queue_full": len(lost)}


def test_a_full_queue_keeps_its_first_and_its_newest() -> None:
    drops = Drops()
    queue = MemoryQueue(300, drops)
    for name in "abcdef":
        queue.put(Encoded(name.encode() * 100, 0, ""))
    kept = []
    while len(queue):
        kept.append(queue.first().body[:1])
        queue.remove_first()
    assert kept == [b"a", b"e", b"f"] and queue.nbytes == 0
    assert drops.counts == {"queue_full": 3}


def test_a_handed_over_that_nobody_takes_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "HANDOFF_BYTES", 10_000)
    drops = Drops()
    handoff = sender_of(drops).batcher
    for step in range(10):
        handoff.put(PendingBatch(Block(np.array([step]), np.zeros((10, 1, 50)), {}), (), 50))
    assert len(handoff) == 2 and drops.counts == {"worker_behind": 8}
    first = handoff.take_complete()
    assert first is not None and first.block.steps.tolist() == [8]


def test_the_word_of_a_hang_goes_before_the_copy_that_hangs() -> None:
    """A GPU that hangs never completes what was asked of it."""

    class Hanging:
        is_empty, nbytes = False, 100

        def is_complete(self) -> bool:
            return False

    handoff = sender_of(Drops()).batcher
    steps = Block(np.array([1]), np.zeros((10, 1, 50)), {})
    handoff.put(PendingBatch(steps, (), 50, copies=(Hanging(),), mark=(1, 0)))  # type: ignore[arg-type]
    handoff.put(PendingBatch(steps, (), 50, mark=(2, 0)))
    handoff.put(PendingBatch(EMPTY_BLOCK, (Event("hang", 0, 1),), 50, mark=(2, 1)))
    found = handoff.take_complete()
    assert found is not None and [event.kind for event in found.events] == ["hang"]
    assert found.mark is None, "the steps before it are not in the spool"
    assert handoff.take_complete() is None and len(handoff) == 2, "steps stay in their order"


class TestFaultsOfOurOwn:
    @pytest.mark.allow_faults
    @pytest.mark.parametrize("place", ["aminmax", "wire.encode", "batcher", "step_buffer", "transport"])
    def test_training_does_not_notice(
        self, ingest: IngestDouble, plain: list[float], monkeypatch: pytest.MonkeyPatch, place: str, caplog: Any
    ) -> None:
        from rangewatch.delivery.batcher import Batcher
        from rangewatch.recording import observer
        from rangewatch.recording.rows.step_buffer import StepBuffer

        targets = {
            "aminmax": (observer, "_aminmax"),
            "wire.encode": (wire, "encode"),
            "batcher": (Batcher, "encode_all"),
            "step_buffer": (StepBuffer, "close"),
            "transport": (Transport, "post"),
        }

        def broken(*args: Any, **kwargs: Any) -> Any:
            raise ZeroDivisionError("planted")

        monkeypatch.setattr(*targets[place], broken)
        assert train(ingest.url) == plain
        assert any("planted" in message for message in warnings(caplog))

    @pytest.mark.allow_faults
    def test_a_batch_that_cannot_be_encoded_takes_no_other_with_it(self, monkeypatch: pytest.MonkeyPatch) -> None:
        drops = Drops()
        sender = sender_of(drops)
        sender._queue.put(Encoded(b"innocent", 0, ""), lambda: b"")
        sender._next_attempt_s = float("inf")
        encode = wire.encode
        is_broken = iter([True])

        def broken(message: Any) -> bytes:
            if next(is_broken, False):
                raise ZeroDivisionError("planted")
            return encode(message)

        monkeypatch.setattr(wire, "encode", broken)
        for _ in range(2):
            sender.batcher.put(PendingBatch(EMPTY_BLOCK, (Event("attached", 1, 0),), 0))
        assert not sender._guard.run("sender", sender._work)
        sender._skip()
        sender.batcher.encode_all()
        assert sender._queue.first().body == b"innocent" and len(sender._queue) == 2
        assert drops.counts == {"agent_fault": 1}

    @pytest.mark.allow_faults
    def test_a_heartbeat_that_cannot_be_encoded_is_no_busy_loop(self, monkeypatch: pytest.MonkeyPatch) -> None:
        calls = []

        def broken(message: Any) -> bytes:
            calls.append(message)
            raise ZeroDivisionError("planted")

        monkeypatch.setattr(wire, "encode", broken)
        sender = sender_of(Drops())
        sender._last_settled_s = -float("inf")
        assert not sender._guard.run("sender", sender._work) and len(calls) == 1
        sender._skip()
        assert sender._guard.run("sender", sender._work) and len(calls) == 1, "the next has its time to wait"

    @pytest.mark.allow_faults
    def test_a_place_that_fails_again_and_again_gives_up(
        self, ingest: IngestDouble, monkeypatch: Any, caplog: Any
    ) -> None:
        from rangewatch.recording import observer

        def broken(*args: Any) -> float:
            raise ZeroDivisionError("planted")

        model = nn.Linear(2, 1)
        monkeypatch.setattr(observer, "_aminmax", broken)
        with rangewatch.attach(model, url=ingest.url, kinds=["output"]) as handle:
            for _ in range(10):
                model(torch.ones(1, 2))
                handle.step()
        faults = ingest.events("fault")[-1].data
        assert faults == {"output of ": limits.FAULTS_TO_DETACH}
        assert sum("output of" in message for message in warnings(caplog)) == 2, "the first, and that it gave up"

    def test_the_guard_lets_go_of_what_is_no_exception(self, ingest: IngestDouble, monkeypatch: Any) -> None:
        from rangewatch.recording import observer

        def interrupted(*args: Any) -> float:
            raise KeyboardInterrupt

        model = nn.Linear(2, 1)
        with rangewatch.attach(model, url=ingest.url):
            monkeypatch.setattr(observer, "_aminmax", interrupted)
            with pytest.raises(KeyboardInterrupt):
                model(torch.ones(1, 2))
            monkeypatch.undo()


def test_slow_server_does_not_slow_the_training(ingest: IngestDouble) -> None:
    """No answer comes before the last step is done: a training that waited for one would never get there."""
    original, is_trained, answered = ingest._take, threading.Event(), []

    def slow(message: Any) -> Any:
        assert is_trained.wait(60)
        return original(message)

    def between(step: int) -> None:
        if step == STEPS - 1:
            answered.append(len(ingest.batches))
            is_trained.set()

    ingest._take = slow
    train(ingest.url, between=between, flush_timeout_s=30)
    assert answered == [0]
    assert_complete(ingest)


def is_heartbeat(batch: Batch) -> bool:
    return batch.ranges is None and not (batch.series or batch.events or batch.samples)


def test_silence_is_broken_by_empty_batches(ingest: IngestDouble, monkeypatch: pytest.MonkeyPatch) -> None:
    """A step may take minutes: the server hears from the rank all the same, and nothing is invented."""

    def between(step: int) -> None:
        while step == STEPS - 1 and not any(is_heartbeat(batch) for batch in ingest.batches):
            time.sleep(0.01)  # the test's time limit ends this

    monkeypatch.setattr(limits, "HEARTBEAT_S", 0.05)
    assert len(train(ingest.url, between=between, collect=())) == STEPS
    assert_complete(ingest)


@pytest.mark.parametrize("asked", [3600, 3600.0])
def test_a_server_with_many_ranks_gets_fewer_and_larger_batches(
    ingest: IngestDouble, senders: list[Sender], asked: float
) -> None:
    ingest.send_every_s = asked

    def between(step: int) -> None:
        """The pace is known once the first batch has been answered; then nothing of the sender's own holds any up."""
        while not senders[0].send_every_s or senders[0].is_behind:
            time.sleep(0.001)

    train(ingest.url, between=between, collect=())
    assert senders[0].send_every_s == limits.PACE_LAST_S
    assert len(ingest.batches) < STEPS / 2  # one after the first step, the rest at the end
    assert_complete(ingest)


def test_while_a_batch_waits_for_its_answer_the_next_one_grows(ingest: IngestDouble) -> None:
    answer = threading.Event()
    take = ingest._take

    def slow(message: Any) -> Any:
        answer.wait(20)
        return take(message)

    ingest._take = slow
    torch.manual_seed(7)
    model = nn.Linear(4, 4)
    handle = rangewatch.attach(model, url=ingest.url, ship_interval_s=1e-9)
    for _ in range(STEPS):
        model(torch.ones(2, 4)).sum().backward()
        handle.step()
        time.sleep(0.01)
    answer.set()
    handle.detach()
    assert len([batch for batch in ingest.batches if batch.ranges is not None]) <= 3
    assert all(sorted(cells) == list(range(STEPS)) for cells in ingest.tensors().values())


def test_a_pace_that_cannot_be_read_is_the_agents_own(ingest: IngestDouble) -> None:
    for asked in ("soon", None, -5, {"s": 1}):
        text = json.dumps({"contiguous": 0, "send_every_s": asked}).encode()
        reply = _meaning(202, None, text)
        assert (reply.outcome, reply.send_every_s) == (Outcome.STORED, 0.0), asked
    ingest.send_every_s = "soon"
    train(ingest.url, between=lambda step: time.sleep(0.01))
    assert len(ingest.batches) > 4
    assert_complete(ingest)


FINAL = {
    400: ("not_zstd", "truncated", "bad_header", "wrong_statistic", "unsupported_version"), 413: ("too_large",),
    422: ("shape_mismatch", "invalid_value", "unstorable"),
}  # fmt: skip


def test_what_each_answer_means() -> None:
    wanted = {
        Outcome.RETRY: (429, 503, 500, 502, 404, 302, 200, 400, 409, 413, 415, 422), Outcome.UNAUTHORIZED: (401, 403)
    }  # fmt: skip
    for outcome, statuses in wanted.items():
        for text in (b"{}", b"<html>413 Request Entity Too Large</html>", b'{"code": "nobody\'s"}', b'"too_large"'):
            assert {_meaning(status, None, text).outcome for status in statuses} == {outcome}, text
    for status, codes in FINAL.items():
        for code in codes:
            text = json.dumps({"error": "no", "code": code}).encode()
            assert _meaning(status, None, text).outcome is Outcome.REJECTED
            assert {_meaning(each, None, text).outcome for each in (500, 404, 408)} == {Outcome.RETRY}
            assert _meaning(status, None, text[:-1]).outcome is Outcome.RETRY, "it is cut off"
    assert _meaning(409, None, b'{"code": "unknown_run"}').outcome is Outcome.NEEDS_OPENING
    seconds = [_meaning(503, given, b"").retry_after_s for given in (None, "7", " 0 ", "99999", "-1", "soon")]
    assert seconds == [None, 7.0, 0.0, limits.RETRY_AFTER_LAST_S, None, None]


def test_the_server_knows_no_final_code_that_the_agent_does_not() -> None:
    final = {code: status for code, status in STATUS_OF_CODE.items() if status not in (409, 429)}
    assert final == {code: status for status, codes in FINAL.items() for code in codes}


def test_a_202_counts_only_where_it_is_whole_and_sane() -> None:
    whole = b'{"contiguous": 3, "duplicate": false, "commands": []}'
    assert _meaning(202, None, whole).outcome is Outcome.STORED
    bad = [b"{}", whole[:-1], b'{"contiguous": "3"}', b'{"contiguous": null}', b'{"contiguous": 3.5}', b'"contiguous"',
           b'{"contiguous": -2}', b'{"contiguous": 1e300}', b'{"contiguous": 9223372036854775807}',
           b'<html>"contiguous": 3</html>', b'{"error": "\\"contiguous\\""}']  # fmt: skip
    assert {_meaning(202, None, text).outcome for text in bad} == {Outcome.RETRY}


@pytest.mark.parametrize("status", [202, 401, 409, 413, 503])
def test_a_servers_text_is_no_command_to_a_terminal(
    ingest: IngestDouble, status: int, caplog: pytest.LogCaptureFixture
) -> None:
    answer = json.dumps({"code": "too_large\x1b[2J", "error": "no\x1b]0;x\x07\nERROR forged\u2028\u202e"}).encode()
    ingest.script.extend([lambda request: (status, {}, answer)] * 2)
    train(ingest.url)
    assert r"\x1b[2J" in warnings(caplog)[0] and warnings(caplog)[0].isprintable()


def test_one_that_has_stored_what_was_never_sent_is_not_believed(
    ingest: IngestDouble, plain: list[float], caplog: pytest.LogCaptureFixture
) -> None:
    answer = b'{"contiguous": 4711, "duplicate": false, "commands": []}'
    ingest.script.extend([lambda request: (202, {}, answer)] * 3)
    assert train(ingest.url) == plain
    assert_complete(ingest)
    assert "it has stored up to sequence 4711" in warnings(caplog)[0]


@pytest.mark.parametrize("status", [400, 413, 422])
def test_a_page_of_a_proxy_drops_nothing(ingest: IngestDouble, plain: list[float], status: int) -> None:
    page = b"<html><head><title>400 The plain HTTP request was sent to HTTPS port</title></head></html>"
    ingest.script.extend([lambda request: (status, {"Content-Type": "text/html"}, page)] * 5)
    assert train(ingest.url) == plain
    assert_complete(ingest)
    assert ingest.events("dropped") == []


def test_no_heartbeat_while_the_server_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    """They would only queue up."""
    tries: list[bytes] = []
    batches: list[Batch] = []

    def post(self: Transport, body: bytes, own: Any = Transport.post) -> Any:
        tries.append(body)
        return own(self, body)

    def between(step: int) -> None:
        if step == STEPS - 1:
            monkeypatch.setattr(limits, "HEARTBEAT_S", 0.0)
            more = len(tries) + 3
            while len(tries) < more:  # the test's time limit ends this
                time.sleep(0.01)

    encode = wire.encode
    monkeypatch.setattr(Transport, "post", post)
    monkeypatch.setattr(wire, "encode", lambda message: (batches.append(message), encode(message))[1])
    train("http://127.0.0.1:9", between=between, flush_timeout_s=0.2, collect=())
    batches = [each for each in batches if isinstance(each, Batch)]
    assert batches and not any(is_heartbeat(each) for each in batches)


def test_events_that_wait_are_bounded_and_the_newest_stay(ingest: IngestDouble) -> None:
    model = nn.Linear(2, 2)
    with rangewatch.attach(model, url=ingest.url, collect=()) as handle:
        assert handle._agent is not None
        for number in range(limits.EVENTS_A_BATCH + 20):
            handle._agent.events.add("level", str(number))
        assert len(handle._agent.events) <= limits.EVENTS_A_BATCH
    kinds = [event.kind for each in ingest.batches for event in each.events]
    assert "finished" in kinds
    last = [event.message for each in ingest.batches for event in each.events if event.kind == "level"][-1]
    assert last == str(limits.EVENTS_A_BATCH + 19)
    dropped = [event.data for each in ingest.batches for event in each.events if event.kind == "dropped"]
    assert dropped[-1]["too_many_events"] >= 20
