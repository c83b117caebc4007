"""Every kind of loss scaler: the step closes, taken or skipped, and the scale and the verdict are those of the step."""

from __future__ import annotations

import copy
import gc
import pickle
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

import rangewatch
from rangewatch.core import limits
from rangewatch.steps.loss_scale import MOST_EMITTED
from rangewatch.steps.scalers.method_watch import OwnMethod, Patch
from tests.agent.hooks.test_distributed import launch
from tests.agent.ingest_double import IngestDouble
from tests.agent.steps.scaler_doubles import (
    ChainedOptimizer,
    DeepSpeedEngine,
    DeepSpeedZeroOptimizer,
    DynamicGradScaler,
    DynamicLossScaler,
    Float16OptimizerWithFloat16Params,
    FP16_Optimizer,
)

HUGE = 2.0**100
"""A loss scale with which an input of 2^30 overflows float32."""
OVERFLOWS = 2.0**30


def line() -> nn.Linear:
    model = nn.Linear(1, 1, bias=False)
    nn.init.ones_(model.weight)
    return model


def sgd(model: nn.Module, **options: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.0, **options)


def scaled_step(model: nn.Module, optimizer: Any, scaler: Any, value: float) -> tuple[float, float]:
    """One step; the scale of its backward, and 1.0 if it overflowed, by the arithmetic of the test itself."""
    scaled = scaler.scale(model(torch.tensor([[value]])).sum())
    scaled.backward()
    scale = scaler.get_scale()
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
    return scale, float(scale * value > torch.finfo(torch.float32).max)


def cuda_named() -> Any:
    """torch.cuda.amp.GradScaler on the CPU: without CUDA its own `__init__` disables it."""
    scaler = torch.cuda.amp.GradScaler.__new__(torch.cuda.amp.GradScaler)
    torch.amp.GradScaler.__init__(scaler, "cpu", init_scale=HUGE, growth_interval=2)
    return scaler


def grad_scaler(scale: float = HUGE) -> torch.amp.GradScaler:
    return torch.amp.GradScaler("cpu", init_scale=scale, growth_interval=2)


def in_steps(values: list[float]) -> dict[int, float]:
    return dict(enumerate(values))


