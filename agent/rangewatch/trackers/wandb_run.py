"""W&B: values join the row that the user's next `wandb.log` commits, so that no step of theirs is counted by us.

`run.log(..., commit=False)` adds to the open row; with a step of ours, or a row of our own, W&B would drop what the
user logs for a step that is over. Until the user commits, what was added before is merged with what comes: a later
value would replace it. `rangewatch/step` is the x axis of all that is ours.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from rangewatch.trackers.base import ALERT_COLUMNS, PREFIX, STEP, AlertRow, Tracker
from rangewatch.trackers.headlines import Row
from rangewatch.wire.records import RankInfo


class _Run:
    def __init__(self, wandb: Any, run: Any) -> None:
        self._wandb, self._run = wandb, run
        self._row, self._row_of = Row(), None

    def link(self, run: str, address: str) -> None:
        self._run.define_metric(STEP, hidden=True)
        self._run.define_metric(PREFIX + "*", step_metric=STEP)
        self._run.config.update({"rangewatch": {"run": run, "url": address}}, allow_val_change=True)

    def write(self, step: int, values: Mapping[str, float]) -> None:
        if self._run.step != self._row_of:  # the user has committed the row before
            self._row, self._row_of = Row(), self._run.step
        self._row.add(step, values)
        merged = {PREFIX + name: value for name, value in self._row.values.items()}
        self._run.log({STEP: self._row.step} | merged, commit=False)

    def alerts(self, rows: list[AlertRow]) -> None:
        table = self._wandb.Table(columns=list(ALERT_COLUMNS), data=[list(each) for each in rows])
        self._run.log({PREFIX + "alerts": table}, commit=False)

    def close(self) -> None:
        pass


def _find(where: str, info: RankInfo) -> _Run | None:
    wandb = sys.modules.get("wandb")
    run = getattr(wandb, "run", None)
    return None if run is None else _Run(wandb, run)


TRACKER = Tracker(
    "wandb", "wandb", _find, help="the run of `wandb.init`, in the rows that `wandb.log` commits", behind=1.0
)
