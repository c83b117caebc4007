"""Looks at runs that have changed, as often as the rules' cost allows, and keeps their alerts. One thread.

Rules may take at most `SHARE` of a core: after a look that took t seconds of it the next one waits t / SHARE, however
many runs there are. A look changes nothing of what agents and pages see but alerts, and waits for nobody.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Container, Iterable, Sequence
from typing import Any

import msgspec
from sqlalchemy import Connection
from sqlalchemy.exc import SQLAlchemyError

from rangewatch_server.alerts import lifecycle
from rangewatch_server.alerts.config import Config, RuleTable, merge
from rangewatch_server.alerts.lifecycle import Change, Open
from rangewatch_server.alerts.silences import Silence, silenced
from rangewatch_server.core.deadline import TimeLimitReached, limited
from rangewatch_server.core.metrics import Metrics
from rangewatch_server.ingest.commands import Ask, CommandRefused
from rangewatch_server.ingest.transaction import Changed, Refused
from rangewatch_server.ingest.writer import Busy, Unavailable, Writer
from rangewatch_server.maintenance.jobs import QueuedJobs, Stopped
from rangewatch_server.query.reader import Queries, Rank, RunReader
from rangewatch_server.rules import Finding
from rangewatch_server.rules.diagnosis import Diagnosis, diagnose
from rangewatch_server.rules.rule import SEVERITIES
from rangewatch_server.store import alerts
from rangewatch_server.store.alerts import NewAlert

logger = logging.getLogger("rangewatch.server")

SHARE = 0.015
"""Of one core, at most. The aim for all rules is 5 % of the server's time, 0.37 of a core with 200 ranks."""

EVERY_S = 2.0
"""Between two looks at one run, at least."""

REWRITE_S = 10.0
"""Between two writes of an alert whose numbers change all the time."""

LIVE_EVERY_S = 15.0
"""Between two looks at a live run that tells nothing."""

JOIN_S = 3.0
READ_LIMIT_S = 10.0
MOST_NAME, MOST_SUMMARY = 200, 2_000  # characters that ranks are sent


