"""OpenTelemetry's SDK, where it is installed: exporters that push by OTLP over HTTP, and what they say of failures.

Headers, certificates and compression are the SDK's own variables, such as OTEL_EXPORTER_OTLP_HEADERS.
"""

from __future__ import annotations

import importlib.util
import logging
from typing import Any
from urllib.parse import urlsplit

from rangewatch.core.version import VERSION

logger = logging.getLogger("rangewatch.server")

TIMEOUT_S = 10.0
"""Of one push, with all that the exporter tries again by itself."""

_PACKAGE = "opentelemetry.exporter.otlp.proto.http"


def problem(endpoint: str) -> str | None:
    """What is wrong with a collector's URL, in a line; None where nothing is."""
    try:
        parts = urlsplit(endpoint)
        is_url = parts.scheme in {"http", "https"} and bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:
        is_url = False
    if not is_url or not endpoint.isprintable() or " " in endpoint:
        return f"{endpoint[:200]!r} is no http or https URL, such as http://127.0.0.1:4318"
    if "@" in parts.netloc or parts.query or parts.fragment:
        return "must hold no user name, query or fragment; headers go into OTEL_EXPORTER_OTLP_HEADERS"
    if not is_installed():
        return "OpenTelemetry's SDK is not installed: pip install 'rangewatch[otlp]'"
    return None


def is_installed() -> bool:
    """Whether the SDK and its exporter can be imported; nothing of them is."""
    try:
        return importlib.util.find_spec(_PACKAGE) is not None
    except ModuleNotFoundError:
        return False


def resource() -> Any:
    """Who sends."""
    from opentelemetry.sdk.resources import Resource  # noqa: PLC0415 - an extra, loaded where it is asked for

    return Resource.create({"service.name": "rangewatch", "service.version": VERSION})


def metric_reader(endpoint: str, every_s: float) -> Any:
    """What collects every `every_s` on a thread of its own, and pushes to `endpoint`/v1/metrics."""
    from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter  # noqa: PLC0415
    from opentelemetry.sdk.metrics.export import MetricExportResult, PeriodicExportingMetricReader  # noqa: PLC0415

    _quiet()

    class Exporter(OTLPMetricExporter):
        """Says once that nothing is taken, and once that it is again."""

        has_failed = False

        def export(self, *args: Any, **options: Any) -> MetricExportResult:
            result = super().export(*args, **options)
            failed = result is not MetricExportResult.SUCCESS
            if failed != self.has_failed:
                self.has_failed = failed
                what = "takes no metrics; it is tried again" if failed else "takes metrics again"
                logger.warning("%s %s", endpoint, what)
            return result

    exporter = Exporter(_path(endpoint, "metrics"), timeout=TIMEOUT_S)
    return PeriodicExportingMetricReader(exporter, every_s * 1e3, TIMEOUT_S * 1e3)


def log_exporter(endpoint: str) -> Any:
    """What pushes log records to `endpoint`/v1/logs, and returns whether they were taken."""
    from opentelemetry.exporter.otlp.proto.http._log_exporter import OTLPLogExporter  # noqa: PLC0415

    _quiet()
    return OTLPLogExporter(_path(endpoint, "logs"), timeout=TIMEOUT_S)


def _path(endpoint: str, signal: str) -> str:
    return f"{endpoint.rstrip('/')}/v1/{signal}"


def _quiet() -> None:
    """The SDK logs each failure with what the collector answered, which is another program's text on our terminal."""
    logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)
