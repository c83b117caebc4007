"""The phases of a step, from real training loops: which one dominates, and that they add up to the step."""

from __future__ import annotations

import contextlib
import gc
import math
import os
import pickle
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, Dataset, dataloader, get_worker_info

import rangewatch
from rangewatch import collectors
from rangewatch.recording.logged_values import OWN_SERIES
from rangewatch.recording.phase_times import SERIES
from tests.agent.ingest_double import IngestDouble

PLANTED_S = 100.0
"""Put on the agent's clock in one place of each step, whatever else the machine is busy with."""


class Clock:
    """The host's, and what was planted."""

    planted_s = 0.0

    def now_ns(self) -> int:
        return time.perf_counter_ns() + round(self.planted_s * 1e9)


CLOCK = Clock()


@pytest.fixture(autouse=True)
def nobody_times_collectives(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that exposed communication is unknown, unless a test brings a source of its own."""
    monkeypatch.setattr(collectors, "ALL", {})


@pytest.fixture(autouse=True)
def planted_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rangewatch.steps.phase_clock._now_ns", CLOCK.now_ns)


def take(seconds: float) -> None:
    """What is done here takes so long."""
    CLOCK.planted_s += seconds


class Asleep(nn.Module):
    """Sleeps in its forward, and in its backward by a hook on the gradient."""

    def __init__(self, forward_s: float = 0.0, backward_s: float = 0.0) -> None:
        super().__init__()
        self.layer, self.forward_s, self.backward_s = nn.Linear(4, 1), forward_s, backward_s

    def forward(self, x: Tensor) -> Tensor:
        take(self.forward_s)
        y: Tensor = self.layer(x)
        if y.requires_grad:
            y.register_hook(lambda gradient: take(self.backward_s))  # type: ignore[no-untyped-call]
        return y


class Rows(Dataset[Tensor]):
    def __init__(self, sleep_s: float = 0.0, rows: int = 8) -> None:
        self.sleep_s, self.rows = sleep_s, rows

    def __len__(self) -> int:
        return self.rows

    def __getitem__(self, index: int) -> Tensor:
        if get_worker_info() is None:
            take(self.sleep_s)
        else:
            time.sleep(self.sleep_s / 1000)  # another process, with a clock of its own
        return torch.ones(4)


class AsleepOptimizer(torch.optim.Optimizer):
    """Its step sleeps, or does what it is told to."""

    def __init__(self, model: nn.Module, does: Callable[[], None] = lambda: take(PLANTED_S)) -> None:
        super().__init__(model.parameters(), {})
        self.does = does

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        self.does()


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1)


def phases(ingest: IngestDouble) -> dict[int, dict[str, float]]:
    """Seconds by phase of each step that has its time; they add up to it, and none is negative."""
    times = ingest.series("step_time_s")
    known = {phase: ingest.series(name) for phase, name in SERIES.items()}
    found = {step: {phase: values[step] for phase, values in known.items() if step in values} for step in times}
    for step, seconds in found.items():
        assert math.isclose(sum(seconds.values()), times[step], rel_tol=1e-9)
        assert min(seconds.values()) >= 0
    assert not any(set(values) - set(times) for values in known.values()), "the first step has none"
    return found


def dominant(ingest: IngestDouble) -> set[str]:
    """The phases that took longest, of all steps."""
    found = phases(ingest)
    assert found
    return {max(seconds, key=lambda phase: seconds[phase]) for seconds in found.values()}


def run(ingest: IngestDouble, model: nn.Module, batches: Any, **options: Any) -> None:
    optimizer = sgd(model)
    with rangewatch.attach(model, optimizer, url=ingest.url, **options):
        for batch in batches:
            model(batch).sum().backward()
            optimizer.step()
            optimizer.zero_grad()


def floats(count: int = 4) -> list[Tensor]:
    return [torch.ones(2, 4)] * count


class TestTheOneThatTakesLongest:
    def test_forward(self, ingest: IngestDouble) -> None:
        run(ingest, Asleep(forward_s=PLANTED_S), floats())
        assert dominant(ingest) == {"forward"}
        assert sorted(phases(ingest)) == [1, 2, 3]

    def test_backward(self, ingest: IngestDouble) -> None:
        run(ingest, Asleep(backward_s=PLANTED_S), floats())
        assert dominant(ingest) == {"backward"}

    def test_the_losss_own_backward_is_in_it(self, ingest: IngestDouble) -> None:
        model = nn.Linear(4, 1)
        optimizer = sgd(model)
        with rangewatch.attach(model, optimizer, url=ingest.url):
            for batch in floats():
                loss = model(batch).pow(2).sum()
                loss.register_hook(lambda gradient: take(PLANTED_S))
                loss.backward()
                optimizer.step()
        assert dominant(ingest) == {"backward"}

    @pytest.mark.parametrize("workers", [0, 2])
    def test_data(self, ingest: IngestDouble, workers: int) -> None:
        run(ingest, nn.Linear(4, 1), DataLoader(Rows(PLANTED_S), batch_size=2, num_workers=workers))
        assert "data_wait" in dominant(ingest)  # of some steps only: two workers may have the next batch ready

    def test_optimizer(self, ingest: IngestDouble) -> None:
        model = nn.Linear(4, 1)
        optimizer = AsleepOptimizer(model)
        with rangewatch.attach(model, optimizer, url=ingest.url):
            for batch in floats():
                model(batch).sum().backward()
                optimizer.step()
        assert dominant(ingest) == {"optimizer"}

    def test_what_is_none_of_these_is_other(self, ingest: IngestDouble) -> None:
        model = nn.Linear(4, 1)
        optimizer = sgd(model)
        with rangewatch.attach(model, optimizer, url=ingest.url):
            for batch in floats():
                model(batch).sum().backward()
                take(PLANTED_S)  # a checkpoint
                optimizer.step()
        assert dominant(ingest) == {"other"}

    def test_an_iterator_of_the_users_own_is_unknown(self, ingest: IngestDouble) -> None:
        def batches() -> Iterator[Tensor]:
            for batch in floats():
                take(PLANTED_S)
                yield batch

        run(ingest, nn.Linear(4, 1), batches())
        assert ingest.series("data_wait_s") == {} and ingest.series("exposed_comm_s") == {}, "unknown, not 0"
        assert dominant(ingest) == {"other"}

    def test_a_prefetching_thread_waits_for_nobody(self, ingest: IngestDouble) -> None:
        model, loader = nn.Linear(4, 1), DataLoader(Rows(rows=64), batch_size=1)
        optimizer = sgd(model)
        with rangewatch.attach(model, optimizer, url=ingest.url):
            thread = threading.Thread(target=lambda: list(loader))
            thread.start()
            for batch in floats():
                model(batch).sum().backward()
                optimizer.step()
            thread.join()
        assert ingest.series("data_wait_s") == {}


class TestLoops:
    def test_a_scaler_that_skips(self, ingest: IngestDouble) -> None:
        """Its unscaling and its search for Inf are the optimizer's, also where it then steps nothing."""
        model, scaler = nn.Linear(4, 1, bias=False), torch.amp.GradScaler("cpu", init_scale=2.0**100)
        optimizer = sgd(model)
        with rangewatch.attach(model, optimizer, scaler=scaler, url=ingest.url):
            for value in (1.0, 1.0, 2.0**40, 1.0):
                scaler.scale(model(torch.full((1, 4), value)).sum()).backward()
                scaler.step(optimizer)
                scaler.update()
                optimizer.zero_grad()
        assert ingest.series("skipped_step")[2] == 1.0
        assert all(seconds["optimizer"] > 0 for seconds in phases(ingest).values())
        assert torch.amp.GradScaler.step.__module__.startswith("torch")

    def test_an_optimizer_that_the_scaler_skips_took_no_time(self, ingest: IngestDouble) -> None:
        """Known to be 0, since it has been seen before: not left out."""
        model = nn.Linear(4, 1)
        optimizer = sgd(model)
        with rangewatch.attach(model, url=ingest.url) as handle:
            agent = handle._agent
            assert agent is not None
            for step in range(4):
                if step == 1:
                    agent.phases.enter("optimizer")
                    optimizer.step()
                    agent.phases.leave("optimizer")
                handle.step()
        assert [seconds.get("optimizer") for seconds in phases(ingest).values()][1:] == [0.0, 0.0]

    def test_gradients_accumulate_over_microbatches(self, ingest: IngestDouble) -> None:
        model = Asleep(forward_s=PLANTED_S / 3)
        optimizer = sgd(model)
        with rangewatch.attach(model, optimizer, url=ingest.url):
            for _ in range(3):
                for batch in floats(3):
                    model(batch).sum().backward()
                optimizer.step()
        assert dominant(ingest) == {"forward"}
        assert all(seconds["forward"] >= PLANTED_S for seconds in phases(ingest).values())

    def test_two_optimizers(self, ingest: IngestDouble) -> None:
        model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1))
        optimizers = [AsleepOptimizer(layer) for layer in model]
        with rangewatch.attach(model, optimizers, url=ingest.url):
            for batch in floats():
                model(batch).sum().backward()
                for optimizer in optimizers:
                    optimizer.step()
        assert all(seconds["optimizer"] >= 2 * PLANTED_S for seconds in phases(ingest).values())

    def test_a_closure_is_no_part_of_the_optimizer(self, ingest: IngestDouble) -> None:
        model = Asleep(forward_s=PLANTED_S)
        optimizer = torch.optim.LBFGS(model.parameters(), max_iter=2)
        with rangewatch.attach(model, optimizer, url=ingest.url):
            for batch in floats(3):

                def closure(batch: Tensor = batch) -> Tensor:
                    optimizer.zero_grad()
                    loss: Tensor = model(batch).sum()
                    loss.backward()  # type: ignore[no-untyped-call]
                    return loss

                optimizer.step(closure)  # type: ignore[no-untyped-call]
        assert dominant(ingest) == {"forward"}

    @pytest.mark.parametrize("in_thread", [False, True])
    def test_an_optimizer_that_steps_in_the_backward(self, ingest: IngestDouble, in_thread: bool) -> None:
        """In a thread of the engine's, where parameters are on a device; what is left of the backward is one."""
        model = nn.Linear(4, 1, bias=False)
        optimizer = sgd(model)

        def step(parameter: Tensor) -> None:
            thread = threading.Thread(target=optimizer.step)
            thread.start() if in_thread else thread.run()
            if in_thread:
                thread.join()
            take(PLANTED_S)

        model.weight.register_post_accumulate_grad_hook(step)
        with rangewatch.attach(model, optimizer, url=ingest.url):
            for batch in floats(4):
                model(batch).sum().backward()
        assert dominant(ingest) == {"backward"}
        assert all(seconds["forward"] > 0 for seconds in phases(ingest).values())

    @pytest.mark.parametrize("use_reentrant", [False, True])
    def test_a_checkpoints_recomputation_is_backward(self, ingest: IngestDouble, use_reentrant: bool) -> None:
        model = Asleep(forward_s=PLANTED_S)
        optimizer = sgd(model)
        with rangewatch.attach(model, optimizer, url=ingest.url):
            for batch in floats(3):
                inputs = batch.clone().requires_grad_()
                checkpoint(model, inputs, use_reentrant=use_reentrant).sum().backward()
                optimizer.step()
        for seconds in phases(ingest).values():
            assert seconds["backward"] >= PLANTED_S and seconds["forward"] >= PLANTED_S

    def test_evaluation_is_other(self, ingest: IngestDouble) -> None:
        model = Asleep(forward_s=PLANTED_S)
        optimizer = sgd(model)
        with rangewatch.attach(model, optimizer, url=ingest.url):
            for batch in floats(3):
                model.layer(batch).sum().backward()
                optimizer.step()
                model.eval()
                with torch.no_grad():
                    model(batch)
                model.train()
        assert dominant(ingest) == {"other"}

    def test_a_model_that_nobody_calls_is_watched_by_its_children(self, ingest: IngestDouble) -> None:
        class Module(nn.Module):
            """As Lightning's: the loop calls a method."""

            def __init__(self) -> None:
                super().__init__()
                self.parts = nn.ModuleList([Asleep(forward_s=PLANTED_S)])

            def training_step(self, batch: Tensor) -> Tensor:
                found: Tensor = self.parts[0](batch).sum()
                return found

        model = Module()
        optimizer = sgd(model)
        with rangewatch.attach(model, optimizer, url=ingest.url):
            for batch in floats(4):
                model.training_step(batch).backward()  # type: ignore[no-untyped-call]
                optimizer.step()
        assert dominant(ingest) == {"forward"}
        assert sorted(ingest.series("forward_s")) == [1, 2, 3]
        assert not model.parts[0]._forward_pre_hooks

    def test_two_attached_models(self, ingest: IngestDouble) -> None:
        models = [nn.Linear(4, 1), nn.Linear(4, 1)]
        optimizers = [sgd(model) for model in models]
        handles = [rangewatch.attach(model, optimizer, url=ingest.url, run=f"run {index}")
                   for index, (model, optimizer) in enumerate(zip(models, optimizers, strict=True))]  # fmt: skip
        for batch in DataLoader(Rows(PLANTED_S), batch_size=2):
            for model, optimizer in zip(models, optimizers, strict=True):
                model(batch).sum().backward()
                optimizer.step()
        handles[0].detach()
        assert dominant(ingest) == {"data_wait"}
        assert "timed" in dataloader._BaseDataLoaderIter.__next__.__code__.co_name, "the other one still needs it"
        handles[1].detach()

    def test_a_loop_that_ends_its_steps_itself(self, ingest: IngestDouble) -> None:
        model = Asleep(forward_s=PLANTED_S)
        with rangewatch.attach(model, url=ingest.url) as handle:
            for batch in floats(3):
                model(batch).sum().backward()
                handle.step()
        assert dominant(ingest) == {"forward"}
        assert ingest.series("optimizer_s") == {}


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
class TestCompiled:
    @pytest.fixture(autouse=True)
    def fresh_compiler(self) -> Iterator[None]:
        torch._dynamo.reset()
        yield
        torch._dynamo.reset()

    @pytest.mark.parametrize("backend", ["eager", pytest.param("aot_eager", marks=pytest.mark.slow)])
    def test_it_is_one_graph_and_has_its_phases(self, ingest: IngestDouble, backend: str) -> None:
        model = nn.Sequential(nn.Linear(4, 64), nn.ReLU(), nn.Linear(64, 1))
        optimizer = sgd(model)
        with rangewatch.attach(model, optimizer, url=ingest.url):
            compiled = torch.compile(model, fullgraph=True, backend=backend)
            for batch in floats(4):
                compiled(batch).sum().backward()
                optimizer.step()
        found = phases(ingest)
        assert all(seconds["forward"] > 0 and seconds["backward"] > 0 for seconds in found.values())

    def test_no_operator_where_there_is_no_other_of_ours(self, ingest: IngestDouble) -> None:
        """CUDA graphs would not hold it. Then forward is unknown."""
        graphs = []

        def keep(graph: torch.fx.GraphModule, inputs: Any) -> Callable[..., Any]:
            graphs.append(graph.code)
            return graph.forward

        model = nn.Linear(4, 1)
        optimizer = sgd(model)
        with rangewatch.attach(model, optimizer, url=ingest.url, kinds="grad"):
            compiled = torch.compile(model, fullgraph=True, backend=keep)
            for batch in floats(3):
                compiled(batch).sum().backward()
                optimizer.step()
        assert graphs and not any("rangewatch" in code for code in graphs)
        assert ingest.series("forward_s") == {}
        assert set(phases(ingest)[2]) == {"backward", "optimizer", "other"}

    def test_nothing_is_exported(self, ingest: IngestDouble) -> None:
        model = nn.Linear(4, 1)
        with rangewatch.attach(model, url=ingest.url):
            program = torch.export.export(model, (torch.ones(2, 4),))
        assert program.graph_module.code == torch.export.export(model, (torch.ones(2, 4),)).graph_module.code
        assert "rangewatch" not in program.graph_module.code

    def test_nothing_of_it_is_in_a_trace(self, ingest: IngestDouble) -> None:
        model = nn.Linear(4, 1)
        plain = make_fx(model)(torch.ones(2, 4)).code
        with rangewatch.attach(model, url=ingest.url, level="grads") as handle:
            model(torch.ones(2, 4))
            handle.step()
            assert make_fx(model)(torch.ones(2, 4)).code == plain
            with FakeTensorMode(allow_non_fake_inputs=True):
                model(torch.ones(2, 4))


