"""How old what is stored may be, when a clock was wrong: nothing goes by a clock that was set back, or is set ahead.

The server writes down when it last heard of a process. Were its clock a year back meanwhile, a run of today would be a
year old once the clock is right again. So what a process itself says of the time counts too, and so does the order in
which runs were made; only what all of them call old is old.
"""

from __future__ import annotations

import logging
import time

from sqlalchemy import Connection, func, select

from rangewatch_server.maintenance.retention.policy import HOUR_NS
from rangewatch_server.store import tables

logger = logging.getLogger("rangewatch.server")

WRONG_NS = HOUR_NS
"""By which two clocks must differ for one to be called wrong."""

_stream, _run, _event, _sample = tables.streams.c, tables.runs.c, tables.events.c, tables.samples.c


def made_ns(connection: Connection, run_id: int, now_ns: int) -> int:
    """When the run was made at the earliest: no run was before one of a lower number."""
    made = select(func.max(_run.created_ns)).where(_run.id <= run_id, _run.created_ns <= now_ns)
    return connection.execute(made).scalar() or 0


def corrected(connection: Connection, run_id: int, now_ns: int) -> dict[int, int]:
    """Process -> when it was last heard of, of those that said so over an hour after the server's clock did.

    What is not before `now_ns` is of another wrong clock and counts for nothing.
    """
    least_ns = made_ns(connection, run_id, now_ns)
    seen = dict[int, int]()
    said = dict[int, int]()
    mine = select(_stream.id, _stream.last_seen_ns, _stream.started_ns)
    for row in connection.execute(mine.where(_stream.run_id == run_id, _stream.rank >= 0)):
        seen[row.id] = row.last_seen_ns
        said[row.id] = max(least_ns, row.started_ns if row.started_ns <= now_ns else 0)
    samples = select(_sample.stream_id, func.max(_sample.last_ns)).where(_sample.run_id == run_id)
    events = select(_event.stream_id, func.max(_event.time_ns)).join(tables.streams, _stream.id == _event.stream_id)
    for query in (
        samples.where(_sample.last_ns <= now_ns).group_by(_sample.stream_id),
        events.where(_stream.run_id == run_id, _event.time_ns <= now_ns).group_by(_event.stream_id),
    ):
        for stream_id, at_ns in connection.execute(query):
            said[stream_id] = max(said.get(stream_id, 0), at_ns)
    return {each: said[each] for each, seen_ns in seen.items() if said[each] - seen_ns > WRONG_NS}


class SteadyClock:
    """Now, by a clock that somebody may set: never further on than a clock that nobody sets says since this began."""

    def __init__(self) -> None:
        self._began_ns, self._began_steady_ns = time.time_ns(), _steady_ns()
        self._is_said = False

    def now_ns(self) -> int:
        """Nanoseconds since 1970. The log says once that the clock was set forward."""
        now_ns, least_ns = time.time_ns(), self._began_ns + _steady_ns() - self._began_steady_ns
        is_ahead = now_ns - least_ns > WRONG_NS
        if is_ahead and not self._is_said:
            hours = (now_ns - least_ns) / HOUR_NS
            logger.warning(
                "the clock was set forward by %.1f hours: by age nothing goes for it until the server is started again",
                hours,
            )
        self._is_said = is_ahead
        return least_ns if is_ahead else now_ns


def _steady_ns() -> int:
    """Nanoseconds since some moment. A machine that sleeps does not hold it up, on Linux and macOS."""
    if hasattr(time, "CLOCK_BOOTTIME"):
        return time.clock_gettime_ns(time.CLOCK_BOOTTIME)
    if hasattr(time, "CLOCK_MONOTONIC"):  # on macOS it counts sleep, which time.monotonic there leaves out
        return time.clock_gettime_ns(time.CLOCK_MONOTONIC)
    return time.monotonic_ns()  # Windows
