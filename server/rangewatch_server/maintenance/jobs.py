"""Short jobs that write: through the writer's thread while a server runs, or straight when none does."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol, TypeVar

from sqlalchemy import Connection, Engine

from rangewatch_server.ingest.writer import Busy, Writer

Result = TypeVar("Result")
Job = Callable[[Connection], Result]

JOB_S = 0.02  # a job that does several things begins no other after this long: agents wait meanwhile
BUSY_S = 0.2


class Jobs(Protocol):
    """Runs a job in a transaction of its own and waits for it. `forgets`: it changes rows that the writer remembers."""

    def __call__(self, job: Job[Result], *, forgets: bool = False) -> Result:
        """What the job returns."""


class Stopped(Exception):
    """The server shuts down: what is left goes on at the next start."""


class QueuedJobs:
    """Jobs in the writer's thread, one between two groups of messages; none once `has_ended` says so."""

    def __init__(self, writer: Writer, has_ended: Callable[[], bool] = lambda: False) -> None:
        self.writer = writer
        self.has_ended = has_ended

    def __call__(self, job: Job[Result], *, forgets: bool = False) -> Result:
        """Waits while the queue is full: agents come first. Raises `Stopped`."""
        while not self.has_ended():
            try:
                result: Result = self.writer.work(job, forgets=forgets).result()
                return result
            except Busy:
                time.sleep(BUSY_S)
        raise Stopped("the server is shutting down")


class DirectJobs:
    """Jobs of a command that has the database to itself."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    def __call__(self, job: Job[Result], *, forgets: bool = False) -> Result:
        """At once."""
        with self.engine.begin() as connection:
            return job(connection)


class Deadline:
    """How long a job may go on with one thing after another."""

    def __init__(self, seconds: float = JOB_S) -> None:
        self._end_s = time.monotonic() + seconds

    @property
    def is_over(self) -> bool:
        """Whether it is time to let others."""
        return time.monotonic() >= self._end_s
