"""All operands of a model have their turn, however seldom their scales are read."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from rangewatch.hooks.scales import cast_formats
from rangewatch.hooks.scales.cast_formats import CastFormats
from rangewatch.hooks.scales.operand import Operand
from rangewatch.statistics import scaled, scales, whatif
from rangewatch.wire.events import ScaledOperand

STEP_NS, READING_NS = 20_000_000, 1_000_000
OPERANDS = 30


@pytest.mark.parametrize("every", [16, 256, 1024])
@pytest.mark.parametrize("is_last_rare", [False, True])
def test_each_has_its_turn(every: int, is_last_rare: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Five of them take a quarter of a step, which is the most that they may have of one."""
    now_ns, count = [0], Counter[int]()

    def measure(*args: Any) -> Any:
        now_ns[0] += READING_NS
        return torch.zeros(1).numpy()

    clock = SimpleNamespace(perf_counter_ns=lambda: now_ns[0], thread_time_ns=lambda: now_ns[0])
    monkeypatch.setattr(cast_formats, "time", clock)
    monkeypatch.setattr(whatif, "measure_in_use", measure)
    observer: Any = SimpleNamespace(add_sums=lambda number, part, values: count.update([number]))
    formats, values = CastFormats(observer, ()), torch.ones(8, 8)
    fit = scaled.of_values(values, torch.tensor(1.0), scales.ELEMENTS["E4M3"], counts=False)
    assert fit is not None
    for step in range(max(40 * every, 2_000)):
        is_rare = is_last_rare and step != 2 * every  # a module that is called once
        for number in range(OPERANDS - is_rare) if step % every == 0 else ():
            about = ScaledOperand(str(number), "scaled_input", 0, "E4M3", "tensor", "float32")
            formats.read(number, Operand(str(number), "scaled_input", 0, ""), values, torch.Size([]), fit, about)
        now_ns[0] += STEP_NS
        formats.end_step()
    often = [count[number] for number in range(OPERANDS - is_last_rare)]
    assert min(often) >= 2 and max(often) <= min(often) + 1
