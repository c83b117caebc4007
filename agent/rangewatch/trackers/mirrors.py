"""All mirrors of one attached model, as `attach(mirror=...)` asks for them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from rangewatch.core import limits
from rangewatch.core.guard import Guard, logger
from rangewatch.core.options import Options
from rangewatch.delivery.transport import Raised, RunHealth
from rangewatch.recording.events import Drops
from rangewatch.recording.rows.step_buffer import Block
from rangewatch.recording.tensor_names import TensorNames
from rangewatch.trackers import ALL, BY_NAME
from rangewatch.trackers.base import AlertRow, Tracker
from rangewatch.trackers.headlines import Headlines
from rangewatch.trackers.mirror import Mirror
from rangewatch.wire.records import RankInfo


def chosen(wanted: Sequence[str]) -> Iterator[tuple[Tracker, str]]:
    """Each tracker that is asked for, and what follows its name. Raises `ValueError` for one that cannot be."""
    seen = set()
    for each in wanted:
        name, _, where = each.partition(":")
        tracker = BY_NAME.get(name)
        if tracker is None:
            known = ", ".join(one.name for one in ALL)
            raise ValueError(f"rangewatch option mirror: there is no tracker {name!r}; there are {known}")
        if where and not tracker.takes_where:
            raise ValueError(f"rangewatch option mirror: {name} takes nothing after its name, not {where!r}")
        if name in seen:
            raise ValueError(f"rangewatch option mirror: {name} is there twice")
        if not tracker.is_installed():
            raise ValueError(f"rangewatch option mirror: {tracker.package} is not installed: pip install {name}")
        seen.add(name)
        yield tracker, where


class Mirrors:
    """Does nothing where none is asked for."""

    def __init__(
        self, options: Options, info: RankInfo, address: str, names: TensorNames, drops: Drops, guard: Guard
    ) -> None:
        self._info, self._guard = info, guard
        self._all = [Mirror(tracker, where, info, address, drops) for tracker, where in chosen(options.mirror)]
        self._headlines = Headlines(names, is_loss_scaled=info.loss_scaled)
        self._last_step = -1

    def loss_is_scaled(self) -> None:
        """A loss scaler has been found."""
        self._headlines.is_loss_scaled = True

    def start(self) -> None:
        """Start their threads. Raises `RuntimeError` where the interpreter allows none any more."""
        for each in self._all:
            each.find()
            each.start()

    def end_step(self) -> None:
        """By the training thread, which has the trackers' runs."""
        for each in self._all:
            self._guard.run("mirror", each.find)

    def read_block(self, block: Block) -> None:
        """By the sender's thread."""
        if not self._all:
            return
        for step, values in self._headlines.read(block):
            self._last_step = max(self._last_step, step)
            for each in self._all:
                each.add(step, values)

    def health(self, health: RunHealth) -> None:
        """What only the server knows, as it is now: of the newest step that went there. By the sender's thread."""
        values = {name: float(value) for name, value in msgspec.structs.asdict(health).items()} if self._all else {}
        for each in self._all:
            each.add(self._last_step, values)

    def alert(self, raised: Raised) -> None:
        """The server has raised one of this run."""
        row = AlertRow(raised.step, raised.severity, raised.rule, raised.rank, raised.tensor, raised.summary)
        for each in self._all:
            each.alert(row)

    def stop(self) -> None:
        """Have what waits written, and end the threads."""
        for each in self._all:
            each.stop(limits.MIRROR_LAST_S)
            if each.is_unfound and self._info.rank == 0:
                name = each.tracker.name
                logger.warning("rangewatch: mirror=%r: no run of %s was open while training went on", name, name)

    def wait(self) -> None:
        """Until they are done, or their time is up."""
        for each in self._all:
            each.wait()
