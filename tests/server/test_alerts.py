"""Alerts over a run's life, through a real server: opened, acknowledged, silenced, resolved, sent and tried again."""

from __future__ import annotations

import json
import socket
import sqlite3
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import torch

import rangewatch
from rangewatch_server.alerts.config import ConfigError, read
from tests import forked
from tests.server.process import Server
from tests.server.records import batch, catalogue, opening

KNOWN = catalogue(3)
STEPS = 40


class Receiver:
    """A real HTTP server that keeps what it is sent, and answers with the statuses it is given, then 200."""

    def __init__(self, *statuses: int) -> None:
        self.got: list[dict[str, Any]] = []
        self.came = threading.Semaphore(0)
        left = list(statuses)
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                receiver.got.append({"path": self.path, "body": json.loads(body), "type": self.headers["content-type"]})
                self.send_response(left.pop(0) if left else 200)
                self.send_header("content-length", "0")
                self.end_headers()
                receiver.came.release()

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.server_address[1]}"

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()


@pytest.fixture
def receiver() -> Iterator[Callable[..., Receiver]]:
    made: list[Receiver] = []

    def start(*statuses: int) -> Receiver:
        made.append(Receiver(*statuses))
        return made[-1]

    yield start
    for each in made:
        each.close()


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Callable[..., Server]]:
    started: list[Server] = []

    def start(toml: str = "") -> Server:
        file = tmp_path / "alerts.toml"
        file.write_text('allow_networks = ["127.0.0.0/8"]\n' + toml)
        started.append(Server(str(tmp_path / "rw.db"), "--alerts", str(file)))
        return started[-1]

    yield start
    for each in started:
        each.stop()


def overflow(server: Server, sequence: int = 0, first: int = 0, at: int = 30) -> None:
    """Steps of a run in which everything is NaN from the step `at` on."""
    bad = np.zeros((len(KNOWN.tensors), STEPS))
    bad[:, at:] = 3
    assert server.post(batch(KNOWN, sequence, range(first, first + STEPS), {"nan_count": bad})).status_code == 202


