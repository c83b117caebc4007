"""Values that the user logs, and those that the agent records beside them: which step each belongs to."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Mapping
from functools import partial
from typing import Any

from torch import Tensor

from rangewatch.core import limits
from rangewatch.core.guard import Guard, logger
from rangewatch.recording.events import Drops, sendable
from rangewatch.recording.observer import Observer, is_being_captured
from rangewatch.recording.phase_times import SERIES as PHASES
from rangewatch.recording.rows.step_buffer import StepBuffer

OWN_SERIES = frozenset(
    {"skipped_step", "found_inf", "loss_scale", "step_time_s", "wall_time_s", "agent_time_s", "agent_device_time_s"}
    | {
        "weights_finite",
        "weights_written",
        "sampled_gradient",
        "sampled_update",
        "clipped_norm",
        "eval_passes",
        "eval_nonfinite",
        "bad_norms",
        "untrained_norms",
    }
    | {
        "target_share",
        "target_class",
        "target_rms",
        "target_count",
        "optimizer_steps",
        "recompiles",
        "graph_breaks",
        "input_elements",
        "update_fraction",
        "decay_fraction",
        "alike_rows",
        "mask_share",
        "added_mask_share",
        "attention_share",
        "token_share",
    }
    | {"input_rms", "input_rms_1", "input_rms_2"}
    | {"memory_allocated_bytes", "memory_reserved_bytes", "memory_peak_bytes"}
    | {"process_resident_bytes", "process_resident_peak_bytes"}
    | {"token_checksum", "input_checksum", "rows_checksum", "generator_checksum", "tied_checksum"}
    | {"dropout_input_checksum", "dropout_output_checksum", "grad_sum_sq", "grad_local_sum_sq", "grad_zero_count"}
    | {f"lr_group_{at}" for at in range(limits.RATE_GROUPS)}
    | set(PHASES.values())
)
"""Series that the agent records itself: the user's values cannot have these names."""


LOSS_NAMES = frozenset({"loss", "train_loss", "train/loss", "training_loss", "loss/train", "total_loss"})
"""What loops call their loss."""

RATE_NAMES = frozenset({"lr", "learning_rate", "train/lr", "train/learning_rate"})
"""What loops call their learning rate."""


class _Caller:
    """Where in the loop a call of `log` stands, as far as its calls so far have shown."""

    __slots__ = ("after_step", "is_at_top", "is_inside")

    def __init__(self) -> None:
        self.is_at_top = False
        """It was called before the first step had begun: before the forward, at the top of the loop."""
        self.is_inside = False
        """It was called in the first step after that had begun."""
        self.after_step = 0
        """Calls between two steps, less those within one; bounded, so that a loop that changes is followed."""

    def has_been(self, *, between: bool) -> None:
        self.after_step = max(-_REMEMBERED, min(_REMEMBERED, self.after_step + (1 if between else -1)))


_REMEMBERED = 8


@dataclasses.dataclass
class _Undecided:
    """Calls of one line for one name after a forward: which step they were of is known when the open one is over.

    `forwards`: those of the open step before the first of the calls. `values`: the first and the last, none where the
    line was taken to be of one of the two steps already and is only learned from.
    """

    name: str
    step: int
    forwards: int
    values: list[Any]