class TestTorchScalers:
    @pytest.mark.parametrize("backend", ["auto", "device"])
    @pytest.mark.parametrize("make", [grad_scaler, cuda_named])
    def test_each_class(self, ingest: IngestDouble, make: Callable[[], Any], backend: str) -> None:
        model, scaler = line(), make()
        optimizer = sgd(model)
        with rangewatch.attach(model, optimizer, scaler=scaler, url=ingest.url, backend=backend):
            reported = [scaled_step(model, optimizer, scaler, value) for value in (1.0, OVERFLOWS, OVERFLOWS, 1.0)]
        assert ingest.series("loss_scale") == in_steps([scale for scale, _ in reported])
        assert ingest.series("found_inf") == ingest.series("skipped_step") == in_steps([0.0, 1.0, 1.0, 0.0])
        assert [found for _, found in reported] == [0.0, 1.0, 1.0, 0.0]

    def test_a_scaler_with_an_update_of_its_own(self, ingest: IngestDouble) -> None:
        model, scaler = line(), grad_scaler(4.0)
        scaler.update = own = scaler.update  # type: ignore[method-assign]
        optimizer = sgd(model)
        with rangewatch.attach(model, optimizer, scaler=scaler, url=ingest.url):
            scaled_step(model, optimizer, scaler, 1.0)
        assert ingest.series("loss_scale") == {0: 4.0}
        assert scaler.update is own

    def test_an_optimizer_that_skips_by_itself(self, ingest: IngestDouble) -> None:
        """A fused optimizer is called even when it must skip."""
        model, scaler = line(), grad_scaler()
        optimizer = torch.optim.Adam(model.parameters(), lr=0.0, fused=True)
        with rangewatch.attach(model, optimizer, scaler=scaler, url=ingest.url):
            reported = [scaled_step(model, optimizer, scaler, value) for value in (1.0, OVERFLOWS, 1.0)]
        assert ingest.series("loss_scale") == in_steps([scale for scale, _ in reported])
        assert ingest.series("found_inf") == in_steps([0.0, 1.0, 0.0])

    def test_setting_the_scale_ends_no_step(self, ingest: IngestDouble) -> None:
        model, scaler = line(), grad_scaler(4.0)
        optimizer = sgd(model)
        with rangewatch.attach(model, optimizer, scaler=scaler, url=ingest.url) as handle:
            scaled_step(model, optimizer, scaler, 1.0)
            scaler.update(2.0)
            scaler.update(new_scale=8.0)
            scaled_step(model, optimizer, scaler, 1.0)
            scaler.update(2.0)
            assert handle.stats()["step"] == 2
        assert ingest.series("loss_scale") == {0: 4.0, 1: 8.0}

    def test_its_settings_are_told_at_first_and_when_they_change(self, ingest: IngestDouble) -> None:
        model, scaler = line(), grad_scaler(4.0)
        optimizer = sgd(model)
        with rangewatch.attach(model, optimizer, scaler=scaler, url=ingest.url):
            for step in range(6):
                if step == 3:
                    scaler.set_growth_interval(500)
                scaled_step(model, optimizer, scaler, 1.0)
        usual = {"series": "loss_scale", "class": "GradScaler", "growth_factor": 2.0, "backoff_factor": 0.5}
        assert [(each.step, each.data) for each in ingest.events("scaler")] == [
            (0, usual | {"growth_interval": 2.0}), (3, usual | {"growth_interval": 500.0}),
        ]  # fmt: skip

    def test_settings_that_change_for_ever_are_told_a_bounded_number_of_times(self, ingest: IngestDouble) -> None:
        model, scaler = line(), grad_scaler(4.0)
        optimizer = sgd(model)
        with rangewatch.attach(model, optimizer, scaler=scaler, url=ingest.url):
            for step in range(2 * MOST_EMITTED):
                scaler.set_growth_interval(step + 1)
                scaled_step(model, optimizer, scaler, 1.0)
        assert len(ingest.events("scaler")) == MOST_EMITTED

    def test_a_scaler_that_does_not_say_them(self, ingest: IngestDouble) -> None:
        model, scaler = line(), DynamicLossScaler(4.0)
        optimizer = sgd(model)
        with rangewatch.attach(model, optimizer, scaler=scaler, url=ingest.url):
            model(torch.ones(1, 1)).sum().backward()
            optimizer.step()
            scaler.update_scale(False)
        assert ingest.series("loss_scale") == {0: 4.0}
        assert ingest.events("scaler") == []

    def test_nothing_waits_for_the_device(self, ingest: IngestDouble) -> None:
        class Waits(TorchDispatchMode):
            def __init__(self) -> None:
                super().__init__()
                self.count = 0

            def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
                self.count += func is torch.ops.aten._local_scalar_dense.default
                return func(*args, **(kwargs or {}))

        def waits(**attach: Any) -> int:
            models = [line(), line()]
            optimizers, scalers = [sgd(each) for each in models], [grad_scaler(), grad_scaler()]
            handle = None
            if attach:
                both = nn.ModuleList(models)
                handle = rangewatch.attach(both, optimizers, scaler=scalers, backend="device", **attach)
            with Waits() as mode:
                for _ in range(3):
                    for model, optimizer, scaler in zip(models, optimizers, scalers, strict=True):
                        scaler.scale(model(torch.ones(1, 1)).sum()).backward()
                        scaler.step(optimizer)
                        scaler.update()
            if handle is not None:
                handle.detach()
            return mode.count

        plain = waits()
        assert plain == 6, "the scaler itself looks at found_inf"
        assert waits(url=ingest.url) == plain
        assert ingest.series("found_inf") == in_steps([0.0] * 3)


class TestSeveralScalers:
    @pytest.mark.parametrize("backend", ["auto", "device"])
    @pytest.mark.parametrize("order", [(0, 1), (1, 0)])
    def test_each_has_its_series_and_found_inf_is_of_any(
        self, ingest: IngestDouble, backend: str, order: tuple[int, int]
    ) -> None:
        model = nn.ModuleList([line(), line()])
        optimizers, scalers = [sgd(each) for each in model], [grad_scaler(HUGE), grad_scaler(16.0)]
        values = [(1.0, 1.0), (OVERFLOWS, 1.0), (1.0, 2.0**126), (1.0, 1.0)]
        reported: list[dict[int, tuple[float, float]]] = []
        with rangewatch.attach(model, optimizers, scaler=scalers, url=ingest.url, backend=backend) as handle:
            for pair in values:
                reported.append({n: scaled_step(model[n], optimizers[n], scalers[n], pair[n]) for n in order})
            assert handle.stats()["step"] == 4
        assert ingest.series("loss_scale") == in_steps([each[0][0] for each in reported])
        assert ingest.series("loss_scale/1") == in_steps([each[1][0] for each in reported])
        assert ingest.series("found_inf") == in_steps([0.0, 1.0, 1.0, 0.0])
        assert [max(each[0][1], each[1][1]) for each in reported] == [0.0, 1.0, 1.0, 0.0]

    def test_one_for_all_optimizers(self, ingest: IngestDouble) -> None:
        model, scaler = nn.ModuleList([line(), line()]), grad_scaler(4.0)
        optimizers = [sgd(each) for each in model]
        with rangewatch.attach(model, optimizers, scaler=[scaler, scaler], url=ingest.url) as handle:
            for value in (1.0, 2.0**127, 1.0):
                scaler.scale(model[0](torch.ones(1, 1)).sum() + model[1](torch.full((1, 1), value)).sum()).backward()
                for optimizer in optimizers:
                    scaler.step(optimizer)
                    optimizer.zero_grad()
                scaler.update()
            assert handle.stats()["step"] == 3
        assert ingest.series("loss_scale") == {0: 4.0, 1: 4.0, 2: 2.0} and ingest.series("loss_scale/1") == {}
        assert ingest.series("found_inf") == in_steps([0.0, 1.0, 0.0])

    def test_two_models_with_one(self, ingest: IngestDouble) -> None:
        models, scaler = [line(), line()], grad_scaler(4.0)
        optimizers = [sgd(each) for each in models]
        handles = [
            rangewatch.attach(model, optimizer, scaler=scaler, run=f"run {number}", url=ingest.url)
            for number, (model, optimizer) in enumerate(zip(models, optimizers, strict=True))
        ]
        for _ in range(3):
            scaler.scale(models[0](torch.ones(1, 1)).sum() + models[1](torch.ones(1, 1)).sum()).backward()
            for optimizer in optimizers:
                scaler.step(optimizer)
            scaler.update()
        assert [handle.stats()["step"] for handle in handles] == [3, 3]
        for handle in handles:
            handle.detach()


