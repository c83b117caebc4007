"""Rules for every test: the agent's guard raises instead of swallowing, and nothing of the agent is left afterwards.

And what is made once for each of pytest's workers, however many tests use it: a server (`served`, of which most tests
want only a run of their own, `run`), a browser with one context, and PostgreSQL's databases.
"""

from __future__ import annotations

import gc
import itertools
import os
import signal
import sys
import threading
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import hypothesis
import pytest
from sqlalchemy.exc import OperationalError

from rangewatch.core.guard import Guard
from tests.server import server_log
from tests.server.databases import POSTGRES, Databases
from tests.server.opened_store import Store
from tests.server.process import Run, Server

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Playwright  # a GPU machine has none, and runs tests/agent

os.environ.setdefault("RANGEWATCH_QUIET", "1")
os.environ.setdefault("RANGEWATCH_WATCHER", "0")  # a process more for each attach; its own tests switch it on

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell starts what it puts in the background so, and our children would inherit it and hear no Ctrl-C.
    signal.signal(signal.SIGINT, signal.default_int_handler)


ROOT = Path(__file__).parents[1]
CHROMIUM = "/usr/bin/chromium"
ARGUMENTS = [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--no-first-run",
]  # fmt: skip

# How long an example takes depends on what else the machine does: never a reason to fail.
hypothesis.settings.register_profile("rangewatch", deadline=None, print_blob=True)
hypothesis.settings.load_profile("rangewatch")

_numbers = itertools.count(1)

FAILED = pytest.StashKey[bool]()
"""Of a test: whether it has failed, for fixtures that give back what others use."""


def pytest_collection_finish() -> None:
    """What is imported by now stays: a test that lets garbage be collected need not look through all of it."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A test that fails shows what its servers said, and last which file to open."""
    report = yield
    if report.failed:
        item.stash[FAILED] = True
        report.sections += server_log.sections()
        places = _places(call.excinfo) if call.excinfo is not None else ""
        report.sections += [("open", places)] if places else []
    return report


def _places(error: pytest.ExceptionInfo[BaseException]) -> str:
    """The line of the test, and the deepest one of ours that it had reached."""
    frames = [(Path(each.path), each.lineno + 1) for each in error.traceback]
    ours = [(path.relative_to(ROOT), line) for path, line in frames if path.is_relative_to(ROOT)]
    ours = [each for each in ours if not each[0].parts[0].startswith(".")]  # .venv
    tests = [each for each in ours if each[0].parts[0] == "tests"][:1]
    code = [each for each in ours if each[0].parts[0] != "tests"][-1:]
    return "\n".join(f"{path}:{line}" for path, line in tests + code)


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
    """After the test no thread of the agent runs that was not there before, and no scaler class is patched."""
    before = set(threading.enumerate())  # a server in this process, which several tests share, has such names too
    yield
    threads = [each for each in threading.enumerate() if each.name.startswith("rangewatch-") and each not in before]
    for thread in threads:
        thread.join(5)
    assert [thread.name for thread in threads if thread.is_alive()] == []
    loss_scale = sys.modules.get("rangewatch.steps.loss_scale")
    assert loss_scale is None or not loss_scale.Patch.installed


@pytest.fixture(scope="session")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """The worker's server, which has the runs of other tests too: no test stops it, or changes what all of it has."""
    server = Server(str(tmp_path_factory.mktemp("served") / "server.db"))
    yield server
    server.stop()


@pytest.fixture
def run(request: pytest.FixtureRequest, served: Server) -> Run:
    """A run of the test's own on the worker's server."""
    return Run(served, f"{request.node.name[:60]} {next(_numbers)}")


@pytest.fixture(scope="module")
def module_run(request: pytest.FixtureRequest, served: Server) -> Run:
    """A run on the worker's server for all tests of a module, which only read it."""
    return Run(served, f"{Path(request.node.path).stem} {next(_numbers)}")


@pytest.fixture
def sqlite_url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'test.db'}"


@pytest.fixture(scope="session")
def databases() -> Iterator[Databases]:
    """Makes databases on the PostgreSQL of this machine; CI must have one."""
    try:
        found = Databases(POSTGRES)
    except OperationalError:
        if os.environ.get("CI"):
            raise
        pytest.skip("no PostgreSQL here; set RANGEWATCH_TEST_POSTGRES")
    yield found
    found.end()


@pytest.fixture
def postgres_url(databases: Databases) -> Iterator[str]:
    """A database of its own, with the tables of one that a server has started on."""
    with databases.one() as url:
        yield url


@pytest.fixture
def empty_postgres_url(databases: Databases) -> Iterator[str]:
    """A database of its own that no server has seen."""
    with databases.without_tables() as url:
        yield url


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.slow)])
def database_url(request: pytest.FixtureRequest) -> str:
    return str(request.getfixturevalue(f"{request.param}_url"))


@pytest.fixture
def open_store() -> Iterator[Callable[[str], Store]]:
    opened: list[Store] = []

    def make(url: str) -> Store:
        opened.append(Store(url))
        return opened[-1]

    yield make
    for store in opened:
        store.close()


@pytest.fixture
def store(database_url: str, open_store: Callable[[str], Store]) -> Store:
    return open_store(database_url)


@pytest.fixture
def start_server(tmp_path: Path) -> Iterator[Callable[..., Server]]:
    started: list[Server] = []

    def start(*arguments: str, db: str | None = None) -> Server:
        started.append(Server(db or str(tmp_path / "server.db"), *arguments))
        return started[-1]

    yield start
    for server in started:
        if server.process.poll() is None:
            server.stop()


@pytest.fixture
def server(start_server: Callable[..., Server]) -> Server:
    return start_server()


@pytest.fixture(scope="session")
def playwright() -> Iterator[Playwright]:
    """Once in a process: a second one beside the first is refused."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as found:
        yield found


@pytest.fixture(scope="session")
def browser(playwright: Playwright) -> Iterator[Browser]:
    """The worker's Chromium."""
    found = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
    yield found
    found.close()
