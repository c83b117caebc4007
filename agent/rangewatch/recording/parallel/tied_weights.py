"""Checksums of weights that two stages of a pipeline may share: the first one's embedding, the last one's head.

Series `tied_checksum`, right before the update, of one parameter a rank: one that is marked as shared, as Megatron
marks its word embeddings (`shared_embedding`), or that Transformers' configuration ties; else the first stage's
embedding, and of the last stage an embedding or the last matrix. Whether an unmarked one is tied is not known here: the
server compares those alone that were the same bits once. Two matrices of one shape are so where every rank has set the
same seed before it built its stage, so that without an embedding nothing is taken to be tied.
"""

from __future__ import annotations

from typing import Any
from weakref import ref

from torch import nn

from rangewatch.core import limits
from rangewatch.recording.events import Events, sendable
from rangewatch.recording.logged_values import LoggedValues
from rangewatch.recording.observer import Observer, StepReader, is_being_captured
from rangewatch.recording.parallel.gradient_sums import STAGES
from rangewatch.recording.parallel.placements import Layout, plain_part
from rangewatch.recording.parallel.schedule import Schedule
from rangewatch.recording.tensor_names import clean_modules, clean_parameters
from rangewatch.statistics import checksum
from rangewatch.wire.events import TiedWeight

SERIES = "tied_checksum"


class TiedReads(StepReader):
    """Called by the training thread."""

    def __init__(
        self, observer: Observer, values: LoggedValues, events: Events, model: nn.Module, layout: Layout,
        schedule: Schedule,
    ) -> None:  # fmt: skip
        self._observer, self._values, self._events, self._model = observer, values, events, ref(model)
        self._layout, self._schedule = layout, schedule
        self._step: int | None = None
        self._reported = TiedWeight()

    def begin_step(self, step: int) -> None:
        """`step` is open."""
        self._step = step if self._layout.world_size > 1 and self._schedule.is_due(step) else None

    def before_update(self) -> None:
        """An optimizer is about to update the parameters; of a step the first time counts."""
        step, self._step = self._step, None
        model = self._model()
        stages = self._layout.axes.axes.get(STAGES)
        if step is None or model is None or stages is None or stages.size < 2:
            return
        found = chosen(model, is_first=stages.index == 0, is_last=stages.index == stages.size - 1)
        local = None if found is None else plain_part(found[1])
        if found is None or local is None or is_being_captured(local):
            return
        fqn, _, is_marked = found
        details = TiedWeight(sendable(fqn)[: limits.NAME_CHARACTERS], is_marked)
        if details != self._reported:
            self._reported = details
            self._events.add(details)
        is_there = self._observer.is_on_device(local)
        value = checksum.on_device([local])[0] if is_there else checksum.of_host(local)
        self._values.record(SERIES, step, value)


def chosen(model: nn.Module, *, is_first: bool, is_last: bool) -> tuple[str, nn.Parameter, bool] | None:
    """Name, parameter, and whether something says that it is tied, of the first, the last or another stage."""
    named = list(clean_parameters(model))
    marked = next(((fqn, each) for fqn, each in named if getattr(each, "shared_embedding", False)), None)
    if marked is not None:
        return *marked, True
    modules = clean_modules(model)
    config: Any = getattr(modules[""], "config", None)
    is_said = bool(getattr(config, "tie_word_embeddings", False))
    names = {id(each): fqn for fqn, each in named}
    weights = [each.weight for each in modules.values() if isinstance(each, nn.Embedding)]
    linear = [each.weight for each in modules.values() if isinstance(each, nn.Linear)]
    ends = [*(weights[:1] if is_first or is_last else []), *(linear[-1:] if is_last or is_said else [])]
    found: Any = next(iter(ends), None)
    return None if found is None or id(found) not in names else (names[id(found)], found, is_said)