class TestNotGiven:
    """`attach(model, optimizer)` of a loop with a scaler."""

    @pytest.mark.parametrize("make", [grad_scaler, cuda_named])
    def test_it_is_found_by_the_optimizer_that_it_steps(self, ingest: IngestDouble, make: Callable[[], Any]) -> None:
        model, scaler = line(), make()
        optimizer = sgd(model)
        own = torch.amp.GradScaler.step, torch.amp.GradScaler.update
        with rangewatch.attach(model, optimizer, url=ingest.url) as handle:
            reported = [scaled_step(model, optimizer, scaler, OVERFLOWS if step < 2 else 1.0) for step in range(6)]
            assert handle.stats()["step"] == 6, "a step that is skipped is one"
        assert ingest.series("loss_scale") == in_steps([scale for scale, _ in reported])
        assert ingest.series("found_inf") == in_steps([found for _, found in reported])
        assert [each.data["was_passed"] for each in ingest.events("scaler")] == [False]
        assert (torch.amp.GradScaler.step, torch.amp.GradScaler.update) == own

    @pytest.mark.parametrize("order", [(0, 1), (1, 0)])
    def test_each_of_two_optimizers_has_its_own(self, ingest: IngestDouble, order: tuple[int, int]) -> None:
        model = nn.ModuleList([line(), line()])
        optimizers, scalers = [sgd(each) for each in model], [grad_scaler(HUGE), grad_scaler(16.0)]
        values = [(OVERFLOWS, 1.0), (1.0, 1.0), (1.0, 2.0**126), (1.0, 1.0)]
        reported: list[dict[int, tuple[float, float]]] = []
        with rangewatch.attach(model, optimizers, url=ingest.url) as handle:
            for pair in values:
                reported.append({n: scaled_step(model[n], optimizers[n], scalers[n], pair[n]) for n in order})
            assert handle.stats()["step"] == 4
        assert ingest.series("loss_scale") == in_steps([each[order[0]][0] for each in reported])
        assert ingest.series("loss_scale/1") == in_steps([each[order[1]][0] for each in reported])
        assert ingest.series("found_inf") == in_steps([1.0, 0.0, 1.0, 0.0])

    def test_a_second_one_that_comes_later(self, ingest: IngestDouble) -> None:
        model = nn.ModuleList([line(), line()])
        optimizers, scalers = [sgd(each) for each in model], [grad_scaler(16.0), grad_scaler(16.0)]
        with rangewatch.attach(model, optimizers, url=ingest.url) as handle:
            for step in range(6):
                scaled_step(model[0], optimizers[0], scalers[0], 1.0)
                if step >= 3:
                    scaled_step(model[1], optimizers[1], scalers[1], 2.0**126 if step == 5 else 1.0)
            at = handle.stats()["step"]
        assert list(ingest.series("found_inf").values())[-1] == 1.0 and at - 1 in ingest.series("loss_scale/1")

    def test_one_that_is_made_anew_in_each_step(self, ingest: IngestDouble) -> None:
        model = line()
        optimizer = sgd(model)
        with rangewatch.attach(model, optimizer, url=ingest.url) as handle:
            for _ in range(5):
                scaled_step(model, optimizer, grad_scaler(HUGE), OVERFLOWS)
            assert handle.stats()["step"] == 5
        assert ingest.series("loss_scale") == in_steps([HUGE] * 5)

    def test_that_of_another_model_is_passed_over(self, ingest: IngestDouble) -> None:
        model, other = line(), line()
        optimizer, other_optimizer, scaler = sgd(model), sgd(other), grad_scaler(4.0)
        with rangewatch.attach(model, optimizer, url=ingest.url) as handle:
            for _ in range(3):
                scaled_step(other, other_optimizer, scaler, 1.0)
                model(torch.ones(1, 1)).sum().backward()
                optimizer.step()
            assert handle.stats()["step"] == 3
        assert ingest.series("loss_scale") == {} and ingest.events("scaler") == []

    @pytest.mark.parametrize("is_later", [False, True])
    def test_it_is_enabled_or_it_is_none(self, ingest: IngestDouble, is_later: bool) -> None:
        model, scaler = line(), torch.amp.GradScaler("cpu", enabled=False)
        optimizer = sgd(model)
        with rangewatch.attach(model, optimizer, url=ingest.url) as handle:
            for step in range(4):
                scaler = grad_scaler(4.0) if is_later and step == 2 else scaler
                scaled_step(model, optimizer, scaler, 1.0)
            assert handle.stats()["step"] == 4
        assert sorted(ingest.series("loss_scale")) == [2, 3] * is_later

    def test_of_two_optimizers(self, ingest: IngestDouble) -> None:
        model = nn.ModuleList([line(), line()])
        optimizers, scaler = [sgd(each) for each in model], grad_scaler(HUGE)
        with rangewatch.attach(model, optimizers, url=ingest.url) as handle:
            for step in range(4):
                scaler.scale(
                    sum(each(torch.tensor([[OVERFLOWS if step < 1 else 1.0]])).sum() for each in model)
                ).backward()
                for each in optimizers:
                    scaler.step(each)
                    each.zero_grad()
                scaler.update()
            assert handle.stats()["step"] == 4
        assert ingest.series("found_inf") == in_steps([1.0, 0.0, 0.0, 0.0])

    def test_what_it_skips_stops_no_training(self, ingest: IngestDouble) -> None:
        model, scaler = line(), grad_scaler()
        optimizer = sgd(model)
        with rangewatch.attach(model, optimizer, url=ingest.url, on_overflow="raise"):
            for step in range(4):
                scaled_step(model, optimizer, scaler, OVERFLOWS if step < 2 else 1.0)


