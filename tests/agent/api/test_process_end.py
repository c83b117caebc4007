"""How a process ends that can say so itself: by which exception, in a child of `multiprocessing` too, or by none."""

from __future__ import annotations

import multiprocessing
import sys
from collections.abc import Callable

import pytest
import torch
from torch import nn

import rangewatch
from rangewatch.api.agent import describe
from rangewatch.api.process_end import ProcessEnd
from tests.agent.ingest_double import IngestDouble

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="forks")


class Silent(Exception):
    def __str__(self) -> str:
        raise ValueError("it cannot be told")


def train(url: str) -> nn.Module:
    """The model, which a caller holds that fails afterwards: one that nobody has any more ends its run well."""
    model = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    rangewatch.attach(model, optimizer, url=url, collect=())
    model(torch.randn(2, 4)).sum().backward()
    optimizer.step()
    return model


def train_and_raise(url: str) -> None:
    model = train(url)  # noqa: F841 - held until the end
    raise ValueError("planted")


def train_and_exit(url: str) -> None:
    model = train(url)  # noqa: F841 - held until the end
    sys.exit(3)


def train_and_interrupt(url: str) -> None:
    model = train(url)  # noqa: F841 - held until the end
    raise KeyboardInterrupt


def run_child(target: Callable[[str], object], ingest: IngestDouble) -> int | None:
    child = multiprocessing.get_context("fork").Process(target=target, args=(ingest.url,))
    child.start()
    child.join()
    return child.exitcode


def failures(ingest: IngestDouble) -> list[str]:
    assert len(ingest.events("failed") + ingest.events("finished")) == 1
    return [event.message for event in ingest.events("failed")]


def test_what_an_interactive_session_went_on_after_is_not_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[BaseException | None] = []

    class Seeing:
        def finish_at_exit(self, error: BaseException | None) -> None:
            seen.append(error)

    end = ProcessEnd(Seeing())
    before, of_a_cell, last = ValueError("before"), ValueError("of a cell"), ValueError("last")
    monkeypatch.setattr(sys, "last_value", before, raising=False)
    end.watch()
    end._at_exit()
    monkeypatch.setattr(sys, "last_value", of_a_cell)
    end._at_exit()
    end.pass_over()
    end._at_exit()
    monkeypatch.setattr(sys, "last_value", last)
    end._at_exit()
    end.forget()
    assert seen == [None, of_a_cell, None, last]


def test_a_step_that_is_shipped_passes_over_what_was_raised_before(
    ingest: IngestDouble, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    agent = rangewatch.attach(model, optimizer, url=ingest.url, ship_interval_s=0)._agent
    assert agent is not None
    monkeypatch.setattr(sys, "last_value", ValueError("of a cell"), raising=False)
    model(torch.randn(2, 4)).sum().backward()
    optimizer.step()
    agent._process_end._at_exit()
    agent.remove()
    assert failures(ingest) == []


def test_training_in_an_except_clause_has_not_failed_by_what_was_caught(ingest: IngestDouble) -> None:
    model = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    handle = rangewatch.attach(model, optimizer, url=ingest.url)
    try:
        raise ImportError("no such kernel")
    except ImportError:
        model(torch.randn(2, 4)).sum().backward()
        optimizer.step()
        handle.detach()
    assert failures(ingest) == []


def test_but_by_what_is_raised_after_its_last_step(ingest: IngestDouble) -> None:
    model = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    handle = rangewatch.attach(model, optimizer, url=ingest.url)
    model(torch.randn(2, 4)).sum().backward()
    optimizer.step()
    with pytest.raises(ValueError, match="planted"):
        try:
            raise ValueError("planted")
        finally:
            handle.detach()
    assert failures(ingest) == ["ValueError: planted"]


def test_an_exception_that_cannot_be_told_is_a_failure_all_the_same(ingest: IngestDouble) -> None:
    model = nn.Linear(4, 4)
    with pytest.raises(Silent), rangewatch.attach(model, torch.optim.SGD(model.parameters(), 0.1), url=ingest.url):
        raise Silent
    assert failures(ingest) == ["Silent"]


def test_in_words() -> None:
    assert describe(SystemExit("text")) == "SystemExit: text"
    assert describe(KeyboardInterrupt()) == "KeyboardInterrupt: "


def test_a_child_of_multiprocessing_tells_what_it_raised(ingest: IngestDouble) -> None:
    assert run_child(train_and_raise, ingest) == 1
    assert failures(ingest) == ["ValueError: planted"]


def test_and_the_code_it_left_with(ingest: IngestDouble) -> None:
    assert run_child(train_and_exit, ingest) == 3
    assert failures(ingest) == ["SystemExit: 3"]


def test_a_child_that_was_started_in_an_except_clause_has_not_failed_by_that(ingest: IngestDouble) -> None:
    try:
        raise RuntimeError("of the parent, which tries again")
    except RuntimeError:
        assert run_child(train, ingest) == 0
    assert failures(ingest) == [] and sorted(ingest.tensors()["", "output", 0]) == [0]


def test_torch_spawns_children_that_leave_by_an_exit_code(ingest: IngestDouble) -> None:
    def work(number: int, url: str) -> None:
        train_and_raise(url)

    with pytest.raises(torch.multiprocessing.ProcessRaisedException, match="planted"):
        torch.multiprocessing.start_processes(work, (ingest.url,), nprocs=1, start_method="fork")
    assert failures(ingest) == ["SystemExit: 1 (after ValueError: planted)"]


def test_ctrl_c_is_said_to_be_that(ingest: IngestDouble) -> None:
    run_child(train_and_interrupt, ingest)
    assert [event.data for event in ingest.events("failed")] == [{"interrupted": True}]
    run_child(train_and_raise, ingest)
    assert ingest.events("failed")[-1].data == {}