class Evaluator:
    """`changed` is called with what was committed."""

    def __init__(
        self, queries: Queries, writer: Writer, config: Config, metrics: Metrics, wake_delivery: Callable[[], None],
    ) -> None:  # fmt: skip
        self.queries, self.config, self.metrics = queries, config, metrics
        self.jobs = QueuedJobs(writer, self._has_ended)
        self.wake_delivery = wake_delivery
        self.spent_s = 0.0
        """Processor seconds that looks have taken so far."""
        self._due: dict[int, float] = {}
        self._runs: dict[int, _Run] = {}
        self._lock = threading.Lock()
        self._wake, self._ended = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._work, name="rangewatch-alerts", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """End it."""
        self._ended.set()
        self._wake.set()
        self._thread.join(JOIN_S)

    def changed(self, changes: Iterable[Changed]) -> None:
        """Runs that have news. From any thread; it does not wait."""
        for each in changes:
            self._look_in(each.run, EVERY_S)
        self._wake.set()

    def _has_ended(self) -> bool:
        return self._ended.is_set()

    def _look_in(self, run_id: int, seconds: float) -> None:
        """Have the run looked at so many seconds from now, or sooner if it is to be already."""
        at_s = time.monotonic() + seconds
        with self._lock:
            self._due[run_id] = min(at_s, self._due.get(run_id, at_s))

    def _work(self) -> None:
        while not self._ended.is_set():
            run_id, wait_s = self._next()
            if run_id is None:
                self._wake.wait(wait_s)
                self._wake.clear()
                continue
            began_s = time.thread_time()  # not the clock's: under load that counts what others take
            self._guarded(run_id)
            took_s = time.thread_time() - began_s
            self.spent_s += took_s
            self._ended.wait(took_s / SHARE)

    def _next(self) -> tuple[int | None, float | None]:
        """The run that is due longest, taken from the list; or None and how long until one is."""
        now_s = time.monotonic()
        with self._lock:
            if not self._due:
                return None, None
            run_id = min(self._due, key=self._due.__getitem__)
            if self._due[run_id] > now_s:
                return None, self._due[run_id] - now_s
            del self._due[run_id]
            return run_id, 0.0

    def _guarded(self, run_id: int) -> None:
        """Whatever fails here, the thread lives and looks again when the run has news."""
        try:
            self.look(run_id)
        except Stopped:
            return
        except TimeLimitReached:
            logger.warning(
                "the rules took longer than %.0f s on run %d; its alerts are not up to date", READ_LIMIT_S, run_id
            )
        except SQLAlchemyError as error:
            if not self._ended.is_set():  # the engines may be closed by then
                logger.error("alerts of run %d: a fault of the database: %s", run_id, str(error).splitlines()[0])
        except Exception:
            logger.exception("alerts of run %d failed", run_id)

    def look(self, run_id: int) -> Diagnosis | None:
        """Apply the rules to a run and bring its alerts up to date; None when it is gone."""
        with self.queries.read() as reader, limited(reader.connection, READ_LIMIT_S):
            run = reader.run(run_id)
            if run is None:
                self._runs.pop(run_id, None)
                return None
            mine = self._runs.get(run_id) or _known(run)
            found = diagnose(run, None, thresholds_of(run, self.config))
            is_live = any(run.is_live(rank) for rank in run.ranks.values())
            takers = tuple(number for number, rank in sorted(run.ranks.items()) if _takes_alerts(run, rank))
            size = max((rank.info.world_size for rank in run.ranks.values()), default=0)
            quiet = [Silence(**row._mapping) for row in alerts.silences(run.connection, run.now_ns)]
        self._runs[run_id], mine.is_live = mine, is_live
        change = mine.changed(found.findings, found.failed)
        if not change.is_nothing:
            reported = self._write(run_id, mine, change, quiet, found.stop - 1)
            for each in reported if takers else ():
                self._emit_to_ranks(Ask(run_id, _command(each), takers, size))
        self._count()
        if any(each.missing for each in mine.standing.values()):
            self._look_in(run_id, EVERY_S)
        elif is_live:  # a rank's silence is no news that anything tells
            self._look_in(run_id, LIVE_EVERY_S)
        else:
            self._runs.pop(run_id, None)  # of thousands that have ended nothing is kept; the rows are read again
        return found

    def _count(self) -> None:
        """Alerts of live runs, for /metrics: of one that has ended nobody can do anything."""
        live = [alert.finding for run in self._runs.values() if run.is_live for alert in run.standing.values()]
        self.metrics.open_alerts(Counter((found.rule, found.severity) for found in live))

    def _write(self, run_id: int, mine: _Run, change: Change, quiet: Sequence[Silence], step: int) -> list[Finding]:
        """Findings that have opened now and are not silenced."""
        now_ns = time.time_ns()
        reported = [(key, found, silenced(quiet, run_id, found, now_ns) is None) for key, found in change.opened]
        opened = self.jobs(lambda connection: self._rows(connection, run_id, change, reported, now_ns, step))
        for key, found, alert_id in opened:
            mine.standing[key] = Open(alert_id, found)
        if len(opened) < len(change.opened):  # another server has opened some: its rows are read at the next look
            self._runs.pop(run_id, None)
        mine.forget(change.resolved)
        mine.rewritten(change.changed)
        self.wake_delivery()
        new = {key for key, _, _ in opened}
        return [found for key, found, is_reported in reported if is_reported and key in new]

    def _emit_to_ranks(self, ask: Ask) -> None:
        """Those that were attached with `on_alert`. One that is too busy to be told is told by the page alone."""
        try:
            self.jobs.writer.command(ask).result()
        except (Busy, CommandRefused, Refused, Unavailable) as error:
            logger.warning("the ranks of run %d are not told of an alert: %s", ask.run_id, error)

    def _rows(
        self, connection: Connection, run_id: int, change: Change, reported: Sequence[tuple[str, Finding, bool]],
        now_ns: int, step: int,
    ) -> list[tuple[str, Finding, int]]:  # fmt: skip
        """What is written, in one transaction: an alert is never there without what is to be sent of it."""
        opened: list[tuple[str, Finding, int]] = []
        for key, found, is_reported in reported:
            alert_id = alerts.open_alert(connection, run_id, _row(key, found), now_ns)
            if alert_id is not None:
                opened.append((key, found, alert_id))
                targets = self._targets(found) if is_reported else []
                alerts.deliver(connection, alert_id, targets, "opened", now_ns)
        for alert_id, found in change.changed:
            alerts.change_alert(connection, alert_id, _row(lifecycle.identity(found), found))
        for alert_id in alerts.resolve(connection, change.resolved, now_ns, step):
            alerts.deliver_end(connection, alert_id, self._ends(), now_ns)
        if change.resolved:
            alerts.trim(connection, run_id)
        return opened

    def _targets(self, found: Finding) -> list[str]:
        importance = SEVERITIES.index(found.severity)
        return [each.name for each in self.config.targets if importance <= SEVERITIES.index(each.severity)]

    def _ends(self) -> list[str]:
        return [each.name for each in self.config.targets if each.resolved]