class TestSwapped:
    @pytest.mark.parametrize("is_only_scaler", [False, True])
    def test_a_new_scaler_takes_the_place_of_the_old(self, ingest: IngestDouble, is_only_scaler: bool) -> None:
        """Also while it skips, when no optimizer is called."""
        model, scaler = line(), grad_scaler(4.0)
        optimizer = sgd(model)
        reported = []
        with rangewatch.attach(model, None if is_only_scaler else optimizer, scaler=scaler, url=ingest.url) as handle:
            for step in range(9):
                if step % 3 == 0 and step:
                    scaler = grad_scaler(HUGE)
                reported.append(scaled_step(model, optimizer, scaler, OVERFLOWS if step in {3, 4, 7} else 1.0))
            assert handle.stats()["step"] == 9
        assert ingest.series("loss_scale") == in_steps([scale for scale, _ in reported])
        assert ingest.series("found_inf") == in_steps([found for _, found in reported])
        assert [found for _, found in reported] == [0, 0, 0, 1, 1, 0, 0, 1, 0]
        assert {cell["call_count"] for cell in ingest.tensors()["", "output", 0].values()} == {1.0}

    def test_before_the_first_step(self, ingest: IngestDouble) -> None:
        model, old, new = line(), grad_scaler(4.0), grad_scaler(2.0)
        optimizer = sgd(model)
        with rangewatch.attach(model, optimizer, scaler=old, url=ingest.url):
            for _ in range(2):
                scaled_step(model, optimizer, new, 1.0)
        assert ingest.series("loss_scale") == {0: 2.0, 1: 2.0}

    def test_one_of_two(self, ingest: IngestDouble) -> None:
        model = nn.ModuleList([line(), line()])
        optimizers, scalers = [sgd(each) for each in model], [grad_scaler(4.0), grad_scaler(16.0)]
        reported: list[list[float]] = []
        with rangewatch.attach(model, optimizers, scaler=scalers, url=ingest.url) as handle:
            for step in range(4):
                if step == 2:
                    scalers[1] = grad_scaler(64.0)
                reported.append([scaled_step(model[n], optimizers[n], scalers[n], 1.0)[0] for n in range(2)])
            assert handle.stats()["step"] == 4
        assert ingest.series("loss_scale") == in_steps([first for first, _ in reported])
        assert ingest.series("loss_scale/1") == in_steps([second for _, second in reported])

    def test_the_scaler_of_other_optimizers_is_left_alone(self, ingest: IngestDouble) -> None:
        model, other = line(), line()
        scaler, other_scaler = grad_scaler(4.0), grad_scaler(2.0)
        optimizer, other_optimizer = sgd(model), sgd(other)
        with rangewatch.attach(model, optimizer, scaler=scaler, url=ingest.url) as handle:
            for _ in range(2):
                scaled_step(model, optimizer, scaler, 1.0)
                scaled_step(other, other_optimizer, other_scaler, 1.0)
            assert handle.stats()["step"] == 2
        assert ingest.series("loss_scale") == {0: 4.0, 1: 4.0}

    @pytest.mark.parametrize("calls_super", [False, True])
    def test_of_another_class_one_step_is_merged_and_no_scale_is_stale(
        self, ingest: IngestDouble, calls_super: bool
    ) -> None:
        class Other(torch.amp.GradScaler):
            def update(self, new_scale: Any = None) -> None:
                super().update(new_scale) if calls_super else self._per_optimizer_states.clear()

        model, scaler = line(), grad_scaler(4.0)
        optimizer = sgd(model)
        with rangewatch.attach(model, optimizer, scaler=scaler, url=ingest.url) as handle:
            reported = []
            for step in range(8):
                if step == 3:
                    old, scaler = scaler, Other("cpu", init_scale=2.0)
                reported.append(scaled_step(model, optimizer, scaler, 1.0)[0])
            assert handle.stats()["step"] == 7
        calls = [cell["call_count"] for _, cell in sorted(ingest.tensors()["", "output", 0].items())]
        assert calls == [1, 1, 1, 2, 1, 1, 1]
        assert old.get_scale() == 8.0
        later = {4: 2.0, 5: 2.0, 6: 2.0} if calls_super else {}
        assert ingest.series("loss_scale") == {**in_steps(reported[:3]), **later}, "else not measured"

    def test_it_is_updated_again(self, ingest: IngestDouble) -> None:
        """What it says when its step is closed already is of no other step."""
        model, scaler = line(), grad_scaler(4.0)
        optimizer = sgd(model)
        with rangewatch.attach(model, optimizer, scaler=scaler, url=ingest.url) as handle:
            for is_scaled in (True, False, False, False, True):
                if is_scaled:
                    scaled_step(model, optimizer, scaler, 1.0)
                else:
                    model(torch.ones(1, 1)).sum().backward()
                    optimizer.step()
            assert handle.stats()["step"] == 4
        assert ingest.series("loss_scale") == {0: 4.0}
        assert ingest.series("found_inf") == {0: 0.0}

    def test_it_is_disabled_and_enabled(self, ingest: IngestDouble) -> None:
        model, scaler = line(), grad_scaler(4.0)
        optimizer = sgd(model)
        with rangewatch.attach(model, optimizer, scaler=scaler, url=ingest.url) as handle:
            for step in range(9):
                scaler._enabled = step not in {2, 3, 4, 5}
                scaled_step(model, optimizer, scaler, 1.0)
            assert handle.stats()["step"] == 8
        assert sorted(ingest.series("loss_scale")) == [0, 1, 6, 7], "iterations 2 and 3 are one, 6 was closed early"

    def test_the_old_one_is_let_go(self, ingest: IngestDouble) -> None:
        model, scaler = line(), grad_scaler(4.0)
        optimizer = sgd(model)
        with rangewatch.attach(model, optimizer, scaler=scaler, url=ingest.url):
            old = weakref.ref(scaler)
            scaled_step(model, optimizer, scaler, 1.0)
            scaler = grad_scaler(2.0)
            assert old() is None
            scaled_step(model, optimizer, scaler, 1.0)
        assert ingest.series("loss_scale") == {0: 4.0, 1: 2.0}


