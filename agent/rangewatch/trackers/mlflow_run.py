"""MLflow: metrics of the active run by its number, through a client of our own: the active run is one of its thread."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping
from typing import Any

from rangewatch.trackers.base import PREFIX, AlertRow, Tracker
from rangewatch.wire.records import RankInfo

ALERTS_FILE = "rangewatch/alerts.jsonl"


class _Run:
    def __init__(self, mlflow: Any, run_id: str) -> None:
        self._mlflow, self._run_id = mlflow, run_id
        self._uri = mlflow.get_tracking_uri()
        self._client: Any = None

    def _opened(self) -> Any:
        if self._client is None:  # it may open a database, so on the mirror's thread
            self._client = self._mlflow.MlflowClient(tracking_uri=self._uri)
        return self._client

    def link(self, run: str, address: str) -> None:
        tag = self._mlflow.entities.RunTag  # both in one call: each is a transaction
        tags = [tag("rangewatch.run", run), tag("rangewatch.url", address)]
        self._opened().log_batch(self._run_id, tags=tags)

    def write(self, step: int, values: Mapping[str, float]) -> None:
        metric, now_ms = self._mlflow.entities.Metric, time.time_ns() // 1_000_000
        metrics = [metric(PREFIX + name, value, now_ms, step) for name, value in values.items()]
        self._opened().log_batch(self._run_id, metrics=metrics)

    def alerts(self, rows: list[AlertRow]) -> None:
        lines = "".join(f"{json.dumps(each._asdict())}\n" for each in rows)
        self._opened().log_text(self._run_id, lines, ALERTS_FILE)

    def close(self) -> None:
        pass


def _find(where: str, info: RankInfo) -> _Run | None:
    mlflow: Any = sys.modules.get("mlflow")
    active = getattr(mlflow, "active_run", None)
    run = None if active is None else active()
    return None if run is None else _Run(mlflow, run.info.run_id)


TRACKER = Tracker("mlflow", "mlflow", _find, help="the active run of the thread that trains")
