"""Forked processes: their descriptors, their signals, and what it means when none is to be had."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from rangewatch.checks.linkcheck import launch, supervisor
from rangewatch.checks.linkcheck import store as stores
from rangewatch.checks.linkcheck.children import Child
from rangewatch.checks.linkcheck.launch import LaunchError, Place
from rangewatch.checks.linkcheck.store import Address
from rangewatch.checks.linkcheck.tasks import PHASES, Task
from rangewatch.checks.linkcheck.worker import Part
from tests.agent.ingest_double import IngestDouble

PART = Part(Task(0, ((0, 1),)), 0, 0, 0, Address("127.0.0.1", 1, ""), ())


class Stops:
    """A store that only hears who is to stop."""

    def __init__(self) -> None:
        self.stopped: list[tuple[int, int]] = []

    def stop(self, number: int, group: int) -> None:
        self.stopped.append((number, group))


@pytest.mark.skipif(resource.getrlimit(resource.RLIMIT_NOFILE)[1] < 2048, reason="needs descriptors above 1,023")
def test_a_pipe_of_any_number_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    child = Child.fork(lambda send: send(b"here"), is_quiet=True)
    try:
        launch.allow_descriptors(8)
        os.dup2(child._pipe, 1500)
        assert Child(child.pid, 1500, None).lines(10.0) == [b"here"]
        os.close(1500)
    finally:
        child.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


SIGNALLED = """
import os, signal, sys
from rangewatch.checks.linkcheck import children
def fork(fork=os.fork):
    pid = fork()
    if pid == 0:
        os.kill(os.getpid(), signal.SIGINT)
    return pid
children.os.fork = fork
try:
    print(children.Child.fork(lambda send: send(b"lives")).lines(10.0))
except KeyboardInterrupt:
    print("ran the parent's clean-up")
"""


def test_a_ctrl_c_right_after_the_fork_does_not_run_the_parents_clean_up_in_the_child() -> None:
    ran = subprocess.run([sys.executable, "-c", SIGNALLED], capture_output=True, text=True, timeout=60, check=False)
    assert ran.stdout == "[b'lives']\n", ran.stderr


def test_a_worker_that_cannot_be_started_is_told_and_its_peers_are_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> int:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr("os.fork", refuse)
    store: Any = Stops()
    before = sorted(Path("/dev/fd").iterdir())
    outcome = supervisor._do(store, PART)
    assert (outcome.state, outcome.error) == ("error", "no process can be started: Resource temporarily unavailable")
    assert store.stopped == [(0, 0)] and sorted(Path("/dev/fd").iterdir()) == before


def test_a_worker_that_a_driver_holds_at_its_end_is_not_waited_for() -> None:
    store, child = Stops(), object()
    watch = supervisor._Watch(PART, child)  # type: ignore[arg-type]
    watch._phase = PHASES[-1]
    assert watch._overdue(store) == ""  # type: ignore[arg-type]
    watch._phase_s = time.monotonic() - PART.task.timeout_s - 60
    assert watch._overdue(store) == "hang"  # type: ignore[arg-type]


def test_a_supervisor_leaves_it_to_the_command_to_say_that_the_store_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    def gone(address: Address, connect_s: float) -> None:
        raise RuntimeError("connection refused")

    monkeypatch.setattr(launch, "Store", gone)
    launch._supervise(PART.address, 0, 0, (), 1.0)


def test_a_driver_that_crashes_or_hangs_is_not_taken_for_a_host_without_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 8)
    assert launch.gpu_count() == 8
    monkeypatch.setattr(torch.cuda, "device_count", lambda: os.kill(os.getpid(), signal.SIGKILL))
    with pytest.raises(LaunchError, match="GPUs died"):
        launch.gpu_count()
    monkeypatch.setattr(launch, "GPUS_S", 0.1)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: time.sleep(60))
    with pytest.raises(LaunchError, match="has not answered"):
        launch.gpu_count()


def test_a_store_that_nobody_keeps_is_waited_for_once(free_port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stores, "_client", lambda address, connect_s: time.sleep(2.0))  # torch tries twice
    with pytest.raises(RuntimeError, match="nobody listens there"):
        stores._connect(Address("127.0.0.1", free_port, ""), 0.1)


def test_an_address_that_is_taken_is_told(ingest: IngestDouble) -> None:
    with pytest.raises(LaunchError, match=rf"cannot listen on port {ingest.port} \(Address already in use"):
        launch._host(Address("127.0.0.1", ingest.port, ""))


def test_a_rank_whose_first_one_does_not_answer_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def gone(address: Address, connect_s: float) -> None:
        raise RuntimeError("connection refused\nand a stack")

    monkeypatch.setattr(launch, "Store", gone)
    assert launch.follow(Place(3, 4, 3, Address("node1", 29500, ""), False), (), 1.0) == 2
    said = "rangewatch linkcheck: rank 3: rank 0 at node1:29500 does not answer (connection refused)\n"
    assert capsys.readouterr().err == said
