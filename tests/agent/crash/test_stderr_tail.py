"""The last lines of stderr: nothing that is written is lost, changed or held up; secrets and escapes stay here."""

from __future__ import annotations

import io
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import nn

import rangewatch
from rangewatch.core import limits
from rangewatch.core.redaction import redacted
from rangewatch.crash.memory.text_ring import RING_BYTES, Tail, TextRing, read_ring
from rangewatch.crash.stderr_lines import last_lines
from rangewatch.crash.stderr_tail import Capture
from rangewatch.crash.watcher.rank import within
from rangewatch.wire.events import Stderr
from rangewatch.wire.events import read as read_details
from tests.agent.ingest_double import IngestDouble


class Terminal(io.StringIO):
    """A stream of Python's, which is no file: as a notebook's."""


@contextmanager
def writing_to(stream: Any) -> Iterator[Any]:
    """`sys.stderr` is `stream`. No fixture: pytest puts one of its own there when the test begins."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "stderr", stream)
        yield stream
    assert Capture._users == 0 and "write" not in getattr(stream, "__dict__", ()), "the stream is as it was"


@contextmanager
def capturing(stream: Any) -> Iterator[Capture]:
    with writing_to(stream):
        yield Capture.acquire(is_shared=False)
        Capture.release()


@pytest.fixture
def ring() -> Iterator[TextRing]:
    made = TextRing("rangewatch-stderr", is_shared=True)
    yield made
    made.close()


def lines(text: str | bytes, **changed: Any) -> tuple[str, ...]:
    data = text.encode() if isinstance(text, str) else text
    return last_lines(Tail(data, **{"is_cut": False, **changed}))[0]


def test_lines_are_plain_text_as_a_terminal_would_show_them() -> None:
    assert lines("\x1b[31mred\x1b[0m\x1b]0;title\x07 \x1b(Bend\n") == ("red end",)
    assert lines("\r  0%|\r 50%|\r100%|\r\nnext\r\n") == ("100%|", "next")
    assert lines(b"\xff\xfe\0bad\x07 \xe2\x80\xaeturned\tend") == ("\ufffd\ufffd\ufffdbad\ufffd \ufffdturned end",)
    assert lines("") == () and lines("\n\n") == () and lines("a\n\nb\n") == ("a", "", "b")
    assert len(lines("x" * 10_000)[0]) == limits.STDERR_LINE_CHARACTERS
    assert lines("half a line\nwhole\n", is_cut=True) == ("whole",)


def test_they_are_bounded_and_it_is_said_that_there_were_more() -> None:
    many, is_cut = last_lines(Tail("".join(f"{at}\n" for at in range(5_000)).encode(), False))
    assert is_cut and len(many) == limits.STDERR_LINES and many[-1] == "4999"
    wide, is_cut = last_lines(Tail((("y" * 400 + "\n") * 150).encode(), False))
    assert is_cut and sum(map(len, wide)) <= limits.STDERR_CHARACTERS < 150 * 400
    assert not last_lines(Tail(b"all\n", False))[1]


@pytest.mark.parametrize(
    "secret",
    ["hf_" + "aB3" * 8, "AKIA" + "ABCDEFGH" * 2, "ghp_" + "x1" * 18, "sk-" + "k9" * 16, "eyJ" + "ab1_" * 8 + ".c.e"],
)  # fmt: skip
def test_secrets_stay_here(secret: str) -> None:
    for text in (f"401 for {secret}: no", f"\x1b[1m{secret[:6]}\x1b[0m{secret[6:]}", "z" * 480 + f" {secret}"):
        assert not any(secret[:12] in line for line in lines(text)), text
    assert lines("https://user:pass@host/x?sig=abc&n=1") == ("https://***@host/x?sig=***&n=1",)
    assert lines("PASSWORD=hunter2 Authorization: Bearer abcdefghijkl") == ("PASSWORD=*** Authorization: *** ***",)
    assert "hunter2" not in redacted("password: 'hunter2', max_tokens=128")
    assert "max_tokens=128, eos_token='</s>'" in redacted("max_tokens=128, eos_token='</s>'")
    assert last_lines(Tail(b"the-token-of-the-server\n", False), "the-token-of-the-server")[0] == ("***",)


def test_a_ring_holds_the_end_whatever_is_written(ring: TextRing) -> None:
    written = ""
    for number in range(9_000):
        text = f"{number} {'x' * (number % 60)}\n"
        written += text
        ring.append(text)
        if number % 1_000 == 3:
            count = min(len(written), limits.STDERR_BYTES)
            assert ring.tail().data == read_ring(ring.memory.descriptor).data == written[-count:].encode()
    assert ring.tail().is_cut and ring.written == len(written) > 2 * RING_BYTES
    ring.append("z" * 10**7 + "\nlast\n")
    assert ring.tail().data.endswith(b"\n\nlast\n") and ring.tail().dropped_count == 1
    assert len(read_ring(ring.memory.descriptor).data) == limits.STDERR_BYTES


def test_threads_and_signals_in_the_middle_of_a_write_hold_nobody_up(ring: TextRing) -> None:
    def handler(*_: object) -> None:
        ring.append("signal\n")

    def write() -> None:
        for number in range(2_000):
            ring.append(f"{threading.get_ident()} {number}\n")

    before = signal.signal(signal.SIGALRM, handler)
    signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
    try:
        threads = [threading.Thread(target=write) for _ in range(4)]
        for thread in threads:
            thread.start()
        write()
        for thread in threads:
            thread.join()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert ring.tail().data.endswith(b"\n")


def test_a_lock_that_nobody_gives_back_costs_a_tenth_of_a_second_and_no_more(ring: TextRing) -> None:
    """A daemon thread that the end of the interpreter stops in the middle of a write."""
    thread = threading.Thread(target=ring._lock.acquire)
    thread.start()
    thread.join()
    for _ in range(1_000):  # of which five wait
        ring.append("lost\n")
    assert ring.tail() == Tail(b"", False, 5)


def test_a_file_system_that_has_gone_away_keeps_nobody_waiting() -> None:
    back = threading.Event()
    assert within(0.05, back.wait) is None
    back.set()

    def fails() -> Tail:
        raise OSError(5, "planted")

    assert within(5, fails) is None and within(5, lambda: 7) == 7


def test_what_is_written_goes_where_it_went_before() -> None:
    terminal = Terminal()
    with capturing(terminal) as capture:
        print("one", "two", file=sys.stderr)
        assert sys.stderr.write("three\n") == 6
        logging.StreamHandler().emit(logging.makeLogRecord({"msg": "four"}))
        with pytest.raises(TypeError):
            sys.stderr.write(b"bytes")  # type: ignore[arg-type]
        assert sys.stderr is terminal and terminal.getvalue() == "one two\nthree\nfour\n"
        assert capture.tail().data.decode() == terminal.getvalue()
        assert capture.source == Stderr(source="python", stream="no file")


@pytest.mark.allow_faults
def test_a_fault_of_ours_loses_no_output(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> None:
        raise MemoryError("planted")

    monkeypatch.setattr(TextRing, "append", fails)
    terminal = Terminal()
    with capturing(terminal) as capture:
        for number in range(20):
            print(number, file=sys.stderr)
    assert terminal.getvalue().split() == [str(number) for number in range(20)]
    assert capture.guard.counts == {"stderr": limits.FAULTS_TO_DETACH}, "it gives up"


def test_a_stream_whose_writing_fails_fails_as_before() -> None:
    class Broken(Terminal):
        def write(self, text: str) -> int:
            raise BrokenPipeError(32, "planted")

    with capturing(Broken()) as capture:
        with pytest.raises(BrokenPipeError):
            sys.stderr.write("last\n")
        assert capture.tail().data == b"last\n"


def test_others_around_it_stay() -> None:
    terminal, seen = Terminal(), list[str]()
    with writing_to(terminal):
        Capture.acquire(is_shared=False)
        ours = terminal.write
        terminal.write = lambda text: (seen.append(text), ours(text))[1]  # type: ignore[method-assign, assignment]
        Capture.release()
        sys.stderr.write("after\n")
        del terminal.write
    assert seen == ["after\n"] and terminal.getvalue() == "after\n"


def test_a_stream_that_takes_none_is_said() -> None:
    class Fixed:
        __slots__ = ()

        def write(self, text: str) -> int:
            return len(text)

    with capturing(Fixed()) as capture:
        assert capture.source.source == "" and "cannot be copied (" in capture.source.why_not


def train(ingest: IngestDouble, then: Callable[[], object], **options: Any) -> list[Stderr]:
    """What is sent of stderr by a training that does `then` after its first step."""
    model = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    handle = rangewatch.attach(model, optimizer, url=ingest.url, run="run", quiet=True, collect=(), **options)
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
    then()
    handle.detach()
    sent = [read_details(Stderr, event.data) for event in ingest.events("stderr")]
    return [each for each in sent if each is not None]


def test_it_is_sent_only_where_it_was_asked_for(ingest: IngestDouble, monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    with writing_to(terminal):
        assert train(ingest, lambda: "write" in vars(terminal) and pytest.fail("touched")) == []
        monkeypatch.setenv("RANGEWATCH_STDERR_TAIL", "1")
        sent = train(ingest, lambda: print("the last line, api_key=abc", file=sys.stderr))
    assert sent[0].source == "python" and sent[-1].lines == ("the last line, api_key=***",)
    assert terminal.getvalue() == "the last line, api_key=abc\n"


def test_a_forked_child_is_no_part_of_it(ingest: IngestDouble) -> None:
    terminal = Terminal()

    def fork() -> None:
        child = os.fork()
        if not child:
            print("of the child", file=sys.stderr)
            os._exit("write" in vars(terminal) or terminal.getvalue() != "of the child\n")
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        print("of the parent", file=sys.stderr)

    with writing_to(terminal):
        assert train(ingest, fork, stderr_tail=True)[-1].lines == ("of the parent",)
