"""Metrics and alerts pushed by OTLP: what the SDK collects, what a collector gets, and what no collector can slow."""

from __future__ import annotations

import gzip
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.sdk._logs.export import InMemoryLogRecordExporter, LogRecordExporter, LogRecordExportResult
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from sqlalchemy.exc import OperationalError

from rangewatch import wire
from rangewatch_server.alerts import delivery, evaluator
from rangewatch_server.alerts.config import Config, ConfigError, Otlp, read
from rangewatch_server.alerts.message import Notice
from rangewatch_server.alerts.otlp_events import OtlpEvents
from rangewatch_server.alerts.safe_http import SafeHttpError
from rangewatch_server.core import otlp
from rangewatch_server.core.metrics import Metrics
from rangewatch_server.core.settings import Settings, SettingsError, check
from rangewatch_server.http.app import create_app
from rangewatch_server.http.metrics import push, rank_gauges
from rangewatch_server.http.metrics.push import MetricsPush
from rangewatch_server.rules import Finding
from tests.server.databases import lay_tables
from tests.server.opened_store import Store
from tests.server.records import batch, catalogue, opening

KNOWN = catalogue(3)
FOUND = Finding(
    rule="first_nonfinite", severity="critical", rank=3, step=30, tensor="a.b", kind="output", summary="NaN in a.b."
)
NOTICE = Notice("opened", 7, "run", 1, FOUND, "http://here/runs/1/alerts?key=7", 1_700_000_000_000_000_000)


@pytest.fixture
def store(sqlite_url: str, open_store: Callable[[str], Store]) -> Store:
    return open_store(sqlite_url)


def test_the_sdk_collects_what_prometheus_is_given(store: Store) -> None:
    store.send(opening(KNOWN))
    store.send(batch(KNOWN, 0, range(10), series={"loss": 2.5}))
    metrics, reader = Metrics(), InMemoryMetricReader()
    metrics.answered("/api/v1/runs", "GET", 200)
    metrics.committed(4, 0.5)
    pushed = MetricsPush(store.queries, metrics, "http://nowhere", 60.0, reader)
    pushed.start()
    found = collected(reader)
    pushed.stop()
    assert found["rangewatch_rank_last_step"] == [({"run": "run", "rank": "0", "host": "host"}, 9)]
    assert found["rangewatch_rank_loss"][0][1] == 2.5
    assert found["rangewatch_rank_up"][0][1] == 1
    labels = {"route": "/api/v1/runs", "method": "GET", "status": "200"}
    assert found["rangewatch_http_requests_total"] == [(labels, 1)]
    assert found["rangewatch_commit_seconds_count_total"] == [({}, 1)]
    assert found["rangewatch_commit_seconds_sum_total"] == [({}, 0.5)]
    assert "rangewatch_gpu_power_watts" not in found, "what is not known has no point"


def collected(reader: InMemoryMetricReader) -> dict[str, list[tuple[dict[str, Any], float]]]:
    data = reader.get_metrics_data()
    assert data is not None
    (resource,) = data.resource_metrics
    assert resource.resource.attributes["service.name"] == "rangewatch"
    return {
        metric.name: [(dict(point.attributes), point.value) for point in metric.data.data_points]
        for metric in resource.scope_metrics[0].metrics
    }


def test_a_database_that_fails_costs_the_ranks_alone(
    store: Store, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(reader: Any) -> Any:
        raise OperationalError("SELECT 1", {}, Exception("gone"))

    monkeypatch.setattr(rank_gauges, "families", fails)
    metrics, reader = Metrics(), InMemoryMetricReader()
    metrics.committed(1, 0.5)
    pushed = MetricsPush(store.queries, metrics, "http://nowhere", 60.0, reader)
    pushed.start()
    found = collected(reader)
    pushed.stop()
    assert found["rangewatch_commits_total"] == [({}, 1)]
    assert "rangewatch_rank_up" not in found
    assert "metrics of ranks are not pushed" in caplog.text


def test_an_alert_is_an_event_with_its_place() -> None:
    memory = InMemoryLogRecordExporter()
    events = OtlpEvents("http://nowhere", memory)
    events.send(NOTICE)
    events.send(Notice("resolved", 7, "run", 1, FOUND, NOTICE.url, 5))
    opened, resolved = (each.log_record for each in memory.get_finished_logs())
    assert (opened.event_name, opened.severity_text, opened.body) == (
        "rangewatch.alert.opened",
        "critical",
        FOUND.summary,
    )
    assert opened.timestamp == NOTICE.time_ns and opened.severity_number.name == "ERROR"
    assert dict(opened.attributes or {}) == {
        "rangewatch.run": "run", "rangewatch.run_id": 1, "rangewatch.alert": 7, "rangewatch.rule": "first_nonfinite",
        "rangewatch.severity": "critical", "rangewatch.label": "NaN or Inf", "rangewatch.rank": 3,
        "rangewatch.step": 30, "rangewatch.tensor": "a.b", "rangewatch.kind": "output", "rangewatch.url": NOTICE.url,
    }  # fmt: skip
    assert resolved.event_name == "rangewatch.alert.resolved" and resolved.severity_number.name == "INFO"


@pytest.mark.parametrize("how", ["fails", "raises"])
def test_an_event_that_is_not_taken_is_a_failed_delivery(how: str) -> None:
    class Broken(LogRecordExporter):
        def export(self, batch: Any) -> LogRecordExportResult:
            if how == "raises":
                raise ConnectionError
            return LogRecordExportResult.FAILURE

        def force_flush(self, timeout_millis: int = 0) -> bool:
            return True

        def shutdown(self) -> None:
            pass

    with pytest.raises(SafeHttpError, match="the collector at http://nowhere took no event"):
        OtlpEvents("http://nowhere", Broken()).send(NOTICE)


class Collector:
    """A small OTLP collector over HTTP; `status` is what it answers."""

    def __init__(self) -> None:
        self.status = 200
        self.metrics: deque[ExportMetricsServiceRequest] = deque()
        self.logs: deque[ExportLogsServiceRequest] = deque()
        double = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                body = gzip.decompress(body) if self.headers.get("Content-Encoding") == "gzip" else body
                if double.status == 200:
                    double.take(self.path, body)
                self.send_response(double.status)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *args: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True).start()

    def take(self, path: str, body: bytes) -> None:
        if path == "/v1/metrics":
            self.metrics.append(ExportMetricsServiceRequest.FromString(body))
        else:
            assert path == "/v1/logs"
            self.logs.append(ExportLogsServiceRequest.FromString(body))


