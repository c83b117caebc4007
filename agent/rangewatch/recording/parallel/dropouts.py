"""Whether ranks draw the random numbers of dropout as they must: no collective, and no waiting.

At the first forward of a step whose turn it is: series `generator_checksum`, of the generators' state (the host's, and
of the model's GPU its seed and offset, which the host knows), where the model has a dropout that is on. Of one dropout
a turn, in the order of the model, what went in and what came out, as `dropout_input_checksum` and
`dropout_output_checksum`: ranks that are given the same must make the same of it. Dropout by a function is not seen.
"""

from __future__ import annotations

import zlib
from typing import Any
from weakref import ref

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from rangewatch.core import limits
from rangewatch.core.guard import Guard, Guarded
from rangewatch.recording.eager import hidden_from_modes
from rangewatch.recording.events import Events, sendable
from rangewatch.recording.logged_values import LoggedValues
from rangewatch.recording.observer import ForwardListener, Observer, StepReader, is_being_captured, local_part
from rangewatch.recording.parallel.placements import Layout
from rangewatch.recording.parallel.schedule import Schedule
from rangewatch.recording.tensor_names import clean_modules
from rangewatch.statistics import checksum
from rangewatch.wire.events import Dropouts

GENERATOR = "generator_checksum"
GIVEN, MADE = "dropout_input_checksum", "dropout_output_checksum"

MOST = 64
"""Dropouts that have their turn."""

MOST_ELEMENTS = 1 << 14
"""Of a tensor, the first ones."""


class DropoutReads(StepReader, ForwardListener):
    """Called by the training thread."""

    def __init__(
        self, observer: Observer, values: LoggedValues, events: Events, guard: Guard, model: nn.Module, layout: Layout,
        schedule: Schedule, in_forward: list[ForwardListener],
    ) -> None:  # fmt: skip
        self._observer, self._values, self._events, self._guard = observer, values, events, guard
        self._layout, self._schedule, self._in_forward = layout, schedule, in_forward
        modules: Any = nn.modules.dropout._DropoutNd
        named = ((fqn, each) for fqn, each in clean_modules(model).items() if isinstance(each, modules))
        self._modules = [(fqn, each) for fqn, each in named if 0 < each.p < 1][:MOST]
        self._model, self._step, self._is_reported = ref(model), 0, False
        self._found: dict[str, Tensor | float] = {}
        self._handle: RemovableHandle | None = None
        self._device = next((each.device for each in model.parameters()), torch.device("cpu"))

    def begin_step(self, step: int) -> None:
        """`step` is open."""
        self._step = step
        is_due = self._modules and self._layout.world_size > 1 and self._schedule.is_due(step)
        if is_due and self not in self._in_forward:
            self._in_forward.append(self)

    def forward_begins(self) -> None:
        """Of training, the first of the step."""
        self._in_forward.remove(self)
        _, module = self._modules[self._schedule.turn(self._step) % len(self._modules)]
        if torch.compiler.is_compiling() or not module.training or is_capturing(self._device) or self._is_compiled():
            return
        self._found[GENERATOR] = _of_generators(self._device)
        self.forget()
        self._handle = module.register_forward_hook(Guarded(self._guard, "dropout", self._read))
        if not self._is_reported:
            self._is_reported = True
            names = tuple(sendable(fqn)[: limits.NAME_CHARACTERS] for fqn, _ in self._modules)
            self._events.add(Dropouts(names, self._schedule.every))

    def _is_compiled(self) -> bool:
        """Whether a part of the model is compiled, of which a new hook would make torch compile it anew."""
        model = self._model()
        return model is None or any(
            getattr(each, "_compiled_call_impl", None) is not None or type(each).__name__ == "OptimizedModule"
            for each in model.modules()
        )

    def _read(self, _module: nn.Module, given: tuple[Any, ...], made: Any) -> None:
        self.forget()
        if torch.compiler.is_compiling() or not given:
            return
        pair = [local_part(each) if isinstance(each, Tensor) else None for each in (given[0], made)]
        with hidden_from_modes(pair):
            self._compare(pair)

    def _compare(self, pair: list[Tensor | None]) -> None:
        for name, each in zip((GIVEN, MADE), pair, strict=True):
            if each is None or is_being_captured(each) or not each.numel():
                return
            part = each.detach().reshape(-1)[:MOST_ELEMENTS]
            on_device = self._observer.is_on_device(part)
            self._found[name] = checksum.on_device([part])[0] if on_device else checksum.of_host(part)

    def end_step(self) -> None:
        """The open step is about to be closed."""
        self.forget()
        found, self._found = self._found, {}
        for name, value in found.items():
            self._values.record(name, self._step, value)

    def forget(self) -> None:
        """Take the hook away."""
        handle, self._handle = self._handle, None
        if handle is not None:
            handle.remove()


def is_capturing(device: torch.device) -> bool:
    """Whether a CUDA graph is captured, in which a generator's state cannot be asked for."""
    return device.type == "cuda" and torch.cuda.is_current_stream_capturing()


def _of_generators(device: torch.device) -> float:
    """From 1 on. That of a GPU is its seed and offset, in host memory."""
    states = [torch.get_rng_state()]
    if device.type == "cuda":
        states.append(torch.cuda.default_generators[device.index or 0].get_state())
    text = b"".join(each.numpy().tobytes() for each in states)
    return float((zlib.crc32(text) << 20 | (zlib.adler32(text) & 0xFFFFF)) + 1)
