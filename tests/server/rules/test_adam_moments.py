"""Second moments below Adam's eps, or lost in their dtype."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest

from rangewatch.wire.records import TensorEntry
from rangewatch_server.rules.gradients.adam_moments import RULE
from tests.server.rules.conftest import Recording, tensor


def entry(fqn: str, dtype: str = "float32", place: int = 0, shape: tuple[int, ...] = (4, 8)) -> TensorEntry:
    return msgspec.structs.replace(tensor(fqn, "exp_avg_sq", place, dtype), shape=shape)


LAYERS = [entry("a.weight"), entry("b.weight", place=1)]


def write(
    recording: Recording, below: Any, lost: Any = 0.0, moved: Any = 32.0, steps: int = 350, every: int = 100,
    layers: list[TensorEntry] = LAYERS, **given: Any,
) -> None:  # fmt: skip
    """Moments read every so many steps; shares of b's: below eps, and lost. None of a's."""
    read = (np.arange(steps) % every == 0).astype(float)
    moved = read * np.broadcast_to(moved, steps)
    none = np.zeros(steps)
    recording.write(
        layers, steps,
        {
            "call_count": read, "numel": 32 * read, "full_numel": 32 * read, "amax": 1e-18 * read,
            "moved_count": np.stack([moved] * 2),
            "eps_count": np.stack([none, moved * below]), "lost_count": np.stack([none, moved * lost]),
        },
        **given,
    )  # fmt: skip


def test_most_below_eps_from_the_start(recording: Recording) -> None:
    write(recording, 0.75)
    (found,) = recording.diagnose(RULE).findings
    assert (found.severity, found.tensor, found.kind, found.rank, found.step) == (
        "warning", "b.weight", "exp_avg_sq", 0, 0,
    )  # fmt: skip
    assert found.facts["share"] == 0.75
    assert "75% of the elements of b.weight" in found.summary
    assert "group['eps'] = 1e-11" in found.remedy[0].code, "a hundredth of the largest root, 1e-9"


def test_gradients_that_became_small_are_an_info(recording: Recording) -> None:
    """As those of a model that has learned all there is."""
    write(recording, np.where(np.arange(950) < 400, 0.0, 1.0), steps=950)
    (found,) = recording.diagnose(RULE).findings
    assert (found.severity, found.step) == ("info", 400)


@pytest.mark.parametrize(
    "given",
    [{"steps": 190}, {"below": 0.4}, {"moved": 0.0}, {"below": np.where(np.arange(350) == 300, 0.0, 1.0)}],
    ids=["two readings", "fewer than half", "nothing moves", "no longer"],
)
def test_quiet(recording: Recording, given: dict[str, Any]) -> None:
    write(recording, **({"below": 1.0} | given))
    assert recording.diagnose(RULE).findings == ()


def test_a_bias_is_quiet(recording: Recording) -> None:
    """That of an attention's keys has no gradient but rounding."""
    write(recording, 1.0, layers=[entry("a.weight"), entry("k.bias", place=1, shape=(8,))])
    assert recording.diagnose(RULE).findings == ()


def test_moments_lost_in_their_dtype(recording: Recording) -> None:
    write(recording, 1.0, 0.9, layers=[entry("a.weight", "float16"), entry("b.bias", "float16", 1, (8,))])
    (found,) = recording.diagnose(RULE).findings
    assert (found.severity, found.subject, found.tensor) == ("warning", "lost", "b.bias")
    assert "90% of the second moments (exp_avg_sq) of b.bias have underflowed to zero in float16." in found.summary
    assert "float32" in found.remedy[0].text


def test_the_rank_of_the_shard(recording: Recording) -> None:
    write(recording, 0.0, world_size=2)
    write(recording, 1.0, rank=1, world_size=2)
    (found,) = recording.diagnose(RULE, thresholds=None).findings
    assert (found.rank, found.facts["share"]) == (1, 0.5)


def test_of_all_ranks_none_is_named(recording: Recording) -> None:
    for rank in (0, 1):
        write(recording, 1.0, rank=rank, world_size=2)
    (found,) = recording.diagnose(RULE).findings
    assert found.rank is None


def test_agents_that_know_no_such_statistics(recording: Recording, monkeypatch: pytest.MonkeyPatch) -> None:
    from rangewatch import statistics

    names = {each.name for each in statistics.BESIDE_EPS}
    monkeypatch.setattr(statistics, "ALL", tuple(each for each in statistics.ALL if each.name not in names))
    recording.write(LAYERS, 350, {"full_numel": 32.0})
    assert recording.diagnose(RULE).findings == ()


def test_moments_that_are_nan_are_named(recording: Recording) -> None:
    bad = np.zeros((2, 350))
    bad[1, 200] = 3
    recording.write(LAYERS, 350, {"nan_count": bad})
    (found,) = [each for each in recording.diagnose().findings if each.rule == "first_nonfinite"]
    assert (found.tensor, found.kind, found.step) == ("b.weight", "exp_avg_sq", 200)
