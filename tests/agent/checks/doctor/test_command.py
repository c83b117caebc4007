"""`rangewatch doctor` as a user types it: a real process, and a run of a server."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Iterator
from dataclasses import asdict
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple

import pytest

from rangewatch.checks.doctor.checks import environment_event
from rangewatch.checks.doctor.details import environment
from rangewatch.commands import doctor as command
from rangewatch.commands.doctor import summary
from rangewatch_server.machines.environment import odd_ranks
from tests import forked
from tests.agent.checks.doctor.planted import Planted


class Ended(NamedTuple):
    status: int
    out: str
    err: str


Doctor = Callable[..., Ended]


@pytest.fixture
def doctor(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Doctor:
    """The command, in this process."""
    for name in list(os.environ):
        if name.startswith(("NCCL_", "CUDA_", "OMP_")):
            monkeypatch.delenv(name)

    def run(*arguments: str, **variables: str) -> Ended:
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        try:
            status: Any = command.main(arguments)
        except SystemExit as ended:  # argparse
            status = ended.code
        return Ended(status, *capsys.readouterr())

    return run


def test_a_setting_that_is_wrong_is_told_with_what_to_type(doctor: Doctor) -> None:
    ended = doctor("--quick", NCCL_TIMEOUT="3600")
    assert ended.status == 1, ended
    what, why, do = (line for line in ended.out.splitlines() if line.startswith(("WARNING: NCCL", "  why", "  do")))
    assert what == "WARNING: NCCL_TIMEOUT=3600 has no effect: neither torch nor NCCL reads it"
    assert "10 minutes" in why
    assert "unset NCCL_TIMEOUT; init_process_group(timeout=" in do


def test_json_is_one_document(doctor: Doctor) -> None:
    ended = doctor("--quick", "--json", NCCL_TIMEOUT="3600", NCCL_TOPO_FILE="\x1b[31m")
    reported = json.loads(ended.out)
    assert [finding["code"] for finding in reported["findings"]] == ["unread_timeout"]
    assert "\x1b" not in ended.out
    assert reported["facts"]["deep"] is False
    assert ended.err == ""


def test_a_terminal_is_not_obeyed(doctor: Doctor) -> None:
    assert "\x1b" not in doctor("--quick", NCCL_TOPO_FILE="\x1b[31mred", NCCL_TIMEOUT="\x1b[2J").out


def test_it_needs_no_torch() -> None:
    script = """if True:
        import sys
        sys.modules["torch"] = None
        from rangewatch.commands import doctor
        sys.exit(doctor.main(["--quick"]))
    """
    ended = forked.server.run("-c", script)
    assert ended.stderr == ""
    assert "not loaded" in ended.stdout


@pytest.mark.parametrize("arguments", [["--nonsense"], ["--run"], ["run-1"]])
def test_wrong_arguments(doctor: Doctor, arguments: list[str]) -> None:
    ended = doctor(*arguments)
    assert ended.status == 2
    assert ended.err.startswith("rangewatch doctor: ") and ended.err.count("\n") == 1


def test_no_server(doctor: Doctor) -> None:
    ended = doctor("--run", "t5", "--url", "http://127.0.0.1:9")
    assert ended.status == 2
    assert ended.err == "rangewatch doctor: no Rangewatch server answers at http://127.0.0.1:9\n"


def test_the_summary_names_what_is_there(planted: Planted) -> None:
    planted.environ["NCCL_DEBUG"] = "WARN"
    text = "\n".join(summary(environment(planted.machine, deep=True)))
    for part in (
        "2.6.0+cu124, CUDA 12.4",
        "NCCL 2.21.5",
        "sm_80 sm_90",
        "550.54.15",
        "4 x NVIDIA H100, sm_90",
        "12.4 in /usr/local/cuda-12.4 (by CUDA_HOME, PATH, LD_LIBRARY_PATH, /usr/local)",
        "gcc 12 (/usr/bin/c++)",
        "mlx5_0 port 1: ACTIVE, 400 Gb/sec (4X NDR), InfiniBand",
        "eth0 up, ib0 up",
        "NCCL_DEBUG         WARN",
    ):
        assert part in text


@pytest.fixture
def server(planted: Planted) -> Iterator[str]:
    """What a server answers of a run of four ranks, of which one has a variable that the others have not."""
    events = {rank: environment_event(planted.without_cards().machine).facts for rank in (0,)}
    events |= {rank: json.loads(json.dumps(events[0])) for rank in (1, 2, 3)}
    events[2]["variables"]["NCCL_ALGO"] = "Ring"
    answers: dict[str, Any] = {
        "/api/v1/runs": {"runs": [{"id": 1, "name": "t5"}]},
        "/api/v1/runs/1": {"id": 1, "name": "t5", "first_step": 0, "last_step": 9, "first_overflow": None},
        "/api/v1/runs/1/environment": {"ranks": [{}] * 4, "findings": [asdict(each) for each in odd_ranks(events)]},
    }

    class Answers(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = json.dumps(answers[self.path]).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *arguments: object) -> None:
            pass

    http = ThreadingHTTPServer(("127.0.0.1", 0), Answers)
    thread = threading.Thread(target=http.serve_forever, args=(0.01,))
    thread.start()
    yield f"http://127.0.0.1:{http.server_port}"
    http.shutdown()
    thread.join()
    http.server_close()


def test_the_odd_rank_of_a_run(server: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["--run", "t5", "--url", server]) == 1
    reported = capsys.readouterr().out
    assert "Run t5, 4 ranks" in reported
    assert "Rank 2" in reported
    assert "NCCL_ALGO is Ring, and not set on the other 3" in reported
    assert command.main(["--run", "t5", "--url", server, "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["findings"][0]["ranks"] == [2]
