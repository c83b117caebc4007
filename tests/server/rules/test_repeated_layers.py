"""Layers of a stage that begin as those of another one: which stage and layer, and what only looks like it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from rangewatch.wire import events
from rangewatch.wire.records import TensorEntry
from rangewatch_server.rules.mesh import repeated_layers
from tests.server.rules.conftest import Recording
from tests.server.rules.test_axis_replicas import mesh

SIZES = {"pp": 2, "dp": 2}
LAYERS, STEPS = 4, 6
PARTS = ("up.weight", "down.weight", "norm.weight")
NAMES = [f"layers.{layer}.{part}" for layer in range(LAYERS) for part in PARTS] + ["embed.weight"]
OfLayer = Callable[[int, int], float]
"""Layer of the whole model and part -> its checksum at the first update."""


def drawn(layer: int, part: int) -> float:
    return 1.0 + 1000.0 * layer + part if part < 2 else 77.0  # the norm begins as ones in all


def write(recording: Recording, first: OfLayer, *, local_names: bool = False) -> None:
    """Two layers a stage, under the names of the whole model, or under those that count from 0 on each."""
    entries = [
        TensorEntry(name, "grad", 0, "float32", (8,) if "norm" in name else (4, 8), at, "")
        for at, name in enumerate(NAMES)
    ]
    for rank in range(4):
        stage = rank // 2
        values = np.zeros((len(NAMES), STEPS))
        for layer in (2 * stage, 2 * stage + 1):
            row = 3 * (layer - 2 * stage * local_names)
            for part in range(3):
                later = 10.0 * np.arange(STEPS) * (1 + layer)  # each is trained on
                values[row + part] = first(layer, part) + later
        values[-1] = 5.0  # tied
        recording.write(
            entries, STEPS, {"axis_checksum": values, "axis_balance": 0.0 * values}, rank=rank, world_size=4,
            events=[events.event(mesh(SIZES, rank), 1, 0)],
        )  # fmt: skip


def found(recording: Recording) -> Any:
    return recording.diagnose(repeated_layers.RULE).findings


@pytest.mark.parametrize("local_names", [False, True])
def test_a_checkpoint_that_is_read_by_local_names(recording: Recording, local_names: bool) -> None:
    write(recording, lambda layer, part: drawn(layer % 2, part), local_names=local_names)
    (finding,) = found(recording)
    assert (finding.step, finding.facts["axes"], finding.facts["ranks"]) == (0, ("pp",), [0, 2])
    layer, same = ("layers.0", "layers.0") if local_names else ("layers.2", "layers.0")
    assert finding.facts["layers"][layer] == same and len(finding.facts["layers"]) == 2
    assert finding.summary == (
        f"Step 0, along pp: stage 1 (rank 2) begins with layers of stage 0 (rank 0): its {layer} is bit for bit the "
        f"other's {same}, and 1 more so."
    )


@pytest.mark.parametrize("local_names", [False, True])
def test_layers_that_are_drawn_apart_are_silent(recording: Recording, local_names: bool) -> None:
    """Their norms are all ones, and the embedding is tied."""
    write(recording, drawn, local_names=local_names)
    assert found(recording) == ()


def test_a_matrix_that_begins_as_zeros_everywhere_is_no_copy(recording: Recording) -> None:
    write(recording, lambda layer, part: 9.0 if part == 1 else drawn(layer, part))
    assert found(recording) == ()


def test_layers_of_constants_are_no_copies(recording: Recording) -> None:
    write(recording, lambda layer, part: 9.0)
    assert found(recording) == ()


def test_one_matrix_alone_is_not_enough(recording: Recording) -> None:
    write(recording, lambda layer, part: drawn(layer % 2 if part == 0 else layer, part))
    assert found(recording) == ()
