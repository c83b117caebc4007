"""Rules for every test: the agent's guard raises instead of swallowing, and nothing of the agent is left afterwards."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest

from rangewatch.guard import Guard
from tests.server import server_log

os.environ.setdefault("RANGEWATCH_WATCHER", "0")  # a process more for each attach; its own tests switch it on

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell starts what it puts in the background so, and our children would inherit it and hear no Ctrl-C.
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A test that fails shows what its servers said."""
    report = yield
    if report.failed:
        report.sections += server_log.sections()
    return report


@pytest.fixture(autouse=True)
def spools_are_the_tests_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What an agent leaves because its server is away lies where pytest tidies up."""
    monkeypatch.setenv("RANGEWATCH_SPOOL_DIR", str(tmp_path / "spool"))


@pytest.fixture(autouse=True)
def guard_is_fatal(request: pytest.FixtureRequest) -> Iterator[None]:
    """A fault inside the agent fails the test, unless it is marked `allow_faults`."""
    Guard.fatal = request.node.get_closest_marker("allow_faults") is None
    yield
    Guard.fatal = False


@pytest.fixture(autouse=True)
def no_agent_is_left(guard_is_fatal: None) -> Iterator[None]:
    """After the test no thread of the agent runs and no scaler class is patched."""
    yield
    threads = [thread for thread in threading.enumerate() if thread.name.startswith("rangewatch-")]
    for thread in threads:
        thread.join(5)
    assert [thread.name for thread in threads if thread.is_alive()] == []
    loss_scale = sys.modules.get("rangewatch.loss_scale")
    assert loss_scale is None or not loss_scale.Patch.installed
