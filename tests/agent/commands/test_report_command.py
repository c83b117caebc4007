"""`rangewatch report`, `trace` and `level` where what answers is no Rangewatch server, or has hostile names."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from rangewatch import __main__ as command_line
from tests import forked
from tests.agent.commands.command import typed

EVIL = "evil\x1b[2J\x1b]0;pwn\x07\nforged \u202e\ud800"
SHOWN = r"evil\x1b[2J\x1b]0;pwn\x07\nforged \u202e\ud800"


class Service:
    """Any JSON service: answers by path, or the same at every path."""

    def __init__(self) -> None:
        self.answers: dict[str, tuple[int, str]] = {}
        self.usual = (404, '{"error": "no such page", "code": "unknown_run"}')
        service = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.rfile.read(int(self.headers.get("content-length", 0)))
                status, body = service.answers.get(self.path.partition("?")[0], service.usual)
                self.send_response(status)
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body.encode())

            do_POST = do_GET

            def log_message(self, *args: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.01,))
        self.thread.start()

    def has_run(self, name: str, step: dict[str, Any] | None = None, states: list[Any] | None = None) -> None:
        run = {"id": 1, "name": name, "first_step": 0, "last_step": 9, "first_overflow": {"step": 3, "rank": 0}}
        self.answer("/api/v1/runs", {"runs": [run]})
        self.answer("/api/v1/runs/1", run if step is not None else run | {"first_overflow": None})
        self.answer("/api/v1/runs/1/step", step)
        command = {"id": 7, "states": states}
        self.answer("/api/v1/runs/1/commands", command)
        self.answer("/api/v1/runs/1/commands/7", command)

    def answer(self, path: str, body: Any) -> None:
        self.answers[path] = (200, json.dumps(body))

    def stop(self) -> None:
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()


@pytest.fixture
def service() -> Iterator[Service]:
    started = Service()
    yield started
    started.stop()


def command(url: str, *arguments: str, **environment: str) -> tuple[int, str, str]:
    """Exit status, what it wrote, and its errors."""
    return typed(*arguments, RANGEWATCH_URL=url, **environment)


@pytest.mark.parametrize(
    "answer",
    [
        (200, "[]"), (200, '{"x": 1}'), (200, "3"), (200, '{"runs": [{"id": 1}]}'), (200, '{"runs": {"id": 1}}'),
        (200, "[" * 100_000), (200, "<html>"), (404, '{"detail": "Not Found"}'), (500, "[]"), (302, "{}"),
    ],
)  # fmt: skip
def test_another_service_is_no_server(service: Service, answer: tuple[int, str]) -> None:
    service.usual = answer
    said = f"rangewatch report: no Rangewatch server answers at {service.url}\n"
    assert command(service.url, "report", "run") == (2, "", said)


@pytest.mark.parametrize("name", ["report", "trace"])
def test_another_service_with_runs_is_no_server_either(service: Service, name: str) -> None:
    service.has_run("run")
    service.usual = (200, "[]")
    del service.answers["/api/v1/runs/1/commands"], service.answers["/api/v1/runs/1/step"]
    said = f"rangewatch {name}: no Rangewatch server answers at {service.url}\n"
    step = ["--step", "1"] if name == "report" else []
    assert command(service.url, name, "run", *step) == (2, "", said)


def test_what_the_server_refuses_is_said_in_its_words(service: Service) -> None:
    assert command(service.url, "report", "run") == (2, "", "rangewatch report: no such page\n")


@pytest.mark.parametrize("token", ["two\nlines", "t\N{LATIN SMALL LETTER O WITH DIAERESIS}ken", "日本"])
def test_a_bad_token_is_called_that(service: Service, token: str) -> None:
    service.has_run("run")
    said = "rangewatch report: RANGEWATCH_TOKEN is no token: it must be printable ASCII\n"
    assert command(service.url, "report", "run", RANGEWATCH_TOKEN=token) == (2, "", said)


@pytest.mark.parametrize("url", ["nonsense", "ftp://host", "http://:80", "http://host:99999", "http://a b", "http://["])
def test_a_bad_address_is_one_line(url: str) -> None:
    said = f"rangewatch report: url={url!r}: must be http://HOST:PORT or https://HOST:PORT\n"
    assert command("http://127.0.0.1:9", "report", "run", "--url", url) == (2, "", said)


def test_an_address_with_a_password_is_not_shown() -> None:
    status, out, err = command("http://127.0.0.1:9", "report", "run", "--url", "http://user:s3cret@127.0.0.1:9")
    assert (status, out, len(err.splitlines())) == (2, "", 1)
    assert "must hold no user name" in err and "s3cret" not in err


def test_the_report_keeps_its_lines_and_no_control_character(service: Service) -> None:
    report = "Detected inf\x1b[2J\n      \x07evil\x9b1m \x7fLinear"
    service.has_run(EVIL, {"observed": True, "rank": 0, "report": report})
    status, out, err = command(service.url, "report", "1")
    assert (status, out, err) == (0, "Detected inf\\x1b[2J\n      \\x07evil\\x9b1m \\x7fLinear\n", "")
    status, out, err = command(service.url, "report", "1", "--json")
    assert json.loads(out)["report"] == report and out.isascii() and out[:-1].isprintable()


def test_a_name_of_a_run_is_one_line(service: Service) -> None:
    service.has_run(EVIL)
    assert command(service.url, "report", "1") == (1, f"No NaN or Inf in run {SHOWN}, steps 0 to 9.\n", "")
    assert command(service.url, "report", "none")[2].endswith(f"; there are: {SHOWN}\n")


def test_a_name_that_the_terminals_encoding_lacks_is_no_error(service: Service) -> None:
    service.has_run("日本")
    for encoding, shown in (("utf-8", "日本"), ("ascii", r"\u65e5\u672c")):
        environment = os.environ | {"RANGEWATCH_URL": service.url, "PYTHONIOENCODING": encoding}
        found = forked.server.run("-m", "rangewatch", "report", "1", env=environment)
        said = (1, f"No NaN or Inf in run {shown}, steps 0 to 9.\n", "")
        assert (found.returncode, found.stdout, found.stderr) == said


def state(rank: int, word: str, reason: str = "") -> dict[str, Any]:
    return {"rank": rank, "state": word, "reason": reason, "first_step": 4, "last_step": 4, "live": True}


def test_reasons_are_one_line_and_a_run_without_a_name_to_type_has_its_number(service: Service) -> None:
    service.has_run(EVIL, states=[state(0, "done"), state(1, "refused", EVIL)])
    status, out, err = command(service.url, "trace", "1")
    assert (status, out.splitlines()[1:]) == (1, ["  rangewatch report 1 --step 4 --rank 0"])
    assert err == f"1 of 2 ranks done\nrangewatch trace: rank 1 refused: {SHOWN}\n"
    status, out, err = command(service.url, "level", "1", "grads")
    assert (status, out) == (1, "1: level grads on rank 0 from step 4 on.\n")
    assert err.splitlines()[1:] == [f"rangewatch level: rank 1 refused: {SHOWN}"]


def test_a_server_that_no_longer_knows_the_command_is_not_said_to_keep_it(service: Service) -> None:
    service.has_run("run", states=[])
    service.answers["/api/v1/runs/1/commands/7"] = (404, '{"error": "run 1 has no command 7", "code": "x"}')
    said = "rangewatch trace: run 1 has no command 7; it was asked as command 7\n"
    assert command(service.url, "trace", "run") == (2, "", said)


def test_ranks_have_time_to_find_a_server_that_was_away(service: Service) -> None:
    """They are not live before they have sent something to it."""
    service.has_run("run", states=[])
    service.answers["/api/v1/runs/1/commands/7"] = (503, '{"error": "starting", "code": "unavailable"}')
    modules = "from rangewatch.commands.live import ask, trace"
    code = f"import sys; {modules}; ask.POLL_S = 0.02; sys.exit(trace.main(sys.argv[1:]))"
    process = forked.server.start(
        "-c", code, "run", "--url", service.url, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stderr is not None
    assert process.stderr.readline() == "starting; trying again\n"
    waiting = {"id": 7, "states": [state(0, "pending") | {"live": False}]}
    service.answer("/api/v1/runs/1/commands/7", waiting)
    assert process.stderr.readline() == "0 of 1 ranks done\n"
    service.answer("/api/v1/runs/1/commands/7", {"id": 7, "states": [state(0, "done")]})
    out, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (0, "1 of 1 ranks done\n")
    assert out.startswith("Step 4 is recorded in full on rank 0:\n")


def test_an_interrupt_before_the_answer_does_not_say_that_anything_was_asked() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        command = ["-m", "rangewatch", "trace", "run", "--url", url]
        process = forked.server.start(*command, stderr=subprocess.PIPE, text=True)
        connection, _ = silent.accept()
        with connection:
            assert connection.recv(4) == b"GET "
            process.send_signal(signal.SIGINT)
            said = process.communicate(timeout=60)[1]
    assert (process.returncode, said) == (130, "rangewatch trace: interrupted before the server answered\n")


def test_help_says_that_frames_are_modules() -> None:
    assert "how many modules to go back" in " ".join(command("", "report", "--help")[1].split())


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("report", "rangewatch"), ("trace", "rangewatch"), ("level", "rangewatch"),
        ("serve", "'rangewatch[server]'"), ("demo", "'rangewatch[agent,server]'"),
    ],
)  # fmt: skip
def test_the_hint_names_only_what_is_needed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], name: str, wanted: str
) -> None:
    module = command_line.COMMANDS[name][0]
    monkeypatch.setitem(command_line.COMMANDS, name, (f"missing_{name}.{module}", *command_line.COMMANDS[name][1:]))
    monkeypatch.setattr(sys, "argv", ["rangewatch", name])
    assert command_line.main() == 2
    said = f"rangewatch {name}: missing_{name} is not installed; pip install {wanted}\n"
    assert capsys.readouterr().err == said


def test_a_server_that_wants_a_token(service: Service) -> None:
    service.usual = (401, '{"error": "a token is needed: Authorization: Bearer TOKEN", "code": "unauthorized"}')
    status, _, err = typed("diagnose", "run", "--url", service.url)
    assert status == 2 and "RANGEWATCH_TOKEN" in err
