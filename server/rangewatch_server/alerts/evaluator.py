"""Evaluates the rules on runs that have changed, as often as the rules' cost allows, and opens and resolves alerts.

One thread. Rules may take at most a share of a core: after an evaluation that took t seconds of it the next one waits
t / share, however many runs there are. Only alerts change by it, and it waits for nobody.
"""

from __future__ import annotations

import hashlib
import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from typing import Any

import msgspec
from sqlalchemy import Connection
from sqlalchemy.exc import SQLAlchemyError

from rangewatch_server.alerts.config import Config, RuleTable, merge
from rangewatch_server.alerts.silences import Silence, silenced
from rangewatch_server.core.deadline import TimeLimitReached, limited
from rangewatch_server.core.metrics import Metrics
from rangewatch_server.core.settings import ALERTS_PERCENT
from rangewatch_server.ingest.commands import Ask, CommandRefused
from rangewatch_server.ingest.transaction import Changed, Refused
from rangewatch_server.ingest.writer import Busy, Unavailable, Writer
from rangewatch_server.maintenance.jobs import QueuedJobs, Stopped
from rangewatch_server.query.reader import Queries, Rank, RunReader
from rangewatch_server.rules import Finding, Remedy
from rangewatch_server.rules.diagnosis import LATE, Diagnosis, RulePace, diagnose
from rangewatch_server.rules.rule import SEVERITIES
from rangewatch_server.store import alerts
from rangewatch_server.store.alerts import NewAlert

GONE_AFTER = 3
"""Evaluations in a row that must lack a finding until its alert is over: one that flickers stays one alert."""


class Open(msgspec.Struct):
    """An alert that stands. `missing`: evaluations in a row at which its finding was not there."""

    id: int
    finding: Finding
    missing: int = 0


class RunHealth(msgspec.Struct, frozen=True):
    """What is known of a whole run in numbers, for ranks that take alerts (docs/wire.md)."""

    open_alerts: int
    critical_alerts: int
    gpus_in_trouble: int
    straggler_cost_s: float


def health(findings: Sequence[Finding]) -> RunHealth:
    """Of the findings that stand."""
    costs = [each.facts.get("cost_s", 0.0) for each in findings if each.rule == "straggler"]
    return RunHealth(
        open_alerts=len(findings),
        critical_alerts=sum(each.severity == "critical" for each in findings),
        gpus_in_trouble=sum(each.rule == "gpu_health" for each in findings),
        straggler_cost_s=max((float(each) for each in costs if isinstance(each, float | int)), default=0.0),
    )


class Change(msgspec.Struct, frozen=True):
    """What one evaluation changes: findings that open, alerts whose finding reads otherwise, alerts that are over."""

    opened: tuple[tuple[str, Finding], ...]
    changed: tuple[tuple[int, Finding], ...]
    resolved: tuple[int, ...]

    @property
    def is_nothing(self) -> bool:
        """Whether nothing is to be written."""
        return not (self.opened or self.changed or self.resolved)