class _Run:
    """What this thread remembers of a run between two looks."""

    def __init__(self, standing: dict[str, Open]) -> None:
        self.standing, self.is_live = standing, True
        self._written_s: dict[int, float] = {}

    def changed(self, findings: Sequence[Finding], failed: Container[str]) -> Change:
        """What this look changes; an alert whose numbers change all the time only now and then."""
        change = lifecycle.look(self.standing, findings, failed)
        now_s = time.monotonic()
        severities = {alert.id: alert.finding.severity for alert in self.standing.values()}
        due = tuple(
            (alert_id, found)
            for alert_id, found in change.changed
            if found.severity != severities[alert_id] or now_s - self._written_s.get(alert_id, -REWRITE_S) >= REWRITE_S
        )
        return msgspec.structs.replace(change, changed=due)

    def rewritten(self, changed: Iterable[tuple[int, Finding]]) -> None:
        """These were written now."""
        by_id = {alert.id: alert for alert in self.standing.values()}
        for alert_id, found in changed:
            by_id[alert_id].finding = found
            self._written_s[alert_id] = time.monotonic()

    def forget(self, resolved: Sequence[int]) -> None:
        """These are over."""
        self.standing = {key: alert for key, alert in self.standing.items() if alert.id not in resolved}
        for alert_id in resolved:
            self._written_s.pop(alert_id, None)


def _takes_alerts(run: RunReader, rank: Rank) -> bool:
    return rank.info.takes_alerts and run.is_live(rank)


def _command(found: Finding) -> dict[str, Any]:
    """What the ranks are sent (docs/wire.md)."""
    names = ("rule", "severity", "rank", "step", "kind")
    alert = {name: getattr(found, name) for name in names}
    tensor = None if found.tensor is None else found.tensor[:MOST_NAME]
    return {"kind": "alert", "alert": alert | {"tensor": tensor, "summary": found.summary[:MOST_SUMMARY]}}


def _known(run: RunReader) -> _Run:
    """The run's open alerts, as a server before this one, or beside it, left them."""
    rows = alerts.standing(run.connection, run.id)
    return _Run({row.identity: Open(row.id, msgspec.json.decode(row.finding, type=Finding)) for row in rows})


def _row(key: str, found: Finding) -> NewAlert:
    return NewAlert(key, found.rule, found.severity, found.step, msgspec.json.encode(found))


def thresholds_of(run: RunReader, config: Config) -> dict[str, RuleTable]:
    """What the file says for the run, and over it what was set in the page."""
    found = config.given(run.name)
    given = alerts.thresholds(run.connection, run.id)
    if given is not None:
        merge(found, msgspec.json.decode(given, type=dict[str, RuleTable]))
    return found
