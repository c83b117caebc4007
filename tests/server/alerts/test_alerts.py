"""Alerts over a run's life: opened, acknowledged, silenced, resolved, sent and tried again.

The real application runs in this process, where looks follow one another without the pauses that spare a server.
"""

from __future__ import annotations

import contextlib
import json
import socket
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pytest
from fastapi.testclient import TestClient

from rangewatch import wire
from rangewatch.wire.records import Batch, StreamHeader
from rangewatch_server.alerts import delivery, evaluator, safe_http
from rangewatch_server.alerts.config import ConfigError, read
from rangewatch_server.core.settings import Settings
from rangewatch_server.http.app import create_app
from rangewatch_server.rules import Finding
from tests import forked
from tests.server.databases import lay_tables
from tests.server.process import Run
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


class App(NamedTuple):
    """The application, with one run of which nothing is known yet."""

    client: TestClient

    def post(self, *messages: StreamHeader | Batch) -> list[dict[str, Any]]:
        """The commands of the last reply."""
        for message in messages:
            answer = self.client.post("/api/v1/ingest", content=wire.encode(message))
            assert answer.status_code == 202, answer.text
        return answer.json()["commands"]

    def overflow(self, sequence: int = 0, at: int = 30) -> None:
        """40 steps of the run, of which everything is NaN from the step `at` on."""
        bad = np.zeros((len(KNOWN.tensors), STEPS))
        bad[:, at:] = 3
        first = sequence * STEPS
        self.post(opening(KNOWN), batch(KNOWN, sequence, range(first, first + STEPS), {"nan_count": bad}))

    def get(self, path: str) -> Any:
        answer = self.client.get(f"/api/v1/{path}")
        assert answer.status_code == 200, answer.text
        return answer.json()

    def alerts(self, state: str = "open") -> list[dict[str, Any]]:
        return self.get(f"alerts?state={state}")["alerts"]

    def wait_for_look(self) -> None:
        """Until the rules were applied to all that was sent."""
        state = self.client.app.state
        state.writer.work(lambda _: None).result(30)  # what came before is told now
        wait_for(lambda: state.alerts._due.get(1, 0.0) > time.monotonic() + 1.0)  # and the next look is for silence

    def one_alert(self, state: str = "open") -> dict[str, Any]:
        """Asks until there is one; the test's own time limit ends it."""
        wait_for(lambda: self.alerts(state) != [])
        (found,) = self.alerts(state)
        return found


def wanting(rank: int = 0) -> StreamHeader:
    """Of a rank that was attached with `on_alert`; it is one of two."""
    found = opening(KNOWN, rank=rank, world_size=2)
    return msgspec.structs.replace(found, info=msgspec.structs.replace(found.info, takes_alerts=True))


def wait_for(condition: Callable[[], bool]) -> None:
    while not condition():  # the test's own time limit ends it
        threading.Event().wait(0.01)


@pytest.fixture
def serve(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., App]]:
    monkeypatch.setattr(evaluator, "EVERY_S", 0.01)
    monkeypatch.setattr(delivery, "FIRST_PAUSE_S", 0.01)
    monkeypatch.setattr(safe_http, "TIMEOUT_S", 60.0)
    with contextlib.ExitStack() as stack:

        def start(toml: str = "") -> App:
            file, settings = tmp_path / "alerts.toml", Settings(db=str(tmp_path / "a.db"), alerts_percent=100)
            file.write_text('allow_networks = ["127.0.0.0/8"]\n' + toml)
            lay_tables(settings.database_url)
            app = create_app(msgspec.structs.replace(settings, alerts=str(file)))
            return App(stack.enter_context(TestClient(app, base_url="http://127.0.0.1")))

        yield start