class TestLabel:
    @pytest.mark.parametrize(
        ("make", "wanted"),
        [
            (grad_scaler, True),
            (lambda: grad_scaler(1.0), True),
            (lambda: torch.amp.GradScaler("cpu", enabled=False), False),
            (lambda: [torch.amp.GradScaler("cpu", enabled=False), grad_scaler()], True),
            (lambda: None, False),
            (lambda: DynamicLossScaler(1.0), True),
            (lambda: DynamicLossScaler(1.0, dynamic=False), False),
            (lambda: DynamicLossScaler(128.0, dynamic=False), True),
            (lambda: DynamicGradScaler(1.0), True),
        ],
    )
    def test_gradients_are_labelled_scaled_when_they_are(
        self, ingest: IngestDouble, make: Callable[[], Any], wanted: bool
    ) -> None:
        model, scaler = line(), make()
        rangewatch.attach(model, sgd(model), scaler=scaler, url=ingest.url).detach()
        assert ingest.openings[0].info.loss_scaled is wanted


def zero(model: nn.Module, **options: Any) -> Any:
    return DeepSpeedZeroOptimizer(model, 2.0**100, **options)


def fp16(model: nn.Module, **options: Any) -> Any:
    return FP16_Optimizer(model, 2.0**100, **options)


def megatron(model: nn.Module) -> Any:
    return Float16OptimizerWithFloat16Params(model, 2.0**100)


def chained(model: nn.Module) -> Any:
    return ChainedOptimizer([megatron(model), Float16OptimizerWithFloat16Params(nn.Linear(1, 1), 2.0)])


