"""What the server counts of itself, for GET /metrics in Prometheus' text format. One registry an application.

Names end in their unit. Labels take few values: route templates, methods, status numbers and our own codes, never the
name of a run, a rank or a host, or a client could make as many series as it likes.
"""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Mapping

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    Info,
    ProcessCollector,
    disable_created_metrics,
    generate_latest,
)

from rangewatch.core.version import VERSION

disable_created_metrics()  # type: ignore[no-untyped-call]  # a second series for each counter, which Prometheus' text format has no use for

METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PATCH"})
SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
MESSAGES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1_024)


class Metrics:
    """Counted by whoever does the work, from any thread; `text` is what is scraped."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        self.last_commit_s: float | None = None
        """`time.monotonic()` of the last commit."""
        ProcessCollector(registry=registry)
        self._build = Info("rangewatch_build", "Versions.", registry=registry)
        self._requests = Counter(
            "rangewatch_http_requests", "Requests answered.", ("route", "method", "status"), registry=registry
        )
        self._figures_refused = Counter(
            "rangewatch_figures_refused", "Figures that an answer of several refuses.", ("status",), registry=registry
        )
        self._messages = Counter("rangewatch_ingest_messages", "Messages acknowledged.", registry=registry)
        self._bytes = Counter("rangewatch_ingest_received_bytes", "Bytes of acknowledged messages.", registry=registry)
        self._duplicates = Counter("rangewatch_ingest_duplicates", "Batches stored already.", registry=registry)
        self._refusals = Counter("rangewatch_ingest_refusals", "Messages refused.", ("code",), registry=registry)
        self._acknowledgement = Histogram(
            "rangewatch_ingest_acknowledgement_seconds", "From a message's last byte to its acknowledgement.",
            buckets=SECONDS, registry=registry,
        )  # fmt: skip
        self._commits = Counter("rangewatch_commits", "Groups of messages committed.", registry=registry)
        self._failures = Counter("rangewatch_commit_failures", "Groups the database did not take.", registry=registry)
        self._commit = Histogram(
            "rangewatch_commit_seconds", "One group, from its first statement to its commit.",
            buckets=SECONDS, registry=registry,
        )  # fmt: skip
        self._group = Histogram(
            "rangewatch_commit_messages", "Messages of one group.", buckets=MESSAGES, registry=registry
        )
        self._open_alerts = Gauge(
            "rangewatch_alerts", "Alerts that stand, of runs that are live.", ("rule", "severity"), registry=registry
        )
        self._sent = Counter("rangewatch_alert_deliveries", "Alerts sent.", ("outcome",), registry=registry)
        self._gauges: dict[str, Gauge] = {}

    def describe(self, **versions: str) -> None:
        """What `rangewatch_build_info` says beside this program's and Python's version."""
        self._build.info({"version": VERSION, "python": platform.python_version()} | versions)

    def answered(self, route: str, method: str, status: int) -> None:
        """A request got its answer. `route` is a template, such as /api/v1/runs/{run_id}."""
        self._requests.labels(route, method if method in METHODS else "other", str(status)).inc()

    def figure_refused(self, status: int) -> None:
        """An answer of several figures, which is 200 itself, has a line with this status."""
        self._figures_refused.labels(str(status)).inc()

    def acknowledged(self, size: int, seconds: float, *, duplicate: bool) -> None:
        """A message of `size` bytes is stored, or was already."""
        self._messages.inc()
        self._bytes.inc(size)
        self._duplicates.inc(duplicate)
        self._acknowledgement.observe(seconds)

    def refused(self, code: str) -> None:
        """A message was not taken; `code` is one of ours (docs/wire.md)."""
        self._refusals.labels(code).inc()

    def committed(self, messages: int, seconds: float) -> None:
        """The writer has committed a group."""
        self.last_commit_s = time.monotonic()
        self._commits.inc()
        self._group.observe(messages)
        self._commit.observe(seconds)

    def has_committed_within(self, seconds: float) -> bool:
        """Whether a group was committed that short a time ago."""
        return self.last_commit_s is not None and time.monotonic() - self.last_commit_s < seconds

    def commit_failed(self) -> None:
        """The database did not take a group."""
        self._failures.inc()

    def alert_sent(self, outcome: str) -> None:
        """One attempt to send an alert: `sent`, `failed` (it is tried again) or `given_up`."""
        self._sent.labels(outcome).inc()

    def open_alerts(self, counts: Mapping[tuple[str, str], int]) -> None:
        """Alerts that stand now, by rule and severity."""
        self._open_alerts.clear()
        for labels, count in counts.items():
            self._open_alerts.labels(*labels).set(count)

    def watch(self, name: str, text: str, value: Callable[[], float]) -> None:
        """A gauge that is asked at each scrape: `value` must be cheap and never wait."""
        self._gauge(name, text).set_function(value)

    def note(self, name: str, text: str, value: float | None) -> None:
        """A gauge's last known value; None is not known and leaves it as it was."""
        if value is not None:
            self._gauge(name, text).set(value)

    def text(self) -> bytes:
        """Everything, as Prometheus reads it."""
        return generate_latest(self.registry)

    def _gauge(self, name: str, text: str) -> Gauge:
        if name not in self._gauges:
            self._gauges[name] = Gauge(name, text, registry=self.registry)
        return self._gauges[name]
