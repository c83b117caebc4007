"""Where modules are written: the classes' forwards, found without reading a file, bounded, and sent once."""

from __future__ import annotations

import functools
import inspect
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from torch import Tensor, nn

import rangewatch
from rangewatch.core import limits
from rangewatch.hooks.module_sources import module_sources, short_path
from rangewatch.recording.tensor_names import clean_modules
from rangewatch.wire.events import Modules
from tests.agent.ingest_double import IngestDouble


def logged(forward: Any) -> Any:
    @functools.wraps(forward)
    def wrapped(*args: Any) -> Any:
        return forward(*args)

    return wrapped


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.ff = nn.Linear(4, 4)
        self.parts = nn.ModuleList([nn.ReLU()])

    @logged
    def forward(self, x: Tensor) -> Tensor:
        return self.parts[0](self.ff(x))


class Narrow(nn.Linear):
    """Has no forward of its own."""


def reported(model: nn.Module) -> dict[str, Any]:
    return {each.module: msgspec.to_builtins(each) for each in module_sources(clean_modules(model)).classes}


def line_of(code: Any) -> int:
    return int(code.__code__.co_firstlineno)


def test_a_class_is_told_with_the_line_of_its_forward() -> None:
    found = reported(Block())
    here = Path(__file__).relative_to(Path.cwd()).as_posix()
    expected = line_of(inspect.unwrap(Block.forward))
    assert found["Block"] == {"module": "Block", "name": f"{__name__}.Block", "source": f"{here}:{expected}"}
    assert found["Linear"]["source"] == f"torch/nn/modules/linear.py:{line_of(nn.Linear.forward)}"
    assert found["ModuleList"]["source"] is None  # it has no forward
    assert reported(Narrow(4, 4))["Narrow"]["source"] == found["Linear"]["source"]  # its forward is Linear's


def test_paths_are_short_where_they_can_be() -> None:
    roots = ["/srv/project/", "/opt/code/"]
    assert short_path("/srv/project/models/gpt.py", roots) == "models/gpt.py"
    assert short_path("/srv/project/.venv/lib/python3.12/site-packages/torch/nn/x.py", roots) == "torch/nn/x.py"
    assert short_path("/opt/code/a.py", roots) == "a.py"
    assert short_path("/elsewhere/b.py", roots) == "/elsewhere/b.py"
    assert short_path("<string>", roots) == "<string>"


def test_classes_of_one_name_are_told_apart_by_their_modules() -> None:
    other = type("Block", (nn.Module,), {"forward": Narrow.forward, "__module__": "elsewhere"})
    model = nn.Sequential(Block(), other(), nn.ReLU())
    found = module_sources(clean_modules(model))
    names = {fqn: found.classes[place].name for fqn, place in found.of.items()}
    assert names == {"0": f"{__name__}.Block", "1": "elsewhere.Block"}


@pytest.mark.parametrize("forward", [None, len, functools.partial(print), torch.add])
def test_a_forward_that_is_no_function_is_not_known(forward: Any) -> None:
    odd = type("Odd", (nn.Module,), {"forward": forward})
    assert reported(odd())["Odd"]["source"] is None


def test_a_forward_that_wraps_itself_ends() -> None:
    def forward(self: Any, x: Tensor) -> Tensor:
        return x

    forward.__wrapped__ = forward  # type: ignore[attr-defined]
    odd = type("Odd", (nn.Module,), {"forward": forward})
    assert reported(odd())["Odd"]["source"].endswith(f":{line_of(forward)}")


def test_names_of_any_size_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    classes = [type("N" * 5_000, (nn.ReLU,), {"__module__": "m" * 5_000, "kind": at}) for at in range(600)]
    found = module_sources({"x" * 5_000 + str(at): each() for at, each in enumerate(classes)})
    assert 0 < len(found.classes) <= limits.MODULE_CLASSES
    assert all(place < len(found.classes) for place in found.of.values())
    assert len(repr(found).encode()) < 1 << 20
    monkeypatch.setattr(limits, "MODULE_SOURCE_BYTES", 0)
    assert module_sources({"one": classes[0]()}) == Modules()
    monkeypatch.setattr(limits, "MODULE_SOURCE_BYTES", 1 << 20)
    monkeypatch.setattr(limits, "MODULE_CLASSES", 2)
    assert len(module_sources({str(at): each() for at, each in enumerate(classes)}).classes) == 2


def test_without_a_working_directory_nothing_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    def gone() -> Path:
        raise FileNotFoundError

    monkeypatch.setattr(Path, "cwd", staticmethod(gone))
    monkeypatch.setattr(sys, "path", ["", "relative", "/"])
    assert reported(Block())["Block"]["source"].startswith(__file__)


def test_attach_sends_it_once(ingest: IngestDouble) -> None:
    model = Block()
    with rangewatch.attach(model, url=ingest.url, run="sources", ship_interval_s=0.01) as handle:
        for _ in range(3):
            model(torch.ones(1, 4)).sum().backward()
            handle.step()
    events = [event for batch in ingest.batches for event in batch.events if event.kind == "modules"]
    assert len(events) == 1
    assert {each["module"] for each in events[0].data["classes"]} == {"Block", "Linear", "ModuleList", "ReLU"}
