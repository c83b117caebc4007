"""TensorBoard: event files of our own, since a process has no open run: `tensorboard:DIR` writes into `DIR/rangewatch`.

A folder of its own, because TensorBoard reads the event files of one folder one after the other, and never goes back to
an earlier one that grows.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rangewatch.trackers.base import PREFIX, AlertRow, Tracker
from rangewatch.wire.records import RankInfo

DEFAULT = "runs"
FOLDER = "rangewatch"


class _Events:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._writer: Any = None
        self._written = 0

    def _opened(self) -> Any:
        if self._writer is None:
            from torch.utils.tensorboard import SummaryWriter  # noqa: PLC0415 - half a second, on the mirror's thread

            self._writer = SummaryWriter(str(self._folder))
        return self._writer

    def link(self, run: str, address: str) -> None:
        # A name is text, and the dashboard takes text for Markdown: as code it is neither link nor markup.
        self._opened().add_text(PREFIX + "run", f"{_as_code(run)} at <{address}>", 0)
        self._opened().flush()

    def write(self, step: int, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            self._opened().add_scalar(PREFIX + name, value, step)
        self._opened().flush()

    def alerts(self, rows: list[AlertRow]) -> None:
        for each in rows[self._written :]:
            text = f"{each.severity} {each.rule}: {each.summary}"
            self._opened().add_text(PREFIX + "alerts", _as_code(text), each.step or 0)
        self._written = len(rows)
        self._opened().flush()

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()


def _as_code(text: str) -> str:
    return "`" + text.replace("`", "'") + "`"


def _find(where: str, info: RankInfo) -> _Events | None:
    """Of rank 0 alone: each rank would write its own numbers under the same names."""
    return _Events(Path(where or DEFAULT) / FOLDER) if info.rank == 0 else None


TRACKER = Tracker(
    "tensorboard", "tensorboard", _find, takes_where=True,
    help=f"event files of rank 0 in `DIR/{FOLDER}`, as `tensorboard:DIR` says; else in `{DEFAULT}/{FOLDER}`",
    behind=1.0,
)  # fmt: skip
