"""The server's own metrics and those of live ranks, pushed to an OpenTelemetry collector by the SDK's own thread.

Names and labels are Prometheus' own (`/metrics`, `/metrics/ranks`), so that one dashboard shows both. What is read of
the database is read once a push, under a time limit, on that thread: no request waits for it.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

from prometheus_client.core import Metric
from sqlalchemy.exc import SQLAlchemyError

from rangewatch_server.core import otlp
from rangewatch_server.core.deadline import TimeLimitReached, limited
from rangewatch_server.core.metrics import Metrics
from rangewatch_server.http.metrics import rank_gauges
from rangewatch_server.query.reader import Queries

logger = logging.getLogger("rangewatch.server")

READ_LIMIT_S = 10.0
STOP_S = 3.0
"""That the server's end waits for the last push: who takes nothing by then loses it."""

SNAPSHOT_S = 1.0
"""All instruments of one push are asked within less."""

Sample = tuple[dict[str, str], float]


class MetricsPush:
    """`reader`: what asks the instruments, in the place of the one that pushes to `endpoint` every `every_s`."""

    def __init__(self, queries: Queries, metrics: Metrics, endpoint: str, every_s: float, reader: Any = None) -> None:
        self._queries, self._metrics = queries, metrics
        self._endpoint, self._every_s, self._reader = endpoint, every_s, reader
        self._samples: dict[str, list[Sample]] = {}
        self._read_s = float("-inf")
        self._has_failed = False
        self._provider: Any = None

    def start(self) -> None:
        """Make the instruments of all that there is by now, and start pushing."""
        from opentelemetry.sdk.metrics import MeterProvider  # noqa: PLC0415 - an extra, loaded where it is asked for

        reader = self._reader or otlp.metric_reader(self._endpoint, self._every_s)
        self._provider = MeterProvider([reader], resource=otlp.resource(), shutdown_on_exit=False)
        meter = self._provider.get_meter("rangewatch")
        for each in self._own():
            kind = meter.create_observable_counter if each.type == "counter" else meter.create_observable_gauge
            self._observe(kind, each.name + ("_total" if each.type == "counter" else ""), each.documentation)
        for name, text in rank_gauges.RANK_GAUGES.items():
            self._observe(meter.create_observable_gauge, name, text)
        for name, text in rank_gauges.GPU_GAUGES.values():
            self._observe(meter.create_observable_gauge, name, text)

    def stop(self) -> None:
        """Push once more, and end; a collector that hangs is waited for in a thread that does not keep the server."""
        if self._provider is None:
            return
        provider, self._provider = self._provider, None
        ending = threading.Thread(target=provider.shutdown, name="rangewatch-otlp-stop", daemon=True)
        ending.start()
        ending.join(STOP_S)

    def _observe(self, create: Callable[..., Any], name: str, text: str) -> None:
        create(name, callbacks=[partial(self._observed, name)], description=text)

    def _observed(self, name: str, options: Any) -> Iterable[Any]:
        from opentelemetry.metrics import Observation  # noqa: PLC0415

        if time.monotonic() - self._read_s > SNAPSHOT_S:
            self._samples = self._read()
            self._read_s = time.monotonic()
        return [Observation(value, labels) for labels, value in self._samples.get(name, [])]

    def _own(self) -> Iterator[Metric]:
        """The server's own counters and gauges; of histograms their count and sum, as counters."""
        for each in self._metrics.registry.collect():
            if each.type in ("counter", "gauge"):
                yield each
            elif each.type == "histogram":
                for part in ("count", "sum"):
                    made = Metric(f"{each.name}_{part}", each.documentation, "counter")
                    made.samples = [
                        one._replace(name=f"{each.name}_{part}_total")
                        for one in each.samples
                        if one.name == f"{each.name}_{part}"
                    ]
                    yield made

    def _read(self) -> dict[str, list[Sample]]:
        samples: dict[str, list[Sample]] = {}
        families: list[Metric] = list(self._own())
        try:
            with self._queries.read() as reader, limited(reader.connection, READ_LIMIT_S):
                families += rank_gauges.families(reader)
        except (SQLAlchemyError, TimeLimitReached) as error:
            if not self._has_failed:
                logger.warning("metrics of ranks are not pushed: %s", str(error).splitlines()[0])
            self._has_failed = True
        else:
            self._has_failed = False
        for family in families:
            for each in family.samples:
                if math.isfinite(each.value):  # OTLP has NaN, and most that store it have not
                    samples.setdefault(each.name, []).append((dict(each.labels), float(each.value)))
        return samples
