"""`rangewatch trace` and `rangewatch level` against a real server, with ranks whose answers are made by hand."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from tests import forked
from tests.agent.commands.command import typed
from tests.server.process import Run, Server
from tests.server.records import opening
from tests.server.routes.test_commands import KNOWN, Rank

WAITS = """
import sys
from rangewatch import __main__
from rangewatch.commands.live import ask
ask.POLL_S, ask.AWAY_S = 0.02, float(sys.argv.pop(1))
sys.exit(__main__.main())
"""
"""Runs a command that looks every 20 ms what became of what it asked, and gives a server that is away up after that."""


def start(url: str, *arguments: str, away_s: float = 60.0) -> forked.Forked:
    return forked.server.start(
        "-c", WAITS, str(away_s), *arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env=os.environ | {"RANGEWATCH_URL": url},
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


def test_trace_waits_and_names_the_report(run: Run) -> None:
    ranks = [Rank(run, rank) for rank in range(2)]
    url = run.server.url
    process = start(url, "trace", run.name, "--steps", "3", "--module", "blocks.*", "--module", "head")
    command = heard(ranks[0])
    number = command["id"]
    assert command == {"id": number, "kind": "trace", "steps": 3, "modules": ["blocks.*", "head"]}
    said(process, "0 of 2 ranks done\n")
    ranks[0].send({"id": number, "state": "accepted", "first_step": 5, "last_step": 7})
    ranks[0].send({"id": number, "state": "done", "last_step": 7})
    said(process, "1 of 2 ranks done\n")
    ranks[1].send({"id": number, "state": "accepted", "first_step": 5, "last_step": 7}, {"id": number, "state": "done"})
    status, out, err = ended(process)
    assert (status, err) == (0, "2 of 2 ranks done\n")
    reported, report = out.splitlines()
    assert reported == "Steps 5 to 7 are recorded in full on ranks 0-1:"
    assert report == f"  rangewatch report {run.name!r} --step 5 --rank 0"
    for rank in ranks:  # the step that the report is of
        while rank.sequence < 5:
            rank.send()
    status, out, _ = typed(*shlex.split(report)[1:], RANGEWATCH_URL=url)
    assert (status, "=5" in out.splitlines()[0]) == (0, True)


def test_ranks_that_do_not_do_it_are_named(run: Run) -> None:
    ranks = [Rank(run, rank, world_size=5) for rank in range(5)]
    asked_of = [word for rank in (0, 1, 2, 4) for word in ("--rank", str(rank))]
    process = start(run.server.url, "trace", str(run.id), *asked_of)
    (number,) = {heard(rank)["id"] for rank in ranks[:3]}
    ranks[0].send({"id": number, "state": "done", "first_step": 4, "last_step": 4})
    for rank in (ranks[1], ranks[2]):
        rank.send({"id": number, "state": "refused", "reason": "no module is named x"})
    ranks[4].send({}, kind="failed")
    status, out, err = ended(process)
    assert (status, out.splitlines()[0]) == (1, "Step 4 is recorded in full on rank 0:")
    assert err.splitlines()[-2:] == [
        "rangewatch trace: ranks 1-2 refused: no module is named x",
        "rangewatch trace: rank 4 expired: the process ended first",
    ]


def test_level(run: Run) -> None:
    rank = Rank(run, world_size=1)
    process = start(run.server.url, "level", run.name, "frames")
    command = heard(rank)
    assert command == {"id": command["id"], "kind": "level", "level": "frames"}
    rank.send({"id": command["id"], "state": "done", "first_step": 9})
    assert ended(process)[:2] == (0, f"{run.name}: level frames on rank 0 from step 9 on.\n")


def test_no_wait_and_an_interrupt_leave_what_was_asked(run: Run) -> None:
    rank = Rank(run)
    status, out, err = typed("trace", run.name, "--no-wait", RANGEWATCH_URL=run.server.url)
    number = heard(rank)["id"]
    assert (status, out, err) == (0, f"Asked of rank 0, as command {number}.\n", "")
    assert run.get(f"/commands/{number}")["states"][0]["state"] == "pending"
    rank.send({"id": number, "state": "done", "first_step": 1, "last_step": 1})
    process = start(run.server.url, "trace", run.name)
    said(process, "0 of 1 ranks done\n")
    process.send_signal(signal.SIGINT)
    number = heard(rank)["id"]
    waited = f"rangewatch trace: stopped waiting; the request stands, as command {number}\n"
    assert ended(process) == (130, "", waited)


def test_a_server_that_goes_is_waited_for_and_given_up(start_server: Callable[..., Server], tmp_path: Path) -> None:
    """One command waits until it is back; another gives up, and says that what was asked stands."""
    server = start_server()
    rank = Rank(server, world_size=1)
    patient, hasty = start(server.url, "trace", "run"), start(server.url, "trace", "run", away_s=0.1)
    for process in (patient, hasty):
        said(process, "0 of 1 ranks done\n")
    numbers = [command["id"] for command in rank.send()]
    server.kill()
    away = f"no Rangewatch server answers at {server.url}"
    status, out, err = ended(hasty)
    assert (status, out) == (2, "")
    assert err.splitlines()[0] == f"{away}; trying again"
    assert err.splitlines()[1] in [
        f"rangewatch trace: {away}; what was asked stands, as command {number}" for number in numbers
    ]
    said(patient, f"{away}; trying again\n")
    rank.server = start_server("--port", server.url.rpartition(":")[2], db=str(tmp_path / "server.db"))
    assert [command["id"] for command in rank.send()] == numbers
    said(patient, "0 of 1 ranks done\n")
    rank.send(*({"id": number, "state": "done", "first_step": 4, "last_step": 4} for number in numbers))
    status, out, err = ended(patient)
    assert (status, err) == (0, "1 of 1 ranks done\n")
    assert out.startswith("Step 4 is recorded in full on rank 0:\n")


def test_what_is_wrong_is_one_line(run: Run) -> None:
    Rank(run)
    for arguments, message in (
        (["trace", "nothing"], "no run 'nothing' at "),
        (["trace", run.name, "--steps", "0"], "steps 0 is not from 1 to 1000"),
        (["trace", run.name, "--rank", "7"], f"run {run.id} has no rank 7"),
        (["level", run.name, "all"], "level 'all' is not one of grads, outputs, frames, default"),
        (["level", run.name, "grads", "--url", "http://127.0.0.1:9"], "no Rangewatch server answers at http://127"),
        (["level", run.name, "grads", "--url", "nonsense://"], "url='nonsense://': must be http://HOST:PORT or "),
        (["trace", run.name, "--url", "nonsense"], "url='nonsense': must be http://HOST:PORT or "),
    ):
        status, out, err = typed(*arguments, RANGEWATCH_URL=run.server.url)
        assert (status, out, len(err.splitlines())) == (2, "", 1), arguments
        assert err.startswith(f"rangewatch {arguments[0]}: {message}")


def test_the_token_goes_along(start_server: Callable[..., Server]) -> None:
    server = start_server("--token", "s3cret")
    assert server.post(opening(KNOWN), Authorization="Bearer s3cret").status_code == 202
    refused = typed("trace", "run", "--no-wait", RANGEWATCH_URL=server.url)
    taken = typed("trace", "run", "--no-wait", RANGEWATCH_URL=server.url, RANGEWATCH_TOKEN="s3cret")
    assert refused[0] == 2
    assert "a token is needed" in refused[2]
    assert taken == (0, "Asked of rank 0, as command 1.\n", "")
