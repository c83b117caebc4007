"""The code of remedies runs as it stands in a training script, and does what its remedy says.

A script has `torch`, `rangewatch`, `model`, `optimizer`, `scaler` and `loss`; every other name a snippet must make.
"""

from __future__ import annotations

import builtins
import dis
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from types import CodeType, ModuleType, SimpleNamespace
from typing import Any

import msgspec
import pytest
import torch
from torch import nn

import rangewatch
from rangewatch.wire.records import Event, TensorEntry
from rangewatch_server.rules import Remedy
from rangewatch_server.rules.nonfinite import code_snippets as code
from rangewatch_server.rules.phrases import in_bfloat16, loader_with, module_path
from tests.faults import examples
from tests.server.rules import remedy_cases
from tests.server.rules.conftest import Recording, tensor

SHELL = ("nvidia-smi", "dcgmi", "rangewatch", "dmesg", "export", "torchrun")
"""Programs that a snippet for a shell calls."""

CASES = [(each.name, each.write, each.is_stored) for each in examples.ALL]
CASES += [(each.__name__, each, each in remedy_cases.STORED) for each in remedy_cases.ALL]

CLASSES: dict[str, Callable[[], nn.Module]] = {
    "LayerNorm": lambda: nn.LayerNorm(4), "Softmax": lambda: nn.Softmax(-1), "ReLU": nn.ReLU, "Tanh": nn.Tanh,
}  # fmt: skip


def library(name: str, **held: Any) -> ModuleType:
    """What stands for a library that takes seconds to import, or a GPU."""
    made = ModuleType(name)
    vars(made).update(held)
    return made


_CONFIG = SimpleNamespace(from_recipe_name=lambda name: name)
_ENGINE = library("transformer_engine.pytorch", fp8_autocast=lambda **options: nullcontext())
LIBRARIES = {
    "transformer_engine": library("transformer_engine", pytorch=_ENGINE), "transformer_engine.pytorch": _ENGINE,
    "transformer_engine.common": library("transformer_engine.common"),
    "transformer_engine.common.recipe": library(
        "transformer_engine.common.recipe", DelayedScaling=SimpleNamespace, Float8CurrentScaling=SimpleNamespace
    ),
    "torchao": library("torchao"),
    "torchao.float8": library(
        "torchao.float8", Float8LinearConfig=_CONFIG, convert_to_float8_training=lambda model, **options: model
    ),
}  # fmt: skip


class Branch(nn.Module):
    """Calls its children one after the other."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for each in self.children():
            x = each[0](x) if isinstance(each, nn.ModuleList) else each(x)
        return x


def model_with(names: dict[str, str]) -> nn.Module:
    """A model with modules of these names and classes, and a list of blocks."""
    model = Branch()
    for name in sorted(names, key=lambda each: -each.count(".")):
        *path, last = name.split(".")
        parent: nn.Module = model
        for each in path:
            if each not in parent._modules:
                parent.add_module(each, Branch())
            parent = parent.get_submodule(each)
        if last not in parent._modules:
            parent.add_module(last, CLASSES.get(names[name], lambda: nn.Linear(4, 4))())
    model.add_module("tail", nn.ModuleList([nn.Linear(4, 4)]))
    return model


def modules_of(recording: Recording) -> dict[str, str]:
    """Names and classes of the modules that the run has told tensors of."""
    with recording.run() as run:
        entries = run.names().tensors.entries
    forward = {each.fqn: each.module for each in entries if each.kind in ("output", "input", "grad_output")}
    owners = {each.fqn.rpartition(".")[0]: "Linear" for each in entries if each.fqn.endswith((".weight", ".bias"))}
    modules = {name.partition(" ")[0] if " " in name else name: kind for name, kind in (owners | forward).items()}
    return {name: kind for name, kind in modules.items() if name and kind != "Value"}


def script(model: nn.Module) -> dict[str, Any]:
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    loss = model(torch.rand(2, 4)).square().mean()
    names = {"model": model, "optimizer": optimizer, "scaler": torch.amp.GradScaler("cpu"), "loss": loss}
    return names | {"torch": torch, "rangewatch": rangewatch}


def undefined(compiled: CodeType, names: dict[str, Any]) -> set[str]:
    """Global names that it, or a function in it, asks for and nobody has."""
    asked = {each.argval for each in dis.get_instructions(compiled) if each.opname in ("LOAD_GLOBAL", "LOAD_NAME")}
    inner = [each for each in compiled.co_consts if isinstance(each, CodeType)]
    local = set() if compiled.co_name == "<module>" else set(compiled.co_names) & set(compiled.co_varnames)
    missing = asked - local - set(names) - set(vars(builtins)) - {"__name__", "__module__"}
    defined = {each.argval for each in dis.get_instructions(compiled) if each.opname == "STORE_NAME"}
    return (missing - defined).union(*(undefined(each, names) for each in inner))


def run(text: str, model: nn.Module) -> dict[str, Any]:
    """The script after the snippet, which has taken another step."""
    names = script(model)
    compiled = compile(text, "remedy", "exec")
    exec(compiled, names)
    assert undefined(compiled, names) == set()
    names["optimizer"].zero_grad()
    names["scaler"].scale(names["model"](torch.rand(2, 4)).float().square().mean()).backward()
    names["optimizer"].step()
    return names


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A job of one rank, whose Rangewatch is off; nothing that a snippet sets for the process stays."""
    monkeypatch.setenv("RANGEWATCH_ENABLED", "0")
    for name, held in LIBRARIES.items():
        monkeypatch.setitem(sys.modules, name, held)
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()
    torch.autograd.set_detect_anomaly(False)


