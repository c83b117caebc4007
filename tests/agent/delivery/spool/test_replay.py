"""`rangewatch replay`: what a killed rank left reaches the server, once, whatever happens on the way."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from subprocess import DEVNULL
from typing import Any

import pytest

from rangewatch.commands import replay
from rangewatch.core import limits
from rangewatch.delivery.spool import place
from rangewatch.delivery.spool.folder import OPENING_PREFIX, RANK_FILE, Folder
from rangewatch.delivery.spool.queue import Home
from rangewatch.delivery.spool.upload import Tally, upload
from rangewatch.delivery.transport import Transport
from tests import forked
from tests.agent.delivery.spool.batches import DIGEST, INFO, encoded, opening, own
from tests.agent.doubles import Lost, sender_of
from tests.agent.ingest_double import IngestDouble


@pytest.fixture(autouse=True)
def quick_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "BACKOFF_FIRST_S", 0.01)


def left(folder: Path, url: str, count: int = 5) -> Path:
    """A spool that an ended rank has left, with `count` batches."""
    home = Home(folder, INFO, url, 1 << 20, Lost())
    for sequence in range(count):
        home.log.append(encoded(sequence, range(sequence * 4, sequence * 4 + 4)), opening)
    home.close()
    return folder


def sequences(ingest: IngestDouble) -> list[int]:
    return [batch.sequence for batch in ingest.batches]


def test_it_sends_all_and_removes_the_folder(ingest: IngestDouble, tmp_path: Path, capsys: Any) -> None:
    left(tmp_path / "job" / "a", ingest.url)
    assert replay.main([str(tmp_path)]) == 0
    assert sequences(ingest) == [0, 1, 2, 3, 4] and len(ingest.openings) == 1
    assert all(each["Rangewatch-Process"] == "ended" for each in ingest.requests), "it speaks no more"
    assert not (tmp_path / "job").exists()
    assert "run rank 3 (host): 5 batches sent" in capsys.readouterr().out
    assert replay.main([str(tmp_path)]) == 0
    assert "no spool" in capsys.readouterr().out


def test_to_another_server_with_a_token(ingest: IngestDouble, tmp_path: Path, monkeypatch: Any) -> None:
    left(tmp_path / "a", "http://127.0.0.1:9")
    assert replay.main([str(tmp_path), "--url", ingest.url, "--token", "secret"]) == 0
    assert {request["Authorization"] for request in ingest.requests} == {"Bearer secret"}
    left(tmp_path / "b", "http://127.0.0.1:9", count=6)
    monkeypatch.setenv("RANGEWATCH_TOKEN", "other")
    assert replay.main([str(tmp_path), "--url", ingest.url]) == 0
    assert ingest.requests[-1]["Authorization"] == "Bearer other" and ingest.duplicates == 5


def test_the_token_is_in_no_file(ingest: IngestDouble, tmp_path: Path) -> None:
    from rangewatch.core.options import Options
    from rangewatch.recording.events import Drops

    options = Options(token="very-secret", spool_dir=str(tmp_path), url=ingest.url)
    sender = sender_of(options, INFO, Drops())
    sender._open_spool()
    files = [each for each in tmp_path.rglob("*") if each.is_file()]
    assert files and not any(b"very-secret" in each.read_bytes() for each in files)
    sender._queue.close()


def test_nobody_answers(tmp_path: Path, capsys: Any) -> None:
    left(tmp_path / "a", "http://127.0.0.1:9")
    assert replay.main([str(tmp_path), "--wait", "0"]) == 1
    assert "0 of 5 batches" in capsys.readouterr().out
    assert len(list(Folder(tmp_path / "a").batches())) == 5


@pytest.mark.parametrize("status", [401, 403, 500, 429])
def test_what_was_broken_off_goes_on(
    ingest: IngestDouble, tmp_path: Path, capsys: Any, refuse: Any, status: int
) -> None:
    left(tmp_path / "a", ingest.url)
    take = ingest._take

    def until_third(message: Any) -> Any:
        return refuse(status, "no")(None) if getattr(message, "sequence", 0) == 3 else take(message)

    ingest._take = until_third
    assert replay.main([str(tmp_path), "--wait", "0"]) == 1
    assert f"3 of 5 batches sent to {ingest.url}; HTTP {status}" in capsys.readouterr().out
    ingest._take = take
    assert replay.main([str(tmp_path)]) == 0
    assert sequences(ingest) == [0, 1, 2, 3, 4] and ingest.duplicates == 0


def test_a_server_that_is_slow_to_come_back(ingest: IngestDouble, tmp_path: Path, refuse: Any) -> None:
    left(tmp_path / "a", ingest.url)
    ingest.script.extend([refuse(503, "busy")] * 3)
    assert replay.main([str(tmp_path)]) == 0 and sequences(ingest) == [0, 1, 2, 3, 4]


def test_a_fresh_server_in_the_middle_asks_for_the_opening(ingest: IngestDouble, tmp_path: Path) -> None:
    left(tmp_path / "a", ingest.url)
    take = ingest._take

    def forgetting(message: Any) -> Any:
        if getattr(message, "sequence", 0) == 3 and len(ingest.openings) == 1:
            ingest.forget()
        return take(message)

    ingest._take = forgetting
    assert replay.main([str(tmp_path)]) == 0
    assert sequences(ingest) == [0, 1, 2, 3, 4] and len(ingest.openings) == 2


def test_refused_for_good_is_said_and_kept_and_the_rest_arrives(
    ingest: IngestDouble, tmp_path: Path, capsys: Any, refuse: Any
) -> None:
    folder = left(tmp_path / "a", ingest.url)
    take = ingest._take
    ingest._take = lambda each: refuse(413, "too_large")(None) if getattr(each, "sequence", 0) == 2 else take(each)
    assert replay.main([str(tmp_path)]) == 1
    assert sequences(ingest) == [0, 1, 3, 4] and "4 of 5 batches sent" in (out := capsys.readouterr().out)
    assert "1 refused for good, and kept (HTTP 413 too_large" in out
    assert [each.sequence for each in Folder(folder).batches()] == [2]
    ingest._take = take  # as a later server might
    assert replay.main([str(tmp_path)]) == 0 and sequences(ingest) == [0, 1, 3, 4, 2]


PAGE = b"<html><head><title>400 The plain HTTP request was sent to HTTPS port</title></head></html>"


@pytest.mark.parametrize("status", [400, 404, 409, 413, 415, 422])
def test_a_page_of_a_proxy_is_no_refusal(ingest: IngestDouble, tmp_path: Path, capsys: Any, status: int) -> None:
    folder = left(tmp_path / "a", ingest.url)
    take = ingest._take
    ingest._take = lambda message: (status, {"Content-Type": "text/html"}, PAGE)
    assert replay.main([str(tmp_path), "--wait", "0"]) == 1
    assert f"HTTP {status}, which is no answer of a Rangewatch server" in capsys.readouterr().out
    assert len(list(Folder(folder).batches())) == 5
    ingest._take = take
    assert replay.main([str(tmp_path)]) == 0 and sequences(ingest) == [0, 1, 2, 3, 4]


def test_a_damaged_batch_is_counted_and_the_run_says_so(ingest: IngestDouble, tmp_path: Path, capsys: Any) -> None:
    folder = left(tmp_path / "a", ingest.url)
    (file,) = folder.glob("*.log")
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)
    assert replay.main([str(tmp_path), "--list"]) == 0 and "4 batches" in (out := capsys.readouterr().out)
    assert "1 more damaged" in out
    assert replay.main([str(tmp_path)]) == 1
    assert "4 of 4 batches sent" in (out := capsys.readouterr().out) and "1 damaged in the spool, and lost" in out
    (event,) = ingest.events("spool_damaged")
    assert event.data == {"spool_damaged": 1} and sequences(ingest)[:4] == [0, 1, 3, 4]
    assert not folder.exists(), "the run says it, and nothing is left that could be sent"


def test_a_lost_opening_costs_only_its_own_batches(ingest: IngestDouble, tmp_path: Path, capsys: Any) -> None:
    folder = left(tmp_path / "a", ingest.url, count=2)
    Folder(folder).append(encoded(2, range(8, 9))._replace(catalogue="0" * 32))
    assert replay.main([str(tmp_path)]) == 0, "the digest in the batch itself is known to the server"
    folder = left(tmp_path / "b", ingest.url, count=2)
    (folder / (OPENING_PREFIX + DIGEST)).unlink()
    ingest.forget()
    assert replay.main([str(tmp_path)]) == 1
    assert "catalogue is missing" in capsys.readouterr().out and len(list(Folder(folder).batches())) == 2


def test_keep_leaves_it_as_it_is(ingest: IngestDouble, tmp_path: Path) -> None:
    folder = left(tmp_path / "a", ingest.url)
    for _ in range(2):
        assert replay.main([str(tmp_path), "--keep"]) == 0
    assert sequences(ingest) == [0, 1, 2, 3, 4] and ingest.duplicates == 5
    assert len(list(Folder(folder).batches())) == 5


def test_a_living_rank_is_left_alone_but_by_force(ingest: IngestDouble, tmp_path: Path, capsys: Any) -> None:
    home = Home(tmp_path / "a", INFO, ingest.url, 1 << 20, Lost())
    home.log.append(encoded(0, range(4)), opening)
    assert replay.main([str(tmp_path)]) == 1 and ingest.batches == []
    assert f"rank 3 still runs (process {os.getpid()})" in capsys.readouterr().out
    assert replay.main([str(tmp_path), "--list"]) == 0
    assert "in use" in capsys.readouterr().out
    assert replay.main([str(tmp_path), "--force", "--keep"]) == 0 and sequences(ingest) == [0]
    assert not any("Rangewatch-Process" in each for each in ingest.requests)
    home.close()


def test_a_spool_that_its_watcher_sends(ingest: IngestDouble, tmp_path: Path, capsys: Any) -> None:
    """Right after a run: the rank has ended, and is not said to live."""
    path = left(tmp_path / "a", ingest.url)
    owner = json.loads((path / RANK_FILE).read_bytes())
    gone = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, check=True)
    owner["process"]["pid"] = int(gone.stdout)
    (path / RANK_FILE).write_text(json.dumps(owner))
    sender = Folder(path)
    assert sender.claim()
    assert replay.main([str(tmp_path)]) == 1
    out = capsys.readouterr().out
    assert "its watcher is sending it, that of a newer run, or another replay" in out and "lives" not in out
    sender.release()


def test_list_and_json(ingest: IngestDouble, tmp_path: Path, capsys: Any) -> None:
    left(tmp_path / "a", ingest.url)
    own(tmp_path / "b")
    (tmp_path / "b" / RANK_FILE).write_text("{")
    assert replay.main([str(tmp_path), "--list", "--json"]) == 0
    first, second = map(json.loads, capsys.readouterr().out.splitlines())
    assert (first["state"], first["batches"], first["run"], first["rank"]) == ("waiting", 5, "run", 3)
    assert second["state"] == "unreadable" and ingest.requests == []
    assert replay.main([str(tmp_path), "--json"]) == 1
    first, second = map(json.loads, capsys.readouterr().out.splitlines())
    assert (first["state"], first["sent"]) == ("sent", 5) and second["state"] == "unreadable"


@pytest.mark.parametrize("arguments", [["/nowhere/at/all"], [".", "--url", "ftp://x"], ["--nonsense"]])
def test_what_cannot_be(arguments: list[str], capsys: Any) -> None:
    try:
        status = replay.main(arguments)
    except SystemExit as error:
        status = int(str(error.code))
    assert status == 2 and "rangewatch replay" in capsys.readouterr().err


def test_interrupted(tmp_path: Path, monkeypatch: Any, capsys: Any) -> None:
    left(tmp_path / "a", "http://127.0.0.1:9")

    def interrupted(self: Transport, body: bytes) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(Transport, "post", interrupted)
    assert replay.main([str(tmp_path)]) == 130 and "interrupted" in capsys.readouterr().err
    assert Folder(tmp_path / "a").claim(), "the lock is free again"


def test_a_name_that_a_terminal_would_obey(ingest: IngestDouble, tmp_path: Path, capsys: Any) -> None:
    import msgspec

    folder = left(tmp_path / "a", ingest.url)
    owner = Folder(folder).owner
    hostile = msgspec.structs.replace(owner, info=msgspec.structs.replace(owner.info, run="\x1b[2Jrun"))
    (folder / RANK_FILE).write_bytes(msgspec.json.encode(hostile))
    replay.main([str(tmp_path), "--list"])
    assert "\x1b" not in capsys.readouterr().out


def test_upload_says_how_far_it_came(ingest: IngestDouble, tmp_path: Path) -> None:
    folder = Folder(left(tmp_path / "a", ingest.url))
    seen: list[int] = []
    tally = Tally()
    assert folder.claim()
    assert upload(folder, Transport(ingest.url, None), float("inf"), tally, lambda tally: seen.append(tally.sent))
    assert seen == [1, 2, 3, 4, 5] and tally.sent_bytes > 0 and list(folder.batches()) == []
    folder.remove()


KILLED = """
import os, signal, sys, torch, rangewatch
model = torch.nn.Linear(4, 4)
handle = rangewatch.attach(model, url=sys.argv[1], run="killed", ship_interval_s=0, collect=())
for step in range(10**9):
    model(torch.ones(2, 4)).sum().backward()
    handle.step()