def test_an_overflow_opens_one_alert_and_sends_it_once(
    serve: Callable[..., App], receiver: Callable[..., Receiver]
) -> None:
    ours, slack = receiver(), receiver()
    app = serve(
        f'[[webhook]]\nname = "ops"\nurl = "{ours.url}/hook?key=1"\n'
        f'[[webhook]]\nname = "chat"\nurl = "{slack.url}"\nformat = "slack"\n'
    )
    app.overflow()
    alert = app.one_alert()
    assert (alert["run"], alert["resolved_ns"], alert["silenced_by"]) == ("run", None, None)
    found = alert["finding"]
    assert (found["rule"], found["severity"], found["step"], found["rank"]) == ("first_nonfinite", "critical", 30, 0)
    for each in (ours, slack):
        each.came.acquire()
    (sent,) = ours.got
    assert sent["path"] == "/hook?key=1"
    assert sent["body"]["event"] == "opened"
    assert sent["body"]["summary"] == found["summary"]
    assert sent["body"]["label"] == alert["label"] == "NaN or Inf"
    assert sent["body"]["url"].endswith(f"/runs/1/alerts?key={alert['id']}")
    assert slack.got[0]["body"]["text"].startswith("*[critical] run: NaN or Inf*\n")
    line = 'rangewatch_alerts{rule="first_nonfinite",severity="critical"} 1.0'
    wait_for(lambda: line in app.client.get("/metrics").text)
    app.overflow(1, at=0)  # more of the same is no other alert
    again = app.get("runs/1/diagnosis")
    assert [each["rule"] for each in again["findings"]].count("first_nonfinite") == 1
    app.wait_for_look()
    assert len(app.alerts("all")) == 1
    assert len(ours.got) == 1


def test_an_alert_that_was_stored_before_leads_to_where_its_page_is_now(
    serve: Callable[..., App], tmp_path: Path
) -> None:
    app = serve()
    app.post(opening(KNOWN))
    stored = {
        "rule": "gpu_health", "severity": "critical", "rank": 2, "subject": "GPU-a b", "summary": "It is gone.",
        "links": [["This GPU", "/runs/9/gpus/2"]],
    }  # fmt: skip
    of_no_rule = {"rule": "left_long_ago", "severity": "info", "summary": "Gone.", "links": [["There", "/runs/1"]]}
    with sqlite3.connect(tmp_path / "a.db", timeout=20) as database:
        database.executemany(
            "INSERT INTO alerts (run_id, identity, rule, severity, finding, opened_ns, resolved_ns) "
            "VALUES (1, ?, ?, 'info', ?, 1, 2)",
            [(each["rule"], each["rule"], json.dumps(each).encode()) for each in (stored, of_no_rule)],
        )
    database.close()
    newer, older = app.alerts("over")
    assert newer["finding"]["links"] == of_no_rule["links"]
    assert older["finding"]["links"] == [["This GPU", "/runs/1/gpu?rank=2&key=GPU-a+b"]]
    assert app.get(f"alerts/{older['id']}")["finding"]["links"] == older["finding"]["links"]


def test_a_target_that_fails_is_tried_again(serve: Callable[..., App], receiver: Callable[..., Receiver]) -> None:
    busy = receiver(503)
    app = serve(f'[[webhook]]\nname = "ops"\nurl = "{busy.url}"\n')
    app.overflow()
    alert = app.one_alert()
    busy.came.acquire()
    busy.came.acquire()
    assert [each["body"]["alert"] for each in busy.got] == [alert["id"]] * 2
    wait_for(lambda: app.get(f"alerts/{alert['id']}")["deliveries"][0]["done_ns"] is not None)
    (delivered,) = app.get(f"alerts/{alert['id']}")["deliveries"]
    assert (delivered["attempts"], delivered["error"]) == (2, "")


def test_a_target_that_goes_on_failing_is_given_up(
    serve: Callable[..., App], receiver: Callable[..., Receiver], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delivery, "MOST_ATTEMPTS", 2)
    broken = receiver(503, 503, 503)
    app = serve(f'[[webhook]]\nname = "ops"\nurl = "{broken.url}"\n')
    app.overflow()
    alert = app.one_alert()
    wait_for(lambda: app.get(f"alerts/{alert['id']}")["deliveries"][0]["done_ns"] is not None)
    (delivered,) = app.get(f"alerts/{alert['id']}")["deliveries"]
    assert "503" in delivered["error"] and len(broken.got) == 2