class TestFaults:
    def test_an_exception_in_the_middle_of_a_forward(self, ingest: IngestDouble) -> None:
        class Fails(Asleep):
            def forward(self, x: Tensor) -> Tensor:
                if not x.any():
                    raise MemoryError("no room")
                return super().forward(x)

        model = Fails(forward_s=PLANTED_S / 10)
        optimizer = sgd(model)
        with rangewatch.attach(model, optimizer, url=ingest.url):
            for batch in floats(3):
                with contextlib.suppress(MemoryError):
                    model(torch.zeros(2, 4))
                take(PLANTED_S)  # in no phase
                model(batch).sum().backward()
                optimizer.step()
        assert dominant(ingest) == {"other"}

    def test_an_exception_in_a_backward(self, ingest: IngestDouble) -> None:
        model = nn.Linear(4, 1)
        optimizer = sgd(model)

        def fail(gradient: Tensor) -> None:
            raise MemoryError("no room")

        with rangewatch.attach(model, optimizer, url=ingest.url):
            for batch in floats(3):
                loss = model(batch).sum()
                loss.register_hook(fail)
                with contextlib.suppress(MemoryError):
                    loss.backward()
                take(PLANTED_S)
                optimizer.step()
        assert dominant(ingest) == {"other"}

    def test_an_exception_in_an_optimizer_ends_with_the_step(self, ingest: IngestDouble) -> None:
        """Nobody tells us of it."""

        def fail_at_the_second() -> None:
            calls.append(1)
            if len(calls) == 2:
                raise MemoryError("no room")

        model, calls = nn.Linear(4, 1), list[int]()
        optimizer = AsleepOptimizer(model, fail_at_the_second)
        with rangewatch.attach(model, optimizer, url=ingest.url):
            for batch in floats(5):
                with contextlib.suppress(MemoryError):
                    model(batch).sum().backward()
                    optimizer.step()
                take(PLANTED_S)
        found = phases(ingest)
        assert sorted(found) == [1, 2, 3]
        assert max(found[2], key=lambda phase: found[2][phase]) == "other"

    def test_an_exception_of_the_data_set_reaches_the_loop(self, ingest: IngestDouble) -> None:
        class Fails(Rows):
            def __getitem__(self, index: int) -> Tensor:
                raise KeyError(index)

        model = nn.Linear(4, 1)
        with rangewatch.attach(model, url=ingest.url) as handle:
            with pytest.raises(KeyError):
                list(DataLoader(Fails()))
            assert handle._agent is not None and not handle._agent.phases._inside

    @pytest.mark.allow_faults
    def test_a_fault_of_ours_reaches_nobody(self, ingest: IngestDouble, monkeypatch: pytest.MonkeyPatch) -> None:
        def fail(self: Any, now_ns: int) -> None:
            raise ValueError("planted")

        model, loader = nn.Linear(4, 1), DataLoader(Rows(), batch_size=2)
        optimizer = sgd(model)
        with rangewatch.attach(model, optimizer, url=ingest.url) as handle:
            monkeypatch.setattr("rangewatch.steps.phase_clock.PhaseClock._cut", fail)
            for batch in loader:
                model(batch).sum().backward()
                optimizer.step()
            assert {"data_wait", "forward", "backward", "optimizer"} <= set(handle.stats()["faults"])
            monkeypatch.undo()

    def test_a_forked_child_does_nothing(self, ingest: IngestDouble) -> None:
        model, loader = nn.Linear(4, 1), DataLoader(Rows(), batch_size=2)
        with rangewatch.attach(model, url=ingest.url) as handle:
            agent = handle._agent
            assert agent is not None
            pid = os.fork()
            if pid == 0:
                try:
                    for batch in loader:
                        model(batch).sum().backward()
                    os._exit(0 if agent.phases.seen == {"other"} else 1)
                except BaseException:
                    os._exit(2)
            assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