class TestOwnScalers:
    """Optimizers that scale by themselves: DeepSpeed's and Megatron's."""

    @pytest.mark.parametrize(
        ("way", "backend"),
        [
            ("scaler", "auto"), ("optimizer", "device"),
            *(pytest.param(*each, marks=pytest.mark.slow) for each in
              (("scaler", "device"), ("optimizer", "auto"), ("both", "auto"), ("both", "device"))),
        ],
    )  # fmt: skip
    @pytest.mark.parametrize("make", [fp16, zero, megatron, chained])
    def test_the_step_closes_taken_or_skipped(
        self, ingest: IngestDouble, make: Callable[[nn.Module], Any], way: str, backend: str
    ) -> None:
        model = line()
        optimizer = make(model)
        given = {"scaler": optimizer} if way == "scaler" else {"optimizer": optimizer}
        given |= {"scaler": optimizer} if way == "both" else {}
        scales = []
        with rangewatch.attach(model, **given, url=ingest.url, backend=backend) as handle:
            for value in (1.0, OVERFLOWS, OVERFLOWS, 1.0, 1.0):
                loss = model(torch.full((1, 1), value)).sum()
                scales.append(float(optimizer.scaled(torch.ones(()))))
                optimizer.scaled(loss).backward()
                optimizer.step()
                optimizer.zero_grad()
            assert handle.stats()["step"] == 5
        assert scales[1:4] == [2.0**101, 2.0**100, 2.0**99], "it was scaled and skipped"
        assert ingest.series("loss_scale") == in_steps(scales)
        assert ingest.series("found_inf") == ingest.series("skipped_step") == in_steps([0.0, 1.0, 1.0, 0.0, 0.0])
        assert ingest.tensors()["weight", "grad", 0][0]["amax"] == scales[0], "as the hardware held it"
        assert ingest.openings[0].info.loss_scaled

    @pytest.mark.parametrize("way", ["scaler", "optimizer"])
    def test_the_engine_itself(self, ingest: IngestDouble, way: str) -> None:
        model = line()
        engine = DeepSpeedEngine(model, zero(model))
        with rangewatch.attach(model, **{way: engine}, url=ingest.url) as handle:
            for value in (1.0, 1.0, OVERFLOWS, 1.0, 1.0, 1.0):
                engine.optimizer.scaled(engine.module(torch.full((1, 1), value)).sum()).backward()
                engine.step()
            assert handle.stats()["step"] == 3, "two microbatches each"
        assert ingest.series("found_inf") == in_steps([0.0, 1.0, 0.0])
        assert {cell["call_count"] for cell in ingest.tensors()["", "output", 0].values()} == {2.0}

    def test_the_inner_optimizer_beside_it_has_no_say(self, ingest: IngestDouble) -> None:
        """It steps three times a step here, once for each parameter group."""
        model = line()
        optimizer = zero(model)
        optimizer.optimizer = sgd(model)
        with rangewatch.attach(model, optimizer.optimizer, scaler=optimizer, url=ingest.url) as handle:
            for _ in range(3):
                optimizer.step()
            assert handle.stats()["step"] == 3

    @pytest.mark.parametrize("make", [fp16, zero])
    def test_a_scale_of_the_users_own(self, ingest: IngestDouble, make: Callable[[nn.Module], Any]) -> None:
        model = line()
        optimizer = make(model)
        optimizer.custom_loss_scaler, optimizer.external_loss_scale = True, 8.0
        with rangewatch.attach(model, scaler=optimizer, url=ingest.url):
            optimizer.step()
        assert ingest.series("loss_scale") == {0: 8.0}

    def test_without_a_scale(self, ingest: IngestDouble) -> None:
        """As with bf16: the step can be skipped all the same."""
        model, other = line(), line()
        optimizer = DeepSpeedZeroOptimizer(model, 1.0, dynamic=False)
        none = Float16OptimizerWithFloat16Params(other, None)
        with (
            rangewatch.attach(model, optimizer, run="deepspeed", url=ingest.url),
            rangewatch.attach(other, none, run="megatron", url=ingest.url) as handle,
        ):
            for value in (1.0, float("inf")):
                model(torch.full((1, 1), value)).sum().backward()
                optimizer.step()
                none.step()
            assert handle.stats()["step"] == 2
        assert ingest.series("loss_scale") == {}
        assert not any(opening.info.loss_scaled for opening in ingest.openings)
        deepspeed = [each for batch in ingest.batches if batch.run == "deepspeed" for each in batch.series]
        assert [each.values.tolist() for each in deepspeed if each.name == "found_inf"] == [[0.0, 1.0]]

    @pytest.mark.parametrize("make", [DynamicLossScaler, DynamicGradScaler])
    @pytest.mark.parametrize("has_optimizer", [False, True])
    def test_the_scaler_alone(self, ingest: IngestDouble, make: Any, has_optimizer: bool) -> None:
        model, scaler = line(), make(4.0)
        optimizer = sgd(model)
        update = getattr(scaler, "update_scale", None) or scaler.update
        with rangewatch.attach(model, optimizer if has_optimizer else None, scaler=scaler, url=ingest.url) as handle:
            update = getattr(scaler, "update_scale", None) or scaler.update
            for overflow in (False, True, False):
                update(overflow)
                if not overflow:
                    optimizer.step()
            assert handle.stats()["step"] == 3
        assert ingest.series("loss_scale") == {0: 4.0, 1: 8.0, 2: 4.0}
        assert ingest.series("found_inf") == in_steps([0.0, 1.0, 0.0])

    def test_it_is_let_go_with_the_model(self, ingest: IngestDouble, monkeypatch: pytest.MonkeyPatch) -> None:
        """These optimizers hold the model: whoever held them would keep both for ever."""
        monkeypatch.setattr(limits, "LEFT_POLL_S", 0.01)
        model = line()
        optimizer = zero(model)
        agent = rangewatch.attach(model, optimizer, url=ingest.url)._agent
        gone = weakref.ref(model)
        del model, optimizer
        gc.collect()
        assert gone() is None and agent is not None
        while agent._sender._thread.is_alive():  # it looks now and then; the test's own time limit ends this
            time.sleep(0.01)
        assert not agent.observer.is_active


