"""One variant's training in `overhead.py`: its model, how it is watched, and how a window of its steps is timed."""

from __future__ import annotations

import copy
import statistics
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from training.models import Workload
from training.variants import AfterStep, Variant, Watched


@dataclass(frozen=True)
class Setting:
    """What all variants of one table share."""

    workload: Workload
    compiles: bool
    url: str
    folder: Path

    @property
    def title(self) -> str:
        """The model, the device and the mode."""
        return f"{self.workload.title}, {self.workload.device.type}, {'compiled' if self.compiles else 'eager'}"


class Lane:
    """A training that is watched for each window anew; a compiled one stays watched, on a copy of the model."""

    def __init__(self, setting: Setting, variant: Variant, stack: ExitStack) -> None:
        self._workload, self._watch = setting.workload, variant.watch
        model = copy.deepcopy(setting.workload.model) if setting.compiles else setting.workload.model
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
        self._watched = Watched(model, optimizer, setting.url, setting.folder)
        self._called: Any = model
        self._after: AfterStep | None = None
        self._steps = 0
        if setting.compiles:  # an agent attaches before the model is compiled
            self._after = stack.enter_context(self._watch(self._watched))
            self._called = torch.compile(model)

    def window(self, steps: int) -> float:
        """Seconds a step, of `steps` steps after one that is not counted: their median, or their mean on CUDA."""
        with ExitStack() as stack:
            after = self._after or stack.enter_context(self._watch(self._watched))
            self._step(after)
            if self._workload.device.type == "cuda":
                return self._timed(after, steps) / steps
            return statistics.median(self._timed(after, 1) for _ in range(steps))

    def _timed(self, after: AfterStep, steps: int) -> float:
        self._synchronize()
        started_s = time.perf_counter()
        for _ in range(steps):
            self._step(after)
        self._synchronize()
        return time.perf_counter() - started_s

    def _step(self, after: AfterStep) -> None:
        workload, optimizer = self._workload, self._watched.optimizer
        is_low = workload.dtype is not torch.float32
        optimizer.zero_grad()
        with torch.autocast(workload.device.type, dtype=workload.dtype, enabled=is_low):
            loss = workload.compute_loss(self._called, workload.next_batch())
        loss.backward()
        optimizer.step()
        self._steps += 1
        after(self._steps)

    def _synchronize(self) -> None:
        if self._workload.device.type == "cuda":
            torch.cuda.synchronize()