class TestExposedCommunication:
    class Source:
        def __init__(self, seconds: float) -> None:
            self.seconds, self.taken = seconds, 0

        def take_exposed_s(self) -> float:
            self.taken += 1
            return self.seconds

    def train(self, ingest: IngestDouble, *sources: Any) -> None:
        model = Asleep(forward_s=PLANTED_S)
        optimizer = sgd(model)
        with rangewatch.attach(model, optimizer, url=ingest.url) as handle:
            assert handle._agent is not None
            handle._agent.phase_sources.extend(sources)
            for batch in floats(3):
                model(batch).sum().backward()
                optimizer.step()

    def test_it_is_taken_from_the_phase_it_happened_in(self, ingest: IngestDouble) -> None:
        self.train(ingest, self.Source(1e-5), self.Source(0.0))
        for seconds in phases(ingest).values():
            assert 0 < seconds["exposed_comm"] < seconds["forward"]

    def test_more_than_there_was_leaves_nothing_negative(self, ingest: IngestDouble) -> None:
        self.train(ingest, self.Source(1000.0))
        assert dominant(ingest) == {"exposed_comm"}

    @pytest.mark.parametrize("known", range(1, 12))
    def test_what_turns_out_unknown_in_the_middle_of_a_step(self, ingest: IngestDouble, known: int) -> None:
        """The phases add up to the step all the same; `phases` looks."""

        class Source(self.Source):  # type: ignore[name-defined,misc]
            def take_exposed_s(self) -> float:
                return math.nan if super().take_exposed_s() and self.taken > known else 1e-5

        self.train(ingest, Source(1e-5))
        assert {len(seconds) for seconds in phases(ingest).values()} <= {4, 5}

    @pytest.mark.allow_faults
    def test_one_that_fails_is_dropped(self, ingest: IngestDouble) -> None:
        class Broken:
            def take_exposed_s(self) -> float:
                raise OSError("planted")

        good = self.Source(0.0)
        self.train(ingest, Broken(), good)
        assert ingest.events("fault")[-1].data == {"exposed communication": 1}
        assert good.taken > 5 and set(ingest.series("exposed_comm_s").values()) == {0.0}


