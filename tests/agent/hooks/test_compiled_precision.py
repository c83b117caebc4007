"""Compiled graphs of bfloat16 and float16: reading inside them changes where inductor rounds. Unasked, none is read."""

from __future__ import annotations

import contextlib
import copy
import importlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import rangewatch
from tests.agent.ingest_double import IngestDouble

pytestmark = [  # torch's own, from tracing non-leaf inputs and from Inductor
    pytest.mark.filterwarnings("ignore:The .grad attribute"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]

BF16, FP16 = torch.bfloat16, torch.float16
OPERATOR = "rangewatch.read"
"""In the code of a graph that is read. (`rangewatch.call` takes no tensor.)"""


@pytest.fixture(autouse=True)
def fresh_compiler() -> Iterator[None]:
    torch._dynamo.reset()
    torch.manual_seed(0)
    yield
    torch._dynamo.reset()


class Block(nn.Module):
    """What inductor fuses: a norm, a pointwise function and a residual around two products."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.act, self.down = nn.LayerNorm(16), nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(self.act(self.up(self.norm(x))))


class AutocastInside(nn.Module):
    """Its first modules are called before anything is in low precision."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.block = nn.Linear(16, 16), Block()

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        with torch.autocast("cpu", BF16):
            x = self.block(x)
        return x.float()


class Watching(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(16, 16)

    def forward(self, x: Tensor) -> Tensor:
        x = self.up(x).tanh()
        rangewatch.detect_overflow(x, "tanh")
        return x


def blocks() -> nn.Module:
    return nn.Sequential(nn.Linear(16, 16), Block(), Block(), nn.Linear(16, 4))


def pure(dtype: torch.dtype) -> nn.Module:
    return blocks().to(dtype)


class Graphs:
    """A backend that keeps the code of what it is given."""

    def __init__(self) -> None:
        self.codes: list[str] = []

    def __call__(self, graph: Any, inputs: Any) -> Any:
        self.codes.append(graph.code)
        return graph.forward


def compiled_whole(model: nn.Module, graphs: Any) -> Any:
    return torch.compile(model, backend=graphs)


def compiled_in_place(model: nn.Module, graphs: Any) -> Any:
    model.compile(backend=graphs)
    return model


def compiled_parts(model: nn.Module, graphs: Any) -> Any:
    for child in model.children():
        child.compile(backend=graphs)
    return model


def train(
    model: nn.Module, called: Any, autocast: torch.dtype | None = None, steps: int = 2, optimizer: Any = None,
    begins: int = 1,
) -> list[float]:  # fmt: skip
    """Losses. Under autocast from step `begins` on, if at all."""
    optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    generator, losses = torch.Generator().manual_seed(1), []
    dtype = next(model.parameters()).dtype
    for step in range(steps):
        x, y = torch.randn(3, 8, 16, generator=generator), torch.randn(3, 8, 1, generator=generator)
        with torch.autocast("cpu", autocast or BF16, enabled=autocast is not None and step >= begins):
            loss = F.mse_loss(called(x.to(dtype)).float(), y.expand(3, 8, called_width(model)))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def called_width(model: nn.Module) -> int:
    return 4 if isinstance(model, nn.Sequential) else 16


@contextlib.contextmanager
def attached(ingest: IngestDouble, model: nn.Module, **options: Any) -> Iterator[Any]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    with rangewatch.attach(model, optimizer, url=ingest.url, quiet=True, watcher=False, **options) as handle:
        yield handle, optimizer
        assert handle.stats()["faults"] == {}


CASES: dict[str, tuple[Callable[[], nn.Module], torch.dtype | None, Callable[..., Any]]] = {
    "bfloat16 parameters": (lambda: pure(BF16), None, compiled_whole),
    "float16 parameters, compiled in place": (lambda: pure(FP16), None, compiled_in_place),
    "parts compiled": (lambda: pure(BF16), None, compiled_parts),
    "autocast": (blocks, FP16, compiled_whole),
    "autocast of compiled parts": (blocks, BF16, compiled_parts),
    "autocast in the forward": (AutocastInside, None, compiled_whole),
    "a watched value": (lambda: Watching().to(BF16), None, compiled_whole),
}


class TestUnasked:
    @pytest.mark.parametrize("case", CASES)
    def test_graphs_of_low_precision_are_not_read(self, ingest: IngestDouble, case: str) -> None:
        make, autocast, compile_it = CASES[case]
        model = make()
        plain, graphs = copy.deepcopy(model), Graphs()
        with attached(ingest, model) as (_, optimizer):
            losses = train(model, compile_it(model, graphs), autocast, optimizer=optimizer)
        torch._dynamo.reset()
        assert train(plain, compile_it(plain, Graphs()), autocast) == losses
        are_read = [OPERATOR in code for code in graphs.codes]
        float32_count = 0 if autocast is None else len(are_read) // 2  # the first step is without autocast
        assert any(are_read[:float32_count]) == (autocast is not None) and not any(are_read[float32_count:])

    def test_in_float32_they_are_read(self, ingest: IngestDouble) -> None:
        model, graphs = blocks(), Graphs()
        with attached(ingest, model) as (handle, optimizer):
            train(model, compiled_whole(model, graphs), optimizer=optimizer)
            assert handle.stats()["not_observed"] == {}
        assert OPERATOR in graphs.codes[0] and ("1.norm", "output", 0) in ingest.tensors()

    def test_it_is_said_once_here_and_on_the_page_and_what_lies_outside_is_recorded(
        self, ingest: IngestDouble, caplog: pytest.LogCaptureFixture
    ) -> None:
        model = pure(BF16)
        with attached(ingest, model, ship_interval_s=0) as (handle, optimizer):
            train(model, compiled_whole(model, Graphs()), steps=4, optimizer=optimizer)
            assert "compiled in bfloat16 or float16" in handle.stats()["not_observed"]["1.norm"]
        assert caplog.text.count('attach(level="outputs") records them') == 1
        (event,) = ingest.events("level")
        assert "would change the losses" in event.message
        assert {kind for _, kind, _ in ingest.tensors()} >= {"grad"}
        assert ("1.norm", "output", 0) not in ingest.tensors()

    def test_where_rounding_is_emulated_they_are_read(self, ingest: IngestDouble) -> None:
        config: Any = importlib.import_module("torch._inductor.config")
        model, graphs = pure(BF16), Graphs()
        with config.patch(emulate_precision_casts=True), attached(ingest, model) as (_, optimizer):
            train(model, compiled_whole(model, graphs), optimizer=optimizer)
        assert OPERATOR in graphs.codes[0]


class TestAsked:
    @pytest.mark.parametrize("options", [{"level": "outputs"}, {"kinds": ("output",)}, {"level": "frames"}])
    def test_who_names_what_to_record_gets_it(self, ingest: IngestDouble, options: dict[str, Any]) -> None:
        model, graphs = pure(BF16), Graphs()
        with attached(ingest, model, **options) as (_, optimizer):
            train(model, compiled_whole(model, graphs), optimizer=optimizer)
        assert OPERATOR in graphs.codes[0] and ("1.norm", "output", 0) in ingest.tensors()

    def test_a_level_that_the_page_asks_for_and_the_default_again(self, ingest: IngestDouble) -> None:
        model, graphs = pure(BF16), Graphs()
        with attached(ingest, model) as (handle, optimizer):
            compiled = compiled_whole(model, graphs)
            train(model, compiled, optimizer=optimizer)
            for level, count in (("outputs", 2), ("default", 2), ("grads", 2)):
                handle._agent.recording.set_level(level)
                handle._agent.hooks.record()
                train(model, compiled, optimizer=optimizer)
                assert len(graphs.codes) == count
        assert [OPERATOR in code for code in graphs.codes] == [False, True]

    def test_a_trace_does_not_change_the_losses(self, ingest: IngestDouble) -> None:
        for level in (None, "grads"):
            torch._dynamo.reset()
            model, graphs = pure(BF16), Graphs()
            with attached(ingest, model, level=level, trace_batch_nums=(1,)) as (_, optimizer):
                train(model, compiled_whole(model, graphs), steps=3, optimizer=optimizer)
            assert not any(OPERATOR in code for code in graphs.codes)

    @pytest.mark.parametrize(
        ("dtype", "level", "emulates", "is_said"),
        [
            (BF16, "outputs", False, True), (BF16, "outputs", True, False), (BF16, "grads", False, False),
            (torch.float32, "outputs", False, False), (BF16, None, False, False),
        ],
    )  # fmt: skip
    def test_what_reading_does_to_rounding_is_said_once(
        self, ingest: IngestDouble, caplog: pytest.LogCaptureFixture, dtype: torch.dtype, level: str | None,
        emulates: bool, is_said: bool,
    ) -> None:  # fmt: skip
        config: Any = importlib.import_module("torch._inductor.config")
        model = pure(dtype)
        with (
            config.patch(emulate_precision_casts=emulates), attached(ingest, model, level=level) as (_, optimizer)
        ):  # fmt: skip
            train(model, compiled_whole(model, "eager"), steps=3, optimizer=optimizer)
        assert caplog.text.count("may round in other places") == is_said


@pytest.mark.timeout(600)  # two compilations in C++
@pytest.mark.parametrize(
    ("dtype", "autocasts", "level"),
    [
        pytest.param(*each, marks=pytest.mark.slow if each[:2] == (BF16, True) else pytest.mark.soak)
        for each in (
            (BF16, True, None),
            (BF16, False, None),
            (FP16, False, None),
            (FP16, True, None),
            (None, False, "outputs"),
        )
    ],
)
def test_losses_are_bit_equal_in_inductor(
    ingest: IngestDouble, dtype: torch.dtype | None, autocasts: bool, level: str | None
) -> None:
    model = nn.Sequential(nn.Linear(16, 16), Block(), nn.Linear(16, 4)).to(None if autocasts else dtype)
    plain, autocast = copy.deepcopy(model), dtype if autocasts else None
    with attached(ingest, model, level=level) as (_, optimizer):
        losses = train(model, compiled_whole(model, "inductor"), autocast, 24, optimizer, begins=0)
    torch._dynamo.reset()
    assert train(plain, compiled_whole(plain, "inductor"), autocast, 24, begins=0) == losses