"""


def test_a_killed_training(ingest: IngestDouble, spool_dir: Path, tmp_path: Path, monkeypatch: Any) -> None:
    """The server is away, the process is killed: with the server there again, the steps it had shipped are there."""
    ingest.stop()
    child = forked.rank.start("-c", KILLED, ingest.url, stderr=DEVNULL)
    while sum(len(list(Folder(path).batches())) for path in place.spools(spool_dir)) < 40:  # pytest's limit ends this
        time.sleep(0.01)
    child.kill()
    child.wait()
    ingest.start()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))  # nobody else's spools
    assert replay.main([]) == 0, "the spools of RANGEWATCH_SPOOL_DIR are the default"
    steps = sorted(ingest.tensors()["", "output", 0])
    assert steps == list(range(len(steps))) and len(steps) >= 39, "the first batch has no step"
    assert not ingest.events("finished"), "it was no end but a death"


def test_force_takes_nothing_from_a_living_rank(ingest: IngestDouble, tmp_path: Path, capsys: Any) -> None:
    """It sends all of it itself: a batch acknowledged in its files, or a folder removed, would be one damaged to it."""
    lost: list[str] = []
    home = Home(tmp_path / "a", INFO, "http://127.0.0.1:9", 1 << 20, lost)
    for sequence in range(6):
        home.log.append(encoded(sequence, range(sequence, sequence + 1), noise=30_000), opening)
    assert replay.main([str(tmp_path), "--force", "--url", ingest.url]) == 0 and len(ingest.batches) == 6
    home.log.append(encoded(6, range(6, 7)), opening)
    kept = []
    while home.log.head:
        kept.append(home.log.head[0][1].sequence)
        home.log.remove_first()
    assert kept == list(range(7)) and lost == []
    home.close()


def test_a_server_that_is_slow_for_longer_than_the_wait(
    ingest: IngestDouble, tmp_path: Path, refuse: Any, monkeypatch: Any, capsys: Any
) -> None:
    """Not a moment after which all ends: each batch that was taken begins a new wait."""
    left(tmp_path / "a", ingest.url)
    now_s, take, refused = [0.0], ingest._take, set()

    def slow(message: Any) -> Any:
        if (sequence := getattr(message, "sequence", -1)) not in refused:
            refused.add(sequence)
            return refuse(429, "busy", Retry_After="0")(None)
        return take(message)

    ingest._take = slow
    monkeypatch.setattr(time, "monotonic", lambda: now_s[0])
    monkeypatch.setattr(time, "sleep", lambda seconds: now_s.append(now_s.pop() + 100.0))
    assert replay.main([str(tmp_path), "--wait", "150"]) == 0 and sequences(ingest) == [0, 1, 2, 3, 4]
    assert "waiting: HTTP 429 busy" in capsys.readouterr().err, "and it says what it waits for"


def test_one_server_that_is_away_is_waited_for_once(tmp_path: Path, monkeypatch: Any) -> None:
    for name in ("a", "b", "c"):
        left(tmp_path / name, "http://127.0.0.1:9" if name != "c" else "http://127.0.0.1:10")
    waits: list[float] = []

    def noted(folder: Folder, transport: Transport, wait_s: float, *rest: Any, **options: Any) -> bool:
        waits.append(wait_s)
        return upload(folder, transport, 0.0, *rest, **options)

    monkeypatch.setattr(replay, "upload", noted)
    assert replay.main([str(tmp_path), "--wait", "7"]) == 1 and waits == [7.0, 0.0, 7.0]


def test_a_token_does_not_go_where_somebody_elses_spool_says(
    ingest: IngestDouble, tmp_path: Path, monkeypatch: Any, capsys: Any
) -> None:
    left(tmp_path / "a", ingest.url)
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    assert replay.main([str(tmp_path), "--token", "secret"]) == 1 and ingest.requests == []
    assert f"it is user {os.getuid()}'s, so --url must say" in capsys.readouterr().out
    assert replay.main([str(tmp_path), "--token", "secret", "--url", ingest.url]) == 0


def test_a_file_that_cannot_be_read_is_said_of_that_spool(ingest: IngestDouble, tmp_path: Path, capsys: Any) -> None:
    folder = left(tmp_path / "a", ingest.url)
    left(tmp_path / "b", ingest.url)
    (folder / "0000000009-0000000009-00.log").symlink_to("/dev/zero")
    assert replay.main([str(tmp_path)]) == 1
    first, second = capsys.readouterr().out.splitlines()
    assert "Too many levels of symbolic links" in first and "5 batches sent" in second


@pytest.mark.parametrize("arguments", [["--wait", "nan"], ["--wait", "-1"], ["--wait", "inf"], ["--token", "caf\xe9"]])
def test_options_that_cannot_be(arguments: list[str], capsys: Any) -> None:
    with pytest.raises(SystemExit) as found:
        replay.main([".", *arguments])
    assert found.value.code == 2 and f"argument {arguments[0]}" in capsys.readouterr().err