class TestDetach:
    def test_torchs_own_functions_are_back(self, ingest: IngestDouble) -> None:
        names = [(dataloader._BaseDataLoaderIter, "__next__"), (DataLoader, "__iter__"), (torch.autograd, "backward")]
        before = [vars(owner)[name] for owner, name in names]
        model = nn.Linear(4, 1)
        handle = rangewatch.attach(model, sgd(model), url=ingest.url)
        assert all(vars(owner)[name] is not own for (owner, name), own in zip(names, before, strict=True))
        handle.detach()
        assert [vars(owner)[name] for owner, name in names] == before

    def test_what_somebody_wrapped_on_top_stays(self, ingest: IngestDouble, monkeypatch: pytest.MonkeyPatch) -> None:
        model, calls = nn.Linear(4, 1), []
        own = torch.autograd.backward
        for _ in range(2):
            handle = rangewatch.attach(model, url=ingest.url)
            inner = torch.autograd.backward

            def theirs(*args: Any, inner: Any = inner, **kwargs: Any) -> None:
                calls.append(1)
                inner(*args, **kwargs)

            monkeypatch.setattr(torch.autograd, "backward", theirs)
            handle.detach()
            assert torch.autograd.backward is theirs
        model(torch.ones(1, 4)).sum().backward()
        assert len(calls) == 2
        monkeypatch.setattr(torch.autograd, "backward", own)
        with rangewatch.attach(model, url=ingest.url):
            assert torch.autograd.backward is not own, "and it is wrapped again when that is gone"
        assert torch.autograd.backward is own

    def test_nothing_keeps_the_model(self, ingest: IngestDouble) -> None:
        model = nn.Linear(4, 1)
        optimizer = sgd(model)
        with rangewatch.attach(model, optimizer, url=ingest.url):
            assert isinstance(pickle.loads(pickle.dumps(model)), nn.Linear)
        reference = weakref.ref(model)
        del model, optimizer
        gc.collect()
        assert reference() is None

    def test_the_names_are_the_agents_own(self) -> None:
        assert set(SERIES.values()) <= OWN_SERIES