def test_a_target_that_does_not_answer_holds_up_no_other(
    serve: Callable[..., App], receiver: Callable[..., Receiver]
) -> None:
    """The other gets the message before the first one, which keeps us waiting, is given up."""
    other, connected, given_up = receiver(), threading.Event(), []
    with socket.create_server(("127.0.0.1", 0)) as mute:

        def until_given_up() -> None:
            with mute.accept()[0] as connection:
                connected.set()
                while connection.recv(65_536):
                    if other.came.acquire(timeout=60):  # while nobody is answered here
                        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
                        return
                given_up.append(True)

        threading.Thread(target=until_given_up, daemon=True).start()
        app = serve(
            f"[[webhook]]\nname = 'mute'\nurl = 'http://127.0.0.1:{mute.getsockname()[1]}/'\n"
            f"[[webhook]]\nname = 'other'\nurl = '{other.url}'\n"
        )
        app.overflow()
        alert = app.one_alert()
        wait_for(lambda: all(each["done_ns"] for each in app.get(f"alerts/{alert['id']}")["deliveries"]))
        assert connected.is_set()
        assert not given_up
        assert [each["attempts"] for each in app.get(f"alerts/{alert['id']}")["deliveries"]] == [1, 1]


def test_a_silenced_finding_is_shown_and_not_sent(serve: Callable[..., App], receiver: Callable[..., Receiver]) -> None:
    ours = receiver()
    app = serve(f'[[webhook]]\nname = "ops"\nurl = "{ours.url}"\n')
    made = app.client.post("/api/v1/silences", json={"seconds": 600, "rule": "first_nonfinite"})
    assert made.status_code == 201
    app.post(wanting(), batch(KNOWN, 0, range(STEPS), {"nan_count": 3.0}))
    alert = app.one_alert()
    app.wait_for_look()
    assert app.get("runs/1/commands")["commands"] == [], "nor are its ranks told"
    assert alert["silenced_by"] == made.json()["id"]
    assert app.get(f"alerts/{alert['id']}")["deliveries"] == []
    assert app.client.delete(f"/api/v1/silences/{made.json()['id']}").status_code == 200
    assert app.one_alert()["silenced_by"] is None
    assert ours.got == []


def test_an_alert_is_acknowledged_and_ends_where_its_rule_is_off(serve: Callable[..., App]) -> None:
    app = serve()
    app.overflow()
    path = f"/api/v1/alerts/{app.one_alert()['id']}/acknowledge"
    assert app.client.post(path).json()["acknowledged_ns"] is not None
    assert app.client.delete(path).json()["acknowledged_ns"] is None
    path = "/api/v1/runs/1/thresholds"
    set_ = app.client.put(path, json={"first_nonfinite": {"enabled": False}})
    assert set_.json()["in_force"] == {"first_nonfinite": {"enabled": False}}
    assert app.one_alert("over")["resolved_step"] == STEPS - 1
    assert app.alerts() == []
    assert app.client.put(path, json={}).json()["in_force"] == {}
    app.one_alert()


def test_the_test_button_says_how_it_went(serve: Callable[..., App], receiver: Callable[..., Receiver]) -> None:
    ours = receiver(200, 404)
    app = serve(f'[[webhook]]\nname = "ops"\nurl = "{ours.url}/secret"\n')
    assert "secret" not in app.client.get("/api/v1/targets").text
    path = "/api/v1/targets/ops/test"
    assert app.client.post(path).json() == {"name": "ops", "sent": True, "error": ""}
    assert app.client.post(path).json() == {"name": "ops", "sent": False, "error": "ops answered 404"}
    assert app.client.post("/api/v1/targets/nobody/test").status_code == 404


BAD = [
    ("GET", "alerts/999999", None, 404),
    ("GET", "alerts?state=no", None, 422),
    ("POST", "alerts/999999/acknowledge", None, 404),
    ("POST", "silences", {"seconds": -1}, 422),
    ("POST", "silences", {"seconds": 1, "rule": "no_such"}, 422),
    ("POST", "silences", {"seconds": 1, "run_id": 999_999}, 404),
    ("POST", "silences", {"seconds": 1, "reason": "a\0b"}, 422),
    ("POST", "silences", {"seconds": 1, "tensor": "\0"}, 422),
    ("DELETE", "silences/999999", None, 404),
    ("PUT", "runs/999999/thresholds", {}, 404),
    ("PUT", "runs/RUN/thresholds", {"no_such": {}}, 422),
    ("PUT", "runs/RUN/thresholds", {"first_nonfinite": {"no_such": 1}}, 422),
    ("PUT", "runs/RUN/thresholds", {"first_nonfinite": {"enabled": 1}}, 422),
]