def remedies(recording: Recording) -> list[Remedy]:
    found = recording.diagnose()
    assert not found.failed
    return [each for finding in found.findings for each in finding.remedy if each.code]


@pytest.mark.parametrize(("write", "is_stored"), [each[1:] for each in CASES], ids=[name for name, *_ in CASES])
def test_it_runs_as_it_stands(
    write: Callable[[Recording], None], is_stored: bool, request: pytest.FixtureRequest
) -> None:
    recording: Recording = request.getfixturevalue("stored" if is_stored else "recording")
    write(recording)
    found = remedies(recording)
    assert found or write not in remedy_cases.ALL
    for each in found:
        if each.code.split()[0] in SHELL:
            subprocess.run(["bash", "-n", "-c", each.code], check=True)
            assert {line.split()[0] for line in each.code.splitlines()} <= set(SHELL)
            assert "..." not in each.code
        else:
            run(each.code, model_with(modules_of(recording)))


class Watched(Recording):
    """Outputs of modules without parameters or children are recorded as values that `detect_overflow` watches in the
    forward of what is above them, or of a module that is not known."""

    def write(self, tensors: Sequence[TensorEntry], *rest: Any, events: Sequence[Event] = (), **more: Any) -> None:
        names = {each.fqn for each in tensors if each.fqn}
        values = {name for name in names if not any(other.startswith(f"{name}.") for other in names)}
        values &= {each.fqn for each in tensors if each.kind == "output"}
        entries = [self._value(each) if each.fqn in values else each for each in tensors]
        renamed = [
            msgspec.structs.replace(each, data=each.data | {"fqn": _value_name(each.data["fqn"])})
            if each.data.get("fqn") in values else each
            for each in events
        ]  # fmt: skip
        super().write(entries, *rest, events=renamed, **more)

    def _value(self, entry: TensorEntry) -> TensorEntry:
        name = _value_name(entry.fqn)
        return msgspec.structs.replace(entry, fqn=name, module=entry.module if " " in name else "Value")


def _value_name(fqn: str) -> str:
    parent, _, last = fqn.rpartition(".")
    return f"{parent} {last} scores" if parent else last


@pytest.mark.parametrize("write", [each[1] for each in CASES if not each[2]], ids=[n for n, _, s in CASES if not s])
def test_it_runs_where_a_value_inside_a_forward_is_watched(write: Callable[[Recording], None]) -> None:
    recording = Watched()
    write(recording)
    for each in remedies(recording):
        if each.code.split()[0] not in SHELL:
            run(each.code, model_with(modules_of(recording)))


@pytest.mark.parametrize(
    ("fqn", "path"),
    [
        ("blocks.0 scores", "blocks.0"), ("blocks.0 max scores", "blocks.0"), ("after norm", ""), ("scores", ""),
        ("alone", ""), ("blocks.0", "blocks.0"), ("blocks.0.ff", "blocks.0.ff"), ("unknown", "unknown"), ("", ""),
    ],
)  # fmt: skip
def test_the_module_of_a_value(fqn: str, path: str) -> None:
    known = [tensor(name, module="Block") for name in ("blocks.0", "blocks.0.ff", "blocks.0 scores")]
    known += [tensor("blocks.0 max scores", module="Block"), tensor("alone", module="Value")]
    known += [tensor(name, module="Net") for name in ("", "scores", "after norm")]
    assert module_path(known, fqn) == path


@pytest.mark.parametrize(
    "text",
    ["nobody.step()", "def later():\n    return nobody", "model.get_submodule('no.such')", "for each in (", "loss = x"],
)
def test_what_does_not_is_seen(text: str) -> None:
    with pytest.raises((NameError, AttributeError, SyntaxError, AssertionError)):
        run(text, model_with({"a": "Linear"}))


