"""The server's own retention: every few minutes a thread finishes deletions, joins samples and applies the policy."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy.exc import SQLAlchemyError

from rangewatch_server.ingest.announce import announce
from rangewatch_server.ingest.transaction import Changed
from rangewatch_server.ingest.writer import Writer
from rangewatch_server.maintenance.jobs import QueuedJobs, Stopped
from rangewatch_server.maintenance.retention.plan import planned, run_ids
from rangewatch_server.maintenance.retention.policy import Policy
from rangewatch_server.maintenance.retention.prune import Told, apply, finish_deletions
from rangewatch_server.maintenance.retention.sample_joining import join_samples
from rangewatch_server.maintenance.retention.space import give_back
from rangewatch_server.store.engine import Engines

logger = logging.getLogger("rangewatch.server")

EVERY_S = 300.0
JOIN_S = 3.0  # at shutdown it ends after the job it is in; below drain.CLOSE_S, which bounds all that ends then


class Retention:
    """Start it after the writer, stop it before. One thing at a time: `alone` is held while rows go or come."""

    def __init__(self, writer: Writer, engines: Engines, policy: Policy) -> None:
        self.engines, self.policy = engines, policy
        self.jobs = QueuedJobs(writer, lambda: self._ended)
        self._alone = threading.Lock()
        self._wake = threading.Event()
        self._ended = False
        self._thread = threading.Thread(target=self._run, name="rangewatch-retention", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """End it; deletions that are not done go on at the next start."""
        self._ended = True
        self._wake.set()
        self._thread.join(JOIN_S)

    def wake(self) -> None:
        """There is a deletion to finish."""
        self._wake.set()

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Nothing else prunes, deletes rows or restores meanwhile. Raises `Stopped` when the server shuts down."""
        with self._alone:
            if self._ended:
                raise Stopped("the server is shutting down")
            yield

    def prune(self, policy: Policy, reported: Told) -> None:
        """Apply a policy now, in the caller's thread."""
        with self.alone():
            finish_deletions(self.jobs, self.engines.reader)
            actions = planned(self.engines.reader, policy)
            apply(self.jobs, self.engines.writer, actions, reported, self.changed)

    def changed(self, run_id: int) -> None:
        """Tell pages that a run came, went or lost detail: those of this server, and of others on PostgreSQL."""
        writer = self.jobs.writer
        if writer.engine.dialect.name == "postgresql":
            self.jobs(lambda connection: announce(connection, writer.server_id, [(run_id, None)]))
        writer.on_change([Changed(run_id, None)])

    def _run(self) -> None:
        while not self._ended:
            try:
                self._once()
            except Stopped:
                return
            except SQLAlchemyError as error:
                if not self._ended:  # the engines may be closed by then
                    logger.error("retention stopped at a fault of the database: %s", str(error).splitlines()[0])
            except Exception:  # whatever it is, the thread must live: nobody else finishes deletions
                logger.exception("retention failed; it tries again in %.0f s", EVERY_S)
            self._wake.wait(EVERY_S)
            self._wake.clear()

    def _once(self) -> None:
        with self.alone():
            gone = finish_deletions(self.jobs, self.engines.reader)
            if gone:
                logger.warning("removed the rows of %d deleted runs", len(gone))
                give_back(self.jobs, self.engines.writer, [], lambda line: logger.info("%s", line))
        for run_id in run_ids(self.engines.reader):  # not `alone`: rows that are not as they were read are left
            join_samples(self.jobs, self.engines.reader, run_id)
        if self.policy.is_set:
            self.prune(self.policy, lambda line: logger.warning("retention: %s", line))