class StepOnly:
    """Wraps an optimizer as user code does, and says nothing of it."""

    def __init__(self, inner: torch.optim.Optimizer) -> None:
        self.inner = inner

    def step(self) -> str:
        """Its own documentation."""
        self.inner.step()
        return "result"


class TestWrappers:
    def test_a_step_method_is_enough(self, ingest: IngestDouble) -> None:
        model = line()
        optimizer, own = StepOnly(sgd(model)), StepOnly.step
        with rangewatch.attach(model, optimizer, url=ingest.url) as handle:
            assert [optimizer.step() for _ in range(3)] == ["result"] * 3
            StepOnly(sgd(line())).step()
            copied, loaded = copy.deepcopy(optimizer), pickle.loads(pickle.dumps(optimizer))
            copied.step(), loaded.step()
            assert vars(optimizer).keys() == {"inner"}
            assert handle.stats()["step"] == 3, "another object of the class, and copies, are not ours"
        assert StepOnly.step is own and not Patch.installed

    def test_one_that_shows_what_it_wraps(self, ingest: IngestDouble) -> None:
        """As Lightning's does, whose `step` may take none."""

        class Shows:
            def __init__(self, optimizer: torch.optim.Optimizer) -> None:
                self.optimizer = optimizer

            def __getattr__(self, name: str) -> Any:
                return getattr(self.optimizer, name)

            def step(self, *, is_taken: bool) -> None:
                if is_taken:
                    self.optimizer.step()

        model = line()
        optimizer = Shows(sgd(model))
        with rangewatch.attach(model, optimizer, url=ingest.url) as handle:
            for is_taken in (False, True, False, True):
                optimizer.step(is_taken=is_taken)
            assert handle.stats()["step"] == 2

    def test_an_object_with_a_step_of_its_own(self, ingest: IngestDouble) -> None:
        """As torch's schedulers and DeepSpeed's ZenFlow leave it behind."""
        model = line()
        optimizer = StepOnly(sgd(model))
        optimizer.step = own = optimizer.step  # type: ignore[method-assign]
        with rangewatch.attach(model, optimizer, url=ingest.url) as handle:
            assert [optimizer.step() for _ in range(3)] == ["result"] * 3
            assert optimizer.step.__doc__ == "Its own documentation."
            copied, loaded = copy.deepcopy(optimizer), pickle.loads(pickle.dumps(optimizer))
            assert not {type(copied.step), type(loaded.step)} & {OwnMethod}
            assert copied.step() == loaded.step() == "result"
            assert handle.stats()["step"] == 3
        assert optimizer.step is own

    def test_what_others_have_wrapped_on_top_stays(self, ingest: IngestDouble) -> None:
        model = line()
        optimizer = StepOnly(sgd(model))
        optimizer.step = optimizer.step  # type: ignore[method-assign]
        with rangewatch.attach(model, optimizer, url=ingest.url) as handle:
            ours = optimizer.step
            optimizer.step = on_top = lambda: f"on top of {ours()}"  # type: ignore[method-assign]
            assert optimizer.step() == "on top of result"
            assert handle.stats()["step"] == 1
        assert optimizer.step is on_top and optimizer.step() == "on top of result"

    def test_an_error_of_the_step_is_the_hosts_own(self, ingest: IngestDouble) -> None:
        class Fails(StepOnly):
            def step(self) -> str:
                raise RuntimeError("of the host")

        model = line()
        optimizer = Fails(sgd(model))
        with rangewatch.attach(model, optimizer, url=ingest.url) as handle:
            with pytest.raises(RuntimeError, match="of the host"):
                optimizer.step()
            assert handle.stats()["step"] == 0

    def test_accelerate(self, ingest: IngestDouble) -> None:
        """Its `step` is called at each microbatch, and its scaler comes with it."""
        import accelerate

        accelerator = accelerate.Accelerator(cpu=True, gradient_accumulation_steps=2)
        model, scaler = line(), grad_scaler()
        optimizer = accelerate.optimizer.AcceleratedOptimizer(sgd(model), scaler=scaler)
        with rangewatch.attach(model, optimizer, url=ingest.url) as handle:
            for number, value in enumerate((1.0, 1.0, 1.0, OVERFLOWS, 1.0, 1.0)):
                accelerator.gradient_state._set_sync_gradients(bool(number % 2))
                scaler.scale(model(torch.full((1, 1), value)).sum()).backward()
                optimizer.step()
                optimizer.zero_grad()
            assert handle.stats()["step"] == 3
        accelerate.state.AcceleratorState._reset_state(True)
        assert ingest.series("found_inf") == in_steps([0.0, 1.0, 0.0])
        assert {cell["call_count"] for cell in ingest.tensors()["", "output", 0].values()} == {2.0}
        assert ingest.openings[0].info.loss_scaled


