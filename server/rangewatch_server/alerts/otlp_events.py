"""Alerts as events of OpenTelemetry: log records with a name, to a collector; sent and tried again as webhooks are."""

from __future__ import annotations

import threading
from typing import Any

from rangewatch_server import rules
from rangewatch_server.alerts.message import MOST_TEXT, Notice
from rangewatch_server.alerts.safe_http import SafeHttpError
from rangewatch_server.core import otlp

EVENT = "rangewatch.alert."


class OtlpEvents:
    """`exporter`: in the place of the one that pushes to `endpoint`."""

    def __init__(self, endpoint: str, exporter: Any = None) -> None:
        self._endpoint, self._exporter = endpoint, exporter
        self._lock = threading.Lock()
        self._logger: Any = None
        self._was_taken = False

    def send(self, notice: Notice) -> None:
        """Push one now. Raises `SafeHttpError` where it is not taken."""
        with self._lock:
            if self._logger is None:
                self._logger = self._made()
            self._was_taken = False
            self._logger.emit(_record(notice))
            if not self._was_taken:
                raise SafeHttpError(f"the collector at {self._endpoint} took no event")

    def _made(self) -> Any:
        from opentelemetry.sdk._logs import LoggerProvider  # noqa: PLC0415 - an extra, loaded where it is asked for
        from opentelemetry.sdk._logs.export import (  # noqa: PLC0415
            LogRecordExporter,
            LogRecordExportResult,
            SimpleLogRecordProcessor,
        )

        sender, exporter = self, self._exporter or otlp.log_exporter(self._endpoint)

        class Noting(LogRecordExporter):
            def export(self, *args: Any, **options: Any) -> LogRecordExportResult:
                result: LogRecordExportResult = exporter.export(*args, **options)
                sender._was_taken = result is LogRecordExportResult.SUCCESS
                return result

            def force_flush(self, timeout_millis: int = 10_000) -> bool:
                return True

            def shutdown(self) -> None:
                exporter.shutdown()

        provider = LoggerProvider(resource=otlp.resource(), shutdown_on_exit=False)
        provider.add_log_record_processor(SimpleLogRecordProcessor(Noting()))
        return provider.get_logger("rangewatch")


def _record(notice: Notice) -> Any:
    from opentelemetry._logs import LogRecord, SeverityNumber  # noqa: PLC0415

    finding = notice.finding
    severities = {
        "critical": SeverityNumber.ERROR,
        "warning": SeverityNumber.WARN,
        "info": SeverityNumber.INFO,
    }
    severity = SeverityNumber.INFO if notice.what != "opened" else severities[finding.severity]
    attributes: dict[str, str | int | None] = {
        "run": notice.run, "run_id": notice.run_id, "alert": notice.alert, "rule": finding.rule,
        "severity": finding.severity, "label": rules.label(finding), "rank": finding.rank, "step": finding.step,
        "tensor": finding.tensor, "kind": finding.kind, "url": notice.url,
    }  # fmt: skip
    return LogRecord(
        timestamp=notice.time_ns, observed_timestamp=notice.time_ns, severity_number=severity,
        severity_text=finding.severity, body=finding.summary[:MOST_TEXT], event_name=EVENT + notice.what,
        attributes={f"rangewatch.{name}": value for name, value in attributes.items() if value is not None},
    )  # fmt: skip
