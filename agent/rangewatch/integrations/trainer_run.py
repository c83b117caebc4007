"""What the callbacks have in common: one training that a trainer runs, from where it begins to where it ends."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from numbers import Real
from typing import Any

from torch import Tensor, nn

from rangewatch.api.attachment import Handle, attach, resolve_all
from rangewatch.core.options import OPTIONS, check_names
from rangewatch.steps.end_hooks import has_parameters_of

_OPTIONS = set(OPTIONS) - {"start_step"}  # the trainer knows its step


class TrainerRun:
    """Attached from `begin` to `end`; in between it gets what the trainer logs."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        """Raises `TypeError` or `ValueError` for options that `attach` would refuse later, in the training."""
        check_names("RangewatchCallback", options, _OPTIONS)
        self.url = resolve_all(options).url
        """Where the dashboard is."""
        self._options = dict(options)
        self._handle: Handle | None = None
        self._has_ended = False
        """The last step has ended, and the next has not begun."""
        self._logged: set[str] = set()
        """Names logged for the step that is open, or has ended."""

    @property
    def handle(self) -> Handle | None:
        """What `attach` returned, while the training runs."""
        return self._handle

    def begin(self, model: nn.Module, optimizers: Sequence[Any], *, step: int, scaler: Any = None) -> None:
        """Attach; `step` is the number of the first step. Raises what `attach` does.

        Without optimizers and scaler a step ends with `step_ended`.

        A training that never came to `end` was ended by an exception that somebody caught: its run has failed.
        """
        self.end(RuntimeError("the training did not come to its end: another began"))
        self._has_ended, self._logged = False, set()
        self._handle = attach(uncompiled(model), optimizers, scaler=scaler, start_step=step, **self._options)

    def step_begins(self) -> None:
        """The trainer has begun a step, or another microbatch of one."""
        if self._has_ended:
            self._has_ended, self._logged = False, set()

    def step_ended(self) -> None:
        """The trainer has ended a step. (Where there is an optimizer the agent has seen it step.)"""
        if self._handle is not None:
            self._handle.step()  # does nothing where an optimizer or a scaler ends the steps
        self._has_ended = True

    def log(self, values: Mapping[str, Any]) -> None:
        """Record what is a number: for the open step, or between two steps for the one that has ended.

        There a name counts that the step has not had: trainers log some again, such as the epoch with an evaluation,
        and `Handle.log` would take the second value for the next step's.
        """
        numbers = {name: value for name, value in values.items() if _is_loggable(name, value)}
        if self._has_ended:
            numbers = {name: value for name, value in numbers.items() if name not in self._logged}
        self._logged |= set(numbers)
        if self._handle is not None and numbers:
            self._handle.log_ended(numbers)

    def end(self, error: BaseException | None = None) -> None:
        """Detach; with an `error` that is no clean exit the run has failed. Later calls do nothing."""
        handle, self._handle = self._handle, None
        if handle is not None:
            handle.__exit__(type(error) if error else None, error, None)


def optimizers_of(model: nn.Module, optimizers: Sequence[Any]) -> list[Any]:
    """Those that `attach` takes: each that has some of the model's parameters."""
    return [each for each in optimizers if has_parameters_of(each, model)]


def uncompiled(model: nn.Module) -> nn.Module:
    """The model inside what `torch.compile` returned. It is compiled when it is first called, with the hooks it has."""
    inner = getattr(model, "_orig_mod", None)
    return inner if isinstance(inner, nn.Module) else model


def _is_loggable(name: Any, value: Any) -> bool:
    is_number = isinstance(value, Real) or (isinstance(value, Tensor) and value.numel() == 1)
    return isinstance(name, str) and name != "self" and is_number