def alerts(server: Server, **query: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = httpx.get(f"{server.url}/api/v1/alerts", params=query).json()["alerts"]
    return found


def wait_for(server: Server, count: int = 1, **query: Any) -> list[dict[str, Any]]:
    """Asks until there are so many; the test's own time limit ends it."""
    while len(found := alerts(server, **query)) < count:
        threading.Event().wait(0.1)
    return found


def test_an_overflow_opens_one_alert_and_sends_it_once(
    serve: Callable[..., Server], receiver: Callable[..., Receiver]
) -> None:
    ours, slack = receiver(), receiver()
    server = serve(
        f'[[webhook]]\nname = "ops"\nurl = "{ours.url}/hook?key=1"\n'
        f'[[webhook]]\nname = "chat"\nurl = "{slack.url}"\nformat = "slack"\n'
    )
    server.post(opening(KNOWN))
    overflow(server)
    (alert,) = wait_for(server)
    assert (alert["run"], alert["resolved_ns"], alert["silenced_by"]) == ("run", None, None)
    found = alert["finding"]
    assert (found["rule"], found["severity"], found["step"], found["rank"]) == ("first_nonfinite", "critical", 30, 0)
    for each in (ours, slack):
        each.came.acquire()
    (sent,) = ours.got
    assert sent["path"] == "/hook?key=1"
    assert sent["body"]["event"] == "opened"
    assert sent["body"]["summary"] == found["summary"]
    assert sent["body"]["url"].endswith(f"/runs/1/alerts?key={alert['id']}")
    assert slack.got[0]["body"]["text"].startswith("*[critical] run: first nonfinite*\n")
    overflow(server, 1, STEPS, at=0)  # more of the same is no other alert
    again = httpx.get(f"{server.url}/api/v1/runs/1/diagnosis").json()
    assert [each["rule"] for each in again["findings"]].count("first_nonfinite") == 1
    assert len(alerts(server)) == 1
    assert len(ours.got) == 1


def test_an_alert_that_was_stored_before_leads_to_where_its_page_is_now(
    serve: Callable[..., Server], tmp_path: Path
) -> None:
    server = serve()
    server.post(opening(KNOWN))
    stored = {
        "rule": "gpu_health", "severity": "critical", "rank": 2, "subject": "GPU-a b", "summary": "It is gone.",
        "links": [["This GPU", "/runs/9/gpus/2"]],
    }  # fmt: skip
    of_no_rule = {"rule": "left_long_ago", "severity": "info", "summary": "Gone.", "links": [["There", "/runs/1"]]}
    with sqlite3.connect(tmp_path / "rw.db", timeout=20) as database:
        database.executemany(
            "INSERT INTO alerts (run_id, identity, rule, severity, finding, opened_ns, resolved_ns) "
            "VALUES (1, ?, ?, 'info', ?, 1, 2)",
            [(each["rule"], each["rule"], json.dumps(each).encode()) for each in (stored, of_no_rule)],
        )
    database.close()
    newer, older = alerts(server, state="over")
    assert newer["finding"]["links"] == of_no_rule["links"]
    assert older["finding"]["links"] == [["This GPU", "/runs/1/gpu?rank=2&key=GPU-a+b"]]
    assert server.get(f"/api/v1/alerts/{older['id']}")["finding"]["links"] == older["finding"]["links"]


def test_a_target_that_fails_is_tried_again(serve: Callable[..., Server], receiver: Callable[..., Receiver]) -> None:
    busy = receiver(503)
    server = serve(f'[[webhook]]\nname = "ops"\nurl = "{busy.url}"\n')
    server.post(opening(KNOWN))
    overflow(server)
    (alert,) = wait_for(server)
    busy.came.acquire()
    busy.came.acquire()
    assert [each["body"]["alert"] for each in busy.got] == [alert["id"]] * 2
    while True:
        (delivery,) = httpx.get(f"{server.url}/api/v1/alerts/{alert['id']}").json()["deliveries"]
        if delivery["done_ns"] is not None:
            break
    assert (delivery["attempts"], delivery["error"]) == (2, "")


def test_a_target_that_does_not_answer_holds_up_no_other(
    serve: Callable[..., Server], receiver: Callable[..., Receiver]
) -> None:
    """The other gets the message before the first one, which keeps us waiting, is given up."""
    other, given_up = receiver(), []
    with socket.create_server(("127.0.0.1", 0)) as mute:

        def until_given_up() -> None:
            with mute.accept()[0] as connection:
                while connection.recv(65_536):
                    pass
                given_up.append(True)

        threading.Thread(target=until_given_up, daemon=True).start()
        server = serve(
            f"[[webhook]]\nname = 'mute'\nurl = 'http://127.0.0.1:{mute.getsockname()[1]}/'\n"
            f"[[webhook]]\nname = 'other'\nurl = '{other.url}'\n"
        )
        server.post(opening(KNOWN))
        overflow(server)
        assert other.came.acquire(timeout=50)
        assert not given_up


def test_a_silenced_finding_is_shown_and_not_sent(
    serve: Callable[..., Server], receiver: Callable[..., Receiver]
) -> None:
    ours = receiver()
    server = serve(f'[[webhook]]\nname = "ops"\nurl = "{ours.url}"\n')
    made = httpx.post(f"{server.url}/api/v1/silences", json={"seconds": 600, "rule": "first_nonfinite"})
    assert made.status_code == 201
    server.post(opening(KNOWN))
    overflow(server)
    (alert,) = wait_for(server)
    assert alert["silenced_by"] == made.json()["id"]
    assert httpx.get(f"{server.url}/api/v1/alerts/{alert['id']}").json()["deliveries"] == []
    assert httpx.delete(f"{server.url}/api/v1/silences/{made.json()['id']}").status_code == 200
    assert alerts(server)[0]["silenced_by"] is None
    assert ours.got == []


def test_it_is_acknowledged_and_that_is_taken_back(serve: Callable[..., Server]) -> None:
    server = serve()
    server.post(opening(KNOWN))
    overflow(server)
    (alert,) = wait_for(server)
    path = f"{server.url}/api/v1/alerts/{alert['id']}/acknowledge"
    assert httpx.post(path).json()["acknowledged_ns"] is not None
    assert httpx.delete(path).json()["acknowledged_ns"] is None


def test_a_rule_that_is_off_for_the_run_resolves_its_alert(serve: Callable[..., Server]) -> None:
    server = serve()
    server.post(opening(KNOWN))
    overflow(server)
    wait_for(server)
    path = f"{server.url}/api/v1/runs/1/thresholds"
    set_ = httpx.put(path, json={"first_nonfinite": {"enabled": False}})
    assert set_.json()["in_force"] == {"first_nonfinite": {"enabled": False}}
    (over,) = wait_for(server, state="over")
    assert over["resolved_step"] == STEPS - 1
    assert alerts(server) == []
    assert httpx.put(path, json={}).json()["in_force"] == {}
    assert len(wait_for(server)) == 1


def test_metrics_count_what_stands(serve: Callable[..., Server]) -> None:
    server = serve()
    server.post(opening(KNOWN))
    overflow(server)
    wait_for(server)
    line = 'rangewatch_alerts{rule="first_nonfinite",severity="critical"} 1.0'
    while line not in httpx.get(f"{server.url}/metrics").text:
        threading.Event().wait(0.1)


def test_the_test_button_says_how_it_went(serve: Callable[..., Server], receiver: Callable[..., Receiver]) -> None:
    ours = receiver(200, 404)
    server = serve(f'[[webhook]]\nname = "ops"\nurl = "{ours.url}/secret"\n')
    assert "secret" not in httpx.get(f"{server.url}/api/v1/targets").text
    path = f"{server.url}/api/v1/targets/ops/test"
    assert httpx.post(path).json() == {"name": "ops", "sent": True, "error": ""}
    assert httpx.post(path).json() == {"name": "ops", "sent": False, "error": "ops answered 404"}
    assert httpx.post(f"{server.url}/api/v1/targets/nobody/test").status_code == 404


BAD = [
    ("GET", "alerts/99", None, 404),
    ("GET", "alerts?state=no", None, 422),
    ("POST", "alerts/99/acknowledge", None, 404),
    ("POST", "silences", {"seconds": -1}, 422),
    ("POST", "silences", {"seconds": 1, "rule": "no_such"}, 422),
    ("POST", "silences", {"seconds": 1, "run_id": 99}, 404),
    ("POST", "silences", {"seconds": 1, "reason": "a\0b"}, 422),
    ("POST", "silences", {"seconds": 1, "tensor": "\0"}, 422),
    ("DELETE", "silences/99", None, 404),
    ("PUT", "runs/99/thresholds", {}, 404),
    ("PUT", "runs/1/thresholds", {"no_such": {}}, 422),
    ("PUT", "runs/1/thresholds", {"first_nonfinite": {"no_such": 1}}, 422),
    ("PUT", "runs/1/thresholds", {"first_nonfinite": {"enabled": 1}}, 422),
]


def test_bad_input_has_a_clear_answer(serve: Callable[..., Server]) -> None:
    server = serve()
    server.post(opening(KNOWN))
    for method, path, body, status in BAD:
        answer = httpx.request(method, f"{server.url}/api/v1/{path}", json=body)
        assert answer.status_code == status, (path, answer.text)
        assert answer.json()["error"]


def test_a_bad_file_is_refused_at_the_start(tmp_path: Path) -> None:
    for text, said in {
        "x =": "Invalid", "[rules.no_such]": "there is no rule", "[[webhook]]\nname='a'\nurl='ftp://x'": "http",
        "[rules.first_nonfinite]\nx = 1": "no threshold", "allow_networks = ['x']": "no network", "no = 1": "no",
        "preset = 'x'": "there are sagemaker", "[runs.'a*']\npreset = 'x'": "there is no preset",
        "[[email]]\nname='a'\nhost='h'\nsender='x'\nto=['y@z']": "no address",
    }.items():  # fmt: skip
        file = tmp_path / "alerts.toml"
        file.write_text(text)
        with pytest.raises(ConfigError, match=f"alerts.toml: .*{said}"):
            read(str(file))
    with pytest.raises(ConfigError, match="No such file"):
        read(str(tmp_path / "none.toml"))


def test_presets_hold_under_what_is_set(tmp_path: Path) -> None:
    file = tmp_path / "alerts.toml"
    file.write_text(
        "preset = 'megatron'\n[rules.loss_spike]\nleast_rise = 3.0\n"
        "[runs.'sweep-*']\npreset = 'msprobe'\n[runs.'sweep-1'.rules.exploding_gradient]\nfactor = 7\n"
    )
    config = read(str(file))
    assert config.given("main") == {"exploding_gradient": {"factor": 10.0}, "loss_spike": {"least_rise": 3.0}}
    assert config.given("sweep-2")["exploding_gradient"] == {"factor": 1.5}
    assert config.given("sweep-1")["exploding_gradient"] == {"factor": 7}


def test_the_diagnosis_goes_by_the_thresholds_in_force(serve: Callable[..., Server]) -> None:
    server = serve()
    server.post(opening(KNOWN))
    overflow(server)
    where = f"{server.url}/api/v1/runs/1"
    assert [each["rule"] for each in httpx.get(f"{where}/diagnosis").json()["findings"]] == ["first_nonfinite"]
    off = {"first_nonfinite": {"enabled": False}}
    httpx.put(f"{where}/thresholds", json=off).raise_for_status()
    found = httpx.get(f"{where}/diagnosis").json()
    assert (found["findings"], found["thresholds"]) == ([], off)
    told = forked.server.run("-m", "rangewatch", "diagnose", "1", "--url", server.url)
    assert "thresholds of this run: first_nonfinite.enabled = False" in told.stdout, told


def test_ranks_that_want_it_are_told_and_may_stop(serve: Callable[..., Server]) -> None:
    """A real training that overflows, attached with `on_alert`."""
    server = serve()
    model, got = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 1)), []

    def stop(alert: rangewatch.Alert) -> str:
        got.append(alert)
        return "stop"

    with rangewatch.attach(model, run="alerted", url=server.url, ship_interval_s=0, on_alert=stop) as handle:
        with pytest.raises(rangewatch.TrainingStopped, match="first_nonfinite"):
            while True:  # the test's own time limit ends it
                model(torch.full((2, 4), float("nan")))
                handle.step()
        assert handle.stats()["faults"] == {}
    assert [(each.rule, each.severity, each.rank, each.run) for each in got] == [
        ("first_nonfinite", "critical", 0, "alerted")
    ]
    commands = httpx.get(f"{server.url}/api/v1/runs/1/commands").json()["commands"]
    assert [each["kind"] for each in commands] == ["alert"]
