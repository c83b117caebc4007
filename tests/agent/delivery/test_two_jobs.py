"""Two jobs of one name: the server says so in its answers, and the agent says it once on the terminal."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import rangewatch
from rangewatch.delivery.transport import OtherProcess, Outcome, _meaning
from tests.agent.ingest_double import IngestDouble
from tests.server.process import Server

OTHER = {"host": "node7", "pid": 4711}

JOB = """
import sys, time, torch, rangewatch
model = torch.nn.Linear(2, 2)
handle = rangewatch.attach(model, quiet=True, collect=())
print("attached", flush=True)
end = time.monotonic() + float(sys.argv[1])
while time.monotonic() < end:
    model(torch.ones(1, 2)).sum().backward()
    handle.step()
    time.sleep(0.1)
"""


def train(url: str, **options: Any) -> None:
    model = nn.Linear(2, 2)
    with rangewatch.attach(model, url=url, collect=(), ship_interval_s=1e-9, **options) as handle:
        for _ in range(4):
            model(torch.ones(1, 2)).sum().backward()
            handle.step()


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [each for each in caplog.messages if "also sends run" in each]


def test_it_is_said_once(ingest: IngestDouble, caplog: pytest.LogCaptureFixture) -> None:
    ingest.also_live = OTHER
    train(ingest.url, run="twice")
    (said,) = warnings(caplog)
    assert "process 4711 on node7 also sends run 'twice' as rank 0" in said and "RANGEWATCH_RUN" in said


def test_a_host_of_control_characters_does_not_write_on_the_terminal(
    ingest: IngestDouble, caplog: pytest.LogCaptureFixture
) -> None:
    ingest.also_live = {"host": "a\x1b[2J\nb", "pid": 1}
    train(ingest.url)
    (said,) = warnings(caplog)
    assert "on a?[2J?b also" in said


@pytest.mark.parametrize(
    "also_live", [None, "yes", {}, {"host": "a"}, {"host": 5, "pid": 1}, {"host": "a", "pid": 1e40}]
)
def test_without_it_or_with_what_cannot_be_read_nothing_is_said(
    ingest: IngestDouble, caplog: pytest.LogCaptureFixture, also_live: Any
) -> None:
    ingest.also_live = also_live
    train(ingest.url)
    assert warnings(caplog) == [] and ingest.batches


def test_other_ranks_leave_it_to_the_first(
    ingest: IngestDouble, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv("WORLD_SIZE", "4")
    ingest.also_live = OTHER
    train(ingest.url, run="twice")
    assert warnings(caplog) == []


def test_what_a_dead_process_left_is_no_other_job(ingest: IngestDouble, caplog: pytest.LogCaptureFixture) -> None:
    """After a restart the watcher of the process before still sends its last batches."""
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    ingest.also_live = {"host": socket.gethostname(), "pid": gone.pid}
    train(ingest.url)
    assert warnings(caplog) == []


def test_what_is_read_of_an_answer() -> None:
    reply = _meaning(202, None, json.dumps({"contiguous": 0, "also_live": OTHER | {"later": 1}}).encode())
    assert (reply.outcome, reply.also_live) == (Outcome.STORED, OtherProcess("node7", 4711))


@pytest.fixture
def jobs(served: Server, tmp_path: Path) -> Iterator[Any]:
    started: list[subprocess.Popen[str]] = []

    def start(run: str, seconds: float) -> subprocess.Popen[str]:
        environment = os.environ | {
            "RANGEWATCH_URL": served.url, "RANGEWATCH_RUN": run, "RANGEWATCH_SPOOL_DIR": str(tmp_path / "spools"),
        }  # fmt: skip
        job = subprocess.Popen(
            [sys.executable, "-c", JOB, str(seconds)], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            text=True,
        )  # fmt: skip
        assert job.stdout is not None and job.stdout.readline() == "attached\n"
        started.append(job)
        return job

    yield start
    for job in started:
        job.kill()
        job.communicate()


@pytest.mark.slow
def test_two_processes_on_a_real_server_both_say_so(jobs: Any) -> None:
    first, second = jobs("two jobs", 32), jobs("two jobs", 32)
    said = [job.communicate(timeout=100)[1] for job in (first, second)]
    for own, other, text in ((first, second, said[0]), (second, first, said[1])):
        assert own.returncode == 0
        assert text.count("also sends run 'two jobs' as rank 0") == 1 and f"process {other.pid} on" in text, text


@pytest.mark.slow
def test_a_restart_on_a_real_server_says_nothing(jobs: Any) -> None:
    killed = jobs("restarted job", 100)
    killed.kill()
    again = jobs("restarted job", 32)
    assert "also sends" not in again.communicate(timeout=100)[1] and again.returncode == 0