@pytest.fixture
def collector() -> Iterator[Collector]:
    double = Collector()
    yield double
    double.server.shutdown()
    double.server.server_close()


def wait_for(condition: Callable[[], bool]) -> None:
    while not condition():  # the test's own time limit ends it
        time.sleep(0.01)


@pytest.fixture
def serve(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], TestClient]:
    monkeypatch.setattr(evaluator, "EVERY_S", 0.01)
    monkeypatch.setattr(delivery, "FIRST_PAUSE_S", 0.01)
    monkeypatch.setattr(otlp, "TIMEOUT_S", 1.0)
    monkeypatch.setattr(push, "STOP_S", 0.1)

    def start(endpoint: str) -> TestClient:
        settings = Settings(db=str(tmp_path / "a.db"), otlp=endpoint, otlp_every_s=0.05, alerts_percent=100)
        lay_tables(settings.database_url)
        return TestClient(create_app(settings), base_url="http://127.0.0.1")

    return start


def overflow(client: TestClient) -> None:
    for message in (opening(KNOWN), batch(KNOWN, 0, range(40), {"nan_count": 3.0})):
        assert client.post("/api/v1/ingest", content=wire.encode(message)).status_code == 202


def test_a_collector_gets_metrics_and_alerts(serve: Callable[[str], TestClient], collector: Collector) -> None:
    collector.status = 400  # refused for now: the alert is tried again
    with serve(collector.url) as client:
        overflow(client)
        wait_for(lambda: client.get("/api/v1/alerts?state=open").json()["alerts"] != [])
        assert client.get("/api/v1/targets").json()["targets"] == [
            {"name": "otlp", "kind": "otlp", "severity": "info", "resolved": True}
        ]
        collector.status = 200
        wait_for(lambda: bool(collector.logs))
        points = {}
        while "rangewatch_rank_last_step" not in points:
            wait_for(lambda: bool(collector.metrics))
            scope = collector.metrics.popleft().resource_metrics[0].scope_metrics[0]
            points = {each.name: each.gauge.data_points for each in scope.metrics if each.HasField("gauge")}
    assert points["rangewatch_rank_last_step"][0].as_double == 39
    record = collector.logs[0].resource_logs[0].scope_logs[0].log_records[0]
    assert record.event_name == "rangewatch.alert.opened"
    assert {each.key: each.value.string_value for each in record.attributes}["rangewatch.rule"] == "first_nonfinite"


@pytest.mark.parametrize("kind", ["killed", "hangs", "refuses"])
def test_no_collector_slows_ingest(serve: Callable[[str], TestClient], collector: Collector, kind: str) -> None:
    hanging = socket.create_server(("127.0.0.1", 0))  # takes connections, and never answers
    port = hanging.getsockname()[1]
    if kind == "killed":
        hanging.close()
    collector.status = 503
    with serve(collector.url if kind == "refuses" else f"http://127.0.0.1:{port}") as client:
        overflow(client)
        for sequence in range(1, 20):
            sent = wire.encode(batch(KNOWN, sequence, range(40 * sequence, 40 * sequence + 40)))
            assert client.post("/api/v1/ingest", content=sent).status_code == 202
        assert client.get("/api/v1/runs").status_code == 200
    hanging.close()


@pytest.mark.parametrize("url", ["", "grpc://x:4317", "http://", "http://user:pw@x", "http://x/?a=1", "http://x y"])
def test_what_no_collector_can_be_at(url: str, tmp_path: Path) -> None:
    assert otlp.problem(url)
    if url:
        with pytest.raises(SettingsError, match="--otlp"):
            check(Settings(otlp=url))
    file = tmp_path / "a.toml"
    file.write_text(f'[[otlp]]\nname = "c"\nendpoint = "{url}"\n')
    with pytest.raises(ConfigError, match="otlp c: "):
        read(str(file))


def test_without_the_sdk_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(otlp, "is_installed", lambda: False)
    with pytest.raises(SettingsError, match=r"pip install 'rangewatch\[otlp\]'"):
        check(Settings(otlp="http://127.0.0.1:4318"))


def test_two_targets_of_one_name_cannot_be(tmp_path: Path) -> None:
    file = tmp_path / "a.toml"
    file.write_text('[[otlp]]\nname = "otlp"\nendpoint = "http://127.0.0.1:4318"\n')
    settings = Settings(db=str(tmp_path / "a.db"), alerts=str(file), otlp="http://127.0.0.1:4318")
    lay_tables(settings.database_url)
    with pytest.raises(ConfigError, match="a target named 'otlp'"):
        create_app(settings)
    assert Config(otlp=(Otlp(name="a", endpoint="http://x"),)).targets[0].name == "a"