def identity(finding: Finding) -> str:
    """Which finding this is: the same one at a later step, with other numbers, has the same identity."""
    parts = (finding.rule, finding.rank, finding.tensor, finding.kind, finding.subject)
    return hashlib.blake2b(repr(parts).encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


def compare(standing: Mapping[str, Open], findings: Iterable[Finding], failed: Container[str] = ()) -> Change:
    """Compare what stands, by identity, with what was found now; counts what is missing.

    `failed`: rules that could not be applied. Whether their findings are still there is unknown, so their alerts stay.
    """
    now: dict[str, Finding] = {}
    for each in findings:
        now.setdefault(identity(each), each)
    opened = tuple((key, finding) for key, finding in now.items() if key not in standing)
    changed: list[tuple[int, Finding]] = []
    resolved: list[int] = []
    for key, alert in standing.items():
        finding = now.get(key)
        if finding is None and alert.finding.rule in failed:
            continue
        alert.missing = 0 if finding is not None else alert.missing + 1
        if finding is not None and finding != alert.finding:
            changed.append((alert.id, finding))
        elif alert.missing >= GONE_AFTER:
            resolved.append(alert.id)
    return Change(opened, tuple(changed), tuple(resolved))


def unknown(failed: Mapping[str, str]) -> list[Finding]:
    """Rules that could not be applied as a finding of their own, so that a run of which too little is known does not
    look healthy.
    """
    if not failed:
        return []
    count = "1 rule" if len(failed) == 1 else f"{len(failed)} rules"
    listed = list(failed.items())[:MOST_NAMED]
    more = f" and {len(failed) - MOST_NAMED} more" if len(failed) > MOST_NAMED else ""
    names = ", ".join(name for name, _ in listed)
    late = Remedy("Give the server more processor time: it goes on trying.") if LATE in failed.values() else None
    return [
        Finding(
            rule=UNKNOWN, severity="warning",
            summary=f"{count} could not be applied to this run: {names}{more}. What they would say is not known.",
            evidence=tuple(f"{name}: {reason}" for name, reason in listed),
            remedy=(late or Remedy("The server's log has the traceback; please report it."),),
        )
    ]  # fmt: skip


logger = logging.getLogger("rangewatch.server")

UNKNOWN = "rules_unknown"
"""Stands where the names of rules do."""

MOST_NAMED = 8

EVERY_S = 2.0
"""Between two evaluations of one run, at least."""

REWRITE_S = 10.0
"""Between two writes of an alert whose numbers change all the time."""

LIVE_EVERY_S = 15.0
"""Between two evaluations of a live run that sends nothing."""

RECENT_NS = 7 * 86_400 * 10**9
MOST_RESUMED = 100
"""At the start the newest runs, heard of so lately, of which not all that the rules say is known: they ended, or fell
silent, while no server was there to look.
"""

RESUME_S = 15.0
"""After the start: agents that waited for a server, and who opens a page, come first."""

CATCH_UP_S, MOST_CATCH_UP_S = 0.5, 15.0
"""While the ranks of a run are being merged, as after a start, it is looked at this much later, at most so long."""

JOIN_S = 3.0
READ_LIMIT_S = 10.0
MOST_NAME, MOST_SUMMARY = 200, 2_000  # characters that ranks are sent


class Evaluator:
    """`changed` is called with what was committed. `share`: of one core, at most, for all rules in the mean."""

    def __init__(
        self, queries: Queries, writer: Writer, config: Config, metrics: Metrics, wake_delivery: Callable[[], None],
        share: float = ALERTS_PERCENT / 100,
    ) -> None:  # fmt: skip
        self.queries, self.config, self.metrics = queries, config, metrics
        self.jobs = QueuedJobs(writer, self._has_ended)
        self.wake_delivery, self.share = wake_delivery, share
        self.spent_s = 0.0
        """Processor seconds that looks have taken so far."""
        self.health: dict[str, RunHealth] = {}
        """Of live runs of which a rank takes alerts, by name."""
        self._due: dict[int, float] = {}
        self._put_off_s: dict[int, float] = {}
        """Since when a look at a run is put off."""
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
            self._evaluate_in(each.run, EVERY_S)
        self._wake.set()

    def _has_ended(self) -> bool:
        return self._ended.is_set()

    def _evaluate_in(self, run_id: int, seconds: float) -> None:
        """Have the run looked at so many seconds from now, or sooner if it is to be already."""
        at_s = time.monotonic() + seconds
        with self._lock:
            self._due[run_id] = min(at_s, self._due.get(run_id, at_s))

    def _resume(self) -> None:
        """Have runs looked at that get no news: what became of them while no server was there."""
        try:
            with self.queries.read() as reader, limited(reader.connection, READ_LIMIT_S):
                runs = alerts.unexamined(reader.connection, time.time_ns() - RECENT_NS, MOST_RESUMED)
        except (SQLAlchemyError, TimeLimitReached) as error:
            if not self._ended.is_set():
                logger.error("runs that the rules have not seen whole are not known: %s", str(error).splitlines()[0])
            return
        for run_id in runs:
            self._evaluate_in(run_id, RESUME_S)

    def _is_put_off(self, run_id: int) -> bool:
        now_s = time.monotonic()
        if self.jobs.writer.is_catching_up(run_id):
            if now_s - self._put_off_s.setdefault(run_id, now_s) < MOST_CATCH_UP_S:
                self._evaluate_in(run_id, CATCH_UP_S)
                return True
        else:
            self._put_off_s.pop(run_id, None)
        return False

    def _work(self) -> None:
        self._resume()
        while not self._ended.is_set():
            run_id, wait_s = self._next()
            if run_id is not None and self._is_put_off(run_id):
                continue
            if run_id is None:
                self._wake.wait(wait_s)
                self._wake.clear()
                continue
            began_s = time.thread_time()  # not the clock's: under load that counts what others take
            self._guarded(run_id)
            took_s = time.thread_time() - began_s
            self.spent_s += took_s
            self._ended.wait(took_s / self.share)

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
            self.evaluate(run_id)
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

    def evaluate(self, run_id: int) -> Diagnosis | None:
        """Apply the rules to a run and bring its alerts up to date; None when it is gone."""
        with self.queries.read() as reader, limited(reader.connection, READ_LIMIT_S):
            run = reader.run(run_id)
            if run is None:
                self._runs.pop(run_id, None)
                return None
            mine = self._runs.get(run_id) or _known(run)
            is_live = any(run.is_live(rank) for rank in run.ranks.values())
            takers = tuple(number for number, rank in sorted(run.ranks.items()) if _takes_alerts(run, rank))
            size = max((rank.info.world_size for rank in run.ranks.values()), default=0)
            quiet = [Silence(**row._mapping) for row in alerts.silences(run.connection, run.now_ns)]
            thresholds, versions = thresholds_of(run, self.config), sum(run.stream_versions.values())
            # What is said of a run that has ended is whole. Last, since it may use up the time there is.
            diagnosis = diagnose(run, None, thresholds, pace=mine.pace, is_whole=not is_live)
        self._runs[run_id], mine.is_live = mine, is_live
        change = mine.changed((*diagnosis.findings, *unknown(diagnosis.failed)), diagnosis.failed)
        if not change.is_nothing:
            reported = self._write(run_id, mine, change, quiet, diagnosis.stop - 1)
            for each in reported if takers else ():
                self._emit_to_ranks(Ask(run_id, _command(each), takers, size))
        if takers:
            self.health[run.name] = health([alert.finding for alert in mine.standing.values()])
        else:
            self.health.pop(run.name, None)
        self._count()
        if any(each.missing for each in mine.standing.values()) or LATE in diagnosis.failed.values():
            self._evaluate_in(run_id, EVERY_S)
        elif is_live:  # a rank's silence says nothing of it
            self._evaluate_in(run_id, LIVE_EVERY_S)
        else:
            self._runs.pop(run_id, None)  # of thousands that have ended nothing is kept; the rows are read again
            if not diagnosis.failed:
                self.jobs(lambda connection: alerts.examined(connection, run_id, versions))
        return diagnosis

    def _count(self) -> None:
        """Alerts of live runs, for /metrics: of one that has ended nobody can do anything."""
        live = [alert.finding for run in self._runs.values() if run.is_live for alert in run.standing.values()]
        self.metrics.open_alerts(Counter((finding.rule, finding.severity) for finding in live))

    def _write(self, run_id: int, mine: _Run, change: Change, quiet: Sequence[Silence], step: int) -> list[Finding]:
        """Findings that have opened now and are not silenced."""
        now_ns = time.time_ns()
        reported = [(key, finding, silenced(quiet, run_id, finding, now_ns) is None) for key, finding in change.opened]
        opened = self.jobs(lambda connection: self._rows(connection, run_id, change, reported, now_ns, step))
        for key, finding, alert_id in opened:
            mine.standing[key] = Open(alert_id, finding)
        if len(opened) < len(change.opened):  # another server has opened some: its rows are read at the next look
            self._runs.pop(run_id, None)
        mine.forget(change.resolved)
        mine.rewritten(change.changed)
        self.wake_delivery()
        new = {key for key, _, _ in opened}
        return [finding for key, finding, is_reported in reported if is_reported and key in new]

    def _emit_to_ranks(self, ask: Ask) -> None:
        """Those that were attached with `on_alert`. One that is too busy is informed by the page alone."""
        try:
            self.jobs.writer.command(ask).result()
        except (Busy, CommandRefused, Refused, Unavailable) as error:
            logger.warning("the ranks of run %d are not informed of an alert: %s", ask.run_id, error)

    def _rows(
        self, connection: Connection, run_id: int, change: Change, reported: Sequence[tuple[str, Finding, bool]],
        now_ns: int, step: int,
    ) -> list[tuple[str, Finding, int]]:  # fmt: skip
        """What is written, in one transaction: an alert is never there without what is to be sent of it."""
        opened: list[tuple[str, Finding, int]] = []
        for key, finding, is_reported in reported:
            alert_id = alerts.open_alert(connection, run_id, _row(key, finding), now_ns)
            if alert_id is not None:
                opened.append((key, finding, alert_id))
                targets = self._targets(finding) if is_reported else []
                alerts.deliver(connection, alert_id, targets, "opened", now_ns)
        for alert_id, finding in change.changed:
            alerts.change_alert(connection, alert_id, _row(identity(finding), finding))
        for alert_id in alerts.resolve(connection, change.resolved, now_ns, step):
            alerts.deliver_end(connection, alert_id, self._ends(), now_ns)
        if change.resolved:
            alerts.trim(connection, run_id)
        return opened

    def _targets(self, finding: Finding) -> list[str]:
        importance = SEVERITIES.index(finding.severity)
        return [each.name for each in self.config.targets if importance <= SEVERITIES.index(each.severity)]

    def _ends(self) -> list[str]:
        return [each.name for each in self.config.targets if each.resolved]


class _Run:
    """What this thread remembers of a run between two looks."""

    def __init__(self, standing: dict[str, Open]) -> None:
        self.standing, self.is_live = standing, True
        self.pace = RulePace()
        self._written_s: dict[int, float] = {}

    def changed(self, findings: Sequence[Finding], failed: Container[str]) -> Change:
        """What this look changes; an alert whose numbers change all the time only now and then."""
        change = compare(self.standing, findings, failed)
        now_s = time.monotonic()
        severities = {alert.id: alert.finding.severity for alert in self.standing.values()}
        due = tuple(
            (alert_id, finding)
            for alert_id, finding in change.changed
            if finding.severity != severities[alert_id]
            or now_s - self._written_s.get(alert_id, -REWRITE_S) >= REWRITE_S
        )
        return msgspec.structs.replace(change, changed=due)

    def rewritten(self, changed: Iterable[tuple[int, Finding]]) -> None:
        """These were written now."""
        by_id = {alert.id: alert for alert in self.standing.values()}
        for alert_id, finding in changed:
            by_id[alert_id].finding = finding
            self._written_s[alert_id] = time.monotonic()

    def forget(self, resolved: Sequence[int]) -> None:
        """These are over."""
        self.standing = {key: alert for key, alert in self.standing.items() if alert.id not in resolved}
        for alert_id in resolved:
            self._written_s.pop(alert_id, None)


def _takes_alerts(run: RunReader, rank: Rank) -> bool:
    return rank.info.takes_alerts and run.is_live(rank)


def _command(finding: Finding) -> dict[str, Any]:
    """What the ranks are sent (docs/wire.md)."""
    names = ("rule", "severity", "rank", "step", "kind")
    alert = {name: getattr(finding, name) for name in names}
    tensor = None if finding.tensor is None else finding.tensor[:MOST_NAME]
    return {"kind": "alert", "alert": alert | {"tensor": tensor, "summary": finding.summary[:MOST_SUMMARY]}}


def _known(run: RunReader) -> _Run:
    """The run's open alerts, as a server before this one, or beside it, left them."""
    rows = alerts.standing(run.connection, run.id)
    return _Run({row.identity: Open(row.id, msgspec.json.decode(row.finding, type=Finding)) for row in rows})


def _row(key: str, finding: Finding) -> NewAlert:
    return NewAlert(key, finding.rule, finding.severity, finding.step, msgspec.json.encode(finding))


def thresholds_of(run: RunReader, config: Config) -> dict[str, RuleTable]:
    """What the file says for the run, and over it what was set in the page."""
    tables = config.given(run.name)
    given = alerts.thresholds(run.connection, run.id)
    if given is not None:
        merge(tables, msgspec.json.decode(given, type=dict[str, RuleTable]))
    return tables
