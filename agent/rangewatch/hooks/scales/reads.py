"""Where all readers of scales write: a row for each operand that is cast, and the event that says how it is cast."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import NamedTuple

import msgspec
import torch
from torch import Tensor

from rangewatch.core import limits
from rangewatch.hooks.scales.cast_formats import CastFormats
from rangewatch.hooks.scales.operand import INPUT, Operand
from rangewatch.recording.events import Events
from rangewatch.recording.observer import Observer, StepReader
from rangewatch.recording.scale_schedule import ScaleSchedule
from rangewatch.statistics import scaled, scales, sparse
from rangewatch.statistics.scaled import Fit
from rangewatch.wire.events import ScaledOperand, ScaledOperands

_PEAKS = slice(sparse.MAXIMA.start, sparse.MAXIMA.start + 3)
_AGE = slice(_PEAKS.stop, _PEAKS.stop + 1)


class State(NamedTuple):
    """What a module keeps of an operand's cast: `amax`, `factor` and `age` (None: no history), (1,) each."""

    operand: Operand
    amax: Tensor
    factor: Tensor
    age: Tensor | None
    about: ScaledOperand


class ScaleReads(StepReader):
    """Of one attached model."""

    def __init__(
        self, observer: Observer, events: Events, schedule: ScaleSchedule, formats: CastFormats
    ) -> None:  # fmt: skip
        self._observer, self._events, self._formats = observer, events, formats
        self.schedule = schedule
        """Which steps are read: the readers ask it, and nothing is read in others."""
        self._said_every = 0
        self._known: dict[Operand, ScaledOperand] = {}
        self._silent: dict[str, str] = {}
        self._is_changed = False

    def expect(self, fqn: str, why_not: str) -> None:
        """The module casts by scales: where none is read until the step ends, this is why."""
        if not self.is_known(fqn):
            self._silent[fqn] = why_not

    def end_step(self) -> None:
        """Say what is known, where it is not what was said, and of what nothing is."""
        for fqn, why_not in self._silent.items():
            self._observer.note_not_observed(fqn, why_not)
            self._known[Operand(fqn, INPUT, 0, "")] = ScaledOperand(fqn, INPUT, unknown=why_not)
            self._is_changed = True
        self._silent.clear()
        self._formats.end_step()
        every = self.schedule.every
        if self._is_changed or (self._known and every != self._said_every):
            self._is_changed, self._said_every = False, every
            self._events.add(ScaledOperands(tuple(self._known.values()), every))

    def read_values(self, operand: Operand, values: Tensor, factor: Tensor, about: ScaledOperand) -> None:
        """Of an operand before its cast, which multiplies it by `factor`; `about` has its `format` and what else is
        known, the rest comes from here.
        """
        element = scales.ELEMENTS.get(about.format)
        if element is None or not self._can_read(values, factor):
            return
        fit = scaled.of_values(values, factor, element, counts=self.schedule.is_full)
        number = self._add(operand, values, factor.shape, fit, about)
        if fit is not None and number >= 0 and not self._observer.is_on_device(values):
            self.schedule.set_apart(
                self._formats.read(number, operand, values, factor.shape, fit, self._known[operand])
            )

    def read_codes(self, operand: Operand, codes: Tensor, scale: Tensor, about: ScaledOperand) -> None:
        """Of an operand of which only the stored numbers are there, one byte each, and the `scale` they come with."""
        element = scales.ELEMENTS.get(about.format)
        if element is None or not self._can_read(codes, scale):
            return
        began_ns = time.thread_time_ns()
        shown = torch.zeros((), device=codes.device).expand(codes.shape)  # its row is of the values, and not of bytes
        self._add(operand, shown, scale.shape, scaled.of_codes(codes, scale, element), about)
        self.schedule.add(began_ns)

    def read_states(self, states: Sequence[State]) -> None:
        """Of operands by what modules keep of their casts, all in few launches. They lie on one device."""
        states = [each for each in states if self._observer.can_read(each.amax)]
        if not states:
            return
        began_ns = time.thread_time_ns()
        device = states[0].amax.device
        amax = torch.cat([each.amax for each in states])
        # Filled there: a tensor of numbers of the host would be copied, which waits for the device.
        largest = {each.about.format: scales.ELEMENTS[each.about.format].largest for each in states}
        filled = {name: torch.full((1,), value, device=device) for name, value in largest.items()}
        limits_of = torch.cat([filled[each.about.format] for each in states])
        peaks = scaled.of_state(amax, torch.cat([each.factor for each in states]), limits_of)
        shown = torch.zeros((), device=device)
        for at, each in enumerate(states):
            number = self._number(each.operand, shown, each.about)
            if number >= 0:
                self._observer.read_amax([number], amax[at : at + 1].nan_to_num(nan=0.0, posinf=0.0), 0)
                self._observer.add_sums(number, _PEAKS, peaks[at])
                if each.age is not None:
                    self._observer.add_sums(number, _AGE, each.age.to(peaks.dtype))
        self.schedule.add(began_ns)

    def note_unknown(self, operand: Operand, about: ScaledOperand, why_not: str) -> None:
        """The module casts this operand, and nothing of its scales can be read."""
        self._observer.note_not_observed(operand.fqn, why_not)
        about = msgspec.structs.replace(about, fqn=operand.fqn, kind=operand.kind, index=operand.index, unknown=why_not)
        if self._known.get(operand) != about and len(self._known) < limits.SCALED_OPERANDS:
            self._known[operand], self._is_changed = about, True

    def is_known(self, fqn: str) -> bool:
        """Whether any operand of the module has been read."""
        return any(each.fqn == fqn and not about.unknown for each, about in self._known.items())

    def _can_read(self, values: Tensor, factor: Tensor) -> bool:
        return values.numel() > 0 and self._observer.can_read(values) and self._observer.can_read(factor)

    def _add(
        self, operand: Operand, shown: Tensor, shape: torch.Size, fit: Fit | None, about: ScaledOperand
    ) -> int:  # fmt: skip
        if fit is None:
            self._observer.note_not_observed(operand.fqn, f"scales of {tuple(shape)} do not fit {tuple(shown.shape)}")
            return -1
        if not about.granularity:
            about = msgspec.structs.replace(about, granularity=scaled.granularity(shown.shape, shape))
        number = self._number(operand, shown, about)
        if number < 0:
            return -1
        self._observer.read_amax([number], fit.amax, shown.numel())
        self._observer.add_sums(number, _PEAKS, fit.peaks)
        if fit.counts is not None:
            self._observer.add_sums(number, sparse.SCALED_COUNTS, fit.counts)
        if not self._observer.is_on_device(fit.peaks) and float(fit.peaks[0]) >= scales.TOO_SMALL:
            self.schedule.note_unusual()
        return number

    def _number(self, operand: Operand, shown: Tensor, about: ScaledOperand) -> int:
        if operand not in self._known and len(self._known) >= limits.SCALED_OPERANDS:
            self._observer.note_not_observed(operand.fqn, f"scales: more than {limits.SCALED_OPERANDS} operands")
            return -1
        about = msgspec.structs.replace(about, fqn=operand.fqn, kind=operand.kind, index=operand.index)
        if self._known.get(operand) != about:
            self._known[operand], self._is_changed = about, True
            self._silent.pop(operand.fqn, None)
            unread = self._known.pop(Operand(operand.fqn, INPUT, 0, ""), None)
            if unread is not None and self._observer.not_observed.get(operand.fqn) == unread.unknown:
                del self._observer.not_observed[operand.fqn]
        return self._observer.number(shown, operand.fqn, operand.kind, operand.index, operand.module)
