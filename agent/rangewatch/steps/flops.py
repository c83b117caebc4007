"""How many floating-point operations a step of this rank takes, and how many its device could do: for MFU.

What `attach` was given, or one step counted: by torch's own formulas for matrix products, convolutions and attention
(`torch.utils.flop_counter`), as its operators are called. They are called as ever, and only looked at.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from rangewatch.core.guard import Guard
from rangewatch.core.options import Options
from rangewatch.recording.observer import StepReader
from rangewatch.steps.interface import StepRecorder
from rangewatch.wire.events import Flops

AFTER_STEPS = 3
"""The step that is counted is the fourth: the first ones compile, and make optimizers' states."""

PEAKS = {
    "H100 PCIe": 756e12, "H100 NVL": 835e12, "H200 NVL": 835e12, "H100": 989e12, "H200": 989e12, "GB200": 2_500e12,
    "B200": 2_250e12, "A100": 312e12, "A800": 312e12, "L40S": 362e12, "L4": 121e12, "V100-SXM2": 125e12,
    "V100-SXM3": 125e12, "T4": 65e12, "MI250X": 191.5e12, "MI300X": 1_307e12, "MI325X": 1_307e12,
}  # fmt: skip
"""Operations a second in 16 bits without sparsity, by what is in the device's name: of the makers' data sheets. Of
MI250X of one of its two dies, which is one device. The first that fits counts.
"""


def add_flops(agent: StepRecorder, options: Options, device: torch.device, undo: contextlib.ExitStack) -> None:
    """Send what is known, or count a step; nothing where neither was asked for. `undo` gets what ends the count."""
    given = options.flops_per_step
    if isinstance(given, str):
        counter = FlopCount(agent, options, device)
        agent.observer.step_readers.append(counter)
        undo.callback(counter.leave)
    elif given is not None or options.flops_per_token is not None:
        agent.events.add(_details(options, device, given, "declared"))


def _details(options: Options, device: torch.device, per_step: float | None, source: str) -> Flops:
    name = _name(device)
    peak = options.peak_flops or peak_of(name)
    return Flops(per_step=per_step, per_token=options.flops_per_token, peak=peak, device=name, source=source)


def _name(device: torch.device) -> str:
    with contextlib.suppress(Exception):
        if device.type == "cuda":
            return str(torch.cuda.get_device_name(device))[:200]
    return device.type


def peak_of(name: str) -> float | None:
    """Operations a second of a device of this name; None of one that is not listed, and of a part of one."""
    if "MIG" in name:
        return None
    return next((peak for part, peak in PEAKS.items() if _is_word(part, name)), None)


def _is_word(part: str, name: str) -> bool:
    at = name.find(part)
    after = name[at + len(part) : at + len(part) + 1]
    return at >= 0 and not after.isalnum()  # an L4 is no L40


class FlopCount(StepReader):
    """Counts one step. Called by the training thread."""

    def __init__(self, agent: StepRecorder, options: Options, device: torch.device) -> None:
        self._agent, self._options, self._device = agent, options, device
        self._at = options.start_step + AFTER_STEPS
        self._mode: Counting | None = None

    def begin_step(self, step: int) -> None:
        """From here on, if it is the one: the first from `AFTER_STEPS` on that begins outside of anybody's mode."""
        self._pop()
        if step >= self._at and self._mode is None and _current_mode() is None:
            self._at = step
            self._mode = Counting(self._agent.guard)
            self._mode.__enter__()  # type: ignore[no-untyped-call]

    def end_step(self) -> None:
        """The open step is about to be closed."""
        self._pop()
        mode = self._mode
        if mode is None or mode.is_over or self._agent.step != self._at:
            return
        self.leave()
        if mode.total and not mode.is_broken:
            self._agent.events.add(_details(self._options, self._device, float(mode.total), "measured"))

    def leave(self) -> None:
        """Look no more, whatever became of the step. Where another mode lies above, it does nothing until that is left,
        and goes at the next step's end: torch's `__exit__` pops whatever is on top."""
        if self._mode is not None:
            self._mode.is_over = True
            self._pop()

    def _pop(self) -> None:
        mode = self._mode
        if mode is not None and mode.is_over and _current_mode() is mode:
            mode.__exit__(None, None, None)  # type: ignore[no-untyped-call]


def _current_mode() -> Any:
    from torch.utils import _python_dispatch  # noqa: PLC0415 - private, and only here

    return _python_dispatch._get_current_dispatch_mode()


class Counting(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Calls each operator as it was called, and adds up what the known ones take."""

    def __init__(self, guard: Guard) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        from torch.utils.flop_counter import flop_registry  # noqa: PLC0415 - a quarter of a second, on request only

        self._formulas: Mapping[Any, Any] = flop_registry
        self._guard = guard
        self.total = 0
        self.is_over = self.is_broken = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """See torch."""
        given = kwargs or {}
        out = func(*args, **given)
        formula = None if self.is_over else self._formulas.get(getattr(func, "overloadpacket", None))
        if formula is not None:
            # Of a DTensor the shapes are the whole one's, of which each rank does a part: no number is better.
            is_whole = any(each.__name__ == "DTensor" for each in types)
            if is_whole or not self._guard.run("flops", lambda: self._add(formula(*args, **given, out_val=out))):
                self.is_broken = True
        return out

    def _add(self, count: Any) -> None:
        self.total += int(count)