class TestWhatItDoes:
    """Each snippet that changes or stops something, in a model where that can be seen."""

    def test_a_check_stops_at_the_batch_and_not_at_a_mask(self) -> None:
        names = run(code.check_batch(3), model_with({"a": "Linear"}))
        names["model"](torch.full((2, 4), -torch.inf))
        x = torch.rand(2, 4)
        x[1, 2] = torch.nan
        with pytest.raises(AssertionError, match=r"input 0, samples \[1\]"):
            names["model"](x)

    def test_targets(self) -> None:
        check = run(code.check_targets(3), model_with({"a": "Linear"}))["check_targets"]
        check(torch.tensor([1, -100]))
        for targets in (torch.tensor([1.0, torch.nan]), torch.tensor([-100, -100])):
            with pytest.raises(AssertionError):
                check(targets)

    def test_a_loss_with_no_target(self) -> None:
        cross_entropy = run(code.LOSS, model_with({"a": "Linear"}))["cross_entropy"]
        logits, targets = torch.rand(3, 4), torch.tensor([1, -100, 2])
        assert cross_entropy(logits, targets) == nn.functional.cross_entropy(logits, targets)
        assert cross_entropy(logits, torch.full((3,), -100)) == 0

    def test_rows_that_are_masked_whole(self) -> None:
        scores = torch.tensor([[1.0, 2.0], [-torch.inf, -torch.inf]])
        names = run(code.unmasked("a"), model_with({"a": "Softmax"}))
        assert names["model"].get_submodule("a")(scores).isfinite().all()
        softmax = run(code.masked_softmax("a"), model_with({"a": "Softmax"}))["masked_softmax"]
        found = softmax(torch.rand(2, 2), torch.tensor([[True, False], [False, False]]))
        assert torch.equal(found, torch.tensor([[1.0, 0.0], [0.5, 0.5]]))

    @pytest.mark.parametrize(("cause", "given"), [("zero", [0.0, 2.0]), ("negative", [-1.0, 2.0])])
    @pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
    def test_away_from_where_a_function_is_not_finite(self, cause: str, given: list[float], dtype: torch.dtype) -> None:
        class Function(nn.Linear):
            def forward(self, x: torch.Tensor) -> torch.Tensor:
                return x.log() + 1 / x + x.sqrt()

        model = model_with({"a": "Linear"})
        model.add_module("f", Function(4, 4))
        names = run(code.away("f", cause), model)
        found = names["model"].get_submodule("f")(torch.tensor(given, dtype=dtype))
        assert found.isfinite().all() and found[1] == Function(4, 4)(torch.tensor(2.0, dtype=dtype))

    def test_away_inside_a_forward(self) -> None:
        away = run(code.away_inside(""), model_with({"a": "Linear"}))["away"]
        x = torch.tensor([0.0, -2.0], requires_grad=True)
        (1 / away(x)).sum().backward()
        assert x.grad is not None and x.grad.tolist() == [0.0, -0.25]

    def test_a_checkpoint_s_bad_tensors_are_named(self, capsys: pytest.CaptureFixture[str]) -> None:
        model = model_with({"a": "Linear"})
        names = run(code.CHECKPOINT, model)
        assert capsys.readouterr().out == "[] []\n"
        names["optimizer"].state_dict()["state"][0]["exp_avg"][0] = torch.inf
        with torch.no_grad():
            model.get_parameter("a.bias")[0] = torch.nan
        exec(code.CHECKPOINT, names)
        assert capsys.readouterr().out == "[\"model['a.bias']\"] [\"optimizer['state'][0]['exp_avg']\"]\n"

    def test_every_operation_inside_a_forward_is_given_a_name(self, monkeypatch: pytest.MonkeyPatch) -> None:
        seen: list[str] = []
        monkeypatch.setattr(rangewatch, "detect_overflow", lambda value, name: seen.append(name))
        names = run(code.watch_inside("a"), model_with({"a": "Linear"}))
        seen.clear()
        for _ in range(2):
            names["model"](torch.rand(2, 4))
        assert seen == ["a 1 linear", "a 1 linear"]

    def test_bfloat16(self) -> None:
        names = run(in_bfloat16("cpu"), model_with({"a": "Linear"}))
        assert names["model"](torch.rand(2, 4)).dtype == torch.bfloat16
        assert not names["scaler"].is_enabled()

    def test_a_warm_up(self) -> None:
        names = run(code.WARM_UP, model_with({"a": "Linear"}))
        rates = []
        for _ in range(3):
            names["optimizer"].step()
            rates.append(names["optimizer"].param_groups[0]["lr"])
        assert 1e-5 < rates[0] < rates[1] < rates[2] < 1e-3

    def test_a_lower_rate(self) -> None:
        names = run(code.lower_rate(0.01), model_with({"a": "Linear"}))
        assert names["optimizer"].param_groups[0]["lr"] == pytest.approx(1e-5)

    def test_a_data_loader_gives_the_same_batches(self) -> None:
        loader = torch.utils.data.DataLoader(list(range(10)), batch_size=4, drop_last=True)
        made = run(loader_with("num_workers=0"), model_with({"a": "Linear"}))["made_anew"](loader)
        assert [each.tolist() for each in made] == [each.tolist() for each in loader]
