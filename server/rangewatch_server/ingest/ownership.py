"""Which server keeps a run's merged ranks: one, by an advisory lock of PostgreSQL that dies with its connection."""

from __future__ import annotations

import logging
import time

from sqlalchemy import Connection, Engine, text
from sqlalchemy.exc import SQLAlchemyError

logger = logging.getLogger("rangewatch.server")

LOCK_CLASS = 0x7277  # "rw": apart from other programs' advisory locks in the same database
RETRY_S = 2.0  # a run of another server is asked for again: that server may be gone
CHECK_S = 2.0  # a connection that was cut has lost its locks: at most this long ago


class Ownership:
    """Used by the writer's thread alone. On SQLite this server owns everything."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._connection: Connection | None = None
        self._owned: set[int] = set()
        self._refused_s: dict[int, float] = {}
        self._checked_s = 0.0

    def owns(self, run_id: int) -> bool:
        """Whether the run is ours; asks for it when it is nobody's. Never waits for another server."""
        if self._engine.dialect.name == "sqlite":
            return True
        self._check()
        if run_id not in self._owned and self._is_due(run_id) and self._try(run_id):
            self._owned.add(run_id)
            self._refused_s.pop(run_id, None)
        return run_id in self._owned

    def release(self, run_id: int) -> None:
        """Let go of a run: another server may keep it."""
        if run_id not in self._owned or self._connection is None:
            return
        self._owned.discard(run_id)
        self._ask("pg_advisory_unlock", run_id)

    def close(self) -> None:
        """Let go of everything."""
        self._owned.clear()
        if self._connection is not None:
            connection, self._connection = self._connection, None
            try:
                connection.invalidate()  # the pool must not hand a connection with locks to others
                connection.close()
            except SQLAlchemyError:
                logger.debug("the connection with the locks was gone already")

    def _is_due(self, run_id: int) -> bool:
        return time.monotonic() - self._refused_s.get(run_id, -RETRY_S) >= RETRY_S

    def _check(self) -> None:
        if self._connection is None or time.monotonic() - self._checked_s < CHECK_S:
            return
        self._checked_s = time.monotonic()
        try:
            self._connection.execute(text("SELECT 1"))
        except SQLAlchemyError:
            logger.warning("the connection that holds this server's runs was cut; they are asked for again")
            self.close()

    def _try(self, run_id: int) -> bool:
        if self._connection is None:
            try:
                self._connection = self._engine.connect().execution_options(isolation_level="AUTOCOMMIT")
            except SQLAlchemyError:
                return False
            self._checked_s = time.monotonic()
        is_ours = self._ask("pg_try_advisory_lock", run_id)
        if not is_ours:
            self._refused_s[run_id] = time.monotonic()
        return is_ours

    def _ask(self, function: str, run_id: int) -> bool:
        assert self._connection is not None, "connected before"
        query = text(f"SELECT {function}(CAST(:kind AS int), CAST(:run AS int))")
        try:
            return bool(self._connection.execute(query, {"kind": LOCK_CLASS, "run": run_id}).scalar())
        except SQLAlchemyError:
            self.close()  # cut since the last look: every lock is gone, and this one was not got
            return False
