"""Inside what torch.compile has compiled: each tensor is read once, no graph breaks, results stay what they were."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import rangewatch
from rangewatch.recording.observer import NEVER_CALLED
from tests.agent.ingest_double import IngestDouble
from tests.agent.statistics.reference import KeepEverything, assert_recorded

pytestmark = [  # torch's own, from tracing non-leaf inputs and from Inductor
    pytest.mark.filterwarnings("ignore:The .grad attribute"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]


SLOW = pytest.mark.slow


def counted() -> Any:
    """What the compiler counts: importing it takes two seconds."""
    from torch._dynamo.utils import counters

    return counters


@pytest.fixture(autouse=True)
def fresh_compiler() -> Iterator[None]:
    torch._dynamo.reset()
    counted().clear()
    torch.manual_seed(0)
    yield
    torch._dynamo.reset()


class Block(nn.Module):
    """An in-place module after a linear one, and a residual."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.act, self.down = nn.Linear(4, 8), nn.ReLU(inplace=True), nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(self.act(self.up(x)))


def blocks(count: int = 2) -> nn.Sequential:
    return nn.Sequential(*[Block() for _ in range(count)])


@dataclasses.dataclass
class Answer:
    logits: Tensor
    extra: dict[str, Any]


class Containers(nn.Module):
    """Tuples, lists, dicts, a dataclass, None and what is no tensor; a shared module; integers."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.split, self.shared = nn.Embedding(11, 8), Split(), nn.Linear(4, 4)

    def forward(self, tokens: Tensor) -> Answer:
        x = self.embed(tokens)
        left, rest, _, _ = self.split(x)
        x = self.shared(self.shared(left)) + rest[0]
        return Answer(x, {"argmax": x.argmax(-1), "nested": ({"rest": rest},)})


class Split(nn.Module):
    def forward(self, x: Tensor) -> tuple[Tensor, list[Tensor], None, int]:
        left, right = x.tanh().chunk(2, dim=-1)
        return left, [right.exp()], None, 7


class Checkpointed(nn.Module):
    def __init__(self, *, use_reentrant: bool) -> None:
        super().__init__()
        self.first, self.inner, self.use_reentrant = nn.Linear(4, 4), Block(), use_reentrant

    def forward(self, x: Tensor) -> Tensor:
        if not torch.compiler.is_compiling():  # the reference
            return self.inner(self.first(x))
        return checkpoint(self.inner, self.first(x), use_reentrant=self.use_reentrant)


Compile = Callable[[nn.Module], Any]


def whole(model: Callable[..., Any], **options: Any) -> Any:
    return torch.compile(model, **{"backend": "aot_eager", "fullgraph": True, **options})


def by_block(model: nn.Module) -> Any:
    for child in model.children():
        child.compile(backend="aot_eager", fullgraph=True)
    return model


def train(model: nn.Module, called: Any, inputs: list[Tensor], end_step: Callable[[], None] = lambda: None) -> Any:
    """Losses and gradients of each step."""
    results = []
    for value in inputs:
        output = called(value)
        loss = (output.logits if isinstance(output, Answer) else output).pow(2).mean()
        loss.backward()
        results.append([loss.detach(), *(parameter.grad.clone() for parameter in model.parameters())])
        model.zero_grad()
        end_step()
    return results


def assert_same(found: Any, wanted: Any) -> None:
    for ours, theirs in zip(found, wanted, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))


def compare(
    ingest: IngestDouble,
    model: nn.Module,
    compile_it: Compile,
    inputs: list[Tensor],
    ordered: tuple[str, ...] = ("output", "grad_output"),  # parameters get theirs after a compiled backward
    rtol: float = 0.0,
    **options: Any,
) -> None:
    """Compiled with the agent: results are those of the compiled model without it, bit for bit, and each step's
    record is what hooks see in the eager model, in the same order.
    """
    plain, eager = copy.deepcopy(model), copy.deepcopy(model)
    with rangewatch.attach(model, url=ingest.url, run="compiled", full_every=1, **options) as handle:
        found = train(model, compile_it(model), inputs, handle.step)
        assert not counted()["graph_break"], counted()["graph_break"]
        measured_graphs = counted()["stats"]["unique_graphs"]
        assert handle.stats()["faults"] == {}
    torch._dynamo.reset()
    counted().clear()
    assert_same(found, train(plain, compile_it(plain), inputs))
    assert measured_graphs == counted()["stats"]["unique_graphs"], "as many graphs as without"
    reference, recorded = KeepEverything(eager), ingest.tensors()
    for step, value in enumerate(inputs):
        reference.clear()
        train(eager, eager, [value])
        assert_recorded(recorded, step, reference.kept, rtol)
        if step == 0:
            entries = sorted(max(ingest.catalogues.values(), key=len), key=lambda entry: entry.call_index)
            order = [(entry.fqn, entry.kind, entry.index) for entry in entries]
            for kind in ordered:
                assert [key for key in order if key[1] == kind] == [key for key in reference.order if key[1] == kind]


def floats(count: int = 3, rows: int = 5) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(rows, 4, generator=generator) for _ in range(count)]


class TestEverythingIsRecorded:
    def test_whole_model(self, ingest: IngestDouble) -> None:
        compare(ingest, blocks(), whole, floats())

    @SLOW
    def test_block_by_block_they_share_their_graphs(self, ingest: IngestDouble) -> None:
        compare(ingest, blocks(12), by_block, floats())

    def test_without_autograd_tracing(self, ingest: IngestDouble) -> None:
        compare(ingest, blocks(), lambda model: whole(model, backend="eager"), floats())

    @SLOW
    def test_inductor(self, ingest: IngestDouble, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        # Its cache outlives a test that was broken on purpose.
        monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
        compare(ingest, blocks(), lambda model: whole(model, backend="inductor"), floats(), rtol=1e-3)

    @SLOW
    @pytest.mark.parametrize("backend", ["auto", "device"])
    def test_containers_and_shared_modules(self, ingest: IngestDouble, backend: str) -> None:
        tokens = [torch.arange(6).view(2, 3) + shift for shift in range(3)]
        compare(ingest, Containers(), lambda model: whole(lambda value: model(value)), tokens, backend=backend)

    @SLOW
    @pytest.mark.parametrize("use_reentrant", [False, True])
    def test_checkpoints_recomputation_is_not_a_second_call(self, ingest: IngestDouble, use_reentrant: bool) -> None:
        model = Checkpointed(use_reentrant=use_reentrant)
        compare(ingest, model, lambda model: whole(model, fullgraph=not use_reentrant), floats(), ("output",))

    @SLOW
    def test_only_the_kinds_asked_for(self, ingest: IngestDouble) -> None:
        for kind in ("output", "grad_output"):
            model = blocks()
            ingest.batches.clear()
            with rangewatch.attach(model, url=ingest.url, kinds=kind, run=kind) as handle:
                train(model, whole(model), floats(1), handle.step)
            assert {key[1] for key in ingest.tensors()} == {kind}
            torch._dynamo.reset()

    @SLOW
    def test_two_forwards_before_their_backwards(self, ingest: IngestDouble) -> None:
        model = blocks()
        with rangewatch.attach(model, url=ingest.url) as handle:
            compiled = by_block(model)
            for value in (compiled(value).sum() for value in floats(2)):
                value.backward()
            losses = [compiled(value).sum() for value in floats(2)]
            for loss in losses:
                loss.backward()
            handle.step()
        calls = {key: cells[0]["call_count"] for key, cells in ingest.tensors().items()}
        assert set(calls.values()) == {4.0}


class TestGraphs:
    @SLOW
    def test_no_recompilation_from_step_to_step(self, ingest: IngestDouble) -> None:
        model = blocks()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with rangewatch.attach(model, optimizer, url=ingest.url, ship_interval_s=0):
            compiled = whole(model)
            train(model, compiled, floats(10), optimizer.step)
            assert counted()["stats"]["unique_graphs"] == 1

    @SLOW
    def test_dynamic_shapes(self, ingest: IngestDouble) -> None:
        inputs = [value for rows in (3, 5, 7, 9) for value in floats(1, rows)]
        compare(ingest, blocks(), lambda model: whole(model, dynamic=True), inputs)

    @SLOW
    def test_after_detach_one_plain_graph(self, ingest: IngestDouble) -> None:
        model = blocks()
        plain = copy.deepcopy(model)
        compiled = whole(model)
        with rangewatch.attach(plain, url=ingest.url) as handle:
            compiled = whole(plain)
            measured = train(plain, compiled, floats(), handle.step)
        assert_same(train(plain, compiled, floats()), measured)
        assert counted()["stats"]["unique_graphs"] == 2, "measured and plain"
        assert not counted()["graph_break"]

    def test_a_graph_that_outlives_its_agent_reads_nothing(self, ingest: IngestDouble) -> None:
        model = blocks()
        with rangewatch.attach(model, url=ingest.url) as handle:
            loss = whole(model)(floats(1)[0]).sum()
            handle.step()
        before = dict(ingest.tensors())
        loss.backward()
        assert model[0].up.weight.grad is not None and ingest.tensors() == before

    @SLOW
    def test_evaluation_is_kept_apart(self, ingest: IngestDouble) -> None:
        model = blocks()
        with rangewatch.attach(model, url=ingest.url) as handle:
            compiled = whole(model)
            for _ in range(2):
                train(model, compiled, floats(1))
                model.eval()
                with torch.no_grad():
                    compiled(torch.full((5, 4), 1e9))
                model.train()
                handle.step()
            assert counted()["stats"]["unique_graphs"] == 2, "training and evaluation, as without us"
        cells = ingest.tensors()["0.up", "output", 0]
        assert [cell["call_count"] for cell in cells.values()] == [1, 1]
        assert all(cell["amax"] < 100 for cell in cells.values())

    @SLOW
    def test_a_graph_that_breaks_anyway(self, ingest: IngestDouble) -> None:
        """The hooks that torch calls in between run as they are: they are not compiled themselves."""

        class Breaks(Block):
            def forward(self, x: Tensor) -> Tensor:
                x = self.up(x)
                torch._dynamo.graph_break()
                return self.down(self.act(x))

        model = nn.Sequential(Breaks(), Breaks())
        plain = copy.deepcopy(model)
        with rangewatch.attach(model, url=ingest.url, full_every=1) as handle:
            found = train(model, whole(model, fullgraph=False), floats(), handle.step)
            breaks, graphs = sum(counted()["graph_break"].values()), counted()["stats"]["unique_graphs"]
            assert handle.stats()["faults"] == {} and handle.stats()["not_observed"] == {}
        torch._dynamo.reset()
        counted().clear()
        assert_same(found, train(plain, whole(plain, fullgraph=False), floats()))
        assert (breaks, graphs) == (sum(counted()["graph_break"].values()), counted()["stats"]["unique_graphs"])
        assert {cells[0]["call_count"] for cells in ingest.tensors().values()} == {1.0}

    @SLOW
    def test_a_compiled_optimizer_ends_its_steps(self, ingest: IngestDouble) -> None:
        model = blocks()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
        with rangewatch.attach(model, optimizer, url=ingest.url) as handle:
            step = torch.compile(optimizer.step, backend="aot_eager")
            for value in floats():
                model(value).sum().backward()
                step()
            assert handle.stats()["step"] == 3

    @SLOW
    def test_a_whole_training_step(self, ingest: IngestDouble) -> None:
        model = blocks()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.0)

        def step(x: Tensor) -> None:
            model(x).pow(2).mean().backward()
            optimizer.step()
            optimizer.zero_grad()

        with rangewatch.attach(model, optimizer, url=ingest.url) as handle:
            compiled = torch.compile(step, backend="aot_eager")
            for value in floats():
                compiled(value)
            assert handle.stats()["step"] == 3 and handle.stats()["faults"] == {}
        assert [cell["call_count"] for cell in ingest.tensors()["0.up", "output", 0].values()] == [1, 1, 1]


class TestWhatIsNotTrained:
    @SLOW
    def test_transforms_inside_a_compiled_region(self, ingest: IngestDouble) -> None:
        model = nn.Linear(4, 4)
        x = floats(1)[0]
        wanted = torch.func.vmap(model)(x), torch.func.grad(lambda x: model(x).sum())(x)
        with rangewatch.attach(model, url=ingest.url):
            assert torch.equal(whole(lambda x: torch.func.vmap(model)(x))(x), wanted[0])
            assert torch.equal(whole(lambda x: torch.func.grad(lambda x: model(x).sum())(x))(x), wanted[1])

    @SLOW
    @pytest.mark.parametrize("strict", [True, False])
    def test_an_exported_program_holds_nothing_of_ours(self, ingest: IngestDouble, strict: bool) -> None:
        model = blocks()
        with rangewatch.attach(model, url=ingest.url):
            program = torch.export.export(model, (floats(1)[0],), strict=strict)
        assert "rangewatch" not in program.graph_module.code
        assert torch.equal(program.module()(floats(1)[0]), model(floats(1)[0]))

    @SLOW
    def test_a_compiled_copy_carries_no_agent(self, ingest: IngestDouble) -> None:
        model = blocks()
        with rangewatch.attach(model, url=ingest.url) as handle:
            clone = copy.deepcopy(model)
            train(clone, whole(clone), floats(1))
            assert handle.stats()["tensors"] == 0

    def test_where_torch_cannot_keep_reads_they_are_not_observed(
        self, ingest: IngestDouble, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("rangewatch.hooks.compiled.IS_SUPPORTED", False)
        model = blocks(1)
        with rangewatch.attach(model, url=ingest.url, ship_interval_s=0) as handle:
            train(model, by_block(model), floats(1), handle.step)
            assert handle.stats()["not_observed"]["0.up"] == NEVER_CALLED
        assert ("0.up", "output", 0) not in ingest.tensors()
