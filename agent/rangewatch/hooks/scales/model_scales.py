"""All readers of scales of one attached model: which of them listen follows from what its modules are."""

from __future__ import annotations

from collections.abc import Mapping
from weakref import WeakKeyDictionary

from torch import nn

from rangewatch.core.guard import Guard
from rangewatch.core.options import Options
from rangewatch.core.selection import Selection
from rangewatch.hooks.module_hook import AfterForward
from rangewatch.hooks.scales.cast_formats import CastFormats
from rangewatch.hooks.scales.casts import CastReads
from rangewatch.hooks.scales.reads import ScaleReads
from rangewatch.hooks.scales.scaled_mm import ScaledProducts
from rangewatch.hooks.scales.torchao_weights import TorchaoWeights
from rangewatch.hooks.scales.transformer_engine import EngineReads
from rangewatch.recording.events import Events
from rangewatch.recording.level import Recording
from rangewatch.recording.observer import Observer, StepReader
from rangewatch.recording.scale_schedule import ScaleSchedule


class ModelScales(StepReader):
    """`schedule` says which steps are read. Of a model that casts nothing it does nothing after `find`."""

    def __init__(
        self, observer: Observer, events: Events, guard: Guard, selection: Selection, recording: Recording,
        fqns: WeakKeyDictionary[nn.Module, str], schedule: ScaleSchedule, options: Options,
    ) -> None:  # fmt: skip
        self._is_on = options.scales != "none"
        self._reads = ScaleReads(observer, events, schedule, CastFormats(observer, options.formats))
        self._casts = CastReads(self._reads, observer, guard, selection, recording, fqns)
        self._engine = EngineReads(self._reads, selection, recording, fqns)
        self._weights = TorchaoWeights(self._reads, observer, fqns)
        self._products = ScaledProducts(
            self._reads, observer, guard, selection, recording, fqns, reads_all=options.scales == "all"
        )

    def find(self, modules: Mapping[str, nn.Module]) -> None:
        """Look for what is scaled among modules by their clean names."""
        if self._is_on:
            self._casts.find(modules)
            self._products.find(modules)

    def of(self, module: nn.Module) -> AfterForward | None:
        """What reads the state of a module after each forward; None for most."""
        if not self._is_on:
            return None
        return self._engine.of(module) or self._casts.of(module) or self._weights.of(module)

    def end_step(self) -> None:
        """Between steps."""
        self._engine.end_step()
        self._reads.end_step()

    def remove(self) -> None:
        """Listen no more."""
        self._casts.remove()
        self._products.remove()
