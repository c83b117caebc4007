"""The source line of a tensor's module: what agents told; null where they did not, or do not agree."""

from __future__ import annotations

from typing import Any

import pytest

from rangewatch import statistics
from rangewatch.wire.records import Catalogue, Event, TensorEntry
from tests.server.process import Run
from tests.server.records import batch, opening

ENTRIES = (
    ("a", "output", "Linear"), ("a.weight", "weight", ""), ("b", "output", "Block"), ("c", "output", "Block"),
    ("d", "output", "Gate"), ("e", "output", "Unheard"), ("lone.weight", "grad", ""),
)  # fmt: skip
KNOWN = Catalogue(
    statistics.ALL,
    tuple(TensorEntry(fqn, kind, 0, "float16", (4,), i, module) for i, (fqn, kind, module) in enumerate(ENTRIES)),
)


def of(module: str, name: str, source: str | None) -> dict[str, Any]:
    return {"module": module, "name": name, "source": source}


LINEAR = of("Linear", "torch.nn.modules.linear.Linear", "torch/nn/modules/linear.py:124")
BLOCKS = [of("Block", "one.Block", "one.py:7"), of("Block", "two.Block", "two.py:9")]
FIRST = {"classes": [LINEAR, *BLOCKS, of("Gate", "m.Gate", "m.py:1")], "of": {"b": 1, "c": 2, "d": 99}}
SECOND = {"classes": [LINEAR, of("Gate", "m.Gate", "m.py:50")], "of": {}}  # another version of m.py on that host


@pytest.fixture(scope="module")
def tensors(module_run: Run) -> dict[str, Any]:
    damaged: list[dict[str, Any]] = [{"classes": "none", "of": 3}, {"classes": [{"module": 1}]}]
    for rank, data in enumerate((FIRST, SECOND, FIRST, *damaged)):
        module_run.post(opening(KNOWN, rank=rank, world_size=5))
        answer = module_run.post(batch(KNOWN, 0, range(2), rank=rank, events=(Event("modules", 1, 0, "", data),)))
        assert answer.status_code == 202
    return {each["fqn"]: each for each in module_run.get("/tensors")["tensors"]}


def test_a_module_has_its_class_and_line(tensors: dict[str, Any]) -> None:
    assert (tensors["a"]["module_class"], tensors["a"]["source"]) == (LINEAR["name"], LINEAR["source"])
    assert tensors["a.weight"]["source"] == LINEAR["source"]  # of the module that holds it


def test_classes_of_one_name_are_told_apart(tensors: dict[str, Any]) -> None:
    assert (tensors["b"]["source"], tensors["c"]["source"]) == ("one.py:7", "two.py:9")


def test_what_nobody_told_or_ranks_do_not_agree_on_is_unknown(tensors: dict[str, Any]) -> None:
    for fqn in ("d", "e", "lone.weight"):
        assert (tensors[fqn]["module_class"], tensors[fqn]["source"]) == (None, None), fqn
