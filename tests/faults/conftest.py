"""Where the trainings' runs are, and how they are asked about."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tests.faults.verdict import Ask
from tests.server.process import Run, Server


def asked(run: Run) -> Ask:
    """What is asked of the run: its diagnosis before a step, or as it is now."""
    return lambda stop: run.get("/diagnosis" if stop is None else f"/diagnosis?stop={stop}")


class Runs:
    """A server of its own and its runs, by name. `folder` holds its database."""

    def __init__(self, folder: Path) -> None:
        self.database = str(folder / "faults.db")
        self.server = Server(self.database)
        self._numbers: dict[str, int] = {}

    @property
    def url(self) -> str:
        return self.server.url

    def number(self, run: str) -> int:
        """By which the API knows it."""
        if run not in self._numbers:  # it has just ended, so it is among the newest
            self._numbers |= {each["name"]: each["id"] for each in self.server.get("/api/v1/runs?limit=10")["runs"]}
        return self._numbers[run]

    def ask(self, run: str) -> Ask:
        """What is asked of one run: its diagnosis before a step, or None."""
        path = f"/api/v1/runs/{self.number(run)}/diagnosis"
        return lambda stop: self.server.get(path if stop is None else f"{path}?stop={stop}")

    def text(self, run: str, stop: int | None = None) -> str:
        """The answer as it was sent, to the byte."""
        path = f"/api/v1/runs/{self._numbers[run]}/diagnosis"
        return self.server.client.get(path if stop is None else f"{path}?stop={stop}").text

    def again(self) -> None:
        """Another process on the same database."""
        self.server.stop()
        self.server = Server(self.database)


@pytest.fixture
def runs(tmp_path: Path) -> Iterator[Runs]:
    found = Runs(tmp_path)
    yield found
    found.server.stop()


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Of torch: the models are small."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
