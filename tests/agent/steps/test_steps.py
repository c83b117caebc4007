"""When a step ends, and what is recorded of loss scaling and the user's values."""

from __future__ import annotations

import copy
import gc
import pickle
from collections.abc import Iterable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import rangewatch
from rangewatch.recording.logged_values import _now
from rangewatch.steps.boundary import StepBoundary
from rangewatch.steps.scalers.method_watch import Patch
from tests.agent.ingest_double import IngestDouble


def scaled_run(ingest: IngestDouble, inputs: list[float], scaler: Any, **options: Any) -> list[float]:
    """Train one weight on `inputs`; the scales each step's backward used, as the scaler itself says."""
    model = nn.Linear(1, 1, bias=False)
    nn.init.ones_(model.weight)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    scales = []
    with rangewatch.attach(model, optimizer, scaler=scaler, url=ingest.url, **options):
        for value in inputs:
            scaler.scale(model(torch.tensor([[value]])).sum()).backward()
            scales.append(scaler.get_scale())
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
    return scales


class TestGradScaler:
    @pytest.mark.parametrize("backend", ["auto", "device"])
    def test_a_skipped_step_is_closed_and_shown(self, ingest: IngestDouble, backend: str) -> None:
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**100, growth_interval=2)
        scales = scaled_run(ingest, [1.0, 2.0**30, 1.0, 1.0, 1.0], scaler, backend=backend)
        assert ingest.series("loss_scale") == dict(enumerate(scales))
        assert scales[2] == scales[1] / 2, "the overflow was real"
        assert ingest.series("found_inf") == {0: 0.0, 1: 1.0, 2: 0.0, 3: 0.0, 4: 0.0}
        assert ingest.series("skipped_step") == ingest.series("found_inf")
        grads = ingest.tensors()["weight", "grad", 0]
        assert [grads[step]["inf_count"] for step in range(5)] == [0, 1, 0, 0, 0]
        assert grads[0]["amax"] == 2.0**100, "as the hardware held it: scaled"
        assert ingest.openings[0].info.loss_scaled

    def test_a_disabled_scaler_still_ends_the_step(self, ingest: IngestDouble) -> None:
        scaled_run(ingest, [1.0, 2.0, 3.0], torch.amp.GradScaler("cpu", enabled=False))
        assert sorted(ingest.tensors()["", "output", 0]) == [0, 1, 2]
        assert ingest.series("loss_scale") == {} and ingest.series("skipped_step") == {}

    @pytest.mark.parametrize("is_updated", [False, True])
    def test_a_disabled_scaler_that_the_loop_leaves_alone(self, ingest: IngestDouble, is_updated: bool) -> None:
        """The optimizer ends the step, and `update` does not end it again."""
        model = nn.Linear(1, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
        scaler = torch.amp.GradScaler("cpu", enabled=False)
        with rangewatch.attach(model, optimizer, scaler=scaler, url=ingest.url) as handle:
            for step in range(5):
                model(torch.full((1, 1), float(step))).sum().backward()
                optimizer.step()
                if is_updated:
                    scaler.update()
                handle.log(loss=float(step))
            assert handle.stats()["step"] == 5
        assert ingest.series("loss") == {step: float(step) for step in range(5)}
        assert {cell["call_count"] for cell in ingest.tensors()["", "output", 0].values()} == {1.0}

    def test_a_disabled_scaler_without_an_optimizer(self, ingest: IngestDouble) -> None:
        scaler = torch.amp.GradScaler("cpu", enabled=False)
        with rangewatch.attach(nn.Linear(1, 1), scaler=scaler, url=ingest.url) as handle:
            scaler.update()
            assert handle.stats()["step"] == 1

    def test_a_scaler_that_is_never_updated(self, ingest: IngestDouble) -> None:
        model = nn.Linear(1, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
        with rangewatch.attach(model, optimizer, scaler=torch.amp.GradScaler("cpu"), url=ingest.url) as handle:
            for _ in range(5):
                model(torch.ones(1, 1)).sum().backward()
                optimizer.step()
            assert handle.stats()["step"] == 4, "the first two are one; from then on each counts"

    def test_the_scaler_copies_and_pickles_and_its_class_is_as_before(self, ingest: IngestDouble) -> None:
        original = torch.amp.GradScaler.update
        scaler = torch.amp.GradScaler("cpu")
        model, other = nn.Linear(1, 1), nn.Linear(1, 1)
        first = rangewatch.attach(model, scaler=scaler, url=ingest.url)
        second = rangewatch.attach(other, scaler=torch.amp.GradScaler("cpu"), url=ingest.url)
        assert torch.amp.GradScaler.update is not original
        assert copy.deepcopy(scaler).get_scale() == pickle.loads(pickle.dumps(scaler)).get_scale()
        first.detach()
        assert torch.amp.GradScaler.update is not original, "the other one still needs it"
        second.detach()
        assert torch.amp.GradScaler.update is original
        assert not Patch.installed

    def test_a_subclass_that_inherits_update(self, ingest: IngestDouble) -> None:
        class Mine(torch.amp.GradScaler):
            pass

        scaled_run(ingest, [1.0, 1.0], Mine("cpu"))
        assert "update" not in Mine.__dict__
        assert sorted(ingest.series("loss_scale")) == [0, 1]

    def test_nobody_keeps_the_handle(self, ingest: IngestDouble) -> None:
        """The two lines of the README throw it away: everything must go on all the same."""
        scaler = torch.amp.GradScaler("cpu")
        model = nn.Linear(1, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        rangewatch.attach(model, optimizer, scaler=scaler, url=ingest.url)
        gc.collect()
        for _ in range(3):
            scaler.scale(model(torch.ones(1, 1)).sum()).backward()
            scaler.step(optimizer)
            scaler.update()
        rangewatch.detach(model)
        assert sorted(ingest.series("loss_scale")) == [0, 1, 2]
        assert sorted(ingest.tensors()["", "output", 0]) == [0, 1, 2]

    def test_an_error_of_the_scaler_is_the_hosts_own(self, ingest: IngestDouble) -> None:
        scaler = torch.amp.GradScaler("cpu")
        with rangewatch.attach(nn.Linear(1, 1), scaler=scaler, url=ingest.url) as handle:
            with pytest.raises(AssertionError, match="No inf checks"):
                scaler.scale(torch.ones(1))
                scaler.update()
            assert handle.stats()["step"] == 0


class TestBoundary:
    @staticmethod
    def ends(calls: str, optimizers: int, scalers: str) -> list[int]:
        """Positions in `calls` ("0", "1": optimizers; the letters: scalers) at which a step ended."""
        found: list[int] = []

        class Steps:
            def close_step(self) -> None:
                found.append(position)

        boundary = StepBoundary(Steps(), optimizers, map(ord, scalers))
        for position, call in enumerate(calls):  # noqa: B007 - `Steps` reads it
            boundary.scaler_updated(ord(call)) if call.isalpha() else boundary.optimizer_stepped(int(call))
        return found

    @pytest.mark.parametrize(
        ("calls", "optimizers", "scalers", "wanted"),
        [
            ("000", 1, "", [0, 1, 2]),
            ("0101", 2, "", [1, 3]),
            ("00101", 2, "", [1, 3]),
            ("0s0s", 1, "s", [1, 3]),
            ("ss", 1, "s", [0, 1]),
            ("01s01s", 2, "s", [2, 5]),
            ("000", 1, "s", [1, 2]),
            ("00s0s", 1, "s", [1, 4]),
            ("0s1t0s1t", 2, "st", [3, 7]),
            ("01st01ts", 2, "st", [3, 7]),
            ("stst", 0, "st", [1, 3]),
            ("0s0s0s", 1, "st", [2, 5]),  # the other scaler is never updated: one merged step
            ("0s000s0s", 1, "s", [1, 3, 4, 7]),  # the scaler is not updated twice, then again
            ("sstsst", 0, "st", [1, 4]),  # one scaler twice for each update of the other
        ],
    )
    def test_ends(self, calls: str, optimizers: int, scalers: str, wanted: list[int]) -> None:
        assert self.ends(calls, optimizers, scalers) == wanted

    def test_a_step_that_calls_its_parent_classs(self, ingest: IngestDouble) -> None:
        """Torch calls the hooks for both where the parent has an instance; one that fails leaves nothing."""

        class Mine(torch.optim.SGD):
            is_failing = False

            def step(self, closure: Any = None) -> Any:
                result = super().step(closure)
                if self.is_failing:
                    raise MemoryError("no room")
                return result

        class Own(Mine):
            def step(self, closure: Any = None) -> Any:
                return super().step(closure)

        model = nn.Linear(1, 1)
        for parent in (torch.optim.SGD, Mine):
            parent(model.parameters(), lr=0.1)
        optimizer = Own(model.parameters(), lr=0.1)
        optimizer.register_step_post_hook(lambda *_: called.append(1))
        called: list[int] = []
        with rangewatch.attach(model, optimizer, url=ingest.url) as handle:
            for step in range(4):
                optimizer.is_failing = step == 1
                model(torch.ones(1, 1)).sum().backward()
                try:
                    optimizer.step()
                except MemoryError:
                    assert optimizer.is_failing
            assert handle.stats()["step"] == 3
        assert len(called) > 6, "torch does call it more than once a step"

    def test_several_optimizers(self, ingest: IngestDouble) -> None:
        model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))
        optimizers = [torch.optim.SGD(layer.parameters(), lr=0.1) for layer in model]
        with rangewatch.attach(model, optimizers, url=ingest.url) as handle:
            for _ in range(3):
                model(torch.ones(1, 2)).sum().backward()
                for optimizer in optimizers:
                    optimizer.step()
            assert handle.stats()["step"] == 3


class TestSeries:
    @pytest.mark.parametrize("backend", ["auto", "device"])
    @pytest.mark.parametrize("when", ["before", "after"])
    def test_values_belong_to_the_step_they_were_computed_in(
        self, ingest: IngestDouble, backend: str, when: str
    ) -> None:
        model = nn.Linear(2, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        losses = {}
        with rangewatch.attach(model, optimizer, url=ingest.url, ship_interval_s=0, backend=backend) as handle:
            for step in range(4):
                loss = model(torch.randn(3, 2)).pow(2).mean()
                loss.backward()
                losses[step] = loss.item()
                if when == "before":
                    handle.log(loss=loss, lr=0.1 * step)
                optimizer.step()
                if when == "after":
                    handle.log(loss=loss)
                    handle.log(lr=0.1 * step)
        assert ingest.series("loss") == losses
        assert ingest.series("lr") == {step: 0.1 * step for step in range(4)}

    def test_step_time_and_wall_time(self, ingest: IngestDouble) -> None:
        with rangewatch.attach(nn.Linear(1, 1), url=ingest.url, start_step=100) as handle:
            for _ in range(3):
                handle.step()
        assert sorted(ingest.series("wall_time_s")) == [100, 101, 102]
        assert sorted(ingest.series("step_time_s")) == [101, 102], "nobody saw the first step begin"
        assert all(0 < value < 60 for value in ingest.series("step_time_s").values())

    def test_a_nan_loss_is_a_value(self, ingest: IngestDouble) -> None:
        with rangewatch.attach(nn.Linear(1, 1), url=ingest.url) as handle:
            handle.log(loss=float("nan"))
            handle.step()
        assert list(map(repr, ingest.series("loss").values())) == ["nan"]

    @pytest.mark.parametrize("kinds", [("grad",), ("output", "grad_output", "grad")])
    @pytest.mark.parametrize("when", ["top", "before backward", "after"])
    def test_no_value_is_lost_or_moved_wherever_it_is_logged(
        self, ingest: IngestDouble, kinds: tuple[str, ...], when: str
    ) -> None:
        """Also while nothing of the step has been observed, as with compiled models and with gradients alone."""
        model = nn.Linear(2, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with rangewatch.attach(model, optimizer, url=ingest.url, kinds=kinds) as handle:
            for step in range(4):
                if when == "top":
                    handle.log(value=float(step))
                loss = model(torch.randn(3, 2)).sum()
                if when == "before backward":
                    handle.log(value=float(step))
                loss.backward()
                optimizer.step()
                if when == "after":
                    handle.log(value=float(step))
        assert ingest.series("value") == {step: float(step) for step in range(4)}

    @pytest.mark.parametrize("backend", ["auto", "device"])
    @pytest.mark.parametrize("odd", ["logged twice", "a forward in between", "logged before the loop"])
    @pytest.mark.parametrize("odd_step", [0, 2])
    def test_one_odd_step_moves_no_other_value(
        self, ingest: IngestDouble, odd: str, odd_step: int, backend: str
    ) -> None:
        model = nn.Linear(2, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with rangewatch.attach(model, optimizer, url=ingest.url, backend=backend, ship_interval_s=0) as handle:
            if odd == "logged before the loop":
                handle.log(value=0.0)
            for step in range(6):
                model(torch.randn(3, 2)).sum().backward()
                optimizer.step()
                if odd == "a forward in between" and step == odd_step:
                    model(torch.randn(3, 2))
                handle.log(value=float(step))
                if odd == "logged twice" and step == odd_step:
                    handle.log(value=float(step))
        assert ingest.series("value") == {step: float(step) for step in range(6)}

    def test_a_sample_drawn_after_each_step_takes_no_value(self, ingest: IngestDouble) -> None:
        model = nn.Linear(2, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with rangewatch.attach(model, optimizer, url=ingest.url) as handle:
            for step in range(20):
                model(torch.randn(3, 2)).sum().backward()
                optimizer.step()
                if step % 5 == 4:
                    model(torch.randn(3, 2))
                handle.log(value=float(step))
        assert ingest.series("value") == {step: float(step) for step in range(20)}

    @pytest.mark.parametrize("backend", ["auto", "device"])
    @pytest.mark.parametrize("sampled", [range(12), range(0, 12, 4), [5], range(5, 12)])
    def test_a_line_after_a_sample_logs_for_the_step_before_it(
        self, ingest: IngestDouble, sampled: Iterable[int], backend: str
    ) -> None:
        """Also its first call, of which the next step alone shows that it stood behind the one that was over."""
        model = nn.Linear(2, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with rangewatch.attach(model, optimizer, url=ingest.url, backend=backend, ship_interval_s=0) as handle:
            for step in range(12):
                model(torch.randn(3, 2)).sum().backward()
                optimizer.step()
                handle.log(value=float(step))
                if step in sampled:
                    value = model(torch.randn(3, 2)).detach()[0, 0].fill_(step)
                    handle.log(of_sample=value)
                    value.fill_(-1.0)
        assert ingest.series("value") == {step: float(step) for step in range(12)}
        assert ingest.series("of_sample") == {step: float(step) for step in sampled}

    def test_a_large_tensor_is_not_kept_until_the_step_of_its_line_is_known(self) -> None:
        assert _now(value := torch.ones(()).expand(1)) == 1 and not isinstance(_now(value.expand(9)), Tensor)

    def test_a_line_within_the_step_logs_for_it_however_many_forwards_it_has(self, ingest: IngestDouble) -> None:
        model = nn.Linear(2, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with rangewatch.attach(model, optimizer, url=ingest.url) as handle:
            for step in range(12):
                first = model(torch.randn(3, 2))
                if step % 3 == 2:
                    handle.log(between=float(step))
                loss = (first - model(torch.randn(3, 2))).pow(2).sum()
                if step == 7:
                    handle.log(once=float(step))
                loss.backward()
                optimizer.step()
        assert ingest.series("between") == {step: float(step) for step in range(2, 12, 3)}
        assert ingest.series("once") == {7: 7.0}

    @pytest.mark.parametrize("ends", ["well", "by an exception"])
    def test_what_is_logged_after_the_last_forward_is_not_lost(self, ingest: IngestDouble, ends: str) -> None:
        model = nn.Linear(2, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        handle = rangewatch.attach(model, optimizer, url=ingest.url)
        for _ in range(3):
            model(torch.randn(3, 2)).sum().backward()
            optimizer.step()
        model(torch.randn(3, 2))
        handle.log(value=1.0)
        if ends == "well":
            handle.detach()
        else:
            with pytest.raises(ValueError), handle:
                raise ValueError
        assert ingest.series("value") == {2 if ends == "well" else 3: 1.0}

    @pytest.mark.allow_faults
    @pytest.mark.parametrize("backend", ["auto", "device"])
    def test_one_bad_value_takes_no_other_with_it(self, ingest: IngestDouble, backend: str) -> None:
        with rangewatch.attach(nn.Linear(1, 1), url=ingest.url, backend=backend) as handle:
            handle.log(loss=torch.ones(3), lr=0.1)
            handle.step()
            assert handle.stats()["faults"] == {"log": 1}
        assert ingest.series("lr") == {0: 0.1} and ingest.series("loss") == {}

    def test_the_agents_own_names_are_refused(self, ingest: IngestDouble, caplog: pytest.LogCaptureFixture) -> None:
        with rangewatch.attach(nn.Linear(1, 1), url=ingest.url) as handle:
            for _ in range(2):
                handle.log(skipped_step=7.0, found_inf=7.0, loss_scale=7.0, step_time_s=7.0, wall_time_s=7.0, lr=0.1)
                handle.step()
            assert handle.stats()["dropped"] == {"reserved_name": 10}
        for name in ("skipped_step", "found_inf", "loss_scale"):
            assert ingest.series(name) == {}
        assert 7.0 not in [*ingest.series("step_time_s").values(), *ingest.series("wall_time_s").values()]
        assert ingest.series("lr") == {0: 0.1, 1: 0.1}
        assert caplog.text.count("is not recorded") == 5

    @pytest.mark.allow_faults
    @pytest.mark.parametrize("value", ["text", None, torch.ones(3)])
    def test_what_is_no_number_harms_nobody(self, ingest: IngestDouble, value: Any) -> None:
        with rangewatch.attach(nn.Linear(1, 1), url=ingest.url) as handle:
            handle.log(loss=value)
            handle.step()
            assert handle.stats()["faults"] == {"log": 1}
        assert ingest.events("fault")[-1].data == {"log": 1}

    def test_step_does_nothing_where_an_optimizer_ends_steps(self, ingest: IngestDouble) -> None:
        model = nn.Linear(1, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with rangewatch.attach(model, optimizer, url=ingest.url) as handle:
            handle.step()
            optimizer.step()
            assert handle.stats()["step"] == 1

    def test_more_steps_than_the_buffer_holds(self, ingest: IngestDouble) -> None:
        model = nn.Linear(1, 1)
        with rangewatch.attach(model, url=ingest.url, ship_interval_s=3600) as handle:
            for step in range(200):
                model(torch.full((1, 1), float(step)))
                handle.step()
        assert sorted(ingest.tensors()["", "output", 0]) == list(range(200))
        assert len(ingest.batches) < 10


def test_a_catalogue_that_grows_in_the_middle_of_a_buffer(ingest: IngestDouble) -> None:
    """Rows closed before a tensor was known must not be taken for observations of it."""

    class Growing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(1))

        def forward(self, count: int) -> list[Tensor]:
            return [torch.full((2,), float(index + 1)) for index in range(count)]

    model = Growing()
    with rangewatch.attach(model, url=ingest.url, ship_interval_s=3600) as handle:
        for count in (1, 70, 2, 200):
            model(count)
            handle.step()
    recorded = ingest.tensors()
    for index in range(200):
        wanted = [step for step, count in enumerate((1, 70, 2, 200)) if index < count]
        cells = recorded["", "output", index]
        assert sorted(cells) == wanted
        assert {cell["amax"] for cell in cells.values()} == {float(index + 1)}
    order = [ingest.entry("", "output", index).call_index for index in range(200)]
    assert order == sorted(set(order))