class TestRefused:
    @pytest.mark.parametrize(
        ("make", "message"),
        [
            (lambda model: torch.optim.SGD, "not a torch.optim.Optimizer"),
            (lambda model: object(), "has no method step"),
            (lambda model: torch.optim.lr_scheduler.StepLR(sgd(model), 1), "StepLR is a learning rate scheduler"),
            (lambda model: grad_scaler(), "GradScaler is a loss scaler"),
            (lambda model: nn.Linear(1, 1), "not a torch.optim.Optimizer"),
        ],
    )
    def test_optimizers(self, make: Callable[[nn.Module], Any], message: str) -> None:
        model = line()
        with pytest.raises(TypeError, match=message):
            rangewatch.attach(model, make(model))

    @pytest.mark.parametrize(
        ("scaler", "message"),
        [
            (torch.amp.GradScaler, "no method 'scale'"),
            ([], "empty list"),
            ([None], "NoneType has no method"),
            ([grad_scaler(), "amp"], "str has no method"),
            ("amp", "str has no method"),
            (2.0**16, "float has no method"),
            (line(), "Linear has no method"),
        ],
    )
    def test_scalers(self, scaler: Any, message: str) -> None:
        model = line()
        with pytest.raises(TypeError, match=message):
            rangewatch.attach(model, sgd(model), scaler=scaler)


@pytest.mark.slow
def test_fsdps_sharded_scaler(ingest: IngestDouble, tmp_path: Path) -> None:
    """Its `found_inf` is that of all ranks: the rank that has not overflowed shows why its step was skipped."""
    launch(ingest.url, tmp_path, "steps.scaler_worker")
    infinities: list[Tensor] = []
    for rank in range(2):
        steps = torch.load(tmp_path / f"{rank}.pt", weights_only=True)
        assert ingest.series("loss_scale", rank) == in_steps([scale for scale, _ in steps])
        assert ingest.series("found_inf", rank) == in_steps([float(is_skipped) for _, is_skipped in steps])
        assert [is_skipped for _, is_skipped in steps] == [False, True, False, False, False]
        gradients = {key: cells for key, cells in ingest.tensors(rank).items() if key[1] == "grad"}
        infinities.append(
            torch.tensor([[cells[step]["inf_count"] for step in range(5)] for cells in gradients.values()])
        )
    assert not infinities[0].any() and infinities[1][:, 1].any()


@pytest.mark.parametrize("is_first", [True, False])
def test_an_optimizer_without_a_scaler_beside_one_that_was_not_given(ingest: IngestDouble, is_first: bool) -> None:
    """No second scaler comes: the first two steps are not one."""
    model = nn.ModuleDict({"a": nn.Linear(4, 4), "b": nn.Linear(4, 1)})
    scaled, plain = (torch.optim.SGD(model[name].parameters(), 1e-3) for name in "ab")
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)

    def by_scaler() -> None:
        scaled.zero_grad()
        scaler.scale(model["a"](torch.randn(8, 4)).square().mean()).backward()
        scaler.step(scaled)
        scaler.update()

    def by_itself() -> None:
        plain.zero_grad()
        model["b"](torch.randn(8, 4)).square().mean().backward()
        plain.step()

    with rangewatch.attach(model, [scaled, plain], url=ingest.url):
        for _ in range(6):
            for part in (by_scaler, by_itself) if is_first else (by_itself, by_scaler):
                part()
    assert sorted(ingest.series("loss_scale")) == list(range(6))