def test_bad_input_has_a_clear_answer(run: Run) -> None:
    run.post(opening(KNOWN))
    for method, path, body, status in BAD:
        path = path.replace("RUN", str(run.id))
        answer = run.server.client.request(method, f"/api/v1/{path}", json=body)
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


def test_the_diagnosis_goes_by_the_thresholds_in_force(run: Run) -> None:
    run.post(opening(KNOWN), batch(KNOWN, 0, range(STEPS), {"nan_count": 3.0}))
    assert [each["rule"] for each in run.get("/diagnosis")["findings"]] == ["first_nonfinite"]
    off = {"first_nonfinite": {"enabled": False}}
    assert run.ask("/thresholds", "PUT", json=off).status_code == 200
    found = run.get("/diagnosis")
    assert (found["findings"], found["thresholds"]) == ([], off)
    reported = forked.server.run("-m", "rangewatch", "diagnose", str(run.id), "--url", run.server.url)
    assert "thresholds of this run: first_nonfinite.enabled = False" in reported.stdout, reported


def test_ranks_that_want_it_are_told(serve: Callable[..., App]) -> None:
    app = serve()
    app.post(opening(KNOWN, rank=1, world_size=2), wanting())
    app.post(batch(KNOWN, 0, range(STEPS), {"nan_count": 3.0}, rank=1))
    wait_for(lambda: app.get("runs/1/commands")["commands"] != [])
    (command,) = app.post(batch(KNOWN, 0, range(STEPS)))
    assert command["kind"] == "alert"
    said = app.one_alert()["finding"]
    assert command["alert"] == {name: said[name] for name in command["alert"]}
    assert (command["alert"]["rule"], command["alert"]["rank"]) == ("first_nonfinite", 1)
    assert app.post(batch(KNOWN, 1, range(STEPS, STEPS + 1), rank=1)) == [], "it did not want to know"


def test_ranks_that_take_alerts_hear_how_the_whole_run_is(serve: Callable[..., App]) -> None:
    app = serve()
    app.overflow()
    app.one_alert()
    app.wait_for_look()
    again = app.client.post("/api/v1/ingest", content=wire.encode(batch(KNOWN, 0, range(STEPS))))
    assert "health" not in again.json(), "nobody wants to know"
    app.post(wanting(1))
    app.post(batch(KNOWN, 0, range(STEPS), rank=1))

    def said() -> Any:
        answer = app.client.post("/api/v1/ingest", content=wire.encode(batch(KNOWN, 0, range(STEPS), rank=1)))
        return answer.json().get("health")

    wait_for(lambda: said() is not None)
    open_ = app.alerts()
    assert said() == {
        "open_alerts": len(open_),
        "critical_alerts": sum(each["finding"]["severity"] == "critical" for each in open_),
        "gpus_in_trouble": 0,
        "straggler_cost_s": 0.0,
    }


def test_the_health_of_a_run_is_of_its_findings() -> None:
    slow = Finding(rule="straggler", severity="warning", summary="", facts={"cost_s": 0.25})
    card = Finding(rule="gpu_health", severity="critical", summary="")
    assert evaluator.health([slow, card, card]) == evaluator.RunHealth(3, 2, 2, 0.25)
    assert evaluator.health([Finding(rule="straggler", summary="", facts={"cost_s": None})]).straggler_cost_s == 0.0


@pytest.mark.slow
def test_a_training_is_stopped_by_an_alert(run: Run) -> None:
    """A real one that overflows, attached with `on_alert`."""
    import torch

    import rangewatch

    model, got = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 1)), []

    def stop(alert: rangewatch.Alert) -> str:
        got.append(alert)
        return "stop"

    options = {"run": run.name, "url": run.server.url, "ship_interval_s": 0, "on_alert": stop}
    with rangewatch.attach(model, **options) as handle:
        with pytest.raises(rangewatch.TrainingStopped, match="first_nonfinite"):
            while True:  # the test's own time limit ends it
                model(torch.full((2, 4), float("nan")))
                handle.step()
        assert handle.stats()["faults"] == {}
    assert [(each.rule, each.severity, each.rank, each.run) for each in got] == [
        ("first_nonfinite", "critical", 0, run.name)
    ]
    assert [each["kind"] for each in run.get("/commands")["commands"]] == ["alert"]
