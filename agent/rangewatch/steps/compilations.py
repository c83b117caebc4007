"""How often code was compiled anew in a step, and where its graph broke, with the guard that failed.

Dynamo counts both, and says of its last 64 compilations why each was one too many. Two numbers are read a step; the
reasons only when one has changed.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Iterator
from typing import Any

from rangewatch.core.redaction import redacted
from rangewatch.recording.observer import StepReader
from rangewatch.steps.interface import StepRecorder
from rangewatch.wire.events import Compilation, Compiled

RECOMPILES, GRAPH_BREAKS = "recompiles", "graph_breaks"
MOST_EVENTS, MOST_REASONS, MOST_CHARACTERS = 64, 8, 300


class Compilations(StepReader):
    """Those of the whole process, of which dynamo alone knows. Called by the training thread."""

    def __init__(self, agent: StepRecorder) -> None:
        self._agent = agent
        self._known: deque[str] = deque((each.id for each in _recompiled()), maxlen=1024)
        self._graphs, self._breaks = _counts()
        self._broken = set(_broken())
        self._emitted = 0

    def end_step(self) -> None:
        """The open step is about to be closed."""
        graphs, breaks = _counts()
        if (graphs, breaks) == (self._graphs, self._breaks):
            return
        new_breaks = breaks - self._breaks if breaks >= self._breaks else breaks  # `torch._dynamo.reset` clears them
        self._graphs, self._breaks = graphs, breaks
        new = [each for each in _recompiled() if each.id not in self._known]
        self._known.extend(each.id for each in new)
        reasons = [each for each in _broken() if each not in self._broken]
        self._broken.update(reasons)
        if not new and not new_breaks:
            return
        self._agent.values.record(RECOMPILES, self._agent.step, float(len(new)))
        self._agent.values.record(GRAPH_BREAKS, self._agent.step, float(new_breaks))
        if self._emitted < MOST_EVENTS:
            self._emitted += 1
            shown = tuple(Compilation(each.place, each.reason) for each in new[:MOST_REASONS])
            self._agent.events.add(Compiled(len(new), new_breaks, shown, tuple(reasons[:MOST_REASONS])))


class _Recompiled:
    """One compilation of code that had been compiled before."""

    __slots__ = ("id", "place", "reason")

    def __init__(self, metrics: Any) -> None:
        self.id = str(metrics.compile_id)
        name, line = getattr(metrics, "co_filename", None), getattr(metrics, "co_firstlineno", None)
        where = "/".join(str(name).replace("\\", "/").split("/")[-2:])  # not the whole path of somebody's home
        self.place = f"{metrics.co_name} ({where}:{line})"[:MOST_CHARACTERS]
        self.reason = _short(str(metrics.recompile_reason))


def _dynamo() -> Any:
    """None where nothing has loaded it: then nothing was compiled."""
    return sys.modules.get("torch._dynamo.utils")


def _counts() -> tuple[int, int]:
    """Graphs so far, and graph breaks."""
    counters = getattr(_dynamo(), "counters", {})
    return int(counters.get("stats", {}).get("unique_graphs", 0)), sum(counters.get("graph_break", {}).values())


def _recompiled() -> Iterator[_Recompiled]:
    read = getattr(_dynamo(), "get_compilation_metrics", list)
    return (_Recompiled(each) for each in read() if getattr(each, "recompile_reason", None))


def _broken() -> Iterator[str]:
    """First lines of why graphs broke: what follows is advice."""
    reasons = getattr(_dynamo(), "counters", {}).get("graph_break", {})
    return (_short(str(each)) for each in list(reasons))


def _short(text: str) -> str:
    return redacted(text.strip().partition("\n")[0][:4_000])[:MOST_CHARACTERS]