class LoggedValues:
    """Called by the training thread."""

    def __init__(self, buffer: StepBuffer, observer: Observer, drops: Drops, guard: Guard) -> None:
        self._buffer, self._observer, self._drops, self._guard = buffer, observer, drops, guard
        self._names: set[str] = set()
        self._names_before: set[str] = set()
        """Names logged for the step just closed, before it closed or after."""
        self._refused: set[str] = set()
        self.logged_losses: set[str] = set()
        """Those of `LOSS_NAMES` that the loop has logged."""
        self.logged_rates: set[str] = set()
        """Those of `RATE_NAMES`."""
        self._callers: dict[tuple[str, int | None], _Caller] = {}
        self._undecided: dict[_Caller, _Undecided] = {}
        self._usual_forwards = 0
        """Least number of forwards that a step has had before its first backward; 0 before it is known."""

    def close_step(self, forwards: int) -> None:
        """The open step is over; `forwards`: how many it had before its first backward.

        More of them than steps usually have ran after the step before: what was logged after these only was of that.
        """
        if forwards:
            self._usual_forwards = min(forwards, self._usual_forwards or forwards)
        self._decide(forwards - self._usual_forwards)
        self._names, self._names_before = set(), self._names

    def end(self, *, has_failed: bool) -> None:
        """Nothing follows: what was logged after a last forward is of the last step, or of the one that failed."""
        self._decide(0 if has_failed else sys.maxsize)

    def log(
        self,
        values: Mapping[str, Any],
        step: int,
        caller: int | None,
        forwards: int,
        *,
        is_between: bool,
        is_first: bool,
    ) -> None:
        """One that cannot be recorded is a fault and takes no other with it.

        `caller`: a number for the line that calls; None never stands at the top of a loop. `is_between`: nothing of
        `step`, the open one, has begun; what is logged there is of the step just closed, but at the top of a loop,
        which is seen before the first step (`is_first`). `forwards`: those of the open step so far, 0 where a backward
        has begun: a forward between the end of a step and the line that logs it, to sample from the model, say, takes
        no value from the step. A second value for a step that is closed is dropped: the first may be sent.
        """
        for name, value in values.items():
            if name in OWN_SERIES or name.startswith("loss_scale/"):
                self._refuse(name)
                continue
            if name in LOSS_NAMES:
                self.logged_losses.add(name)
            elif name in RATE_NAMES:
                self.logged_rates.add(name)
            known = self._caller(name, caller)
            if is_first and is_between and caller is not None:
                known.is_at_top = True
            elif is_first and not is_between:
                known.is_inside = True
            is_late = not (is_first or known.is_at_top)
            if is_between:
                known.has_been(between=is_late)
            elif not is_late or known.is_inside or not forwards:
                is_late = is_late and known.after_step > 0 and name not in self._names_before
                known.has_been(between=False)
            elif self._waits(known, name, step, forwards, value):
                continue
            else:
                is_late = known.after_step > 0
            self._file(name, step, value, is_late=is_late)

    def _waits(self, known: _Caller, name: str, step: int, forwards: int, value: Any) -> bool:
        """Whether the value is filed when it is clear of which of the two steps it is."""
        known_step = known.after_step < 0 or (known.after_step > 0 and name not in self._names_before)
        undecided = self._undecided.setdefault(known, _Undecided(name, step, forwards, []))
        if known_step and not undecided.values:
            return False
        undecided.values = [*undecided.values[:1], _now(value)]
        return True

    def _decide(self, extra: int) -> None:
        undecided, self._undecided = self._undecided, {}
        for known, each in undecided.items():
            is_late = each.forwards <= extra
            known.has_been(between=is_late)
            for value in each.values if not is_late else each.values[:1]:
                self._file(each.name, each.step, value, is_late=is_late)

    def _file(self, name: str, step: int, value: Any, *, is_late: bool) -> None:
        if is_late and name in self._names_before:
            self._drops.add("logged_again")
            return
        (self._names_before if is_late else self._names).add(name)
        self._guard.run("log", partial(self.record, _series_name(name), step - is_late, value))

    def _caller(self, name: str, number: int | None) -> _Caller:
        known = self._callers.get((name, number))
        if known is None:
            if len(self._callers) >= limits.ACCOUNT_NAMES:  # a notebook's cells are new lines each time
                del self._callers[next(iter(self._callers))]
            known = self._callers[name, number] = _Caller()
        return known

    def record(self, name: str, step: int, value: Any) -> None:
        """A number, or a tensor of one element wherever it is."""
        if not self._observer.is_on_device(value):
            self._buffer.set_series(name, step, float(value.detach() if hasattr(value, "detach") else value))
        elif is_being_captured(value):  # at each replay it would be written to the place of another step's value
            self._drops.add("captured_value")
        elif not self._observer.device.put_scalar(name, step, value):
            self._drops.add("too_many_values")

    def _refuse(self, name: str) -> None:
        self._drops.add("reserved_name")
        if name not in self._refused:
            self._refused.add(name)
            logger.warning("rangewatch: log(%s=...) is not recorded: the agent records a series of that name", name)


def _now(value: Any) -> Any:
    """The value as it is now, whatever the loop does with its tensor before it is filed. A tensor of more than one
    element is not recorded, and so is not kept: it may be a large part of the memory."""
    if not isinstance(value, Tensor):
        return value
    return value.detach().clone() if value.numel() == 1 else f"a tensor of {value.numel()} elements"


def _series_name(name: str) -> str:
    return sendable(name)[: limits.NAME_CHARACTERS]
