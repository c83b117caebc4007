"""What `attach` says on the terminal: where the run is to be seen, and that another job has its name."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest
from torch import nn

import rangewatch
from tests.agent.ingest_double import IngestDouble


@pytest.fixture
def not_quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RANGEWATCH_QUIET")


@pytest.mark.usefixtures("not_quiet")
@pytest.mark.parametrize(("rank", "quiet", "lines"), [("0", None, 1), ("1", None, 0), ("0", True, 0)])
def test_where_the_run_is(
    ingest: IngestDouble, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], rank: str,
    quiet: bool | None, lines: int,
) -> None:  # fmt: skip
    monkeypatch.setenv("RANK", rank)
    with rangewatch.attach(nn.Linear(1, 1), url=ingest.url, run="a b", quiet=quiet):
        pass
    out, err = capsys.readouterr()
    assert (out, err) == ("", f"rangewatch: run a b at {ingest.url}/?q=a%20b\n" * lines)


@pytest.mark.usefixtures("not_quiet")
def test_no_stderr_is_no_reason_to_fail(ingest: IngestDouble, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", None)
    with rangewatch.attach(nn.Linear(1, 1), url=ingest.url) as handle:
        assert not handle.stats()["faults"]


OTHER = """
import sys, torch, rangewatch
handle = rangewatch.attach(torch.nn.Linear(1, 1), url=sys.argv[1], run="twice", spool_dir=sys.argv[2])
print("attached", flush=True)
sys.stdin.read()
handle.detach()
"""


@pytest.mark.parametrize("is_running", [True, False])
def test_another_job_has_the_name(
    ingest: IngestDouble, tmp_path: Path, caplog: pytest.LogCaptureFixture, is_running: bool
) -> None:
    command = [sys.executable, "-c", OTHER, ingest.url, str(tmp_path)]
    other = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert other.stdout is not None and other.stdin is not None
    assert other.stdout.readline() == "attached\n"
    deadline_s = time.monotonic() + 20
    while not list(tmp_path.glob("**/rank.json")) and time.monotonic() < deadline_s:
        time.sleep(0.02)
    if not is_running:
        other.communicate()
    with rangewatch.attach(nn.Linear(1, 1), url=ingest.url, run="twice", spool_dir=str(tmp_path)):
        pass
    if is_running:
        other.communicate()
    assert ("another process of this machine records rank 0 of run 'twice'" in caplog.text) == is_running
