"""Stand-ins for what a part of the agent is given by the others."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

from rangewatch.core.guard import Guard
from rangewatch.core.options import Options
from rangewatch.crash.memory.shared_state import SharedState
from rangewatch.delivery.sender import Sender
from rangewatch.delivery.transport import Command, RunHealth
from rangewatch.recording.events import Drops, Events
from rangewatch.recording.rows.step_buffer import Block, StepBuffer
from rangewatch.recording.tensor_names import TensorNames
from rangewatch.wire.events import Details, details_of
from rangewatch.wire.records import RankInfo


class EventList(Events):
    """Keeps (kind, message, data) of each event."""

    def __init__(self) -> None:
        self.events: list[tuple[str, str, dict[str, Any]]] = []

    def add(self, kind: str | Details, message: str = "", data: dict[str, Any] | None = None) -> None:
        if isinstance(kind, Details):
            data, kind = details_of(kind), kind.KIND
        self.events.append((kind, message, data or {}))


class Lost(Counter[str]):
    """Counts what is dropped, by reason."""

    def add(self, reason: str, count: int = 1) -> None:
        self[reason] += count


class NoAgent:
    """Observes a sender, and does nothing."""

    def spool_opened(self, folder: Path | None) -> None:
        pass

    def batched(self, block: Block) -> None:
        pass

    def commanded(self, commands: tuple[Command, ...]) -> None:
        pass

    def reported(self, health: RunHealth) -> None:
        pass

    def leave(self) -> None:
        pass

    def goodbye(self) -> None:
        pass

    def ended(self) -> None:
        pass


def own_buffer() -> StepBuffer:
    """One whose rows no other process reads."""
    return StepBuffer(SharedState(is_shared=False))


def sender_of(options: Options, info: RankInfo, drops: Drops, names: TensorNames | None = None) -> Sender:
    """One whose thread does not run."""
    names = TensorNames() if names is None else names
    return Sender(options, info, names, drops, Guard(), SharedState(is_shared=False), NoAgent())
