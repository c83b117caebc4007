"""`rangewatch trace` and `rangewatch level` against a real server, with ranks whose answers are made by hand."""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import forked
from tests.server.process import Server
from tests.server.records import opening
from tests.server.test_commands import KNOWN, PATH, Rank


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    started = Server(str(tmp_path / "a.db"))
    yield started
    started.stop()


def start(server: Server, *arguments: str, **environment: str) -> forked.Forked:
    return run(["-m", "rangewatch", *arguments], server, **environment)


def run(command: list[str], server: Server, **environment: str) -> forked.Forked:
    return forked.server.start(
        *command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env=os.environ | {"RANGEWATCH_URL": server.url} | environment,
    )  # fmt: skip


def ended(process: forked.Forked) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=60)
    return process.returncode, out, err


def heard(rank: Rank) -> dict:
    """The first command that a reply brings; a rank with nothing to say sends an empty batch now and then."""
    while not (commands := rank.send()):  # a hang is ended by pytest's own limit
        time.sleep(0.01)
    return commands[0]


def said(process: forked.Forked, line: str) -> None:
    assert process.stderr is not None
    while (found := process.stderr.readline()) != line:
        assert found, f"ended without {line!r}"


def test_trace_waits_and_names_the_report(server: Server) -> None:
    ranks = [Rank(server, rank) for rank in range(2)]
    process = start(server, "trace", "run", "--steps", "3", "--module", "blocks.*", "--module", "head")
    command = heard(ranks[0])
    assert command == {"id": 1, "kind": "trace", "steps": 3, "modules": ["blocks.*", "head"]}
    said(process, "0 of 2 ranks done\n")
    ranks[0].send({"id": 1, "state": "accepted", "first_step": 5, "last_step": 7})
    ranks[0].send({"id": 1, "state": "done", "last_step": 7})
    said(process, "1 of 2 ranks done\n")
    ranks[1].send({"id": 1, "state": "accepted", "first_step": 5, "last_step": 7}, {"id": 1, "state": "done"})
    status, out, err = ended(process)
    assert (status, err) == (0, "2 of 2 ranks done\n")
    told, report = out.splitlines()
    assert told == "Steps 5 to 7 are recorded in full on ranks 0-1:"
    assert report == "  rangewatch report run --step 5 --rank 0"
    for rank in ranks:  # the step that the report is of
        while rank.sequence < 5:
            rank.send()
    status, out, _ = ended(start(server, *shlex.split(report)[1:]))
    assert (status, "=5" in out.splitlines()[0]) == (0, True)


def test_ranks_that_do_not_do_it_are_named(server: Server) -> None:
    ranks = [Rank(server, rank, world_size=5) for rank in range(5)]
    process = start(server, "trace", "1", "--rank", "0", "--rank", "1", "--rank", "2", "--rank", "4")
    for rank in (ranks[0], ranks[1], ranks[2]):
        heard(rank)
    ranks[0].send({"id": 1, "state": "done", "first_step": 4, "last_step": 4})
    for rank in (ranks[1], ranks[2]):
        rank.send({"id": 1, "state": "refused", "reason": "no module is named x"})
    ranks[4].send({}, kind="failed")
    status, out, err = ended(process)
    assert (status, out.splitlines()[0]) == (1, "Step 4 is recorded in full on rank 0:")
    assert err.splitlines()[-2:] == [
        "rangewatch trace: ranks 1-2 refused: no module is named x",
        "rangewatch trace: rank 4 expired: the process ended first",
    ]


def test_level(server: Server) -> None:
    rank = Rank(server, world_size=1)
    process = start(server, "level", "run", "frames")
    assert heard(rank) == {"id": 1, "kind": "level", "level": "frames"}
    rank.send({"id": 1, "state": "done", "first_step": 9})
    assert ended(process)[:2] == (0, "run: level frames on rank 0 from step 9 on.\n")


def test_no_wait(server: Server) -> None:
    Rank(server)
    assert ended(start(server, "trace", "run", "--no-wait")) == (0, "Asked of rank 0, as command 1.\n", "")
    assert server.get(f"{PATH}/1")["states"][0]["state"] == "pending"


def test_an_interrupt_ends_the_waiting_only(server: Server) -> None:
    rank = Rank(server)
    process = start(server, "trace", "run")
    said(process, "0 of 1 ranks done\n")
    process.send_signal(signal.SIGINT)
    waited = "rangewatch trace: no longer waiting; what was asked stands, as command 1\n"
    assert ended(process) == (130, "", waited)
    assert heard(rank)["id"] == 1


def test_a_server_that_is_started_again_is_waited_for(server: Server, tmp_path: Path) -> None:
    rank = Rank(server, world_size=1)
    process = start(server, "trace", "run")
    said(process, "0 of 1 ranks done\n")
    server.kill()
    said(process, f"no Rangewatch server answers at {server.url}; trying again\n")
    rank.server = Server(str(tmp_path / "a.db"), "--port", server.url.rpartition(":")[2])
    with contextlib.ExitStack() as undo:
        undo.callback(rank.server.stop)
        assert heard(rank)["id"] == 1
        said(process, "0 of 1 ranks done\n")
        rank.send({"id": 1, "state": "done", "first_step": 4, "last_step": 4})
        status, out, err = ended(process)
    assert (status, err) == (0, "1 of 1 ranks done\n")
    assert out.startswith("Step 4 is recorded in full on rank 0:\n")


def test_giving_up_on_a_server_says_that_what_was_asked_stands(server: Server) -> None:
    Rank(server)
    code = "import sys; from rangewatch import ask, trace; ask.AWAY_S = 0.2; sys.exit(trace.main(['run']))"
    process = run(["-c", code], server)
    said(process, "0 of 1 ranks done\n")
    server.kill()
    status, out, err = ended(process)
    assert (status, out) == (2, "")
    assert err.splitlines() == [
        f"no Rangewatch server answers at {server.url}; trying again",
        f"rangewatch trace: no Rangewatch server answers at {server.url}; what was asked stands, as command 1",
    ]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["trace", "nothing"], "no run 'nothing' at "),
        (["trace", "run", "--steps", "0"], "steps 0 is not from 1 to 1000"),
        (["trace", "run", "--rank", "7"], "run 1 has no rank 7"),
        (["level", "run", "all"], "level 'all' is not one of grads, outputs, frames, default"),
        (["level", "run", "grads", "--url", "http://127.0.0.1:9"], "no Rangewatch server answers at http://127"),
        (["level", "run", "grads", "--url", "nonsense://"], "url='nonsense://': must be http://HOST:PORT or "),
        (["trace", "run", "--url", "nonsense"], "url='nonsense': must be http://HOST:PORT or "),
    ],
)
def test_what_is_wrong_is_one_line(server: Server, arguments: list[str], message: str) -> None:
    Rank(server)
    status, out, err = ended(start(server, *arguments))
    assert (status, out, len(err.splitlines())) == (2, "", 1)
    assert err.startswith(f"rangewatch {arguments[0]}: {message}")


def test_the_token_goes_along(tmp_path: Path) -> None:
    server = Server(str(tmp_path / "a.db"), "--token", "s3cret")
    assert server.post(opening(KNOWN), Authorization="Bearer s3cret").status_code == 202
    refused = ended(start(server, "trace", "run", "--no-wait"))
    taken = ended(start(server, "trace", "run", "--no-wait", RANGEWATCH_TOKEN="s3cret"))
    server.stop()
    assert refused[0] == 2
    assert "a token is needed" in refused[2]
    assert taken == (0, "Asked of rank 0, as command 1.\n", "")
