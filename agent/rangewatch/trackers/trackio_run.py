"""trackio: values at the user's newest step, so that the count of their own steps stays as it was."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from rangewatch.trackers.base import ALERT_COLUMNS, PREFIX, STEP, AlertRow, Tracker
from rangewatch.wire.records import RankInfo


class _Run:
    def __init__(self, trackio: Any, run: Any) -> None:
        self._trackio, self._run = trackio, run

    def _log(self, values: dict[str, Any]) -> None:
        # A step that is given moves the count on to the one after it: that of the last, -1 at first, leaves it alone.
        self._run.log(values, step=self._run._next_step - 1)

    def link(self, run: str, address: str) -> None:
        self._log({PREFIX + "run": run, PREFIX + "url": address})

    def write(self, step: int, values: Mapping[str, float]) -> None:
        self._log({STEP: step} | {PREFIX + name: value for name, value in values.items()})

    def alerts(self, rows: list[AlertRow]) -> None:
        newest = dict(zip(ALERT_COLUMNS, rows[-1], strict=True))
        self._log({f"{PREFIX}alert_{name}": value for name, value in newest.items() if value is not None})

    def close(self) -> None:
        pass


def _find(where: str, info: RankInfo) -> _Run | None:
    trackio = sys.modules.get("trackio")
    variables = getattr(trackio, "context_vars", None)
    run = None if variables is None else variables.current_run.get()
    return None if run is None else _Run(trackio, run)


TRACKER = Tracker("trackio", "trackio", _find, help="the run of `trackio.init`, at its newest step", behind=20.0)
