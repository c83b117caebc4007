"""An exception that ended a rank is a finding; Ctrl-C is none, and memory that ran out is another rule's."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

from rangewatch.wire.records import Event
from rangewatch_server.rules.machine.rank_failed import RULE
from tests.server.rules.conftest import Recording, tensor

LAYERS = [tensor("a"), tensor("b", call_index=1)]


def test_the_first_that_failed(recording: Recording) -> None:
    for rank, step in ((0, 41), (1, 40), (2, None)):
        said = [] if step is None else [Event("failed", 9 - rank, step, f"ValueError: of {rank}", {})]
        recording.write(LAYERS, 42, rank=rank, world_size=3, events=said)
    (found,) = recording.diagnose(RULE).findings
    assert (found.rank, found.step, found.severity) == (1, 40, "critical")
    assert "ValueError: of 1" in found.summary and found.facts["ranks"] == [0, 1]
    assert recording.diagnose(RULE, stop=40).findings == ()


GLOO = (
    "RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:553] Connection closed by peer "
    "[127.0.0.1]:45972. This is typically caused by a remote worker crashing."
)
NCCL = (
    "torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:2251, remote process exited or there was"
)


@pytest.mark.parametrize("lost", [GLOO, NCCL])
@pytest.mark.parametrize("step", [40, 41])
def test_one_that_lost_its_peer_is_not_the_first(recording: Recording, lost: str, step: int) -> None:
    """Its message may come in before that of the rank that raised, and be of the step before."""
    for rank, said in ((0, lost), (1, "IndexError: index 9 is out of bounds."), (2, lost)):
        at = step if rank == 1 else 40
        recording.write(LAYERS, 42, rank=rank, world_size=3, events=[Event("failed", 1, at, said, {})])
    (found,) = recording.diagnose(RULE).findings
    assert (found.rank, found.step) == (1, step)
    assert found.summary.endswith("IndexError: index 9 is out of bounds.")
    assert "Ranks 0 and 2 lost the connection to it, by what they raised." in found.evidence


def test_where_all_have_lost_a_peer_nobody_is_accused(recording: Recording) -> None:
    for rank in range(3):
        said = [Event("failed", 1, 40, GLOO, {})] if rank else []
        recording.write(LAYERS, 42, rank=rank, world_size=3, events=said)
    (found,) = recording.diagnose(RULE).findings
    assert "it lost its connection to another rank" in " ".join(found.evidence)
    assert "of rank 0" in found.remedy[0].text


@pytest.mark.parametrize(("silent", "cause"), [((), "communication"), ((0,), "crash")])
def test_where_every_rank_waited_for_another(recording: Recording, silent: tuple[int, ...], cause: str) -> None:
    """None was gone before: they were in different collectives."""
    for rank in range(3):
        said = [] if rank in silent else [Event("failed", 1, 40, GLOO, {})]
        recording.write(LAYERS, 42, rank=rank, world_size=3, events=said)
    (found,) = recording.diagnose(RULE).findings
    assert found.facts["cause_class"] == cause
    assert ("same collectives in the same order" in found.remedy[0].text) == (cause == "communication")


@pytest.mark.parametrize("details", [{"interrupted": True}, {"out_of_memory": True}])
def test_what_is_none(recording: Recording, details: dict[str, bool]) -> None:
    recording.write(LAYERS, 20, events=[Event("failed", 1, 19, "stopped", details)])
    assert recording.diagnose(RULE).findings == ()


def test_a_rank_that_goes_on_has_not_failed(recording: Recording) -> None:
    recording.write(LAYERS, 20, events=[Event("failed", 1, 19, "ValueError: once", {})])
    recording.write(LAYERS, 10, first=20, incarnation="b")
    assert recording.diagnose(RULE).findings == ()


def _raised(what: Callable[[], object]) -> str:
    """Type and message of what torch itself raises, as the agent sends them."""
    try:
        what()
    except Exception as error:  # whichever torch raises
        return f"{type(error).__name__}: {error}"
    pytest.fail("nothing was raised")


def _twice() -> None:
    loss = (torch.ones(2, requires_grad=True) ** 2).sum()
    loss.backward()
    loss.backward()


def _in_place() -> None:
    made = torch.ones(2, requires_grad=True).exp()
    made += 1
    made.sum().backward()


RAISED: dict[str, tuple[Callable[[], object], str]] = {
    "labels from 1": (lambda: F.cross_entropy(torch.zeros(2, 7), torch.tensor([1, 7])), "counted from 0"),
    "ids beyond the table": (lambda: torch.nn.Embedding(4, 2)(torch.tensor([4])), "number of rows"),
    "a state that keeps its graph": (_twice, "Detach the state"),
    "written in place": (_in_place, "before the backward"),
    "cut off": (lambda: torch.ones(2).sum().backward(), "cuts the loss off"),
    "loss of each row": (lambda: torch.ones(2, requires_grad=True).exp().backward(), "mean over the batch"),
    "another width": (lambda: torch.nn.Linear(3, 2)(torch.ones(2, 4)), "in_features"),
    "another dtype": (lambda: torch.nn.Linear(3, 2)(torch.ones(2, 3, dtype=torch.float64)), "one dtype"),
    "labels that are float": (lambda: F.cross_entropy(torch.zeros(2, 7), torch.ones(2)), "one dtype"),
    "probabilities that are none": (
        lambda: F.binary_cross_entropy(torch.full((2,), 1.5), torch.ones(2)), "binary_cross_entropy_with_logits"
    ),
    "keys of another model": (
        lambda: torch.nn.Linear(3, 2).load_state_dict({"module.weight": torch.ones(2, 3)}), "'module.'"
    ),
    "rows of two sizes": (lambda: torch.stack([torch.ones(2), torch.ones(3)]), "collate_fn"),
    "one row": (lambda: torch.nn.BatchNorm1d(3)(torch.ones(1, 3)), "drop_last=True"),
}  # fmt: skip


@pytest.mark.parametrize("name", RAISED)
def test_what_torch_raises_often_is_explained(recording: Recording, name: str) -> None:
    raises, advice = RAISED[name]
    recording.write(LAYERS, 20, events=[Event("failed", 1, 19, _raised(raises)[:2_000], {})])
    (found,) = recording.diagnose(RULE).findings
    assert advice in found.remedy[0].text and "not known" not in " ".join(found.evidence)


def test_another_is_left_to_its_traceback(recording: Recording) -> None:
    recording.write(LAYERS, 20, events=[Event("failed", 1, 19, "ValueError: mine", {})])
    (found,) = recording.diagnose(RULE).findings
    assert found.remedy[0].text.startswith("Read the traceback")
