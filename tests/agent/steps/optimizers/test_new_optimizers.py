"""Optimizers that `attach` was not given, modules made for it alone, and what a step is with several optimizers."""

from __future__ import annotations

import copy
import gc
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import optimizer as torch_optimizer

import rangewatch
from rangewatch.steps.boundary import StepBoundary
from tests.agent.ingest_double import IngestDouble


def two_layers() -> nn.Sequential:
    return nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))


def train(model: nn.Module, *optimizers: torch.optim.Optimizer) -> None:
    model(torch.ones(1, 2)).sum().backward()
    for optimizer in optimizers:
        optimizer.step()
        optimizer.zero_grad()


def sgd(module: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(module.parameters(), lr=0.1)


def steps_of(ingest: IngestDouble, name: str = "0") -> list[int]:
    return sorted(ingest.tensors()[name, "output", 0])


@pytest.fixture(autouse=True)
def no_hook_for_all_optimizers_is_left() -> Any:
    yield
    assert not torch_optimizer._global_optimizer_pre_hooks


class TestNewOptimizers:
    @pytest.mark.parametrize("is_old_alive", [False, True])
    def test_layers_are_unfrozen_and_the_optimizer_made_anew(
        self, ingest: IngestDouble, is_old_alive: bool, caplog: pytest.LogCaptureFixture
    ) -> None:
        model = two_layers()
        model[0].requires_grad_(False)
        optimizer = sgd(model[1])
        kept = [optimizer] if is_old_alive else []
        handle = rangewatch.attach(model, optimizer, url=ingest.url, kinds=("output", "grad", "reduced_grad"))
        for step in range(8):
            if step == 4:
                model[0].requires_grad_(True)
                optimizer = sgd(model)
            train(model, optimizer)
            handle.log(loss=float(step))
        assert handle.stats()["step"] == 8
        handle.detach()
        del kept
        assert steps_of(ingest) == list(range(8))
        assert ingest.series("loss") == {step: float(step) for step in range(8)}
        assert {5, 6, 7} <= set(ingest.tensors()["0.weight", "reduced_grad", 0]), "it is read before each step"
        assert sorted(ingest.series("optimizer_s")) == list(range(1, 8))
        assert caplog.text.count("SGD, which attach was not given") == 1

    def test_the_server_is_away(self, tmp_path: Path) -> None:
        model = two_layers()
        optimizer = sgd(model[1])
        with rangewatch.attach(model, optimizer, url="http://127.0.0.1:9", spool_dir=str(tmp_path)) as handle:
            for step in range(6):
                if step == 3:
                    optimizer = sgd(model)
                train(model, optimizer)
            assert handle.stats()["step"] == 6 and not handle.stats()["faults"]

    def test_an_optimizer_of_other_layers_takes_over(self, ingest: IngestDouble) -> None:
        model = two_layers()
        first, second = sgd(model[0]), sgd(model[1])
        with rangewatch.attach(model, first, url=ingest.url) as handle:
            for _ in range(4):
                train(model, first)
            for _ in range(6):
                train(model, second)
            assert handle.stats()["step"] == 9, "whether the first would go on is not known at once: two are one"
            train(model, first)
            assert handle.stats()["step"] == 9, "both are in use now, and a step is one of each"
            train(model, second)
            assert handle.stats()["step"] == 10

    def test_one_that_was_not_given_and_steps_beside_another_ends_no_step(self, ingest: IngestDouble) -> None:
        model = two_layers()
        critic, generator = sgd(model[0]), sgd(model[1])
        with rangewatch.attach(model, generator, url=ingest.url) as handle:
            for _ in range(6):
                for _ in range(5):
                    train(model, critic)
                train(model, generator)
            assert handle.stats()["step"] == 6

    @pytest.mark.parametrize("is_given", [False, True])
    @pytest.mark.parametrize("kept_as", [list, tuple, lambda each: dict(enumerate(each))])
    def test_a_container_of_known_ones_ends_no_step_of_its_own(
        self, ingest: IngestDouble, caplog: pytest.LogCaptureFixture, is_given: bool, kept_as: Any
    ) -> None:
        """torchtitan's `OptimizersContainer` is an optimizer itself, with all parameters and no settings."""

        class Container(torch.optim.Optimizer):
            def __init__(self, optimizers: list[torch.optim.Optimizer]) -> None:
                self.inner = kept_as(optimizers)
                every = [each for one in optimizers for group in one.param_groups for each in group["params"]]
                super().__init__(every, {})

            def step(self, closure: Any = None) -> None:
                for each in self.inner.values() if isinstance(self.inner, dict) else self.inner:
                    each.step()

        model = two_layers()
        inner = [sgd(model[0]), sgd(model[1])]
        container = Container(inner)
        given = [*inner, container] if is_given else inner
        with rangewatch.attach(model, given, url=ingest.url) as handle:
            for _ in range(4):
                train(model, container)
            assert handle.stats()["step"] == 4
        assert "which attach was not given" not in caplog.text

    def test_of_another_model_or_inside_one_that_is_known(self, ingest: IngestDouble) -> None:
        class Outer(torch.optim.SGD):
            def __init__(self, parameters: Any) -> None:
                super().__init__(parameters, lr=0.1)
                self.inner = torch.optim.SGD(self.param_groups, lr=0.1)

            def step(self, closure: Any = None) -> None:
                self.inner.step()
                self.inner.step()

        model, other = two_layers(), two_layers()
        optimizer, of_other = Outer(list(model.parameters())), sgd(other)
        with rangewatch.attach(model, optimizer, url=ingest.url) as handle:
            for _ in range(4):
                train(other, of_other)
                train(other, of_other)
                train(model, optimizer)
            assert handle.stats()["step"] == 4

    def test_after_a_step_that_raised_new_ones_are_followed_as_ever(self, ingest: IngestDouble) -> None:
        class Raises(torch.optim.SGD):
            def step(self, closure: Any = None) -> None:
                raise ArithmeticError

        model = two_layers()
        broken = Raises(model.parameters(), lr=0.1)
        with rangewatch.attach(model, broken, url=ingest.url) as handle:
            with pytest.raises(ArithmeticError):
                train(model, broken)
            optimizer = sgd(model)
            for _ in range(4):
                train(model, optimizer)
            assert handle.stats()["step"] == 4

    def test_no_optimizer_was_given(self, ingest: IngestDouble, caplog: pytest.LogCaptureFixture) -> None:
        """As under a trainer that makes its own."""
        model = two_layers()
        rangewatch.attach(model, url=ingest.url)
        optimizer = sgd(model)
        for _ in range(5):
            train(model, optimizer)
        train(model)
        rangewatch.detach(model)
        assert steps_of(ingest) == list(range(5))
        assert {cell["call_count"] for cell in ingest.tensors()["0", "output", 0].values()} == {1.0}
        assert "attach was given no optimizer" in caplog.text

    def test_no_optimizer_was_given_and_the_loop_says_where_a_step_ends(self, ingest: IngestDouble) -> None:
        model = two_layers()
        optimizer = sgd(model)
        with rangewatch.attach(model, url=ingest.url) as handle:
            for _ in range(5):
                train(model, optimizer)
                handle.step()
            assert handle.stats()["step"] == 5

    def test_nothing_says_where_a_step_ends(self, ingest: IngestDouble, caplog: pytest.LogCaptureFixture) -> None:
        model = two_layers()
        with rangewatch.attach(model, sgd(model), url=ingest.url, run="silent"):
            train(model)
        assert "run 'silent' has no steps" in caplog.text

    def test_with_a_new_scaler_too(self, ingest: IngestDouble) -> None:
        model = two_layers()
        optimizer, scaler = sgd(model), torch.amp.GradScaler("cpu", init_scale=4.0)
        with rangewatch.attach(model, optimizer, scaler=scaler, url=ingest.url) as handle:
            for step in range(6):
                if step == 3:
                    optimizer = sgd(model)
                scaler.scale(model(torch.ones(1, 2)).sum()).backward()
                scaler.step(optimizer)
                scaler.update()
            assert handle.stats()["step"] == 6
        assert sorted(ingest.series("loss_scale")) == list(range(6))


class TestContainers:
    def test_one_made_in_the_call_lives_as_long_as_its_parts(self, ingest: IngestDouble) -> None:
        one, other = nn.Linear(2, 2), nn.Linear(2, 1)
        optimizer = torch.optim.SGD([*one.parameters(), *other.parameters()], lr=0.1)
        rangewatch.attach(nn.ModuleDict({"one": one, "other": other}), optimizer, url=ingest.url, kinds=("weight",))
        gc.collect()
        for _ in range(3):
            other(one(torch.ones(1, 2))).sum().backward()
            optimizer.step()
        copied, pickled = copy.deepcopy(one), pickle.loads(pickle.dumps(one))
        for each in (copied, pickled):
            assert each.weight.equal(one.weight) and vars(each)["_range_container"] is None
        rangewatch.detach(_container_of(one))
        assert not [name for name in vars(one) if name.startswith("_range")]
        assert ("one.weight", "weight", 0) in ingest.tensors()

    def test_it_goes_with_its_parts(self, ingest: IngestDouble) -> None:
        one = nn.Linear(2, 2)
        handle = rangewatch.attach(nn.ModuleList([one]), sgd(one), url=ingest.url)
        container = _container_of(one)
        reference = rangewatch.api.attachment.ref(container)
        handle.detach()
        del container
        gc.collect()
        assert reference() is None and not vars(one).get("_range_container")


def _container_of(child: nn.Module) -> nn.Module:
    return child.__dict__["_range_container"].module  # type: ignore[no-any-return]


class TestStepEnds:
    @pytest.mark.parametrize(
        ("step_ends", "wanted"), [("all", 9), ("any", 18), ("first", 15), ("last", 3), ("handle", 2)]
    )
    def test_a_gan_whose_critic_steps_five_times(
        self, ingest: IngestDouble, step_ends: str, wanted: int, caplog: pytest.LogCaptureFixture
    ) -> None:
        model = two_layers()
        critic, generator = sgd(model[0]), sgd(model[1])
        with rangewatch.attach(model, [critic, generator], url=ingest.url, step_ends=step_ends) as handle:
            for number in range(3):
                for _ in range(5):
                    train(model, critic)
                train(model, generator)
                if number:
                    handle.step()
            assert handle.stats()["step"] == wanted
        assert ("one optimizer has stepped twice" in caplog.text) == (step_ends == "all")

    @pytest.mark.parametrize(("step_ends", "wanted"), [("any", 18), ("first", 15), ("last", 3)])
    def test_with_a_scaler(self, ingest: IngestDouble, step_ends: str, wanted: int) -> None:
        model = two_layers()
        critic, generator = sgd(model[0]), sgd(model[1])
        scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
        both = [critic, generator]
        with rangewatch.attach(model, both, scaler=scaler, url=ingest.url, step_ends=step_ends) as handle:
            for _ in range(3):
                for optimizer in [critic] * 5 + [generator]:
                    scaler.scale(model(torch.ones(1, 2)).sum()).backward()
                    scaler.step(optimizer)
                    scaler.update()
            assert handle.stats()["step"] == wanted

    def test_the_optimizers_of_two_stages(self, ingest: IngestDouble, caplog: pytest.LogCaptureFixture) -> None:
        """Each update is a step, and what is not in use yet has no say."""
        model = two_layers()
        first = torch.optim.AdamW(model.parameters(), lr=1e-3)
        second = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=50.0)
        with rangewatch.attach(model, [first, second], url=ingest.url) as handle:
            for step in range(12):
                train(model, first if step < 6 else second)
            assert handle.stats()["step"] == 12
        assert "stepped twice" not in caplog.text
        known = ingest.events("optimizers")
        assert (known[0].data["weight_decay"], known[0].data["decay_part"]) == (0.01, 0.0)
        assert (known[-1].step, known[-1].data["decay_part"]) == (6, 0.5)
        assert set(ingest.series("weights_written").values()) == {0.0}, "no update is other code's"

    def test_the_second_stage_trains_more_layers(self, ingest: IngestDouble, caplog: pytest.LogCaptureFixture) -> None:
        model = two_layers()
        first, second = sgd(model[1]), sgd(model)
        with rangewatch.attach(model, [first, second], url=ingest.url) as handle:
            for step in range(12):
                train(model, first if step < 6 else second)
            assert handle.stats()["step"] == 11, "that the second rests is known when the first has stepped twice"
        assert "stepped twice" in caplog.text

    def test_part_of_the_parameters_has_a_second_optimizer(self, ingest: IngestDouble) -> None:
        """As an adversarial autoencoder's encoder."""
        model = two_layers()
        both, encoder = sgd(model), sgd(model[0])
        with rangewatch.attach(model, [both, encoder], url=ingest.url) as handle:
            for _ in range(6):
                train(model, both)
                train(model, encoder)
            assert handle.stats()["step"] == 6

    def test_one_of_two_is_used_no_more(self) -> None:
        assert ends([0] * 40) == [*range(1, 16, 2), *range(16, 40)], "two are one until it is clear"

    @pytest.mark.parametrize("critics", [1, 3, 5, 15])
    def test_steps_of_a_gan_begin_at_the_same_place_of_each_turn(self, critics: int) -> None:
        ended = ends(([0] * critics + [1]) * 40)
        assert ended == list(range(1, 40 * (critics + 1), 2))

    def test_one_that_came_back_late_is_not_waited_for_so_long_again(self) -> None:
        ended = ends(([0] * 40 + [1]) * 3)
        assert [sum(40 * turn <= each < 40 * (turn + 1) for each in ended) for turn in range(3)] == [32, 38, 38]


def ends(keys: list[int]) -> list[int]:
    """Which of these steps of two optimizers, by their keys, end a step."""
    ended: list[int] = []

    class Steps:
        def close_step(self) -> None:
            ended.append(position)

    boundary = StepBoundary(Steps(), 2)
    for position, key in enumerate(keys):  # noqa: B007 - `Steps` reads it
        boundary.optimizer_stepped(key)
    return ended
